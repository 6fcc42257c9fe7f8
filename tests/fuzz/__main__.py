"""Fuzzing: `python -m tests.fuzz [--files N | --seconds S] [--target NAME]`.

Each target runs in its own process, which must not crash, use more than 4 GB, or spend more than a
minute on one input. Each finding is stored in a folder, as an input and a text, and the exit code
is 1 then. `--replay FILE` runs one input again.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "support")]

SLOWEST = 60.0  # seconds for one input
LARGEST = 4 << 30  # bytes of memory of a process
MOST_TURNS = 50  # restarts of a loop that crashed, each with other mutants
SHARES = {"parquet": 0.65, "dumps": 0.35}


def main() -> int:
    """Run the targets, print a line for each, and return the exit code."""
    asked = arguments()
    if asked.child:
        return loop(asked.child, asked.target, asked.seed, asked.files, asked.seconds)
    if asked.replay:
        return replay(asked.target or asked.replay.name.split("-")[0], asked.replay)
    keep = asked.keep or Path(tempfile.mkdtemp(prefix="rlpost-fuzz-"))
    for name in [asked.target] if asked.target else SHARES:
        share = 1.0 if asked.target else SHARES[name]
        watch(
            name,
            keep / name,
            int((asked.files or 10**9) * share),
            asked.seconds * share,
            asked.seed,
        )
    found = [*keep.rglob("*.input")]
    print(f"{len(found)} findings, kept in {keep}")
    return int(bool(found))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=SHARES)
    parser.add_argument("--files", type=int, help="inputs in all, shared among the targets")
    parser.add_argument("--seconds", type=float, default=1e6, help="in all, likewise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for findings")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def watch(name: str, top: Path, files: int, seconds: float, seed: int) -> None:
    """Run a target's loop, and again after it crashed; the input of the crash is a finding."""
    end = time.monotonic() + seconds
    for turn in range(MOST_TURNS):
        folder = top / str(turn)
        folder.mkdir(parents=True)
        words = ["--child", folder, "--target", name, "--files", files, "--seconds",
                 max(0.0, end - time.monotonic()), "--seed", seed * 1000 + turn]  # fmt: skip
        argv = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", *map(str, words)]
        ended = subprocess.run(argv, cwd=HERE.parents[1], check=False)
        if not ended.returncode:
            break
        current = folder / "current"
        current.touch()
        current.rename(folder / f"{name}-crashed.input")


def loop(folder: Path, name: str, seed: int, files: int, seconds: float) -> int:
    """Run seeds, mutants of them and of the corpus, and of mutants with a new outcome."""
    from fuzz import targets

    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST, LARGEST))
    warnings.simplefilter("error", RuntimeWarning)  # NaN or overflow in a number for a file
    target, rng = targets.TARGETS[name], random.Random(f"{seed} {name}")  # noqa: S311
    pool, outcomes, end = target.start(), Counter[str](), time.monotonic() + seconds
    begun = len(pool)
    try:
        for place in range(files):
            if time.monotonic() > end:
                break
            data = pool[place] if place < begun else target.mutate(rng.choice(pool), rng, pool)
            (folder / "current").write_bytes(data)
            faulthandler.dump_traceback_later(SLOWEST, exit=True)
            before = len(outcomes)
            try:
                outcomes[target.check(data)] += 1
            except Exception as error:  # noqa: BLE001 - everything unexpected is a finding
                outcomes[f"FOUND {keep_finding(folder, name, data, error)}"] += 1
            if len(outcomes) > before and place >= begun:
                pool.append(data)
    finally:
        faulthandler.cancel_dump_traceback_later()
        targets.clean_up()
    print(name, dict(outcomes.most_common()))
    return 0


def keep_finding(folder: Path, name: str, data: bytes, error: Exception) -> str:
    """Store an unexpected error, once for each place in the code that raises it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if "rlpost" in frame.filename] or frames)[-1]
    where = f"{type(error).__name__} {Path(last.filename).name}:{last.lineno}"
    path = folder / f"{name}-{hashlib.sha256(where.encode()).hexdigest()[:12]}.input"
    if not path.exists():
        path.write_bytes(data)
        text = "".join(traceback.format_exception(error)[-12:])
        path.with_suffix(".txt").write_text(f"{where}\n{text}", errors="replace")
    return where


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
