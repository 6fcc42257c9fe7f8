"""Credit of turns against plain loops: MT-GRPO, turn credit, turn GAE, GAR."""

from dataclasses import replace

import numpy as np
import pytest
import reference_estimators as slow
import torch
from functional_rows import CLOSE, ONE_BATCH, F, flat, groups_of, mask_of, numbers, offsets_of
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")
few = settings(max_examples=20)
GAMMAS, WEIGHTS = st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 0.25, 3.0])

NULL = np.nan


def of_rollouts(rows):
    """The rows with the mean reward of their rollout; rewards, scores, turns, rollouts, groups."""
    ids = [f"{row.group}/{row.traj_id}" for row in rows]
    means = {
        key: slow.mean([r.reward for r, own in zip(rows, ids, strict=True) if own == key])
        for key in ids
    }
    rows = [replace(row, reward=means[key]) for row, key in zip(rows, ids, strict=True)]
    scores = [NULL if row.turn_reward is None else row.turn_reward for row in rows]
    columns = ([row.reward for row in rows], scores, [row.turn for row in rows])
    return (
        rows,
        [torch.tensor(column, dtype=torch.float64) for column in columns],
        (ids, groups_of(rows)),
    )


@few
@given(ONE_BATCH, GAMMAS, st.sampled_from(["return", "reward"]), st.tuples(WEIGHTS, WEIGHTS),
       st.sampled_from(["group", "none"]))  # fmt: skip
def test_mt_grpo_equals_the_loop(rows, gamma, baseline, weights, norm_std):
    rows, columns, keys = of_rollouts(rows)
    options = {"episode_weight": weights[0], "step_weight": weights[1], "norm_std": norm_std}
    found = F.mt_grpo(*columns, *keys, turn_baseline=baseline, step_gamma=gamma, **options)
    scale = "std" if norm_std == "group" else "none"
    loop = slow.mt_grpo_rewards(rows, gamma=gamma, weights=weights, scale=scale, baseline=baseline)
    torch.testing.assert_close(found, torch.tensor(loop, dtype=torch.float64), **CLOSE)


@few
@given(ONE_BATCH, GAMMAS, WEIGHTS)
def test_turn_credit_equals_the_loop(rows, gamma, beta):
    rows, columns, keys = of_rollouts(rows)
    tokens = torch.tensor([row.length for row in rows])
    found = F.turn_credit(*columns, *keys, tokens, step_gamma=gamma, step_weight=beta)
    loop = slow.turn_credit_rewards(rows, gamma=gamma, beta=beta)
    torch.testing.assert_close(found, torch.tensor(loop, dtype=torch.float64), **CLOSE)


@few
@given(ONE_BATCH, GAMMAS, st.sampled_from([0.5, 1.0]), st.sampled_from(["first", "last"]))
def test_turn_gae_equals_the_loop(rows, gamma, lam, value):
    rewards = [[x * m for x, m in zip(r.token_rewards, r.mask, strict=True)] for r in rows]
    options = {"gamma": gamma, "lam": lam, "turn_value": value}
    values = numbers(rows, "values")
    found = F.turn_gae(flat(rewards), values, offsets_of(rows), mask_of(rows), **options)
    bare = [replace(row, behind=0.0) for row in rows]
    for ours, loop in zip(found, slow.turn_gae(bare, rewards, **options), strict=True):
        torch.testing.assert_close(ours, flat(loop), **CLOSE)


@few
@given(ONE_BATCH, st.sampled_from([0.5, 0.25]), st.sampled_from([2.0, 1.25]))
def test_gar_equals_the_loop(rows, floor, cap):
    rows = [replace(row, mask=[1]) for row in rows]
    rates = torch.tensor(
        [NULL if row.win_rate is None else row.win_rate for row in rows], dtype=torch.float64
    )
    rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    hacks = torch.tensor([row.hack for row in rows])
    found = F.gar(rewards, rates, groups_of(rows), hacks, floor=floor, cap=cap)
    loop = slow.gar(rows, [[row.reward] for row in rows], floor=floor, cap=cap)[0]
    torch.testing.assert_close(found, flat(loop), **CLOSE)
