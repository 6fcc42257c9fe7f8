"""Kernels of one number per response, and KL, against the references."""

import math

import pytest
import reference as ref
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Response

from rlpost.kernels import kl, moments, rewards

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

DOUBLE = torch.float64
log_probs = st.floats(-400, 0)
pairs = st.lists(st.tuples(log_probs, log_probs), max_size=12)
lengths = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def double(xs):
    return torch.tensor(xs, dtype=DOUBLE)


def of_lengths(tokens, **columns):
    """A response of each of these many policy tokens, and the lengths as a tensor."""
    names = columns or {"reward": [0.0] * len(tokens)}
    rows = [
        Response(**{"group": "p", "reward": 0.0, **dict(zip(names, xs, strict=True))}, mask=[1] * n)
        for n, *xs in zip(tokens, *names.values(), strict=True)
    ]
    return rows, torch.tensor(tokens, dtype=torch.int64)


# KL


@given(pairs, st.sampled_from(["k1", "abs", "k2", "k3"]), st.sampled_from([40.0, 2.0, math.inf]))
def test_kl_equals_the_reference_with_all_clamps(cells, estimator, bound):
    old, base = (double([pair[i] for pair in cells]) for i in (0, 1))
    before = old.clone(), base.clone()
    got = kl.token_kl(old, base, estimator=estimator, log_ratio_clamp=bound, clamp=10.0)
    assert (torch.equal(old, before[0]), torch.equal(base, before[1])) == (True, True)
    distances = [ref.clamp(a - b, -bound, bound) for a, b in cells]
    want = [ref.divergence(d, estimator) if d > -700 else 10.0 for d in distances]
    assert got.tolist() == pytest.approx(want, rel=1e-12, abs=1e-300)


def test_k3_of_nearly_equal_policies_keeps_its_digits():
    got = kl.token_kl(double([1e-9]), double([0.0]), estimator="k3", log_ratio_clamp=40, clamp=10)
    assert got.tolist() == pytest.approx([0.0], abs=1e-16)
    got = kl.token_kl(double([1e-4]), double([0.0]), estimator="k3", log_ratio_clamp=40, clamp=10)
    assert got.tolist() == pytest.approx([0.5e-8 - 1e-12 / 6], rel=1e-8)


def test_the_kl_clamp_applies_to_k3_only_by_default():
    old, base = double([-9.0, 0.0]), double([0.0, -9.0])
    found = {
        name: kl.token_kl(old, base, estimator=name, log_ratio_clamp=40, clamp=3.0).tolist()
        for name in ("k1", "abs", "k2", "k3")
    }
    assert found["k1"] == [-9, 9]
    assert found["abs"] == [9, 9]
    assert found["k2"] == [40.5, 40.5]
    assert found["k3"] == [3, 3]


def test_kl_keeps_its_dtype():
    old = torch.zeros(2, dtype=torch.float32)
    got = kl.token_kl(old, old - 1, estimator="k2", log_ratio_clamp=40, clamp=10)
    assert (got.dtype, got.tolist()) == (torch.float32, [0.5, 0.5])


@given(st.lists(st.tuples(st.floats(-1, 10), st.integers(1, 50)), max_size=8))
def test_the_kl_coefficient_adapts_after_each_batch(batches):
    means, sizes = [kl for kl, _ in batches], [n for _, n in batches]
    got = kl.adaptive_coefficients(means, sizes, start=0.2, target=0.5, horizon=20.0)
    beta, want = 0.2, []
    for value, n in batches:
        want.append(beta)
        beta *= 1 + ref.clamp(value / 0.5 - 1, -0.2, 0.2) * n / 20
    assert got == pytest.approx(want)


def test_the_kl_coefficient_is_constant_at_the_target():
    found = kl.adaptive_coefficients([0.5, 0.5, 0.4], [9] * 3, start=0.1, target=0.5, horizon=9)
    assert found == [0.1] * 3
    assert kl.adaptive_coefficients([], [], start=0.1, target=1, horizon=1) == []


# Rewards


@given(lengths, st.integers(1, 20), st.integers(1, 20), st.sampled_from([0.0, 0.5, 3.0]))
def test_the_overlong_penalty(tokens, limit, buffer, factor):
    rows, sizes = of_lengths(tokens)
    got = rewards.overlong_penalty(sizes, max_len=limit, buffer=buffer, factor=factor)
    assert got.dtype == DOUBLE
    assert got.tolist() == ref.overlong_penalties(rows, limit, buffer, factor)


batch = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


@given(st.lists(batch, min_size=1, max_size=6))
def test_running_moments_equal_the_reference(batches):
    known, own = rewards.RunningMoments(), ref.RunningMoments()
    for xs in batches:
        own.fold(xs)
        known = known.merged(len(xs), ref.mean(xs), ref.std(xs) ** 2 * (len(xs) - 1) / len(xs))
        assert (known.count, known.mean) == pytest.approx((own.count, own.mean), abs=1e-12)
        assert (known.variance, known.std) == pytest.approx((own.var, own.std), rel=1e-6, abs=1e-6)


def test_running_moments_of_one_batch_are_the_plain_moments():
    xs = [1.0, 4.0, 4.0, -3.0]
    known = rewards.RunningMoments().merged(4, ref.mean(xs), ref.std(xs) ** 2 * 3 / 4)
    assert (known.mean, known.std) == pytest.approx((ref.mean(xs), ref.std(xs)))
    assert known.merged(0, 9.0, 9.0) == known
    assert rewards.RunningMoments().std == 0


def test_running_statistics_are_per_domain_in_batch_order():
    sets = moments.Moments(double([2, 1, 2]), double([1.0, 7.0, 5.0]), double([2**0.5, 0, 2**0.5]))
    mean, std, after = rewards.running_statistics(sets, [0, 1, 0], {})
    assert mean.tolist() == pytest.approx([1, 7, 3])
    assert std.tolist() == pytest.approx([math.sqrt(2), 0, math.sqrt(20 / 3)])
    assert after[0].count == pytest.approx(4)
    again, _, _ = rewards.running_statistics(sets, [0, 1, 0], after)
    assert again.tolist() == pytest.approx([14 / 6, 7, 3])


# Masks and weights


@given(lengths, st.data())
def test_sample_masks_equal_the_reference(tokens, data):
    drawn = st.sampled_from([0.0, 1.0, 0.5])
    xs = data.draw(st.lists(drawn, min_size=len(tokens), max_size=len(tokens)))
    rows, sizes = of_lengths(tokens, reward=xs)
    limit = data.draw(st.integers(1, 20))
    kept = rewards.not_at_max_length(sizes, max_response_length=limit)
    assert kept.tolist() == ref.max_len_kept(rows, limit)
    kept = rewards.error_max_len_clip(double(xs), sizes, threshold=limit)
    assert kept.tolist() == ref.error_max_len_kept(rows, limit)


def test_the_bounds_of_the_difficulty_mask_are_exclusive():
    mean, size = double([0.1, 0.2, 0.9, 0.95, 1.0]), torch.tensor([4, 4, 4, 4, 1])
    kept = rewards.within_difficulty(mean, size, low=0.1, high=0.95)
    assert kept.tolist() == [False, True, True, False, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.floats(-2, 3), st.integers(0, 2)), min_size=1, max_size=12
    )
)
def test_sample_weights_equal_the_reference(cells):
    columns = {name: [cell[i] for cell in cells] for i, name in ((1, "difficulty"), (2, "batch"))}
    rows, sizes = of_lengths([cell[0] for cell in cells], **columns)
    got = rewards.difficulty_weights(double(columns["difficulty"]))
    assert got.tolist() == ref.difficulty_weights(rows)
    keys = torch.tensor(columns["batch"])
    shortest, longest = moments.keyed_extremes(sizes.to(DOUBLE), keys, 3)
    got = rewards.length_weights(sizes.to(DOUBLE), shortest[keys], longest[keys])
    assert got.tolist() == pytest.approx(ref.length_weights(rows))
    absent = [key for key in range(3) if key not in columns["batch"]]
    assert shortest[absent].tolist() == [math.inf] * len(absent)
    assert longest[absent].tolist() == [-math.inf] * len(absent)
