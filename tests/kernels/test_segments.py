"""Segments against loops; and by hand: ranges of positions, runs of policy tokens."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import DOUBLE, double, flags, ragged, unchanged

from rlpost.kernels import moments, segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


sizes = st.lists(st.integers(0, 6), max_size=8)


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
    own = np.arange(len(lengths), dtype=DOUBLE)
    repeated = [float(i) for i, n in enumerate(lengths) for _ in range(n)]
    assert unchanged(segments.spread, own, offsets).tolist() == repeated


@given(sizes, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 1.0]))
def test_count_true_and_last_true_of_segments(lengths, random, share):
    offsets, values, lists = ragged(lengths)
    flags = [[random.random() < share for _ in xs] for xs in lists]
    mask = np.array([flag for row in flags for flag in row], dtype=np.bool_)
    counts = [sum(row) for row in flags]
    assert unchanged(segments.count_true, mask, offsets).tolist() == counts
    assert np.diff(unchanged(segments.compact_offsets, mask, offsets)).tolist() == counts
    last = unchanged(segments.last_true, mask, offsets)
    assert last.dtype == np.int64
    starts = offsets.tolist()
    want = [
        max((a + t for t, f in enumerate(row) if f), default=-1)
        for a, row in zip(starts, flags, strict=False)
    ]
    assert last.tolist() == want
    amounts = np.full((len(lengths),), 100.0, dtype=DOUBLE)
    put = segments.add_at(values.copy(), last, amounts)
    assert (put - values).tolist() == [100.0 * (i in want) for i in range(len(values))]


def test_a_segment_sum_keeps_its_dtype_and_reads_its_own_segment_only():
    values = np.array([math.nan, 1.0, 2.0, math.inf], np.float32)
    sums = segments.segment_sum(values, np.array([0, 1, 3, 3, 4]))
    assert sums.dtype == np.float32
    assert sums[1:].tolist() == [3.0, 0.0, math.inf]


# Ranges of positions


@given(
    st.lists(st.integers(0, 40) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 32, 33]), max_size=6)
)
def test_position_segments_end_at_the_ends_of_ranges(lengths):
    found = segments.PositionSegments.of(segments.offsets_of(np.array(lengths, dtype=np.int64)))
    edges = [0, 8, 16, 32, 64]
    cells = [
        (row, place, min(n, edges[place + 1]) - edges[place])
        for row, n in enumerate(lengths)
        for place in range(4)
        if n > edges[place]
    ]
    assert np.diff(found.offsets).tolist() == [size for _, _, size in cells]
    assert found.places.tolist() == [place for _, place, _ in cells]
    owners = [row for row, _, _ in cells]
    assert np.diff(found.rows).tolist() == [owners.count(row) for row in range(len(lengths))]
    values = np.arange(sum(lengths), dtype=DOUBLE)
    pieces = [values[a:b].tolist() for a, b in pairwise(found.offsets.tolist())]
    assert found.sum(values).tolist() == [sum(part) for part in pieces]
    numbers = np.arange(len(cells), dtype=DOUBLE)
    want = [float(i) for i, part in enumerate(pieces) for _ in part]
    assert found.spread(numbers).tolist() == want


def test_position_segments_of_no_tokens_have_no_sums():
    none = segments.PositionSegments.of(np.array([0, 0, 0]))
    assert none.sum(double([])).tolist() == []


def test_the_last_position_range_has_no_end():
    found = segments.PositionSegments.of(np.array([0, 2**21 + 5, 2**30 + 2**21 + 5]))
    assert np.diff(found.offsets)[19].item() == 5
    assert np.diff(found.offsets)[-1].item() == 2**30 - 2**21
    assert found.places.tolist() == [*range(20), *range(20)]


# Runs


def test_policy_segments_begin_at_responses_and_after_observations():
    mask, offsets = flags([1, 0, 0, 1, 1, 1, 0]), np.array([0, 0, 4, 5, 5, 7])
    assert np.flatnonzero(segments.policy_starts(mask, offsets)).tolist() == [0, 3, 4, 5]
    cut = segments.starts_after_observations(mask, offsets)
    assert np.flatnonzero(cut).tolist() == [0, 2, 3, 4, 5]
    bounds = segments.cut_segments(mask, offsets)
    assert bounds.tolist() == [0, 2, 3, 4, 5, 7]
    assert segments.segment_owners(bounds, offsets).tolist() == [1, 1, 1, 2, 4]


def test_no_tokens_have_no_policy_segments():
    assert segments.policy_starts(flags([]), np.array([0, 0])).tolist() == []
    assert segments.cut_segments(flags([]), np.array([0, 0])).tolist() == [0]
