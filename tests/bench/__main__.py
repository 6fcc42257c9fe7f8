"""Benchmarks: `python -m tests.bench [--parts P,...] [--only TEXT] [--rounds R] [--record]`.

Runs rlpost's commands and their peers as whole processes, in alternation, for several rounds.
Compare only ratios of medians from the same run. `RLPOST=PATH` measures another program.

Parts: `commands` on one large file, `small` (many files, row groups and steps), `training` (batches
of an epoch), `convert`, `growth` (1 to 8 times the input).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.commands import CASES, WHITENED, Files, Measured, program, run, timed, write_input
from tests.bench.history import record
from tests.bench.machine import commit, machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.commands import Case

PARTS = ("commands", "small", "training", "convert", "growth")
Json = dict[str, Any]


def measure(cases: Sequence[Case], files: Files, rounds: int) -> dict[str, Measured]:
    """Return the medians of the runs of each case that succeeds."""
    runs: dict[str, list[Measured]] = {case.name: [] for case in cases}
    for index in range(rounds):
        for case in cases:
            if index and not runs[case.name]:
                continue
            os.sync()  # what the case before wrote does not slow this one down
            try:
                done = run(case, files)
            except RuntimeError as error:  # an older program lacks an option, or a peer is missing
                print(f"  {case.name:28} failed: {error}", flush=True)
                continue
            runs[case.name].append(done)
            print(f"  {case.name:28} {done.seconds:7.2f} s {done.peak_mb:6.0f} MB", flush=True)
    return {name: _median(measured) for name, measured in runs.items() if measured}


def _median(runs: list[Measured]) -> Measured:
    seconds, cpu, peak = (statistics.median(run[i] for run in runs) for i in range(3))
    works = [run.work for run in runs if run.work is not None]
    return Measured(seconds, cpu, peak, statistics.median(works) if works else None)


def ratios(cases: Sequence[Case], medians: dict[str, Measured], files: Files) -> dict[str, Json]:
    """Return the entries of all cases: seconds, CPU seconds, peak MB, and the target."""
    entries: dict[str, Json] = {}
    for case in (case for case in cases if case.name in medians):
        done, base = medians[case.name], medians.get(case.of)
        entry: Json = {"seconds": done.seconds, "cpu": done.cpu, "peak_mb": done.peak_mb}
        own, other = (
            (done.work, base and base.work)
            if case.without_start_up
            else (done.seconds, base and base.seconds)
        )
        if case.without_start_up:
            entry["without_start_up"] = own
        if own and other:
            entry |= {"ratio": own / other, "of": case.of}
        if case.most is not None:
            entry["target"] = case.most
        entries[case.name] = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in entry.items()
        }
    if "convert" in entries:
        first = entries.pop("convert, first MB")
        size = [files.path(name).stat().st_size / 1e6 for name in ("jsonl", "short_jsonl")]
        cpu = entries["convert"]["cpu"] - first["cpu"]
        entries["convert"]["mb_per_cpu_second"] = round((size[0] - size[1]) / cpu, 1)
    return entries


def growth(folder: Path, responses: int, rounds: int) -> Json:
    """Return time and memory of gae + KL + whitening for 0, 1, 2, 4 and 8 times the input."""
    measured = {}
    source, target = folder / "growth.parquet", folder / "grown.parquet"
    for factor in (0, 1, 2, 4, 8):
        write_input("rollouts", source, max(8, responses * factor))
        argv = [program(), "advantages", str(source), str(target), "--overwrite", "--quiet"]
        done = _median([timed([*argv, *WHITENED]) for _ in range(rounds)])
        measured[f"{factor}x"] = {"seconds": done.seconds, "peak_mb": done.peak_mb}
        print(f"  {factor}x: {done.seconds:.2f} s, {done.peak_mb:.0f} MB", flush=True)
        source.unlink()
    return measured


def show(entries: dict[str, Json]) -> None:
    """Print medians and ratios, and whether each meets its target."""
    print(f"\n{'':28} {'seconds':>8} {'CPU s':>7} {'peak MB':>8} {'ratio':>6} {'target':>6}")
    for name, entry in entries.items():
        ratio = entry.get("ratio", entry.get("without_start_up"))
        target = entry.get("target")
        texts = (f"{value:6.3f}" if value else " " * 6 for value in (ratio, target))
        verdict = "" if not (ratio and target) else "  met" if ratio <= target else "  MISSED"
        speed = f"  {entry['mb_per_cpu_second']:.0f} MB/s a core" if name == "convert" else ""
        print(
            f"{name:28} {entry['seconds']:8.2f} {entry['cpu']:7.2f} {entry['peak_mb']:8.0f} "
            f"{' '.join(texts)}{verdict}{speed}"
        )


def main() -> None:
    """Run the selected parts, and print or record their results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=64_000, help="of the large file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="commands,small,convert")
    parser.add_argument("--only", default="", help="cases with this text in their name, and copies")
    parser.add_argument("--folder", type=Path, help="of inputs and outputs; kept afterwards")
    parser.add_argument("--record", action="store_true", help="append the results to the history")
    parser.add_argument("--commit", help="of the program that is measured")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if unknown := {*parts}.difference(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="rlpost-bench-"))
    folder.mkdir(exist_ok=True)
    results: Json = {
        "commit": arguments.commit or commit(),
        "machine": machine(),
        "responses": arguments.responses,
        "rounds": arguments.rounds,
    }
    print(json.dumps(results))
    try:
        files = Files(folder, arguments.responses)
        cases = [case for case in CASES if case.group in parts]
        if arguments.only:
            named = [case for case in cases if arguments.only in case.name]
            bases = {case.of for case in named}
            cases = [case for case in cases if case in named or case.name in bases]
        if cases:
            results["cases"] = ratios(cases, measure(cases, files, arguments.rounds), files)
            show(results["cases"])
        if "growth" in parts:
            results["growth"] = growth(folder, arguments.responses // 2, 2)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.record:
        record(results)


if __name__ == "__main__":
    main()
