"""Unusual files that every screen has to show."""

from __future__ import annotations

import math

import pyarrow as pa

ODD = {
    "only text": {"input": ["a", "a"], "output": ["x", "y"], "score": [0.0, 1.0], "step": [1, 1]},
    "nothing known": {"x": [1, 2]},
    "one row": {"prompt_id": ["a"], "reward": [1.0]},
    "nulls": {
        "prompt_id": ["a", "a", None, "b"],
        "reward": [1.0, None, 0.0, math.nan],
        "response_mask": [[1, 1], None, [], [1]],
        "old_log_probs": [[-1.0, None], [], [], [math.inf]],
    },
    "scalar advantages": {"prompt_id": ["a", "a"], "reward": [1.0, 0.0], "advantages": [0.5, -0.5]},
    "advantages of text": {"prompt_id": ["a"], "reward": [1.0], "advantages": ["high"]},
    "zero advantages": {"prompt_id": ["a"], "reward": [1.0], "advantages": [[0.0, 0.0]]},
    "unequal lists": {
        "prompt_id": ["a", "a"],
        "reward": [1.0, 0.0],
        "response_mask": [[1, 1], [1]],
        "old_log_probs": [[-1.0], [-1.0]],
        "advantages": [[1.0], [0.5, 0.2]],
    },
    "rollouts without ids": {
        "prompt_id": ["a"] * 4,
        "rollout_id": ["r", None, None, "r"],
        "turn": [1, 0, None, 0],
        "branch": [None, "b", "c", "b"],
        "reward": [1.0, 2.0, 3.0, 1.0],
        "response_mask": [[1], [1, 0], [1], [1]],
    },
    "lists of rewards": {
        "prompt_id": ["a"] * 3,
        "reward": [[1.0, 2.0], None, [0.0, None]],
        "step": [1.0, 2.0, None],
    },
    "failures": {
        "prompt_id": ["a"] * 3,
        "reward": [math.inf, -math.inf, 1.0],
        "failure": [None, "x", ""],
        "response_length": ["short"] * 3,
    },
    "columns of nulls": {
        "prompt_id": pa.nulls(3),
        "reward": pa.nulls(3),
        "response_mask": pa.nulls(3),
    },
    "rewards equal to rounding": {"prompt_id": ["a"] * 2, "reward": [0.3, 0.1 * 3]},
    "rewards of the smallest numbers": {"prompt_id": ["a"] * 2, "reward": [0.0, 5e-324]},
    "rewards far apart": {"prompt_id": ["a"] * 2, "reward": [-1e300, 1e300]},
    "process rewards of rollouts": {
        "prompt_id": ["a"] * 2,
        "rollout_id": ["x", "y"],
        "reward": [0.0, 1.0],
        "token_rewards": [[0.0, 0.0]] * 2,
    },
    "rollouts of a type that is no key": {
        "prompt_id": ["a"] * 2,
        "rollout_id": [b"x", b"y"],
        "turn": [1, 1 << 40],
        "reward": [0.0, 1.0],
        "response_mask": [[1]] * 2,
    },
}
