"""`rlpost convert` by layout and container, in MB of JSON text a second of CPU time, beside peers.

    python -m tests.bench.convert [RESPONSES] [ROUNDS]

In one process, in turn, by one worker, without start-up. Peers parse the same lines: orjson, or
msgspec if it is not installed, builds Python values, jq prints them, polars makes a table.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "support")]

from format_writers import seekable  # noqa: E402

import rlpost  # noqa: E402
from tests.bench.inputs import write_jsonl  # noqa: E402
from tests.bench.where import episodes  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, FRAME = 8, 4 << 20


def verl_lines(count: int) -> bytes:
    """Return texts and scores, as verl writes them: about 4 kB a line."""
    chance = random.Random(0)  # noqa: S311
    words = ("the", "sum", "of", "two", "numbers", "is", "therefore", "equal", "so", "check", "it")
    lines = []
    for i in range(count):
        output = " ".join(chance.choices(words, k=800))
        one = {"input": f"Question {i // 8}?", "output": output, "score": float(i % 2), "step": 0}
        lines.append(json.dumps(one))
    return "\n".join(lines).encode() + b"\n"


def write_text(path: Path, data: bytes) -> None:
    """Write JSON lines in the container that the name of the path has."""
    records = data.splitlines()
    codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    if path.stem.startswith("frames"):
        path.write_bytes(seekable(data, FRAME))
    elif codec:
        with pa.CompressedOutputStream(str(path), codec) as out:
            out.write(data)
    elif path.suffix == ".json":
        path.write_bytes(b"[" + b",\n".join(records) + b"]")
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for i, record in enumerate(records):
                archive.writestr(f"{i}.json", record)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([*map(json.loads, records)]), path)
    else:
        path.write_bytes(data)


CASES = {
    "jsonl": ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "frames.jsonl.zst", "a.json", "a.zip"),
    "parquet": ("a.parquet",),
    "verl": ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json"),
    "prime-rl": ("stream/00000.jsonl",),
}


def lines_of(layout: str, count: int, folder: Path) -> bytes:
    """Return the JSON lines of a layout."""
    if layout == "verl":
        return verl_lines(count)
    if layout == "prime-rl":
        return b"".join(line for _, line in islice(episodes(count), count))
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "lines", count)
    return (folder / "lines").read_bytes()


def peers(path: Path) -> dict[str, Callable[[], object]]:
    """Return what else reads JSON lines."""
    name, function = ("orjson", "loads") if find_spec("orjson") else ("msgspec.json", "decode")
    parse = getattr(import_module(name), function)
    return {
        f"{name}, values alone": lambda: [
            parse(x) and None for x in path.read_bytes().splitlines()
        ],
        "jq -c .": lambda: subprocess.run(["jq", "-c", ".", path], stdout=DEVNULL, check=True),
        "polars.read_ndjson": lambda: pl.read_ndjson(path, infer_schema_length=None),
    }


def cases(folder: Path, count: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Write the inputs; return what is run, and the MB of JSON text that it reads."""
    runs: dict[str, tuple[Callable[[], object], float]] = {}
    for layout, names in CASES.items():
        data = lines_of(layout, count, folder)
        for name in names:
            path = folder / layout / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, data)
            source = folder / layout if layout == "prime-rl" else path
            words = source, folder / "out.parquet", layout
            runs[f"{layout}: {name}"] = partial(convert, *words), len(data) / 1e6
        if layout == "jsonl":
            more = peers(folder / layout / names[0])
            runs |= {name: (run, len(data) / 1e6) for name, run in more.items()}
    return runs


def convert(source: Path, target: Path, layout: str) -> None:
    """Convert a dump in this process."""
    rlpost.convert(source, target, source=layout, workers=1, overwrite=True)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of a call and of the processes that it starts."""
    begin = used()
    run()
    return used() - begin


def used() -> float:
    """Return the CPU seconds of this process and its children so far."""
    parts = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def main(count: int = 2000, rounds: int = 3) -> None:
    """Print the medians of each case, and its time as a multiple of the bare parser's."""
    with tempfile.TemporaryDirectory(prefix="rlpost-bench-") as top:
        for run, _ in cases(Path(top, "few"), FEW).values():
            run()  # imports
        many = cases(Path(top, "many"), count)
        cpu: dict[str, list[float]] = {name: [] for name in many}
        for _ in range(rounds):
            for name, times in cpu.items():
                times.append(cpu_seconds(many[name][0]))
    rates = {name: many[name][1] / statistics.median(times) for name, times in cpu.items()}
    bare = next(rate for name, rate in rates.items() if name.endswith("alone"))
    print(f"{'':28} {'MB':>6} {'MB/s a core':>12} {'x bare parser':>14}")
    for name, rate in rates.items():
        print(f"{name:28} {many[name][1]:6.0f} {rate:12.0f} {bare / rate:14.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
