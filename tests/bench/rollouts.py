"""GRPO of rollouts of several rows beside the same rows as responses.

    python -m tests.bench.rollouts [--rows 300000] [--rounds 5] [--folder DIR]

Writes rows of 15 turns a rollout, and runs both as whole processes in turn. Prints the medians of
seconds, CPU seconds and peak MB, and those of their ratios in each round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.bench.commands import Measured, program, timed, write_input
from tests.bench.machine import machine

COUNTED = {
    "responses": ("--unit", "row"),
    "rollouts": ("--unit", "rollout", "--map", "rollout=rollout_id"),
}


def measured(folder: Path, rows: int, rounds: int) -> dict[str, list[Measured]]:
    """Return what was measured of each, round by round, without the first."""
    source, out = folder / "turns.parquet", folder / "out.parquet"
    write_input("turns", source, rows)
    runs: dict[str, list[Measured]] = {name: [] for name in COUNTED}
    for _ in range(rounds + 1):
        for name, words in COUNTED.items():
            out.unlink(missing_ok=True)
            argv = [
                program(),
                "advantages",
                str(source),
                str(out),
                "--quiet",
                "--estimator",
                "grpo",
            ]
            runs[name].append(timed([*argv, *words]))
    return {name: own[1:] for name, own in runs.items()}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        runs = measured(Path(name), options.rows, options.rounds)
    print(machine())
    for name, own in runs.items():
        print(name, {part: _median(own, part) for part in Measured._fields[:3]})
    for part in Measured._fields[:3]:
        pairs = zip(*runs.values(), strict=True)
        ratio = statistics.median(getattr(b, part) / getattr(a, part) for a, b in pairs)
        print(f"{part}: rollouts / responses {ratio:.3f}")


def _median(runs: list[Measured], part: str) -> float:
    return round(statistics.median(getattr(run, part) for run in runs), 2)


if __name__ == "__main__":
    main()
