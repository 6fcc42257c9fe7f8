"""Benchmark of a device: `python -m tests.bench.cuda [--device cuda] [--out FOLDER]`.

Parts: `kernels` (functions on tokens, as a share of a copy within the device's memory), `transfers`
(the bus, with pinned memory) and `runs` (whole runs on one generated file, on the CPU and on the
device, with several numbers of workers). Prints tables; FOLDER gets them as text and as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from rlpost.display.text import counted
from rlpost.errors import RlpostError
from rlpost.io.system import cores
from rlpost.pipeline.accelerators import devices_named
from rlpost.pipeline.device import TORCH_CPU
from tests.bench.commands import write_input
from tests.bench.kernels import TRANSFERS, kernels, transfers
from tests.bench.machine import commit, machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Json = dict[str, Any]
PARTS = ("kernels", "transfers", "runs")
RECIPES: dict[str, Json] = {
    "grpo": {"estimator": "grpo"},
    "gae + KL + whitening": {"estimator": "gae", "kl_coef": 0.05, "whiten_advantages": True},
}
COLUMNS = ("advantages", "returns")
WORKERS = (4, 16, 1, 8)
ON_CPU = "On a CPU this tries the benchmark alone: shares of a copy mean nothing there."
LIMITS = ("read", "compute", "encode", "write")
_SAMPLE = 2000  # responses, whose writing is timed before the input is written
_WRITE_SECONDS = 50
_TIMEOUT = 300


def write_file(path: Path, responses: int) -> int:
    """Write the input, of fewer responses if it would take too long; return their number."""
    start = time.perf_counter()
    write_input("rollouts", path, min(responses, _SAMPLE))
    possible = int(_SAMPLE * _WRITE_SECONDS / (time.perf_counter() - start))
    if responses > _SAMPLE:
        responses = min(responses, possible)
        write_input("rollouts", path, responses)
    return responses


def one_run(source: Path, target: Path, recipe: Json, options: Json) -> Json:
    """Run once in a process of its own; return what it printed, its wall time and its errors."""
    target.unlink(missing_ok=True)
    os.sync()  # what the run before wrote does not slow this one down
    words = (str(source), str(target), json.dumps(recipe), json.dumps(options))
    argv = [sys.executable, "-m", "tests.bench.device_run", *words]
    start = time.perf_counter()
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_TIMEOUT)
    except subprocess.SubprocessError as error:
        return {"error": f"{error}\n{getattr(error, 'stderr', '') or ''}"[-2000:]}
    return {"wall": time.perf_counter() - start, **json.loads(done.stdout.splitlines()[-1])}


def runs(folder: Path, arguments: argparse.Namespace) -> Json:
    """Return the runs of each recipe, device and number of workers, and how outputs differ."""
    source = folder / "in.parquet"
    start = time.perf_counter()
    responses = write_file(source, arguments.responses)
    tokens = _tokens(source)
    print(
        f"\n{responses:,} responses, {tokens:,} tokens, {source.stat().st_size / 1e6:.0f} MB, "
        f"written in {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    deadline = time.perf_counter() + arguments.seconds
    found: dict[Setting, list[Json]] = {}
    kept: dict[tuple[str, str], Path] = {}
    for setting in _settings(arguments):
        if time.perf_counter() > deadline:
            break
        target = folder / "out.parquet"
        done = one_run(source, target, RECIPES[setting.recipe], setting.options)
        found.setdefault(setting, []).append(done)
        if "error" not in done:
            done["sha256"] = hash_of_numbers(target)
            if (setting.recipe, setting.device) not in kept:
                name = folder / f"{len(kept)}.parquet"
                kept[setting.recipe, setting.device] = target.rename(name)
        print(f"  {setting.text:50}{_said(done)}", flush=True)
    return {
        "responses": responses,
        "tokens": tokens,
        "file_bytes": source.stat().st_size,
        "runs": [
            {**setting._asdict(), **_medians(all_runs)} for setting, all_runs in found.items()
        ],
        "differences": {
            name: differences(kept[name, "cpu"], kept[name, arguments.device])
            for name in RECIPES
            if arguments.device != "cpu" and {(name, "cpu"), (name, arguments.device)} <= {*kept}
        },
    }


class Setting(NamedTuple):
    """What is run."""

    recipe: str
    device: str
    workers: int
    chunk_tokens: int | None = None

    @property
    def options(self) -> Json:
        """The options of the run."""
        return {name: getattr(self, name) for name in ("device", "workers", "chunk_tokens")}

    @property
    def text(self) -> str:
        """The setting in words."""
        chunks = f", chunks of {self.chunk_tokens:,}" if self.chunk_tokens else ""
        return f"{self.recipe}, {self.device}, {counted(self.workers, 'worker')}{chunks}"


def _settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    """Yield what is run, round by round: the devices in turn, then sizes of chunks."""
    for _ in range(arguments.rounds):
        for workers in arguments.workers:
            for name in RECIPES:
                for device in dict.fromkeys(("cpu", arguments.device)):
                    yield Setting(name, device, workers)
        for bits in arguments.chunk_bits:
            yield Setting([*RECIPES][-1], arguments.device, arguments.workers[0], 1 << bits)


def _said(done: Json) -> str:
    return f"failed: {done['error']}" if "error" in done else f"{done['wall']:6.2f} s"


def _medians(all_runs: Sequence[Json]) -> Json:
    """Return the run of median wall time, all wall times, and all different outputs and errors."""
    good = sorted((one for one in all_runs if "error" not in one), key=lambda one: one["wall"])
    errors = [one["error"] for one in all_runs if "error" in one]
    if not good:
        return {"errors": errors}
    walls = [one["wall"] for one in good]
    outputs = sorted({one["sha256"] for one in good})
    middle = good[(len(good) - 1) // 2]
    return {**middle, "wall": statistics.median(walls), "walls": walls, "outputs": outputs} | (
        {"errors": errors} if errors else {}
    )


def _tokens(path: Path) -> int:
    """Return the number of tokens of a file."""
    footer = pq.ParquetFile(path).metadata
    names = [footer.row_group(0).column(i).path_in_schema for i in range(footer.num_columns)]
    place = next(i for i, name in enumerate(names) if name.startswith("response_mask."))
    groups = range(footer.num_row_groups)
    return sum(footer.row_group(group).column(place).num_values for group in groups)


def columns_of(path: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield the numbers of the columns that a run wrote, by row group."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=list(COLUMNS))
        chunks = {name: table.column(name).combine_chunks() for name in COLUMNS}
        yield {name: column.flatten().to_numpy() for name, column in chunks.items()}


def hash_of_numbers(path: Path) -> str:
    """Return a hash of the numbers of an output; pages and row groups may differ."""
    hashes = {name: hashlib.sha256() for name in COLUMNS}
    for columns in columns_of(path):
        for name, values in columns.items():
            hashes[name].update(values)
    return "".join(one.hexdigest()[:16] for one in hashes.values())


def differences(one: Path, other: Path) -> Json:
    """Return how many numbers of two outputs differ, and the largest differences, by column."""
    found = {
        name: {"numbers": 0, "differ": 0, "largest": 0.0, "largest_relative": 0.0}
        for name in COLUMNS
    }
    for left, right in zip(columns_of(one), columns_of(other), strict=True):
        for name, row in found.items():
            unequal = left[name].view(np.uint32) != right[name].view(np.uint32)
            expected = left[name][unequal].astype(np.float64)
            gap = np.abs(expected - right[name][unequal])
            relative = gap / np.abs(expected).clip(np.finfo(np.float32).tiny)
            row["numbers"] += len(unequal)
            row["differ"] += int(unequal.sum())
            row["largest"] = max(row["largest"], float(gap.max(initial=0.0)))
            row["largest_relative"] = max(row["largest_relative"], float(relative.max(initial=0.0)))
    return found


def device_facts(device: torch.device) -> Json:
    """Return the name and memory of a device, and the versions that matter to it."""
    facts: Json = {
        "type": device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts |= {
            "name": found.name,
            "memory_bytes": found.total_memory,
            "processors": found.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return facts


def kernel_lines(found: Json) -> Iterator[str]:
    """Yield the table of kernels."""
    yield (
        f"{found['tokens']:,} tokens of {found['responses']:,} responses; a copy of float64 within "
        f"the"
    )
    yield f"device's memory moves {_speed(found['copy_gb_per_second'])} GB/s"
    yield ""
    yield f"{'kernel':28}{'bytes/token':>12}{'ms':>10}{'M tokens/s':>12}{'GB/s':>9}{'of copy':>9}"
    for name, row in found["kernels"].items():
        yield (
            f"{name:28}{row['least_bytes_per_token']:12.0f}{row['milliseconds']:10.3f}"
            f"{_speed(row['million_tokens_per_second']):>12}{_speed(row['gb_per_second']):>9}"
            f"{row['share_of_copy']:9.1%}"
        )


def _speed(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 2 if value >= 1 else 3}f}"


def transfer_lines(found: Json) -> Iterator[str]:
    """Yield the table of transfers."""
    yield f"{found['bytes'] / 1e6:,.0f} MB, in GB/s, and as a share of a copy of pinned memory"
    yield ""
    for name, (way, text) in TRANSFERS.items():
        if name in found["speeds"]:
            speed = found["speeds"][name]
            yield f"{text:44}{speed:9.1f}{speed / found['speeds'][way]:9.1%}"


def run_lines(found: Json) -> Iterator[str]:
    """Yield the tables of runs."""
    yield f"{found['responses']:,} responses, {found['tokens']:,} tokens; seconds"
    for recipe in RECIPES:
        yield from (
            "",
            recipe,
            f"{'device':9}{'workers':>7}{'total':>6}{'start':>6}"
            + "".join(f"{name:>8}" for name in LIMITS)
            + f"{'share':>6}{'B/token':>8}{'MB':>6}",
        )
        rows = [row for row in found["runs"] if row["recipe"] == recipe]
        for row in sorted(rows, key=_place):
            chunk = row["chunk_tokens"]
            label = f"2^{chunk.bit_length() - 1}" if chunk else row["device"]
            yield f"{label:9}{row['workers']:7}{_run_cells(row, found['tokens'])}"
        for name, gap in found["differences"].get(recipe, {}).items():
            yield (
                f"  {name}: {gap['differ']:,} of {gap['numbers']:,} differ from the CPU's, "
                f"by up to {gap['largest_relative']:.0e}"
            )
        for device in dict.fromkeys(row["device"] for row in found["runs"]):
            yield f"  {device}: {_outputs(found, recipe, device)}"
    yield from (
        "",
        "start: until the first pass. read, compute (with transfers), encode, write: what",
        "the results waited for. share: of compute, in the time after the start. B/token:",
        "bytes to the device and back. MB: the most that tensors had on the device. 2^19:",
        "chunks of so many tokens on the device.",
    )


def _place(row: Json) -> tuple[int, str, int]:
    return row["chunk_tokens"] or 0, row["device"], row["workers"]


def _run_cells(row: Json, tokens: int) -> str:
    if "seconds" not in row:
        return "  failed"
    seconds = row["seconds"]
    limits = seconds["limits"]
    share = limits["compute"] / (seconds["total"] - seconds["start_up"])
    moved = (row["bytes"]["to_device"] + row["bytes"]["to_host"]) / tokens
    return (
        f"{row['wall']:6.2f}{seconds['start_up']:6.4g}"
        + "".join(f"{limits[name]:8.2f}" for name in LIMITS)
        + f"{share:6.1%}{moved:8.1f}{row['device_peak'] / 1e6:6,.0f}"
    )


def _outputs(found: Json, recipe: str, device: str) -> str:
    """Return how many different results the runs of a recipe on a device have."""
    rows = [row for row in found["runs"] if (row["recipe"], row["device"]) == (recipe, device)]
    outputs = {one for row in rows for one in row.get("outputs", ())}
    number = sum(len(row.get("walls", ())) for row in rows)
    same = "the same numbers" if len(outputs) == 1 else f"{len(outputs)} different results"
    return f"{number} runs, {same}"


LINES: dict[str, Callable[[Json], Iterator[str]]] = {
    "kernels": kernel_lines,
    "transfers": transfer_lines,
    "runs": run_lines,
}


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="folder for bench.txt and bench.json")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--tokens", type=int, help="of the kernels; 2^24, and 2^19 on the CPU")
    parser.add_argument("--transfer-bytes", type=int, default=1 << 28)
    parser.add_argument("--responses", type=int, default=64_000, help="of the file, at most")
    parser.add_argument(
        "--workers", help="4,16,1,8, and on the CPU at most its cores; the first come first"
    )
    parser.add_argument("--chunk-bits", default="19,21,23", help="chunks of 2^N tokens, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200, help="no run begins after them")
    parser.add_argument("--folder", type=Path, help="of the file and outputs; kept afterwards")
    arguments = parser.parse_args(words)
    arguments.parts = arguments.parts.split(",")
    if unknown := {*arguments.parts}.difference(PARTS):
        parser.error(f"--parts {','.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    arguments.tokens = arguments.tokens or 1 << (19 if arguments.device == TORCH_CPU else 24)
    if arguments.workers is not None:
        arguments.workers = [int(word) for word in arguments.workers.split(",")]
    else:
        most = cores() if arguments.device == TORCH_CPU else max(WORKERS)
        arguments.workers = [*dict.fromkeys(min(number, most) for number in WORKERS)]
    arguments.chunk_bits = [int(word) for word in arguments.chunk_bits.split(",") if word]
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts, print and write their results; return 1 if a run failed, 5 without device."""
    arguments = arguments_of(words)
    try:
        device = devices_named(arguments.device)[0]
    except RlpostError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    results: Json = {"commit": commit(), "machine": machine(), "device": device_facts(device)}
    text = json.dumps(results, indent=1) + ("\n\n" + ON_CPU if device.type == "cpu" else "") + "\n"
    print(text, end="", flush=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="rlpost-bench-"))
    folder.mkdir(exist_ok=True)
    measure: dict[str, Callable[[], Json]] = {
        "kernels": lambda: kernels(arguments.tokens, device),
        "transfers": lambda: transfers(arguments.transfer_bytes, device),
        "runs": lambda: runs(folder, arguments),
    }
    try:
        for part in arguments.parts:
            results[part] = measure[part]()
            lines = "\n".join(["", part, "", *LINES[part](results[part]), ""])
            print(lines, flush=True)
            text += lines
            _write(arguments.out, text, results)  # so that a stopped benchmark leaves its parts
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)
    return int(any("errors" in row for row in results.get("runs", {}).get("runs", ())))


def _write(folder: Path | None, text: str, results: Json) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.txt").write_text(text, encoding="utf-8")
        (folder / "bench.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
