"""Ray against a local run: `python -m tests.bench.scale PART [--folder DIR]`.

same: 64 files, locally and on Ray in alternation, with 1, 2 and 4 workers. Prints median
    seconds and ratios with warm workers, and whether the output bytes are identical.
large: one file of about 600 MB, locally and on Ray in alternation, with 1 and 2 workers.
driver: memory of the Ray driver for 10 M responses, 1.2 M groups and 1,000 files, a task per file.
tiny: 10,000 files of 8 responses, a task per file and pass. Measures the overhead of scheduling.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

import rlpost
from rlpost.distributed import passes
from tests.bench.inputs import response_table

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = rlpost.Recipe(estimator="grpo", kl_coef=0.01)
WORKERS = 2
ROUNDS = 6


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def start(cpus: int) -> None:
    """Start a Ray cluster on this machine with `cpus` workers."""
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")


def seconds(run: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    start_time = time.perf_counter()
    run()
    return time.perf_counter() - start_time


def equal_files(folder: Path, expected: Path) -> bool:
    """Whether two folders contain identical files."""
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == names
    return all((folder / name).read_bytes() == (expected / name).read_bytes() for name in names)


def same(top: Path) -> dict[str, object]:
    """Return seconds by engine, and whether the outputs are identical to the local ones."""
    (top / "in").mkdir()
    rows = 512
    for index in range(64):
        table = response_table(0, index * rows, rows, per_step=8 * rows)
        pq.write_table(table, top / "in" / f"{index:02d}.parquet", compression="zstd")
    results: dict[str, object] = {}

    def run(name: str, **options: object) -> None:
        settings = rlpost.Options(overwrite=True, **options)  # type: ignore[arg-type]
        rlpost.advantages(top / "in", top / name, RECIPE, settings)

    for workers in (1, WORKERS, 4):
        start(workers)
        engines = {
            "local": partial(run, "local", workers=workers),
            "ray": partial(run, "ray", engine="ray"),
        }
        rounds = [{name: seconds(call) for name, call in engines.items()} for _ in range(ROUNDS)]
        warm = rounds[1:]  # in the first round the workers start and import torch
        results[f"{workers} workers"] = {
            **{name: statistics.median(times[name] for times in warm) for name in engines},
            "ratio": statistics.median(times["ray"] / times["local"] for times in warm),
            "same bytes": equal_files(top / "ray", top / "local"),
        }
        ray.shutdown()
    return results


def large(top: Path) -> dict[str, object]:
    """Return seconds by number of workers, and whether the outputs are identical."""
    rows, row_groups = 2048, 24
    source = top / "in.parquet"
    with pq.ParquetWriter(
        source, response_table(0, 0, 1, per_step=1).schema, compression="zstd"
    ) as writer:
        for index in range(row_groups):
            writer.write_table(response_table(0, index * rows, rows, per_step=8 * rows))
    results: dict[str, object] = {"mb": source.stat().st_size / 1e6}
    for workers in (1, WORKERS):
        start(workers)
        engines = {
            "local": rlpost.Options(overwrite=True, workers=workers),
            "ray": rlpost.Options(overwrite=True, engine="ray", workers=workers),
        }
        times: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(ROUNDS):
            for name, options in engines.items():
                target = top / f"{name}.parquet"
                run = partial(rlpost.advantages, source, target, RECIPE, options)
                times[name].append(seconds(run))
        warm = {name: statistics.median(measured[1:]) for name, measured in times.items()}
        same_bytes = (top / "ray.parquet").read_bytes() == (top / "local.parquet").read_bytes()
        results[f"{workers} workers"] = {**warm, "same bytes": same_bytes}
        ray.shutdown()
    return results


def short_responses(
    rng: np.random.Generator, rows: int, groups: int, step: int, tokens: int
) -> pa.Table:
    """Return `rows` responses of one step, with `tokens` tokens each."""
    prompts = np.char.add("prompt-", rng.integers(0, groups, rows).astype(str))
    offsets = pa.array(np.arange(rows + 1) * tokens, pa.int32())
    mask = pa.array(np.ones(rows * tokens, np.uint8))
    return pa.table(
        {
            "prompt_id": prompts,
            "step": np.full(rows, step),
            "reward": rng.random(rows),
            "response_mask": pa.ListArray.from_arrays(offsets, mask),
        }
    )


def many_files(top: Path, files: int, rows: int, groups: int, tokens: int) -> dict[str, object]:
    """Run on Ray with one partition per file; return seconds and the driver's memory."""
    rng = np.random.default_rng(0)
    (top / "in").mkdir()
    for index in range(files):
        step = index * 100 // files
        table = short_responses(rng, rows, groups // 100, step, tokens)
        pq.write_table(table, top / "in" / f"{index:05d}.parquet", compression="zstd")
    del table
    start_time = time.perf_counter()
    start(WORKERS)
    before = peak_mb()
    with mock.patch.object(passes, "PART_BYTES", 1):
        options = rlpost.Options(engine="ray")
        summary = rlpost.advantages(top / "in", top / "out", rlpost.Recipe(), options)
    return {
        "responses": summary["responses"],
        "groups": summary["groups"],
        "partitions": summary["engine"]["partitions"],
        "driver_peak_mb": peak_mb(),
        "driver_peak_mb_before": before,
        "seconds": summary["seconds"],
        "with start-up": time.perf_counter() - start_time,
    }


PARTS = {
    "same": same,
    "large": large,
    "driver": lambda top: many_files(top, files=1000, rows=10_000, groups=1_200_000, tokens=2),
    "tiny": lambda top: many_files(top, files=10_000, rows=8, groups=10_000, tokens=20),
}


def main() -> None:
    """Run one part and print its results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    top = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        json.dump(PARTS[arguments.part](top), sys.stdout, indent=1)
        print()
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
