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
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    import torch

BATCH = 1024
GAMMA, LAM, BETA = 1.0, 0.95, 0.05


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
RESPONSES = 256


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


def load_shuffled(source: str, target: str) -> None:  # noqa: ARG001
    """Make the training batches of an epoch, packed and shuffled."""
    _load(source, layout="packed", shuffle=1)


def _load(source: str, **options: Any) -> None:
    import rlpost  # noqa: PLC0415

    for batch in rlpost.load(source, batch_size=RESPONSES, columns=COLUMNS, **options):
        assert batch["cu_seqlens" if options["layout"] == "packed" else "lengths"].numel()


def datasets_loop(source: str, target: str) -> None:  # noqa: ARG001
    """Iterate over a stream of Hugging Face datasets as tensors of torch, without batches."""
    import datasets  # noqa: PLC0415

    rows = datasets.load_dataset(
        "parquet", data_files=source, split="train", streaming=True, columns=[*COLUMNS]
    )
    for row in rows.with_format("torch"):
        assert len(row)


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


def padded_grpo(source: str, target: str) -> None:
    """Compute GRPO as training frameworks do: padded batches, a loop over groups."""
    _padded(source, target, _grpo)


def padded_gae(source: str, target: str) -> None:
    """Compute whitened GAE with a KL penalty as frameworks do: a loop over time steps."""
    _padded(source, target, _gae)


def _grpo(rows: dict[str, torch.Tensor], prompts: list[str], rewards: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415

    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    scores = torch.zeros_like(rewards)
    for members in groups.values():
        own = rewards[members]
        for row in members:
            scores[row] = (rewards[row] - own.mean()) / (own.std() + 1e-6)
    return scores[:, None] * rows["response_mask"]


def _gae(rows: dict[str, torch.Tensor], prompts: list[str], rewards: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    import torch  # noqa: PLC0415

    mask, values = rows["response_mask"], rows["values"]
    token_rewards = -BETA * (rows["old_log_probs"] - rows["ref_log_probs"]) * mask
    last = mask.sum(1).long() - 1
    token_rewards[torch.arange(len(last)), last] += rewards
    running, out = torch.zeros(len(last)), []
    for step in reversed(range(mask.shape[1])):
        following = values[:, step + 1] if step + 1 < mask.shape[1] else torch.zeros(len(last))
        delta = token_rewards[:, step] + GAMMA * following - values[:, step]
        running = delta + GAMMA * LAM * running
        out.append(running)
    advantages = torch.stack(out[::-1], dim=1)
    mean = (advantages * mask).sum() / mask.sum()
    variance = ((advantages - mean).square() * mask).sum() / (mask.sum() - 1)
    return (advantages - mean) * (variance + 1e-8).rsqrt() * mask


def _padded(source: str, target: str, estimate: Callable[..., torch.Tensor]) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415
    import torch  # noqa: PLC0415

    writer = None
    for batch in pq.ParquetFile(source).iter_batches(BATCH):
        table = pa.Table.from_batches([batch])
        offsets = batch.column("response_mask").offsets.to_numpy()
        lengths = torch.from_numpy(np.diff(offsets))
        rows = {
            name: _pad(batch.column(name), lengths)
            for name in ("response_mask", "old_log_probs", "ref_log_probs", "values")
        }
        rewards = torch.from_numpy(batch.column("reward").to_numpy().copy())
        advantages = estimate(rows, batch.column("prompt_id").to_pylist(), rewards)
        inside = torch.arange(advantages.shape[1])[None] < lengths[:, None]
        flat = pa.array(advantages[inside].float().numpy())
        new = pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), flat)
        table = table.append_column("advantages", new).append_column("returns", new)
        writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None, "the file has rows"
    writer.close()


def _pad(column: pa.Array, lengths: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415

    values = torch.from_numpy(column.flatten().to_numpy().copy()).float()
    return torch.nn.utils.rnn.pad_sequence(values.split(lengths.tolist()), batch_first=True)


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
        padded_grpo,
        padded_gae,
        arrow_loop,
        load_packed,
        load_padded,
        load_shuffled,
        datasets_loop,
    )
}
IMPORTS = {
    "polars": ("polars",),
    "duckdb_groups": ("duckdb",),
    "pandas_statistics": ("numpy", "pandas"),
    "padded_grpo": ("pyarrow.parquet", "torch"),
    "padded_gae": ("pyarrow.parquet", "torch"),
    **dict.fromkeys(("load_packed", "load_padded", "load_shuffled"), ("rlpost.training.loader",)),
    "datasets_loop": ("datasets", "torch"),
}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    for module in IMPORTS.get(name, ("pyarrow.parquet",)):
        __import__(module)
    start = time.perf_counter()
    BASELINES[name](source, target)
    print(json.dumps({"seconds": {"total": time.perf_counter() - start, "start_up": 0.0}}))
