"""Segments, scans, exact sums and moments against loops, fractions and statistics."""

import math
import statistics
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from exact_sums import fractions_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlpost.kernels import moments, scans, segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

DOUBLE = torch.float64
sizes = st.lists(st.integers(0, 6), max_size=8)


def double(xs):
    return torch.tensor(xs, dtype=DOUBLE)


def ragged(lengths):
    """Offsets, values 1, 2, 3 and so on, and the same values as lists."""
    offsets = segments.offsets_of(torch.tensor(lengths, dtype=torch.int64))
    values = torch.arange(1, sum(lengths) + 1, dtype=DOUBLE)
    bounds = offsets.tolist()
    return offsets, values, [values[a:b].tolist() for a, b in pairwise(bounds)]


def unchanged(function, *tensors, **knobs):
    """The function's result, once it is sure that it left its inputs as they were."""
    before = [tensor.clone() for tensor in tensors]
    found = function(*tensors, **knobs)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)
    return found


# Segments


@given(sizes)
def test_segment_functions_accept_empty_segments_anywhere(lengths):
    offsets, values, lists = ragged(lengths)
    assert segments.lengths(offsets).tolist() == lengths
    assert unchanged(segments.segment_sum, values, offsets).tolist() == [sum(xs) for xs in lists]
    highest = [max(xs, default=-math.inf) for xs in lists]
    assert unchanged(segments.segment_max, values, offsets).tolist() == highest
    lowest = [min(xs, default=math.inf) for xs in lists]
    assert unchanged(segments.segment_min, values, offsets).tolist() == lowest
    first = [xs[0] if xs else 0.0 for xs in lists]
    assert unchanged(moments.first_values, values, offsets).tolist() == first
    own = torch.arange(len(lengths), dtype=DOUBLE)
    repeated = [float(i) for i, n in enumerate(lengths) for _ in range(n)]
    assert unchanged(segments.spread, own, offsets).tolist() == repeated


@given(sizes, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 1.0]))
def test_count_true_and_last_true_of_segments(lengths, random, share):
    offsets, values, lists = ragged(lengths)
    flags = [[random.random() < share for _ in xs] for xs in lists]
    mask = torch.tensor([flag for row in flags for flag in row], dtype=torch.bool)
    counts = [sum(row) for row in flags]
    assert unchanged(segments.count_true, mask, offsets).tolist() == counts
    assert unchanged(segments.compact_offsets, mask, offsets).diff().tolist() == counts
    last = unchanged(segments.last_true, mask, offsets)
    assert last.dtype == torch.int64
    starts = offsets.tolist()
    want = [
        max((a + t for t, f in enumerate(row) if f), default=-1)
        for a, row in zip(starts, flags, strict=False)
    ]
    assert last.tolist() == want
    amounts = torch.full((len(lengths),), 100.0, dtype=DOUBLE)
    put = segments.add_at(values.clone(), last, amounts)
    assert (put - values).tolist() == [100.0 * (i in want) for i in range(len(values))]


def test_a_segment_sum_keeps_its_dtype_and_reads_its_own_segment_only():
    values = torch.tensor([math.nan, 1.0, 2.0, math.inf])
    sums = segments.segment_sum(values, torch.tensor([0, 1, 3, 3, 4]))
    assert sums.dtype == torch.float32
    assert sums[1:].tolist() == [3.0, 0.0, math.inf]


# Scans


def loop(values, lengths, decay):
    out, start = [], 0
    for n in lengths:
        row, running = [0.0] * n, 0.0
        for t in reversed(range(n)):
            running = float(values[start + t]) + decay * running
            row[t] = running
        out += row
        start += n
    return out


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 700) | st.sampled_from([0, 1, 127, 128, 129, 256, 257]), max_size=5),
    st.sampled_from([0.0, 1.0, 0.5, 0.95, 0.999]) | st.floats(0, 1),
    st.sampled_from([torch.float32, DOUBLE]),
    st.integers(0, 2**32),
)
def test_the_blocked_scan_is_the_naive_loop(lengths, decay, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), generator=generator, dtype=DOUBLE).to(dtype)
    offsets = segments.offsets_of(torch.tensor(lengths, dtype=torch.int64))
    got = unchanged(scans.reverse_scan, values, offsets, decay=decay)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    np.testing.assert_allclose(got, loop(values, lengths, decay), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("decay", [1.0, 0.999999, 0.99, 0.1, 1e-300])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_responses_of_a_hundred_thousand_tokens_stay_finite(decay, dtype):
    lengths = [100_000, 0, 3, 99_999]
    values = torch.ones(sum(lengths), dtype=dtype)
    offsets = segments.offsets_of(torch.tensor(lengths))
    got = scans.reverse_scan(values, offsets, decay)
    want = float(lengths[0]) if decay == 1 else (1 - decay ** lengths[0]) / (1 - decay)
    assert bool(torch.isfinite(got).all())
    assert float(got[0]) == pytest.approx(want, rel=1e-3 if dtype == torch.float32 else 1e-9)
    assert got[100_000:100_003].tolist() == pytest.approx([1 + decay + decay**2, 1 + decay, 1])


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_scan_depends_on_what_follows_in_the_segment_and_on_nothing_else(dtype):
    values = torch.linspace(-1, 1, 5000, dtype=DOUBLE).sin().to(dtype)
    offsets = torch.tensor([0, 7, 7, 2031, 2047, 5000])
    got = scans.reverse_scan(values, offsets, 0.95)
    assert torch.equal(scans.reverse_scan(values.clone().requires_grad_(), offsets, 0.95), got)
    for first, last in ((0, 7), (3, 7), (7, 2031), (1000, 2031), (2031, 2047), (2048, 5000)):
        alone = scans.reverse_scan(values[first:last], torch.tensor([0, last - first]), 0.95)
        assert torch.equal(alone, got[first:last])


def test_a_scan_keeps_a_non_finite_number_within_its_segment():
    values = torch.ones(600, dtype=DOUBLE)
    values[300] = math.nan
    got = scans.reverse_scan(values, torch.tensor([0, 290, 310, 600]), 0.9)
    assert bool(torch.isfinite(got[:290]).all())
    assert bool(torch.isfinite(got[310:]).all())


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
    keys = torch.tensor([key for _, key in pairs], dtype=torch.int64)
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
    total = moments.zero_digits(4)
    for start in range(0, len(shuffled), size):
        part = moments.exact_digits(*columns(shuffled[start : start + size]), 4)
        total = unchanged(moments.add_digits, total, part)
    assert moments.round_digits(total).numpy().tobytes() == want.numpy().tobytes()


def test_exact_sums_keep_the_last_bit_after_cancellation():
    values = double([1e308, 1.0, -1e308, 5e-324, -1.0])
    assert moments.exact_sums(values, torch.zeros(5, dtype=torch.int64), 1).tolist() == [5e-324]


def test_carries_of_thousands_of_partial_sums_do_not_overflow():
    ones = moments.exact_digits(double([0.1, -3e300]), torch.tensor([0, 1]), 2)
    total = moments.zero_digits(2)
    for _ in range(5000):
        total = moments.add_digits(total, ones)
    found = fractions_of(total)
    assert found == [5000 * Fraction(0.1), 5000 * Fraction(-3e300)]
    for _ in range(18):
        total = moments.add_digits(total, total)
    assert fractions_of(total)[0] == 2**18 * 5000 * Fraction(0.1)


def test_sums_beyond_the_range_of_float64_are_infinite():
    got = moments.exact_sums(double([1e308, 1e308, -1e308, -1e308]), torch.tensor([0, 0, 1, 1]), 3)
    assert got.tolist() == [math.inf, -math.inf, 0.0]


# Moments

few = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


def group_columns(groups):
    offsets = segments.offsets_of(torch.tensor([len(xs) for xs in groups], dtype=torch.int64))
    return double([x for xs in groups for x in xs]), offsets


def as_documented(xs):
    """Count, mean and Bessel deviation; 0 where they are not defined."""
    if not xs:
        return 0, 0.0, 0.0
    return len(xs), statistics.fmean(xs), statistics.stdev(xs) if len(xs) > 1 else 0.0


@given(st.lists(few | st.just([]), min_size=1, max_size=5))
def test_moments_of_groups_and_keys(groups):
    values, offsets = group_columns(groups)
    keys = segments.spread(torch.arange(len(groups)), offsets)
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


@example(375276350.25042176, 14)
@given(st.floats(-1e9, 1e9), st.integers(1, 60))
def test_equal_values_of_a_key_have_exactly_that_mean_and_standard_deviation_0(x, size):
    keys = torch.zeros(size, dtype=torch.int64)
    got = moments.keyed_moments(torch.full((size,), x, dtype=DOUBLE), keys, 1)
    assert (got.mean.item(), got.std.item()) == (x, 0.0)


@given(st.lists(st.tuples(few | st.just([]), st.integers(0, 2)), min_size=1, max_size=6), st.data())
def test_pooled_token_moments_are_the_moments_of_all_tokens(rows, data):
    values, offsets = group_columns([xs for xs, _ in rows])
    flags = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    mask, keys = torch.tensor(flags, dtype=torch.bool), torch.tensor([key for _, key in rows])
    with_nan = torch.where(mask, values, math.nan)
    parts = unchanged(moments.token_moments, torch.where(mask, values, 0.0), mask, offsets)
    hidden = moments.token_moments(with_nan, mask, offsets)
    assert all(torch.equal(a, b) for a, b in zip(parts, hidden, strict=True))
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


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, -0.5]), st.booleans()), max_size=20
    ),
    st.randoms(use_true_random=False),
)
def test_the_canonical_order_does_not_depend_on_the_order_of_rows(rows, random):
    def sorted_rows(rows):
        codes = torch.tensor([row[0] for row in rows], dtype=torch.int64)
        others = [double([float(row[i]) for row in rows]) for i in (1, 2)]
        order = unchanged(moments.canonical_order, codes, *others)
        return [rows[i] for i in order.tolist()]

    assert sorted_rows(rows) == sorted(rows)
    assert sorted_rows(random.sample(rows, len(rows))) == sorted(rows)
    codes = torch.tensor([row[0] for row in rows], dtype=torch.int64)
    counts = moments.group_offsets(codes, 4).diff().tolist()
    assert counts == [sum(row[0] == code for row in rows) for code in range(4)]
