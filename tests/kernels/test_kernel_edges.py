"""Kernels at their edges, by hand: ties, empty parts, single ones, bounds that are met exactly."""

import math
from fractions import Fraction
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from rlpost.kernels import aggregate, corrections, moments, quantiles, rewards, scans, segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

DOUBLE = torch.float64
NONE = torch.zeros(1, dtype=torch.int64)
"""Offsets of no segments."""


def double(xs):
    return torch.tensor(xs, dtype=DOUBLE)


def flags(xs):
    return torch.tensor(xs, dtype=torch.bool)


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


# Scans with decays of their own


def test_a_scan_with_a_decay_per_segment_of_a_single_segment():
    got = scans.reverse_scan_each(double([1.0, 2.0, 4.0]), torch.tensor([0, 3]), double([0.5]))
    assert got.tolist() == [3.0, 4.0, 4.0]


def test_a_scan_with_gradients_has_the_same_values():
    values = torch.linspace(-1, 1, 16 * 1024 * 2 + 21, dtype=DOUBLE)
    offsets = torch.tensor([0, 3, 40, 40, 16 * 1024 + 5, len(values)])
    traced = values.clone().requires_grad_()
    out = scans.reverse_scan(traced, offsets, 0.5)
    torch.testing.assert_close(out, scans.reverse_scan(values, offsets, 0.5), rtol=1e-14, atol=0)
    out[[0, 3, 40]].sum().backward()
    want = torch.zeros_like(values)
    for first, last in ((0, 3), (3, 40), (40, 16 * 1024 + 5)):  # dyₛ/dxₜ = decay^(t-s)
        want[first:last] = 0.5 ** torch.arange(last - first, dtype=DOUBLE)
    torch.testing.assert_close(traced.grad, want, rtol=1e-14, atol=1e-300)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own
def test_the_derivative_of_a_scan_is_the_scan_of_the_derivative():
    values = torch.linspace(-1, 1, 40, dtype=DOUBLE)
    offsets = torch.tensor([0, 3, 40])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(values, values.square())
        made = forward_ad.unpack_dual(scans.reverse_scan(dual, offsets, 0.5))
    torch.testing.assert_close(made.primal, scans.reverse_scan(values, offsets, 0.5))
    torch.testing.assert_close(made.tangent, scans.reverse_scan(values.square(), offsets, 0.5))


def test_spread_or_scalar_does_not_repeat_equal_values():
    offsets = torch.tensor([0, 2, 2, 5])
    assert segments.spread_or_scalar(double([3, 3, 3]), offsets).tolist() == [3]
    assert segments.spread_or_scalar(double([3, 3, 4]), offsets).tolist() == [3, 3, 4, 4, 4]
    assert segments.spread_or_scalar(double([3, 4, 3]), offsets).tolist() == [3, 3, 3, 3, 3]
    assert segments.spread_or_scalar(double([1, 2, 3]), offsets).tolist() == [1, 1, 3, 3, 3]
    assert segments.spread_or_scalar(double([]), NONE).tolist() == []


def test_a_scan_of_no_segments_is_empty():
    assert scans.reverse_scan_each(double([]), NONE, double([])).tolist() == []


# Exact sums


@pytest.mark.parametrize("x", [5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308])
def test_the_digits_cover_the_range_of_float64(x):
    digits = moments.exact_digits(double([x] * 4), torch.zeros(4, dtype=torch.int64), 1)
    assert moments.fractions_of(digits)[0] == 4 * Fraction(x)


def test_fractions_of_sums_with_extreme_digits():
    keys = torch.tensor([0, 1])
    assert moments.fractions_of(moments.exact_digits(double([1.0, 1.0]), keys, 2)) == [1, 1]
    assert moments.fractions_of(moments.exact_digits(double([1.0, -2.0]), keys, 3)) == [1, -2, 0]
    assert moments.fractions_of(moments.zero_digits(2)) == [0, 0]


def test_exact_means_are_rounded_once():
    # 1/3 of the sum 1 + 2^-60 is not what rounding the sum to 1 first would give.
    values = double([1.0, 3 * 2.0**-54])
    got = moments.exact_means(values, torch.zeros(2, dtype=torch.int64), double([3.0]))
    assert got.tolist() == [float((Fraction(1) + 3 * Fraction(2) ** -54) / 3)]


def test_round_digits_needs_a_divisor_for_each_sum():
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        moments.round_digits(moments.zero_digits(2), torch.tensor([1]))


def test_the_exact_mean_of_no_value_is_0():
    got = moments.exact_means(double([2.0]), torch.tensor([1]), double([0.0, 1.0]))
    assert got.tolist() == [0.0, 2.0]


# Quantiles


def test_there_are_32_bins_per_doubling_from_2_to_the_minus_20_to_2_to_the_6():
    assert (quantiles.BINS, quantiles.ERROR) == (2 * 26 * 32 + 1, 1 / 64)
    below, middle = math.nextafter(2.0**-20, 0), 26 * 32
    edges = torch.tensor([0.0, below * (1 - 2.0**-24), 2.0**-20, 1.0, 1 + 1 / 32, 2.0, 63.9, 1e9])
    want = [0, 0, 1, 20 * 32 + 1, 20 * 32 + 2, 21 * 32 + 1, 26 * 32, 26 * 32]
    assert quantiles.bins_of(edges).tolist() == [middle + step for step in want]
    assert quantiles.bins_of(-edges).tolist() == [middle - step for step in want]


def counted(xs):
    bins = quantiles.bins_of(double(xs))
    return torch.bincount(bins, minlength=quantiles.BINS)


sided = st.floats(2.0**-20, 2.0**6, exclude_max=True, width=32)


@given(st.lists(sided | sided.map(lambda x: -x) | st.just(0.0), min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_its_error_of_the_exact_one(xs, share):
    got, ordered = quantiles.quantile(counted(xs), share), sorted(xs)
    # The least number with so many numbers up to it; of a count next to a whole one, that one.
    ranks = {max(1, math.ceil(share * len(xs) * (1 + shift))) for shift in (-1e-12, 0.0)}
    wants = [ordered[min(rank, len(xs)) - 1] for rank in ranks]
    assert any(abs(got - want) <= abs(want) / 64 for want in wants)


@pytest.mark.parametrize(
    ("share", "rank"), [(0.0, 1), (0.01, 1), (0.07, 7), (0.071, 8), (0.55, 55), (1.0, 100)]
)
def test_quantiles_of_share_0_and_1_are_the_first_and_last_number(share, rank):
    numbers = [2.0 ** (place / 32) for place in range(-60, 40)]  # each in a bin of its own
    want = numbers[rank - 1]
    assert quantiles.quantile(counted(numbers), share) == pytest.approx(want, rel=1 / 64)
    assert quantiles.quantile(counted([-x for x in numbers]), share) == pytest.approx(
        -numbers[100 - rank], rel=1 / 64
    )


def test_a_quantile_is_the_middle_of_its_bin():
    assert quantiles.quantile(counted([1.0]), 0.5) == 1 + 1 / 64
    assert quantiles.quantile(counted([-3.0]), 0.5) == -3.03125
    assert quantiles.quantile(counted([2.0**-20]), 0.5) == 2.0**-20 * (1 + 1 / 64)
    assert quantiles.quantile(counted([1e-9]), 0.5) == 0
    assert quantiles.quantile(counted([1e9]), 0.5) == 63.5
    assert quantiles.quantile(counted([1.0, 1e9, 1e9, 1e9]), 0.5) == 63.5
    assert math.copysign(1, quantiles.quantile(counted([0.0]), 0.5)) == 1  # not -0.0


# Ranges of positions


@given(
    st.lists(st.integers(0, 40) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 32, 33]), max_size=6)
)
def test_position_segments_end_at_the_ends_of_ranges(lengths):
    found = segments.PositionSegments.of(
        segments.offsets_of(torch.tensor(lengths, dtype=torch.int64))
    )
    edges = [0, 8, 16, 32, 64]
    cells = [
        (row, place, min(n, edges[place + 1]) - edges[place])
        for row, n in enumerate(lengths)
        for place in range(4)
        if n > edges[place]
    ]
    assert found.offsets.diff().tolist() == [size for _, _, size in cells]
    assert found.places.tolist() == [place for _, place, _ in cells]
    owners = [row for row, _, _ in cells]
    assert found.rows.diff().tolist() == [owners.count(row) for row in range(len(lengths))]
    values = torch.arange(sum(lengths), dtype=DOUBLE)
    pieces = [part.tolist() for part in values.split([size for _, _, size in cells])]
    assert found.sum(values).tolist() == [sum(part) for part in pieces]
    odd = values % 5 == 4
    assert found.any(odd).tolist() == [any(x % 5 == 4 for x in part) for part in pieces]
    numbers = torch.arange(len(cells), dtype=DOUBLE)
    want = [float(i) for i, part in enumerate(pieces) for _ in part]
    assert found.spread(numbers).tolist() == want


def test_position_segments_have_the_same_sums_on_other_devices():
    found = segments.PositionSegments.of(torch.tensor([0, 9, 9, 12]))
    values = torch.arange(12, dtype=DOUBLE)
    with mock.patch.object(segments.PositionSegments, "_on_cpu", new=False):
        assert found.sum(values).tolist() == [28, 8, 30]
        assert found.any(values == 8).tolist() == [False, True, False]
        assert found.any(values != 8).tolist() == [True, False, True]
    none = segments.PositionSegments.of(torch.tensor([0, 0, 0]))
    assert none.sum(double([])).tolist() == none.any(flags([])).tolist() == []


def test_the_last_position_range_has_no_end():
    found = segments.PositionSegments.of(torch.tensor([0, 2**21 + 5, 2**30 + 2**21 + 5]))
    assert found.offsets.diff()[19].item() == 5
    assert found.offsets.diff()[-1].item() == 2**30 - 2**21
    assert found.places.tolist() == [*range(20), *range(20)]


# Runs


def test_policy_segments_begin_at_responses_and_after_observations():
    mask, offsets = flags([1, 0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 4, 5, 5, 7])
    assert segments.policy_starts(mask, offsets).nonzero().squeeze(1).tolist() == [0, 3, 4, 5]
    cut = segments.starts_after_observations(mask, offsets)
    assert cut.nonzero().squeeze(1).tolist() == [0, 2, 3, 4, 5]
    bounds = segments.cut_segments(mask, offsets)
    assert bounds.tolist() == [0, 2, 3, 4, 5, 7]
    assert segments.segment_owners(bounds, offsets).tolist() == [1, 1, 1, 2, 4]


def test_no_tokens_have_no_policy_segments():
    assert segments.policy_starts(flags([]), torch.tensor([0, 0])).tolist() == []
    assert segments.cut_segments(flags([]), torch.tensor([0, 0])).tolist() == [0]


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
