"""Responses as tensors, ragged and padded, for tests of `rlpost.functional`."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import settings
from strategies import COMPONENTS, rollouts, to_table

import rlpost

F = rlpost.functional
P = F.padded
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SINGLE = {"rtol": 2e-5, "atol": 2e-5}
ONE_BATCH = rollouts(max_batches=1, max_groups=3, max_group_size=4, max_tokens=8)
few = settings(max_examples=8)


def numbers(rows, name, dtype=torch.float64):
    return torch.tensor([x for row in rows for x in getattr(row, name)], dtype=dtype)


def offsets_of(rows):
    return torch.tensor([0, *np.cumsum([len(row.mask) for row in rows])])


def mask_of(rows):
    return numbers(rows, "mask", torch.int64)


def rewards_of(rows, dtype=torch.float64):
    return torch.tensor([row.reward for row in rows], dtype=dtype)


def groups_of(rows):
    return [row.group for row in rows]


def flat(lists):
    return torch.tensor([x for row in lists for x in row], dtype=torch.float64)


PLAIN = (
    "prompt_id",
    "reward",
    "response_mask",
    "values",
    "old_log_probs",
    "infer_log_probs",
    *COMPONENTS,
)


def table_of(rows):
    table = to_table(rows)
    return table.select([name for name in PLAIN if name in table.column_names])


def written(rows, column="advantages", **recipe):
    made, _ = rlpost.enrich(table_of(rows), rlpost.Recipe(**recipe))
    return flat(made[column].to_pylist())
