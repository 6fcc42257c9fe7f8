"""Codes without gaps or of tuples, ordinals and extremes by code, by loops; torch has the same."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.kernels import codes as integers

few = settings(max_examples=25)


def whole(values):
    return np.array(values, np.int64)


COLUMNS = st.integers(0, 9).flatmap(
    lambda rows: st.lists(
        st.lists(st.sampled_from([0, 1, 2, 40, 1000]), min_size=rows, max_size=rows),
        min_size=1,
        max_size=3,
    )
)


@few
@given(st.lists(st.integers(0, 6), max_size=9), st.sampled_from([7, 40, 1000]))
def test_dense_codes_are_indices_among_the_codes_that_occur(codes, count):
    occurring, dense = integers.dense_codes(whole(codes), count)
    there = sorted(set(codes))
    assert occurring.tolist() == there
    assert dense.tolist() == [there.index(code) for code in codes]


@few
@given(COLUMNS)
def test_joint_codes_number_the_tuples_in_their_order(columns):
    rows = list(zip(*columns, strict=True))
    there = sorted(set(rows))
    want = [there.index(row) for row in rows]
    assert integers.joint_codes(*map(whole, columns)).tolist() == want


@few
@given(st.lists(st.integers(0, 3), max_size=9))
def test_the_ordinal_of_a_row_is_the_number_of_earlier_rows_with_its_code(codes):
    want = [codes[:row].count(code) for row, code in enumerate(codes)]
    assert integers.ordinals_of(whole(codes)).tolist() == want


@few
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1.5, 0.0, 2.0, math.inf]))),
)
def test_extremes_are_the_least_and_greatest_value_of_each_key(rows):
    keys, values = whole([key for key, _ in rows]), np.array([x for _, x in rows], np.float64)
    low, high = integers.keyed_extremes(values, keys, 5)
    groups = [[x for key, x in rows if key == wanted] for wanted in range(5)]
    assert low.tolist() == [min(values, default=math.inf) for values in groups]
    assert high.tolist() == [max(values, default=-math.inf) for values in groups]
    least, greatest = integers.keyed_extremes(np.array([math.nan, 1.0, 2.0]), whole([0, 0, 1]), 2)
    assert [math.isnan(x) for x in (least[0], greatest[0])] == [True, True]
    assert (least[1], greatest[1]) == (2, 2)


@pytest.mark.parametrize("rows", [10, 400_000])
def test_joint_codes_do_not_depend_on_how_sparse_codes_are(rows):
    """Few possible tuples are counted, many are sorted."""
    random = np.random.default_rng(1)
    pair = random.integers(0, 700, rows), random.integers(0, 900, rows)
    want = np.unique(np.stack(pair), axis=1, return_inverse=True)[1]
    assert (integers.joint_codes(*pair) == want).all()
