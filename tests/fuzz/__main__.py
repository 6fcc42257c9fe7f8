"""Fuzzing: `python -m tests.fuzz [--files N | --seconds S] [--target NAME]`.

Each target runs in its own process under a watchdog: it must not crash, use more than 2 GB, or
spend more than 10 s on one input. Each finding is stored in a folder, as an input and a text, and
the exit code is 1 then. `--replay FILE` runs one input again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "support")]

SLOWEST = 10.0  # seconds of CPU time for one input
STARTING = 900.0  # seconds of wall time without a new input
LARGEST = 2 << 30  # bytes of memory of a process
MOST_TURNS = 50  # restarts of a stopped loop, each with other mutants
SHARES = {
    "parquet": 0.5, "dumps": 0.25, "footer": 0.05, "recipe": 0.05, "line": 0.05,
    "metadata": 0.1,
}  # fmt: skip
NAMES = tuple(SHARES)


def main() -> int:
    """Run the targets, print a line for each, and return the exit code."""
    asked = arguments()
    if asked.child:
        return child(asked)
    if asked.replay:
        return replay(asked.target or asked.replay.name.split("-")[0], asked.replay)
    keep = asked.keep or Path(tempfile.mkdtemp(prefix="rlpost-fuzz-"))
    targets = [asked.target] if asked.target else list(NAMES)
    results = [watched(name, asked, keep / name) for name in targets]
    for one in results:
        print(json.dumps(one))
    bad = sum(len(one["found"]) for one in results)
    print(f"{sum(one['files'] for one in results):,} inputs, {bad} findings, kept in {keep}")
    return int(bool(bad))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=NAMES)
    parser.add_argument("--files", type=int, help="inputs in all, shared among the targets")
    parser.add_argument("--seconds", type=float, default=1e6, help="in all, likewise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for findings")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def child(asked: argparse.Namespace) -> int:
    """Run the loop of one target, in a child process."""
    from fuzz import loops, targets

    log = loops.Log(asked.child, targets.TARGETS[asked.target])
    warnings.simplefilter("error", RuntimeWarning)  # NaN or overflow in a number for a file
    try:
        loops.at_random(log, asked.seed, asked.files, asked.seconds)
    finally:
        targets.clean_up()
    return 0


def watched(name: str, asked: argparse.Namespace, top: Path) -> dict:
    """Run a target's loop, restart it after it was stopped, and return the results."""
    share = 1.0 if asked.target else SHARES[name]
    left = max(1, int((asked.files or 10**9) * share))
    end = time.monotonic() + asked.seconds * share
    result = {"target": name, "files": 0, "seconds": 0.0, "peak_mb": 0, "found": [], "outcomes": {}}
    for turn in range(MOST_TURNS):
        own = top / str(turn)
        own.mkdir(parents=True)
        begun = time.monotonic()
        words = ["--child", own, "--target", name, "--files", left,
                 "--seconds", end - begun, "--seed", asked.seed * 1000 + turn]  # fmt: skip
        argv = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", *map(str, words)]
        why, peak = watch(argv, own)
        files = add(result, own, peak, time.monotonic() - begun)
        left -= max(files, 1)
        if why is not None:
            if (own / "current").exists():
                shutil.copy(own / "current", own / f"{name}-stopped.input")
            result["found"].append(f"{why}: {own}/{name}-stopped.input")
        if why is None or left <= 0 or time.monotonic() > end:
            break
    return result


def add(result: dict, own: Path, peak: int, seconds: float) -> int:
    """Add a loop's counts to the result; return how many inputs it ran."""
    counts = [line.split(" ", 1) for line in read(own / "counts").splitlines()]
    for count, outcome in counts:
        result["outcomes"][outcome] = result["outcomes"].get(outcome, 0) + int(count)
    files = sum(int(count) for count, _ in counts)
    result["files"] += files
    result["seconds"] = round(result["seconds"] + seconds, 1)
    result["peak_mb"] = max(result["peak_mb"], peak >> 20)
    result["found"] += [read(path).split("\n")[0] for path in sorted(own.glob("*.txt"))]
    return files


def read(path: Path) -> str:
    """Return a file's text, empty if the file does not exist."""
    return path.read_text(errors="replace") if path.exists() else ""


def watch(argv: list[str], own: Path) -> tuple[str | None, int]:
    """Run a process, stop it if necessary; return the reason and its peak memory in bytes."""
    with (own / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=HERE.parents[1], stdout=log, stderr=log)
    peak, why, begun, spent_then = 0, None, 0.0, 0.0
    while process.poll() is None:
        time.sleep(0.25)
        peak = max(peak, resident(process.pid))
        if begun != (changed := own.stat().st_mtime):  # the next input
            begun, spent_then = changed, cpu_seconds(process.pid)
        spent = cpu_seconds(process.pid) - spent_then
        if peak > LARGEST:
            why = f"used {peak >> 20} MB"
        elif (own / "current").exists() and spent > SLOWEST:
            why = f"used {spent:.0f} s of CPU time"
        elif time.time() - begun > STARTING:
            why = f"ran no new input for {STARTING:.0f} s"
        if why:
            process.send_signal(signal.SIGABRT)
            process.wait()
    if why is None and process.returncode:
        why = f"ended with {process.returncode}: {read(own / 'log')[-300:]}"
    return why, max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def replay(name: str, path: Path) -> int:
    """Run one input in this process, so that errors have a traceback."""
    from fuzz import targets

    try:
        print(targets.TARGETS[name].check(path.read_bytes()))
    finally:
        targets.clean_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
