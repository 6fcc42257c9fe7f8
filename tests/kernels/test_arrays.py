"""The primitives of both libraries against plain loops: empty segments, NaN, infinities."""

import math
from itertools import pairwise

import numpy as np
import pytest
from array_kinds import array_of, kind_of, names_of, numbers_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.kernels.arrays import (
    is_all_true,
    namespace,
    numpy_arrays,
    torch_arrays,
)

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")
BOTH = pytest.mark.parametrize("kind", ["numpy", "torch"])
few = settings(max_examples=25)
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e300, math.inf, -math.inf, math.nan]) | st.floats(
    -1e3, 1e3
)


@st.composite
def ragged(draw, elements):
    """Offsets, and as many elements."""
    sizes = draw(st.lists(st.integers(0, 20), max_size=6))
    offsets = [0, *np.cumsum(sizes).tolist()]
    return offsets, draw(st.lists(elements, min_size=offsets[-1], max_size=offsets[-1]))


def called(kind, name, *arguments):
    """What a function of a library returns, as an array of numpy; it must be of its kind."""
    arrays = [array_of(kind, x) if isinstance(x, np.ndarray) else x for x in arguments]
    found = getattr(namespace(arrays[0]), name)(*arrays)
    assert kind_of(found) == kind
    return numbers_of(found)


def bits(numbers):
    """Numbers as a text in which NaN is equal to NaN, and -0 to 0."""
    return [str(float(x) + 0.0) for x in numbers]


def test_both_libraries_have_the_same_functions():
    ours, theirs = names_of(numpy_arrays), names_of(torch_arrays)
    assert ours - {"ArrayBlocks"} == theirs - {"Tensor", "TensorBlocks", "owners"}


@BOTH
@few
@given(data=ragged(NUMBERS))
def test_extremes_of_segments_are_those_of_loops(kind, data):
    offsets, values = np.array(data[0]), np.array(data[1], np.float64)
    for how, empty, extreme in (("max", -math.inf, np.max), ("min", math.inf, np.min)):
        want = [extreme(values[a:b]) if b > a else empty for a, b in pairwise(data[0])]
        assert bits(called(kind, "reduce_segments", values, offsets, how)) == bits(want)


@BOTH
@few
@given(data=ragged(st.integers(-1000, 1000)))
def test_sums_of_segments_are_those_of_loops(kind, data):
    offsets, start = np.array(data[0]), np.arange(len(data[0]) - 1.0)
    want = [sum(data[1][a:b]) for a, b in pairwise(data[0])]
    for dtype in (np.int64, np.float64):
        values = np.array(data[1], dtype)
        assert called(kind, "reduce_segments", values, offsets, "sum").tolist() == want
    more = [row + total for row, total in enumerate(want)]
    assert called(kind, "add_segment_sums", start, values, offsets).tolist() == more


@BOTH
def test_a_sum_that_is_not_finite_stays_within_its_segment(kind):
    values, offsets = np.array([math.inf, -math.inf, 1.0, math.nan]), np.array([0, 1, 2, 2, 3, 4])
    with np.errstate(all="ignore"):
        found = called(kind, "reduce_segments", values, offsets, "sum")
    assert bits(found) == bits([math.inf, -math.inf, 0.0, 1.0, math.nan])


@BOTH
@few
@given(data=ragged(st.booleans()))
def test_masks_of_segments_are_those_of_loops(kind, data):
    bounds, mask = data
    offsets, flags = np.array(bounds), np.array(mask, np.bool_)
    rows = [mask[a:b] for a, b in pairwise(bounds)]
    assert called(kind, "count_true", flags, offsets).tolist() == [sum(row) for row in rows]
    assert called(kind, "reduce_segments", flags, offsets, "any").tolist() == [*map(any, rows)]
    firsts = zip(bounds, rows, strict=False)
    last = [max((a + i for i, x in enumerate(row) if x), default=-1) for a, row in firsts]
    assert called(kind, "last_true", flags, offsets).tolist() == last
    assert called(kind, "positions_of", flags).tolist() == [i for i, x in enumerate(mask) if x]
    starts = [i in bounds[:-1] or not mask[i - 1] for i in range(len(mask))]
    assert called(kind, "starts_after_observations", flags, offsets).tolist() == starts
    sizes = np.arange(len(rows))
    spread = [row for row, flags in enumerate(rows) for _ in flags]
    assert called(kind, "spread", sizes, offsets).tolist() == spread
    assert is_all_true(array_of(kind, flags)) == all(mask)


@BOTH
@few
@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=20))
def test_numbers_are_placed_filled_and_added_at_positions(kind, cells):
    values = np.array([x for x, _ in cells], np.float64)
    chosen = [i for i, (_, there) in enumerate(cells) if there]
    positions, amounts = np.array(chosen, np.int64), np.arange(1.0, len(chosen) + 1)
    placed, filled, added = np.zeros(len(cells)), values.tolist(), values.tolist()
    for at, amount in zip(chosen, amounts, strict=True):
        placed[at], filled[at] = amount, 7.0
        added[at] += amount
    assert called(kind, "placed", amounts, positions, len(cells)).tolist() == placed.tolist()
    assert bits(called(kind, "filled", values, positions, 7.0)) == bits(filled)
    skipped = np.append(positions, -1), np.append(amounts, 99.0)
    assert bits(called(kind, "add_at", values, *skipped)) == bits(added)


@BOTH
@few
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9) | st.floats(-1, 1))))
def test_the_canonical_order_sorts_by_code_then_by_values(kind, rows):
    codes = np.array([code for code, _ in rows], np.int64)
    values = np.array([value for _, value in rows], np.float64)
    order = called(kind, "canonical_order", codes, values)
    assert sorted(order.tolist()) == [*range(len(rows))]
    assert [rows[i] for i in order] == sorted((code, value + 0.0) for code, value in rows)


def whole(xs):
    return np.array(xs, dtype=np.int64)


ENDS = [0, 1, -1, 5, 2**61, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), -(2**62), 1 - 2**61]


@given(st.lists(st.sampled_from(ENDS) | st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_codes_of_any_size_are_sorted_stably(codes):
    want = sorted(range(len(codes)), key=lambda row: codes[row])
    assert numpy_arrays.canonical_order(whole(codes)).tolist() == want
    same = np.zeros(len(codes), dtype=np.int64)
    assert numpy_arrays.canonical_order(same, whole(codes)).tolist() == want
    by_sign = sorted(want, key=lambda row: codes[row] < 0)
    assert numpy_arrays.canonical_order(whole(codes) < 0, whole(codes)).tolist() == by_sign


@pytest.mark.parametrize("span", [2**61 - 1, 2**62 - 2, 2**62 - 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("low", [0, -(2**62), -(2**63)])
def test_codes_at_the_limit_of_sorting_code_and_index_as_one_word(span, low):
    assert numpy_arrays.canonical_order(whole([low + span, low])).tolist() == [1, 0]
