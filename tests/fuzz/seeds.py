"""Seeds: small valid inputs of every kind to mutate, and the packed corpus."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import format_writers as tokens
import format_writers_text as texts
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost import api

CORPUS = Path(__file__).with_name("corpus.zip")
MOST = 1 << 16  # bytes of a seed

FORMATS = (
    ("nemo-rl", ".jsonl"), ("slime-rollout", ".pt"), ("slime-train", ".pt"),
    ("prime-rl", ".jsonl"), ("prime-rl-tokens", ".json"), ("open-instruct", ".jsonl"),
    ("roll-board", ".jsonl"),
    ("roll-rollout", ".jsonl"), ("verl", ".jsonl"), ("trl", ".parquet"), ("ms-swift", ".jsonl"),
    ("jsonl", ".jsonl"), ("parquet", ".parquet"),
)  # fmt: skip
"""Format and suffix of a dump; the first byte of an input is an index in this list."""


def rollout(rows: int = 8) -> pa.Table:
    """Return a table with all roles, two steps with groups of two, and other columns."""
    lengths = [i * 7 % 5 for i in range(1, rows + 1)]
    rng = np.random.default_rng(0)
    floats = [rng.normal(-1, 0.3, n).astype(np.float32).tolist() for n in lengths]
    near = [[x + 0.01 for x in xs] for xs in floats]
    kind = pa.list_(pa.float32())
    return pa.table(
        {
            "prompt_id": [f"p{i // 2}" for i in range(rows)],
            "step": pa.array([i // 4 for i in range(rows)], pa.int64()),
            "reward": pa.array([i * 5 % 4 / 4 for i in range(rows)], pa.float32()),
            "response_mask": pa.array([[1] * n for n in lengths], pa.list_(pa.uint8())),
            "old_log_probs": pa.array(floats, kind),
            "ref_log_probs": pa.array(near, kind),
            "infer_log_probs": pa.array(near, kind),
            "log_probs": pa.array(floats, kind),
            "values": pa.array(near, pa.large_list(pa.float64())),
            "finish_reason": pa.array(["stop", "length"] * (rows // 2)).dictionary_encode(),
            "info": pa.array([{"tags": ["x"] * (i % 3), "n": i} for i in range(rows)]),
            "response": [f"text {i}" if i % 3 else None for i in range(rows)],
        }
    )


def parquet_seeds() -> list[bytes]:
    """Return the rollout as Parquet files with various codecs, indexes and page versions."""
    small = ["prompt_id", "reward", "response_mask", "old_log_probs"]
    table = rollout()
    options: list[tuple[pa.Table, dict]] = [
        (table.select(small), {"compression": "none", "use_dictionary": False}),
        (table.select(small), {"compression": "zstd", "row_group_size": 3}),
        (table, {"compression": "snappy"}),
        (table, {"data_page_version": "2.0", "write_page_index": True, "compression": "gzip"}),
        (table.drop_columns(["info"]), {"store_schema": False, "row_group_size": 4}),
        (table, {"column_encoding": {"reward": "BYTE_STREAM_SPLIT"}, "use_dictionary": False}),
        (table.drop_columns(["response", "info"]), {"data_page_size": 16, "version": "1.0"}),
    ]
    return [*(_written(*option) for option in options), _enriched()]


def _enriched() -> bytes:
    """Return a file that rlpost wrote, with its recipe and summary in the metadata."""
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "in.parquet", Path(name) / "out.parquet"
        pq.write_table(rollout().drop_columns(["info", "values", "log_probs"]), source)
        api.advantages(source, target, options=api.Options(device="cpu", workers=1))
        return target.read_bytes()


def _written(table: pa.Table, options: dict) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def dump_seeds() -> list[bytes]:
    """Return a small dump of every format, each after the byte of its format."""
    places = {name: place for place, (name, _) in enumerate(FORMATS)}
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for folder, write in _WRITERS.items():
            (top / folder).mkdir()
            write(top / folder)
        found = [
            bytes([places[path.relative_to(top).parts[0]]]) + path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file() and path.suffix in (".jsonl", ".json", ".pt", ".parquet")
        ]
    return [data for data in found if len(data) < MOST]


_SAMPLES = tokens.made(2, 2)
_ROLLOUTS = texts.rollouts(2, 2, 1)
_WRITERS = {
    "nemo-rl": lambda top: tokens.nemo_rl(top, _SAMPLES),
    "slime-rollout": lambda top: tokens.slime_rollout(top, _SAMPLES),
    "slime-train": lambda top: tokens.slime_train(top, _SAMPLES),
    "prime-rl": lambda top: tokens.prime_rl_traces(top, _SAMPLES),
    "prime-rl-tokens": lambda top: tokens.prime_rl_tokens(top, _SAMPLES),
    "roll-rollout": lambda top: tokens.roll_rollout(top, _SAMPLES),
    "open-instruct": lambda top: texts.open_instruct(top / "a.jsonl", _ROLLOUTS),
    "roll-board": lambda top: texts.roll_board(top / "a.jsonl", _ROLLOUTS),
    "verl": lambda top: texts.verl(top / "1.jsonl", _ROLLOUTS),
    "trl": lambda top: texts.trl(top / "completions_00001.parquet", _ROLLOUTS),
    "ms-swift": lambda top: texts.ms_swift(top / "a.jsonl", _ROLLOUTS),
    "jsonl": lambda top: texts.write_lines(top / "a.jsonl", rollout(4).to_pylist()),
    "parquet": lambda top: pq.write_table(rollout(4), top / "a.parquet"),
}


def packed(target: str) -> list[bytes]:
    """Return a target's corpus: inputs of earlier runs that reach code that seeds do not."""
    if not CORPUS.exists():
        return []
    with zipfile.ZipFile(CORPUS) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith(f"{target}/"))
        return [archive.read(name) for name in names]
