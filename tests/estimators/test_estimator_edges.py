"""Estimators by hand: options and defaults that no reference has."""

import math

import numpy as np
import pytest

from rlpost.estimators.groups import grpo_passk
from rlpost.estimators.returns import agentic_reinforce, token_weights

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def double(xs):
    return np.array(xs, dtype=np.float64)


def whole(xs):
    return np.array(xs, dtype=np.int64)


def test_policy_segments_get_the_sum_of_their_rewards_or_the_last():
    rewards = double([1.0, 2.0, 99.0, 4.0, 8.0, 16.0])
    mask, offsets = np.array([1, 1, 0, 1, 1, 1], dtype=np.bool_), whole([0, 5, 6])
    got = agentic_reinforce(rewards, offsets, mask, gamma=0.5).advantages
    assert got.tolist() == [9.0, 9.0, 0.0, 12.0, 12.0, 16.0]
    last = agentic_reinforce(rewards, offsets, mask, gamma=0.5, segment_reward="last")
    assert last.returns.tolist() == [6.0, 6.0, 0.0, 8.0, 8.0, 16.0]
    assert agentic_reinforce(rewards, offsets, mask).returns[0].item() == 15.0
    assert agentic_reinforce(rewards, offsets).returns.tolist() == [114.0] * 5 + [16.0]


def test_the_optimal_token_baseline_weighs_by_score_norm_and_capped_ratios():
    old, infer = (
        double([math.log(0.5), math.log(0.25), 0.0]),
        double([math.log(0.25)] * 2 + [-99.0]),
    )
    squares, offsets = double([0.5, 0.25, 1.0]), whole([0, 2, 3])
    assert token_weights(old, squares, offsets).tolist() == pytest.approx([0.5, 1.25, 0.0])
    same = token_weights(old, squares, offsets, infer)
    assert same.tolist() == pytest.approx([0.5, 1.25, 0.0])
    assert token_weights(old, squares, offsets, None, ratio_cap=9.0).tolist() == same.tolist()
    capped = token_weights(old, squares + 1, offsets, infer, ratio_cap=1.5)
    assert capped.tolist() == pytest.approx([1.5 * 2.25, 1.5 * 2.25 + 1.75, 2.25])
    free = token_weights(old, squares + 1, offsets, infer, ratio_cap=math.inf)
    assert free.tolist() == pytest.approx([1.5 * 4, 1.5 * 4 + 1.75, math.exp(40)])
    far = token_weights(infer, squares + 1, offsets, old, ratio_cap=9.0)
    assert far[2].item() == pytest.approx(3 * math.exp(-40), rel=1e-9, abs=0)


def test_grpo_passk_is_the_lead_of_the_best():
    rewards, offsets = double([2.0, 0.0, 1.0, 3.0, 1.0, 1.0, -2.0, 5.0]), whole([0, 1, 4, 6, 8])
    lead = grpo_passk(rewards, offsets, norm_std="none").advantages
    assert lead.tolist() == [0, 0, 0, 2, 0, 0, 0, 7]
    got = grpo_passk(rewards, offsets).advantages
    three, two = math.sqrt(7 / 3), 7 / math.sqrt(2)
    want = [0, 0, 0, 2 / (three + 1e-6), 0, 0, 0, 7 / (two + 1e-6)]
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    assert grpo_passk(rewards, offsets, norm_eps=1.0).advantages[3].item() == pytest.approx(
        2 / (three + 1)
    )
