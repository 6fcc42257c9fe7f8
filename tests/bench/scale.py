"""Beyond one process: `python -m tests.bench.scale {same,large,driver,tiny} [--folder DIR]`.

same: 64 files, by one process and on Ray, with 1, 2 and 4 workers, turn about, and as 4 shards;
    whether the bytes are the same, and medians of seconds and of ratios, workers being warm.
large: one file of some 300 MB, by one process and on Ray, with 1 and 2 workers, turn about.
driver: what a Ray driver holds for 10 M responses in 1.2 M groups over 1,000 files, a task a file.
tiny: 10,000 files of 8 responses, a task a file and pass: what a task costs to schedule.
"""

from __future__ import annotations

import argparse
import json
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
from rlpost.distributed import partition as partitions
from rlpost.distributed import shards
from tests.bench.alone import peak_mb
from tests.bench.make import responses

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE = rlpost.Recipe(estimator="grpo", kl_coef=0.01)
WORKERS = 2
ROUNDS = 6


def start(cpus: int) -> None:
    """A cluster of this machine with these many workers."""
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")


def seconds(run: Callable[[], object]) -> float:
    """Wall time of a call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def equal(got: Path, want: Path) -> bool:
    """Whether two folders hold the same files, byte for byte."""
    names = sorted(path.name for path in want.iterdir())
    assert sorted(path.name for path in got.iterdir()) == names
    return all((got / name).read_bytes() == (want / name).read_bytes() for name in names)


def same(top: Path) -> dict[str, object]:
    """Seconds by engine, and whether its files are those of one process."""
    (top / "in").mkdir()
    rows = 512
    for place in range(64):
        table = responses(0, place * rows, rows, per_step=8 * rows)
        pq.write_table(table, top / "in" / f"{place:02d}.parquet", compression="zstd")
    found: dict[str, object] = {}

    def run(name: str, **options: object) -> None:
        settings = rlpost.Options(overwrite=True, **options)  # type: ignore[arg-type]
        rlpost.advantages(top / "in", top / name, RECIPE, settings)

    for workers in (1, WORKERS, 4):
        start(workers)
        contenders = {
            "local": partial(run, "local", workers=workers),
            "ray": partial(run, "ray", engine="ray"),
        }
        rounds = [{name: seconds(one) for name, one in contenders.items()} for _ in range(ROUNDS)]
        warm = rounds[1:]  # the first one starts workers, which import torch
        found[f"{workers} workers"] = {
            **{name: statistics.median(one[name] for one in warm) for name in contenders},
            "ratio": statistics.median(one["ray"] / one["local"] for one in warm),
            "same bytes": equal(top / "ray", top / "local"),
        }
        ray.shutdown()
    found["plan"] = seconds(
        lambda: shards.plan([top / "in"], top / "shards", top / "state", RECIPE, rlpost.Options())
    )
    own = rlpost.Options(workers=WORKERS)
    found["4 shards, one after another"] = [
        seconds(partial(shards.shard, top / "state", index, 4, own)) for index in range(4)
    ]
    found["shards' bytes are the same"] = equal(top / "shards", top / "local")
    return found


def large(top: Path) -> dict[str, object]:
    """Seconds for one large file by workers, and whether the bytes are the same."""
    rows, parts = 2048, 24
    source = top / "in.parquet"
    with pq.ParquetWriter(
        source, responses(0, 0, 1, per_step=1).schema, compression="zstd"
    ) as writer:
        for place in range(parts):
            writer.write_table(responses(0, place * rows, rows, per_step=8 * rows))
    found: dict[str, object] = {"mb": source.stat().st_size / 1e6}
    for workers in (1, WORKERS):
        start(workers)
        contenders = {
            "local": rlpost.Options(overwrite=True, workers=workers),
            "ray": rlpost.Options(overwrite=True, engine="ray"),
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, options in contenders.items():
                target = top / f"{name}.parquet"
                run = partial(rlpost.advantages, source, target, RECIPE, options)
                times[name].append(seconds(run))
        warm = {name: statistics.median(taken[1:]) for name, taken in times.items()}
        same_bytes = (top / "ray.parquet").read_bytes() == (top / "local.parquet").read_bytes()
        found[f"{workers} workers"] = {**warm, "same bytes": same_bytes}
        ray.shutdown()
    return found


def short(rng: np.random.Generator, rows: int, groups: int, step: int, tokens: int) -> pa.Table:
    """Rows of one step with these many tokens each, and ids like those of prompts."""
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


def many(top: Path, files: int, rows: int, groups: int, tokens: int) -> dict[str, object]:
    """A run on Ray with one lot a file: seconds, and what the driver came to."""
    rng = np.random.default_rng(0)
    (top / "in").mkdir()
    for place in range(files):
        step = place * 100 // files
        table = short(rng, rows, groups // 100, step, tokens)
        pq.write_table(table, top / "in" / f"{place:05d}.parquet", compression="zstd")
    del table
    begun = time.perf_counter()
    start(WORKERS)
    before = peak_mb()
    with mock.patch.object(partitions, "MOST_BYTES", 1):
        options = rlpost.Options(engine="ray")
        summary = rlpost.advantages(top / "in", top / "out", rlpost.Recipe(), options)
    return {
        "responses": summary["responses"],
        "groups": summary["groups"]["count"],
        "lots": summary["engine"]["lots"],
        "driver_peak_mb": peak_mb(),
        "driver_peak_mb_before": before,
        "seconds": summary["seconds"],
        "with start-up": time.perf_counter() - begun,
    }


PARTS = {
    "same": same,
    "large": large,
    "driver": lambda top: many(top, files=1000, rows=10_000, groups=1_200_000, tokens=2),
    "tiny": lambda top: many(top, files=10_000, rows=8, groups=10_000, tokens=20),
}


def main() -> None:
    """Measure one part, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    top = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        json.dump(PARTS[given.part](top), sys.stdout, indent=1)
        print()
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
