"""Rollouts with the columns of all estimators, of about 130 tokens a response."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

GROUPS, SIZE = 12, 8
LOG_PROBS = ("old_log_probs", "infer_log_probs", "ref_log_probs", "log_probs", "teacher_log_probs")


def _lists(values, offsets, kind) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, kind))


@cache
def rollouts(*, observations: bool) -> pa.Table:
    """Return 96 responses of 2 steps and 2 domains, with columns of trajectories of 2 turns."""
    rng = np.random.default_rng(19)
    rows = GROUPS * SIZE
    lengths = rng.integers(60, 200, rows)
    offsets = np.concatenate([[0], lengths.cumsum()])
    count = int(offsets[-1])
    mask = np.ones(count, dtype=np.uint8)
    if observations:
        for start, stop in pairwise(offsets):
            low, high = np.sort(rng.integers(start, stop, 2))
            mask[low:high] = 0
    group, row = np.repeat(np.arange(GROUPS), SIZE), np.arange(rows)
    new = -rng.exponential(0.7, count)
    tokens = {name: new + rng.normal(0, 0.06, count) for name in LOG_PROBS}
    tokens |= {"values": rng.normal(0.4, 0.2, count), "sum_pi_squared": rng.uniform(0.1, 1, count)}
    correct, shape = rng.integers(0, 2, rows), rng.random(rows)
    numbers = {
        "reward": correct + 0.25 * shape,
        "reward_correct": correct,
        "reward_format": shape,
        "reward_baseline": rng.random(rows),
        "difficulty": rng.random(rows),
        "turn": row % 2,
        "step_score": rng.random(rows),
        "episode_score": rng.random(GROUPS * SIZE // 2)[row // 2],
        "turn_reward": rng.random(rows),
        "win_rate": rng.random(rows),
        "hack": rng.random(rows) < 0.1,
    }
    tokens["entropy"] = rng.exponential(0.5, count)
    numbers["policy_version"] = row % 5
    keys = {
        "prompt_id": [f"p{one}" for one in group],
        "step": 4 + group // (GROUPS // 2),
        "domain": [("add", "mul")[one % 2] for one in group],
        "finish_reason": ["length" if one % 9 == 0 else "stop" for one in row],
        "trajectory": [f"t{one}" for one in row // 2],
        "state_id": [f"s{one}" for one in group * 4 + row % 3],
    }
    return pa.table(
        {name: pa.array(values) for name, values in keys.items()}
        | {name: pa.array(values) for name, values in numbers.items()}
        | {name: _lists(values, offsets, pa.float32()) for name, values in tokens.items()}
        | {"response_mask": _lists(mask, offsets, pa.uint8())}
    )
