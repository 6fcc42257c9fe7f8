"""A file processed by the command, and what it has of a recipe."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
from runs import rollout
from strategies import ragged

USUAL = ["advantages", "returns", "response_level_rewards"]


def foreign() -> pa.Table:
    """A rollout with columns of every other kind, nulls among them, and metadata of its own."""
    n = 12
    struct = pa.struct([("role", pa.string()), ("parts", pa.list_(pa.struct([("n", pa.int8())])))])
    columns = {
        "chat": pa.array([[{"role": "user", "parts": [{"n": i}, None]}, None] for i in range(n)],
                         pa.list_(struct)),
        "prompt": pa.array([None if i == 3 else f"text {i} ü\0" for i in range(n)]),
        "answer": pa.array(["x" * i for i in range(n)], pa.large_string()),
        "kind": pa.array(["a", "b", None] * 4).dictionary_encode(),
        "extra": pa.array([[("k", 1.5)]] * n, pa.map_(pa.string(), pa.float64())),
        "when": pa.array([dt.datetime(2025, 1, 1 + i) for i in range(n)],  # noqa: DTZ001
                         pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(i) / 4 for i in range(n)], pa.decimal128(9, 2)),
        "image": pa.array([bytes([i]) for i in range(n)], pa.binary()),
        "half": pa.array(np.arange(n, dtype=np.float16) / np.float16(2)),
        "ids": ragged([[i, i + 1] for i in range(n)], "fixed_size_list", pa.int32()),
        "nothing": pa.nulls(n),
        "a.b": pa.array(range(n)),
        "": pa.array([True, None] * 6),
    }  # fmt: skip
    table = rollout(n)
    for name, array in columns.items():
        field = pa.field(name, array.type, metadata={"unit": name})
        table = table.append_column(field, array)
    return table.replace_schema_metadata({"origin": "step 3", "rlpost.x": "kept"})


ALL_ON = ["--kl-coef", "0.1", "--whiten-advantages", "--length-weight", "--drop-equal-rewards"]
