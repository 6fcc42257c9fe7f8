"""Advantages once per rollout, on all its rows: agentlightning 1.0.2 in plain loops.

agentlightning/verl/rollout_level_advantage.py: `compute_rollout_level_advantage` takes the first
row of each rollout, computes GRPO over these, and broadcasts; `_validate_same_reward` refuses rows
of a rollout that differ in reward.
"""

import statistics

import numpy as np
import pyarrow as pa
import pytest

import rlpost
from rlpost.errors import DataError

RULE = {"estimator": "grpo", "unit": "rollout", "rollout_reward": "equal"}


def table(rewards=None):
    """Three groups of rollouts of 1 to 4 rows, shuffled."""
    rng = np.random.default_rng(2)
    rows = [
        {
            "prompt_id": f"p{n % 3}",
            "rollout_id": f"r{n}",
            "reward": reward,
            "response_mask": [1, 0, 1],
        }
        for n, reward in enumerate(rewards or rng.choice([0.0, 0.5, 1.0], 15).tolist())
        for _ in range(rng.integers(1, 5))
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


def test_grpo_counts_a_rollout_once_and_gives_its_rows_one_advantage():
    rows = table()
    representatives = {}
    for row in rows:
        representatives.setdefault(row["rollout_id"], row)
    groups = {}
    for row in representatives.values():
        groups.setdefault(row["prompt_id"], []).append(row["reward"])
    want = []
    for row in rows:
        own = groups[row["prompt_id"]]
        z = (row["reward"] - statistics.mean(own)) / (statistics.stdev(own) + 1e-6)
        want.append([z * m for m in row["response_mask"]])
    found = rlpost.enrich(pa.Table.from_pylist(rows), rlpost.Recipe(**RULE))[0]["advantages"]
    np.testing.assert_allclose(np.array(found.to_pylist()), np.array(want), rtol=1e-5, atol=1e-6)


def test_rows_of_a_rollout_that_differ_in_reward_are_refused():
    rows = table()
    twice = next(r for r in rows if sum(q["rollout_id"] == r["rollout_id"] for q in rows) > 1)
    twice["reward"] = 7.0
    with pytest.raises(DataError, match="one reward"):
        rlpost.enrich(pa.Table.from_pylist(rows), rlpost.Recipe(**RULE))
