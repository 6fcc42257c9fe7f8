"""Baselines of the benchmarks: `python tests/bench/baselines.py NAME IN OUT`.

Prints the seconds of its work, without imports, as JSON in the form of a summary of rlpost.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def copy(source: str, target: str) -> None:
    """Read the table, append two float lists, write it: the minimum that any script does."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(source)
    mask = table["response_mask"].combine_chunks()
    flat = pa.array(np.zeros(len(mask.values), dtype=np.float32))
    new = pa.ListArray.from_arrays(mask.offsets, flat)
    table = table.append_column("advantages", new).append_column("returns", new)
    pq.write_table(table, target, compression="zstd", row_group_size=512)


def polars(source: str, target: str) -> None:
    """Compute GRPO as a polars pipeline: group statistics, then a list for each response."""
    import polars as pl  # noqa: PLC0415

    reward = pl.col("reward")
    score = (reward - reward.mean().over("step", "prompt_id")) / (
        reward.std().over("step", "prompt_id") + 1e-6
    )
    lists = score.cast(pl.Float32).repeat_by(pl.col("response_mask").list.len())
    frame = pl.read_parquet(source).with_columns(advantages=lists, returns=lists)
    frame.write_parquet(target, compression="zstd", row_group_size=512)


def copy_files(source: str, target: str) -> None:
    """Copy each file of a folder with pyarrow, and sync it."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    Path(target).mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(source).iterdir()):
        copied = Path(target) / path.name
        pq.write_table(pq.read_table(path), copied, compression="zstd")
        _sync(copied)


def copy_row_groups(source: str, target: str) -> None:
    """Copy a file with pyarrow, a row group at a time, and sync it."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(source)
    with pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group))
    _sync(Path(target))


COLUMNS = ("advantages", "returns", "old_log_probs", "ref_log_probs", "values", "reward")
RESPONSES, BATCH_TOKENS = 256, 1 << 18


def arrow_loop(source: str, target: str) -> None:  # noqa: ARG001
    """Read the columns of training batches with pyarrow, a batch after the other."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    names = [*COLUMNS, "response_mask"]
    for batch in pq.ParquetFile(source).iter_batches(RESPONSES, columns=names):
        assert batch.num_rows


def load_packed(source: str, target: str) -> None:  # noqa: ARG001
    """Make the training batches of an epoch, packed."""
    _load(source, layout="packed")


def load_padded(source: str, target: str) -> None:  # noqa: ARG001
    """Make the training batches of an epoch, padded."""
    _load(source, layout="padded")


def _load(source: str, **options: Any) -> None:
    import rlpost  # noqa: PLC0415

    for batch in rlpost.load(source, batch_tokens=BATCH_TOKENS, columns=COLUMNS, **options):
        assert batch["cu_seqlens" if options["layout"] == "packed" else "lengths"].numel()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def pandas_statistics(source: str, target: str) -> None:  # noqa: ARG001
    """Compute a part of what `inspect` prints, with pandas: lengths, rewards, groups, log-probs."""
    import numpy as np  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    names = ["step", "prompt_id", "domain", "reward", "response_mask"]
    frame = pd.read_parquet(source, columns=[*names, "old_log_probs", "ref_log_probs"])
    frame["tokens"] = frame.pop("response_mask").map(np.sum)
    frame["kl"] = (frame.pop("old_log_probs") - frame.pop("ref_log_probs")).map(np.mean)
    print(frame.describe(), file=sys.stderr)
    for keys in (["step"], ["domain"], ["step", "prompt_id"]):
        grouped = frame.groupby(keys)[["reward", "tokens", "kl"]].agg(["mean", "std", "size"])
        print(grouped, file=sys.stderr)


def duckdb_groups(source: str, target: str) -> None:
    """Compute GRPO's advantages with duckdb, a number a response, beside the input's columns."""
    import duckdb  # noqa: PLC0415

    over = "over (partition by step, prompt_id)"
    duckdb.sql(  # the paths are the benchmark's own
        f"copy (select *, (reward - avg(reward) {over}) / (stddev_samp(reward) {over} + 1e-6) "
        f"as response_advantage from '{source}') to '{target}' "
        "(format parquet, compression zstd, row_group_size 2048)"
    )


def cp(source: str, target: str) -> None:
    """Copy the file: the lower bound of any run."""
    shutil.copyfile(source, target)


BASELINES = {
    function.__name__: function
    for function in (
        copy,
        copy_files,
        copy_row_groups,
        cp,
        polars,
        duckdb_groups,
        pandas_statistics,
        arrow_loop,
        load_packed,
        load_padded,
    )
}
IMPORTS = {
    "polars": ("polars",),
    "duckdb_groups": ("duckdb",),
    "pandas_statistics": ("numpy", "pandas"),
    **dict.fromkeys(("load_packed", "load_padded"), ("rlpost.training.loader",)),
}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    for module in IMPORTS.get(name, ("pyarrow.parquet",)):
        __import__(module)
    start = time.perf_counter()
    BASELINES[name](source, target)
    print(json.dumps({"seconds": {"total": time.perf_counter() - start, "start_up": 0.0}}))
