"""The benchmark suite: `python -m tests.bench [--responses N] [--rounds R] [--json FILE]`.

Every contender runs as a whole process, interleaved with the others, several rounds; what counts
are ratios of medians from one run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.alone import group_statistics, scans
from tests.bench.make import make

HERE = Path(__file__).parent
RLPOST = [str(Path(sys.executable).with_name("rlpost")), "advantages", "--quiet", "--overwrite"]
KL = ["--kl-coef", "0.05"]
COMMANDS = {
    "rlpost grpo": [*RLPOST, "--estimator", "grpo"],
    "rlpost grpo + kl": [*RLPOST, "--estimator", "grpo", *KL],
    "rlpost gae + kl + whitening": [*RLPOST, "--estimator", "gae", *KL, "--whiten-advantages"],
    "rlpost grpo --emit-only": [*RLPOST, "--estimator", "grpo", "--emit-only"],
    **{
        name.replace("_", " "): [sys.executable, str(HERE / "contenders.py"), name]
        for name in ("copy", "polars", "padded_grpo", "padded_gae", "cp")
    },
}
TARGETS = {  # contender, against, at most this ratio
    ("rlpost grpo", "copy"): 0.25,
    ("rlpost grpo + kl", "copy"): 0.30,
    ("rlpost gae + kl + whitening", "copy"): 0.45,
    ("rlpost grpo", "polars"): 0.35,
    ("rlpost gae + kl + whitening", "padded gae"): 1 / 15,
}


def timed(argv: list[str]) -> tuple[float, float]:
    """Seconds and peak MB of a process; it must succeed."""
    # Modules are compiled once, as wherever rlpost is installed, whatever this shell says.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(argv, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{argv} failed with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000


def compare(source: Path, folder: Path, rounds: int, slow: int) -> dict[str, dict[str, float]]:
    """Medians of all contenders on one file; the padded ones run `slow` rounds only."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for place in range(rounds):
        for name, argv in COMMANDS.items():
            if name.startswith("padded") and place >= slow:
                continue
            target = folder / "out.parquet"
            target.unlink(missing_ok=True)
            split = 2 if name.startswith("rlpost") else len(argv)
            words = [*argv[:split], str(source), str(target), *argv[split:]]
            measured[name].append(timed(words))
            print(f"  {name:30} {measured[name][-1][0]:7.2f} s", flush=True)
    return {
        name: {
            "seconds": statistics.median(run[0] for run in runs),
            "peak_mb": max(run[1] for run in runs),
        }
        for name, runs in measured.items()
        if runs
    }


def growth(folder: Path, responses: int, rounds: int) -> dict[str, dict[str, float]]:
    """Time and memory of one recipe at 1, 2, 4 and 8 times the input, and of start-up alone."""
    found = {}
    source, target = folder / "grow.parquet", folder / "grown.parquet"
    for times in (0, 1, 2, 4, 8):
        make(source, max(8, responses * times))
        os.sync()  # or the input would still be on its way to the disk
        argv = [*COMMANDS["rlpost gae + kl + whitening"], str(source), str(target)]
        runs = [timed(argv) for _ in range(rounds)]
        found[f"{times}x"] = {
            "seconds": statistics.median(run[0] for run in runs),
            "peak_mb": max(run[1] for run in runs),
        }
        print(f"  {times}x: {found[f'{times}x']}", flush=True)
        source.unlink()
    return found


def show(results: dict[str, dict[str, float]]) -> None:
    """Medians, ratios to `copy`, and the targets."""
    copy = results["copy"]["seconds"]
    print(f"\n{'':30} {'seconds':>8} {'x copy':>8} {'peak MB':>8}")
    for name, facts in results.items():
        seconds = facts["seconds"]
        print(f"{name:30} {seconds:8.2f} {seconds / copy:8.3f} {facts['peak_mb']:8.0f}")
    print()
    for (name, against), most in TARGETS.items():
        if name in results and against in results:
            ratio = results[name]["seconds"] / results[against]["seconds"]
            verdict = "met" if ratio <= most else "MISSED"
            print(f"{name} / {against}: {ratio:.3f}, at most {most:.3f}: {verdict}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=64_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1, help="rounds of the padded loops")
    parser.add_argument("--parts", default="compare,scans,groups,growth")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts = given.parts.split(",")
    folder = Path(tempfile.mkdtemp(prefix="rlpost-bench-"))
    results: dict[str, object] = {"cores": os.cpu_count(), "responses": given.responses}
    try:
        if "compare" in parts:
            source = folder / "in.parquet"
            make(source, given.responses)
            results["bytes"] = source.stat().st_size
            found = compare(source, folder, given.rounds, given.slow_rounds)
            results["compare"] = found
            show(found)
            source.unlink()
        if "scans" in parts:
            results["scans"] = scans()
        if "groups" in parts:
            results["groups"] = group_statistics()
        if "growth" in parts:
            results["growth"] = growth(folder, given.responses // 2, 2)
    finally:
        shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
