"""Exact sums and moments against fractions and statistics."""

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from exact_sums import fractions_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import double, unchanged

from rlpost.kernels import moments, segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


# Exact sums

reals = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 1e-300, 1.0, -1.0, 0.1, 2.0**53]
)
keyed = st.lists(st.tuples(reals, st.integers(0, 3)), max_size=30)


def once_rounded(xs):
    """The sum of fractions, rounded to the nearest float."""
    total = sum(map(Fraction, xs), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def columns(pairs):
    keys = np.array([key for _, key in pairs], dtype=np.int64)
    return double([x for x, _ in pairs]), keys


@given(keyed)
def test_exact_sums_are_rounded_once_at_the_end(pairs):
    values, keys = columns(pairs)
    got = unchanged(moments.exact_sums, values, keys, count=4)
    for key, total in enumerate(got.tolist()):
        own = [x for x, k in pairs if k == key]
        assert total == once_rounded(own)
        if math.isfinite(once_rounded(own)) and sum(map(abs, own)) < math.inf:
            assert total == math.fsum(own)
    digits = moments.exact_digits(values, keys, 4)
    assert fractions_of(digits)[0] == sum((Fraction(x) for x, k in pairs if k == 0), Fraction(0))


@given(keyed, st.randoms(use_true_random=False), st.integers(1, 7))
def test_exact_sums_do_not_depend_on_order_or_chunks(pairs, random, size):
    want = moments.exact_sums(*columns(pairs), 4)
    shuffled = random.sample(pairs, len(pairs))
    total = np.zeros((4, moments.DIGITS), np.int64)
    for start in range(0, len(shuffled), size):
        part = moments.exact_digits(*columns(shuffled[start : start + size]), 4)
        total = unchanged(moments.carried, total + part)
    assert moments.round_digits(total).tobytes() == want.tobytes()


def test_carries_of_thousands_of_partial_sums_do_not_overflow():
    ones = moments.exact_digits(double([0.1, -3e300]), np.array([0, 1]), 2)
    total = np.zeros((2, moments.DIGITS), np.int64)
    for _ in range(5000):
        total = moments.carried(total + ones)
    found = fractions_of(total)
    assert found == [5000 * Fraction(0.1), 5000 * Fraction(-3e300)]
    for _ in range(18):
        total = moments.carried(total + total)
    assert fractions_of(total)[0] == 2**18 * 5000 * Fraction(0.1)


# Moments

few = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


def group_columns(groups):
    offsets = segments.offsets_of(np.array([len(xs) for xs in groups], dtype=np.int64))
    return double([x for xs in groups for x in xs]), offsets


def as_documented(xs):
    """Count, mean and Bessel deviation; 0 where they are not defined."""
    if not xs:
        return 0, 0.0, 0.0
    return len(xs), statistics.fmean(xs), statistics.stdev(xs) if len(xs) > 1 else 0.0


@given(st.lists(few | st.just([]), min_size=1, max_size=5))
def test_moments_of_groups_and_keys(groups):
    values, offsets = group_columns(groups)
    keys = segments.spread(np.arange(len(groups)), offsets)
    by_group = unchanged(moments.group_moments, values, offsets)
    by_key = unchanged(moments.keyed_moments, values, keys, count=len(groups))
    for found in (by_group, by_key):
        for part, want in zip(found, zip(*map(as_documented, groups), strict=True), strict=True):
            np.testing.assert_allclose(part, want, rtol=1e-9, atol=1e-7)
    own = found.at(keys)
    assert own.mean.tolist() == [found.mean[k].item() for k in keys.tolist()]


@given(st.floats(-1e9, 1e9), st.integers(1, 60))
def test_equal_values_of_a_group_have_exactly_that_mean_and_standard_deviation_0(x, size):
    values, offsets = group_columns([[x] * size])
    got = moments.group_moments(values, offsets)
    assert (got.mean.item(), got.std.item()) == (x, 0.0)
    assert moments.is_constant(values, offsets).tolist() == [True]


@given(st.lists(st.tuples(few | st.just([]), st.integers(0, 2)), min_size=1, max_size=6), st.data())
def test_pooled_token_moments_are_the_moments_of_all_tokens(rows, data):
    values, offsets = group_columns([xs for xs, _ in rows])
    flags = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    mask, keys = np.array(flags, dtype=np.bool_), np.array([key for _, key in rows])
    with_nan = np.where(mask, values, math.nan)
    parts = unchanged(moments.token_moments, np.where(mask, values, 0.0), mask, offsets)
    hidden = moments.token_moments(with_nan, mask, offsets)
    assert all(np.array_equal(a, b) for a, b in zip(parts, hidden, strict=True))
    pooled = unchanged(
        lambda *p, keys: moments.pooled_moments(moments.TokenMoments(*p), keys, 3),
        *parts,
        keys=keys,
    )
    of_tokens = segments.spread(keys, offsets)
    for key in range(3):
        own = values[mask & (of_tokens == key)].tolist()
        got = [part[key].item() for part in pooled]
        np.testing.assert_allclose(got, as_documented(own), rtol=1e-9, atol=1e-5)


def test_exact_means_are_rounded_once():
    # 1/3 of the sum 1 + 2^-60 is not what rounding the sum to 1 first would give.
    values = double([1.0, 3 * 2.0**-54])
    got = moments.exact_means(values, np.zeros(2, dtype=np.int64), double([3.0]))
    assert got.tolist() == [float((Fraction(1) + 3 * Fraction(2) ** -54) / 3)]
