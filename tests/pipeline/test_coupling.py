"""What a recipe is said to couple is what moves its numbers: rows of a group, a batch, a run."""

from dataclasses import replace

import numpy as np
import pytest
from reference import Response
from strategies import ESSENTIALS, to_table

import rlpost
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline import run
from rlpost.pipeline.needs import coupling_of

SCOPES = ("response", "group", "batch", "run")
NUMBERS = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight")
KL = {"kl_coef": 0.3}
CASES = {
    **{name: {"estimator": name, **ESSENTIALS.get(name, {})} for name in ESTIMATORS},
    **{
        f"norm {mean}/{std}": {"estimator": "raw", "norm_mean": mean, "norm_std": std}
        for mean, std in (
            ("batch", "none"),
            ("none", "batch"),
            ("group", "none"),
            ("none", "others"),
        )
    },
    "cohorts of the batch": {"estimator": "hierarchical_grpo"},
    "running": {"estimator": "raw", "norm_mean": "running", "norm_std": "none"},
    "whitened": {"estimator": "raw", "whiten_advantages": True},
    "whitened rewards": {"estimator": "gae", "whiten_rewards": True},
    "not whitened": {"estimator": "reinforce_pp", "whiten_advantages": False},
    "kl": {"estimator": "reinforce", **KL},
    "rae after rae": {"estimator": "rae", "norm_mean": "running"},
    "adaptive kl": {"estimator": "reinforce", **KL, "kl_target": (0.5, 40)},
    "length weight": {"estimator": "raw", "length_weight": True},
    "difficulty weight": {"estimator": "raw", "difficulty_weight": True},
    "importance weights": {"estimator": "raw", "is_weight": "token"},
    "of mean 1": {"estimator": "raw", "is_weight": "token:normalised"},
    "group columns": {"estimator": "raw", "emit": ("advantages", "group_mean")},
    "difficulty": {
        "estimator": "raw",
        "drop_difficulty": (-9, 9),
    },
    "equal rewards": {"estimator": "raw", "drop_equal_rewards": True},
    "single": {"estimator": "raw", "drop_single": True},
    "lone zero": {"estimator": "raw", "norm_mean": "batch", "numerics": {"single": "zero_always"}},
    "rollouts": {
        "estimator": "raw",
        "columns": {"rollout": "trajectory"},
        "rollout_reward": "mean",
    },
    "states of the batch": {
        **ESSENTIALS["gigpo"],
        "estimator": "gigpo",
        "options": {"states": "batch"},
    },
    "length penalty": {"estimator": "raw", "group_length_penalty": (0.1, 0.1, 0.1)},
    "gdpo on tokens": {
        **ESSENTIALS["gdpo"],
        "estimator": "gdpo",
        "options": {"batch_over": "tokens"},
    },
}


def one(index, batch, group, draw):
    """A response with every role; its length depends on its place alone."""
    n = 2 + index % 3
    old = -draw.random(n)
    return Response(
        group=group, batch=batch, domain="math", reward=float(draw.integers(1, 5)),
        mask=[1] * n, old=old.tolist(), ref=(old - draw.random(n)).tolist(),
        infer=(old - 0.3 * draw.random(n)).tolist(), current=(old + 0.1).tolist(),
        values=draw.random(n).tolist(), token_rewards=None, sum_pi_squared=draw.random(n).tolist(),
        teachers={"large": (-draw.random(n)).tolist()},
        components={"correctness": float(draw.random()), "format": float(draw.random())},
        difficulty=float(draw.random()), reward_baseline=float(draw.random()),
        finish_reason="stop", traj_id=f"t{index % 2}", turn=index // 2 % 2, state_id="s",
        step_score=float(draw.random()), episode_score=float(draw.random()), kept=True,
        turn_reward=float(draw.random()), win_rate=float(draw.random()),
    )  # fmt: skip


def rollout():
    """Three batches of two groups of four."""
    draw = np.random.default_rng(5)
    return [one(i, i // 8, f"p{i // 4}", draw) for i in range(24)]


def changed(rows, which):
    """The rows with others at some places, longer ones, of the same groups and batches."""
    draw = np.random.default_rng(6)
    out = list(rows)
    for index in which:
        new = one(index + 1, rows[index].batch, rows[index].group, draw)
        kept = {"traj_id": rows[index].traj_id, "turn": rows[index].turn}
        out[index] = replace(new, reward=rows[index].reward + 9.5, **kept)
    return out


def numbers(rows, recipe, places):
    table, _ = rlpost.enrich(to_table(rows), recipe)
    new = (*NUMBERS, "group_mean", "is_weight")
    names = [name for name in new if name in table.schema.names]
    return [str(table[name][row]) for name in names for row in places]


RARE = ("gpg", "grpo_passk", "hierarchical_grpo", "difficulty", "equal rewards", "single")
"""What moves no number here, though it may."""


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_couples_what_it_is_said_to_and_no_more(name):
    """Numbers of the last group, while rows of it, of its batch, and of other batches change."""
    rows, recipe = rollout(), rlpost.Recipe(**CASES[name])
    plan = run.bind(TableSource(to_table(rows)), recipe)
    said, moved = SCOPES.index(coupling_of(plan.resolved).scope), [0]
    for scope, others, own in (
        (1, (21, 22), (20, 23)),
        (2, range(16, 20), range(20, 24)),
        (3, range(16), range(16, 24)),
    ):
        if numbers(changed(rows, others), recipe, own) != numbers(rows, recipe, own):
            moved.append(scope)
    assert max(moved) <= said, f"{SCOPES[max(moved)]} is coupled"
    assert max(moved) == said or name in RARE, f"{SCOPES[said]} is more than is coupled"
