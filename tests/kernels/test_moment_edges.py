"""Orders, moments and scores of small, single, equal, absent and far-flung numbers, by loops."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import double

from rlpost.kernels import rewards, segments
from rlpost.kernels.arrays import numpy_arrays

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

SCOPES = ("group", "others", "none")


def whole(xs):
    return np.array(xs, dtype=np.int64)


def groups(lists):
    return double([x for xs in lists for x in xs]), segments.offsets_of(whole([*map(len, lists)]))


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


def center_and_spread(xs, place, scope):
    """Mean and Bessel deviation of the group or of the others of a row, as documented."""
    own = xs if scope == "group" else xs[:place] + xs[place + 1 :]
    if not own:
        return xs[place], 0.0
    equal = len(set(own)) == 1
    mean = own[0] if equal else statistics.fmean(own)
    return mean, 0.0 if equal or len(own) < 2 else statistics.stdev(own)


def score(xs, place, mean, std, eps):
    out = xs[place] - (center_and_spread(xs, place, mean)[0] if mean != "none" else 0.0)
    if std == "none":
        return out
    if len(set(xs)) == 1:
        return 0.0
    deviation = center_and_spread(xs, place, std)[1]
    return out if deviation == 0 and std == "others" else out / (deviation + eps)


few = st.lists(st.sampled_from([0.0, 1.0, 0.25, -3.0, 0.1]), max_size=5)


@given(
    st.lists(few, max_size=4), st.sampled_from(SCOPES), st.sampled_from(SCOPES), st.randoms()
)  # fmt: skip
def test_z_scores_are_the_formula_in_any_order_of_rows(lists, mean, std, random):
    rows = [(code, xs, place) for code, xs in enumerate(lists) for place in range(len(xs))]
    random.shuffle(rows)
    values, keys = double([xs[at] for _, xs, at in rows]), whole([code for code, _, _ in rows])
    got = rewards.z_scores(values, keys, norm_mean=mean, norm_std=std, norm_eps=0.5)
    want = [score(xs, at, mean, std, 0.5) for _, xs, at in rows]
    assert got.tolist() == pytest.approx(want, abs=1e-6)


def test_nan_is_left_out_of_z_scores_and_gets_0():
    values = double([1.0, math.nan, 3.0, math.nan])
    got = rewards.z_scores(values, whole([0, 0, 0, 1]))
    step = 1 / (math.sqrt(2) + 1e-6)
    assert got.tolist() == pytest.approx([-step, 0, step, 0], rel=1e-12)
    assert rewards.z_scores(double([math.nan]), whole([0])).tolist() == [0.0]
    assert rewards.z_scores(double([]), whole([])).tolist() == []
