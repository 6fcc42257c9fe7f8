"""Benchmarks: `python -m tests.bench [--responses N] [--rounds R] [--json FILE]`.

Runs rlpost and the baselines as whole processes, in alternation, for several rounds. Compare only
ratios of medians from the same run.
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

from tests.bench.inputs import write_rollouts
from tests.bench.micro import group_statistics, scans

HERE = Path(__file__).parent
RLPOST = [str(Path(sys.executable).with_name("rlpost")), "advantages", "--quiet", "--overwrite"]
KL = ["--kl-coef", "0.05"]
COMMANDS = {
    "rlpost grpo": [*RLPOST, "--estimator", "grpo"],
    "rlpost grpo + kl": [*RLPOST, "--estimator", "grpo", *KL],
    "rlpost gae + kl + whitening": [*RLPOST, "--estimator", "gae", *KL, "--whiten-advantages"],
    "rlpost grpo --emit-only": [*RLPOST, "--estimator", "grpo", "--emit-only"],
    **{
        name.replace("_", " "): [sys.executable, str(HERE / "baselines.py"), name]
        for name in ("copy", "polars", "padded_grpo", "padded_gae", "cp")
    },
}
TARGETS = {  # (command, baseline): maximal ratio of their times
    ("rlpost grpo", "copy"): 0.25,
    ("rlpost grpo + kl", "copy"): 0.30,
    ("rlpost gae + kl + whitening", "copy"): 0.45,
    ("rlpost grpo", "polars"): 0.35,
    ("rlpost gae + kl + whitening", "padded gae"): 1 / 15,
}


def timed(argv: list[str]) -> tuple[float, float]:
    """Run a process and return its seconds and peak MB.

    Raises:
        RuntimeError: the process failed.
    """
    # Python caches compiled modules, as in a normal installation, whatever the shell has set.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(argv, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{argv} failed with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000


def compare(
    source: Path, folder: Path, rounds: int, slow_rounds: int
) -> dict[str, dict[str, float]]:
    """Return medians of all commands; the padded baselines run only `slow_rounds` rounds."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for index in range(rounds):
        for name, argv in COMMANDS.items():
            if name.startswith("padded") and index >= slow_rounds:
                continue
            target = folder / "out.parquet"
            target.unlink(missing_ok=True)
            split = 2 if name.startswith("rlpost") else len(argv)
            command = [*argv[:split], str(source), str(target), *argv[split:]]
            measured[name].append(timed(command))
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
    """Return time and memory for 1, 2, 4 and 8 times the input, and for start-up (0x)."""
    measured = {}
    source, target = folder / "growth.parquet", folder / "out.parquet"
    for factor in (0, 1, 2, 4, 8):
        write_rollouts(source, max(8, responses * factor))
        os.sync()  # otherwise writing the input to disk would slow down the run
        argv = [*COMMANDS["rlpost gae + kl + whitening"], str(source), str(target)]
        runs = [timed(argv) for _ in range(rounds)]
        measured[f"{factor}x"] = {
            "seconds": statistics.median(run[0] for run in runs),
            "peak_mb": max(run[1] for run in runs),
        }
        print(f"  {factor}x: {measured[f'{factor}x']}", flush=True)
        source.unlink()
    return measured


def show(results: dict[str, dict[str, float]]) -> None:
    """Print medians, ratios to `copy`, and whether each target is met."""
    copy = results["copy"]["seconds"]
    print(f"\n{'':30} {'seconds':>8} {'x copy':>8} {'peak MB':>8}")
    for name, measured in results.items():
        seconds = measured["seconds"]
        print(f"{name:30} {seconds:8.2f} {seconds / copy:8.3f} {measured['peak_mb']:8.0f}")
    print()
    for (name, baseline), maximum in TARGETS.items():
        if name in results and baseline in results:
            ratio = results[name]["seconds"] / results[baseline]["seconds"]
            verdict = "met" if ratio <= maximum else "MISSED"
            print(f"{name} / {baseline}: {ratio:.3f}, target {maximum:.3f}: {verdict}")


def main() -> None:
    """Run the selected parts and print their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=64_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1, help="rounds of the padded baselines")
    parser.add_argument("--parts", default="compare,scans,groups,growth")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    folder = Path(tempfile.mkdtemp(prefix="rlpost-bench-"))
    results: dict[str, object] = {"cores": os.cpu_count(), "responses": arguments.responses}
    try:
        if "compare" in parts:
            source = folder / "in.parquet"
            write_rollouts(source, arguments.responses)
            results["bytes"] = source.stat().st_size
            medians = compare(source, folder, arguments.rounds, arguments.slow_rounds)
            results["compare"] = medians
            show(medians)
            source.unlink()
        if "scans" in parts:
            results["scans"] = scans()
        if "groups" in parts:
            results["groups"] = group_statistics()
        if "growth" in parts:
            results["growth"] = growth(folder, arguments.responses // 2, 2)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
