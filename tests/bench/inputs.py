"""Benchmark inputs from a seed: `python tests/bench/inputs.py OUT [--kind KIND] [--count N]`."""

from __future__ import annotations

import argparse
import json
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


def write_files(folder: Path, count: int, rows: int = 24) -> None:
    """Write a file a step, as trainers do: `count` files of `rows` responses."""
    folder.mkdir(parents=True)
    for index in range(count):
        table = response_table(0, index * rows, rows, rows)
        pq.write_table(table, folder / f"{index:05d}.parquet", compression="zstd")


def write_row_groups(path: Path, count: int, rows: int = 4) -> None:
    """Write one file of `count` row groups of `rows` responses; a step has two row groups."""
    table = response_table(1, 0, count * rows, 2 * rows)
    pq.write_table(table, path, compression="zstd", row_group_size=rows)


def write_steps(path: Path, count: int, rows: int = 8) -> None:
    """Write one small file of `count` steps of `rows` responses of 4 tokens."""
    number = count * rows
    index = np.arange(number)
    offsets = pa.array(np.arange(number + 1) * 4, pa.int32())
    mask = pa.ListArray.from_arrays(offsets, pa.array(np.ones(4 * number, np.uint8)))
    columns = {
        "prompt_id": pa.array([f"prompt-{i // rows}" for i in index]),
        "step": pa.array(index // rows),
        "reward": pa.array(np.random.default_rng(0).random(number, dtype=np.float32)),
        "response_mask": mask,
    }
    pq.write_table(pa.table(columns), path)


def write_jsonl(path: Path, count: int, rows: int = 512) -> None:
    """Write `count` responses as generic JSONL: an object a line, lists of tokens in it."""
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, count, rows):
            table = response_table(2, first, min(rows, count - first), max(8, count // 4))
            for row in table.drop_columns(["values", "infer_log_probs"]).to_pylist():
                for name in ("old_log_probs", "ref_log_probs"):
                    row[name] = [round(value, 6) for value in row[name]]
                file.write(json.dumps(row) + "\n")


WRITERS = {
    "rollouts": write_rollouts,
    "files": write_files,
    "row_groups": write_row_groups,
    "steps": write_steps,
    "jsonl": write_jsonl,
}


def main() -> None:
    """Write one input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--kind", choices=WRITERS, default="rollouts")
    parser.add_argument("--count", type=int, default=64_000, help="responses, files or others")
    arguments = parser.parse_args()
    WRITERS[arguments.kind](arguments.path, arguments.count)


if __name__ == "__main__":
    main()
