"""Benchmark inputs from a seed: `python tests/bench/inputs.py OUT.parquet [--responses N]`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_SIZE = 8
ROW_GROUP_SIZE = 512
MEAN_TOKENS, LOG_STD, MAX_TOKENS = 800, 0.9, 8192


def response_table(seed: int, first: int, count: int, per_step: int) -> pa.Table:
    """Return consecutive responses with log-normal lengths; most log-probs are near 0."""
    rng = np.random.default_rng([seed, first])
    location = np.log(MEAN_TOKENS) - LOG_STD**2 / 2
    lengths = np.clip(rng.lognormal(location, LOG_STD, count), 4, MAX_TOKENS).astype(np.int32)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    tokens = int(offsets[-1])
    surprisal = rng.exponential(0.02, tokens) + (rng.random(tokens) < 0.4) * rng.exponential(
        0.8, tokens
    )
    old = (-surprisal).astype(np.float32)

    def perturbed(scale: float) -> np.ndarray:
        noise = rng.standard_normal(tokens, dtype=np.float32) * np.float32(scale)
        return np.minimum(old + noise, 0.0).astype(np.float32)

    index = np.arange(first, first + count)
    lists = {
        "response_mask": np.ones(tokens, dtype=np.uint8),
        "old_log_probs": old,
        "ref_log_probs": perturbed(0.1),
        "infer_log_probs": perturbed(0.01),
        "values": rng.standard_normal(tokens, dtype=np.float32) * np.float32(0.1),
    }
    columns: dict[str, pa.Array] = {
        "prompt_id": pa.array([f"prompt-{i // GROUP_SIZE:08d}" for i in index]),
        "step": pa.array(index // per_step),
        "domain": pa.array(np.array(["math", "code", "chat"])[(index // GROUP_SIZE) % 3]),
        "reward": pa.array((rng.random(count) < 0.4).astype(np.float32)),
    }
    for name, values in lists.items():
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.table(columns)


def write_rollouts(path: Path, count: int, seed: int = 0) -> None:
    """Write a rollout file of `count` responses, about 12.5 kB each."""
    per_step = max(GROUP_SIZE, count // 4)
    float_columns = ["old_log_probs", "ref_log_probs", "infer_log_probs", "values"]
    writer = None
    for first in range(0, count, ROW_GROUP_SIZE):
        table = response_table(seed, first, min(ROW_GROUP_SIZE, count - first), per_step)
        writer = writer or pq.ParquetWriter(
            path,
            table.schema,
            compression="zstd",
            use_dictionary=["prompt_id", "domain", "response_mask.list.element"],
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in float_columns},
        )
        writer.write_table(table)
    assert writer is not None, "at least one response"
    writer.close()


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--responses", type=int, default=64_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_rollouts(arguments.path, arguments.responses, arguments.seed)


if __name__ == "__main__":
    main()
