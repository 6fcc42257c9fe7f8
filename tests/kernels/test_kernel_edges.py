"""Kernels at their edges, by hand: ties, empty parts, single ones, bounds that are met exactly."""

import math

import pytest
import torch
from kernel_values import double, flags

from rlpost.kernels import aggregate, corrections, moments, rewards

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


# The gap between engine and trainer

LOGS = (double([-1.0, -9.0, -3.0]), double([-2.0, -1.0, -2.5]))  # d = 1, -8, -0.5
MASK, BOUNDS = flags([1, 0, 1]), torch.tensor([0, 3, 3])


@pytest.mark.parametrize(
    ("measure", "want"),
    [
        ("ratio", [math.exp(1), math.exp(-8), math.exp(-0.5)]),
        ("diff", [math.exp(a) - math.exp(b) for a, b in ((-1, -2), (-9, -1), (-3, -2.5))]),
        ("k1", [-1, 8, 0.5]),
        ("k2", [0.5, 32, 0.125]),
        ("k3", [math.exp(d) - 1 - d for d in (1, -8, -0.5)]),
        ("tv", [abs(math.exp(d) - 1) for d in (1, -8, -0.5)]),
        ("error", [math.exp(1), math.exp(8), math.exp(0.5)]),
    ],
)
def test_each_divergence_of_tokens_is_its_formula(measure, want):
    got = corrections.divergence(*LOGS, MASK, BOUNDS, measure=measure, level="token")
    assert got.tolist() == pytest.approx(want)


def test_response_levels_skip_observations_and_are_0_without_policy_tokens():
    values = double([-5.0, 99.0, -3.0])
    levels = {"sequence": -8.0, "geometric": -4.0, "max": -3.0}
    for level, want in levels.items():
        got = corrections.reduce_responses(values, MASK, BOUNDS, level=level)
        assert got.tolist() == [want, 0.0]


def test_a_weight_equal_to_the_cap_or_the_floor_is_not_truncated():
    found = corrections.importance_weights(double([0.0]), cap=1.0, floor=1.0)
    assert (found.values.tolist(), found.truncated.tolist()) == ([1.0], [False])


# Losses of batches


def test_the_loss_of_a_batch_without_policy_tokens_is_0():
    none = torch.tensor([0])
    for responses in (0, 2):
        rows = torch.tensor([responses])
        totals = aggregate.AggregateTotals(moments.zero_digits(1), none, none, rows, none)
        for how in ("token-mean", "seq-mean-token-sum-norm", "seq-mean-token-mean"):
            assert totals.loss(how=how).tolist() == [0.0]


# Weights


def test_sample_weights_at_the_ends_of_their_ranges():
    assert rewards.difficulty_weights(double([-1, 0, 0.5, 1, 3])).tolist() == [
        0.5, 0.5, 1.25, 2, 2,
    ]  # fmt: skip
    got = rewards.length_weights(double([2, 4, 6]), double([2] * 3), double([6] * 3))
    want = [1.5, 1.5 - 2 / (4 + 1e-8), 1.5 - 4 / (4 + 1e-8)]
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    alone = rewards.length_weights(double([3.0]), double([3.0]), double([3.0]))
    assert alone.tolist() == [1.5]
