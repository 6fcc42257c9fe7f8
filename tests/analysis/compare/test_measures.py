"""Sums, correlations and ranks of two sides."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rlpost.analysis.compare.measures import (
    SetSums,
    co_moments,
    measured,
    pearson,
    ranks,
    spearman,
)
from rlpost.analysis.difference import ColumnChunk


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [250, 251, 700]])
def test_sums_do_not_depend_on_the_pieces(cuts):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) + 1e6
    y = 0.3 * x + rng.standard_normal(1000)
    pieces = [*zip(np.split(x, cuts), np.split(y, cuts), strict=True)]
    products = [co_moments(*piece) for piece in pieces]
    assert pearson(products) == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    moments = SetSums.of(x, np.array([0, *cuts, 1000]))
    facts = moments.pooled(np.zeros(len(pieces), np.int64), 1).facts()
    expected = {"count": 1000, "mean": x.mean(), "std": x.std(ddof=1)}
    expected |= {"min": x.min(), "max": x.max()}
    assert facts == {name: [pytest.approx(value, rel=1e-9)] for name, value in expected.items()}


def test_nothing_correlates_with_a_constant():
    ones, nothing = np.ones(4), np.zeros(0)
    assert pearson([co_moments(ones, np.arange(4.0))]) is None
    assert spearman(ones, np.arange(4.0)) is None
    assert pearson([co_moments(nothing, nothing)]) is None


def sums_of(*columns, kept):
    """The sums of all measures of sides a and b, whose rows have three tokens and one."""
    chunks = [ColumnChunk(np.array([3, 1]), np.array(column)) for column in columns]
    masks, slices = [np.array(keep) for keep in kept], {"all": ([None], np.zeros(2, np.int64))}
    measures = measured(chunks, masks, slices, ["a", "b"]).measures
    return {name: sums for (name, _), sums in measures.items()}


def test_numbers_that_a_side_drops_are_in_no_measure_of_it_or_of_a_pair():
    columns = [1.0, 5.0, 2.0, 0.0], [1.0, 1.0, 9.0, 0.0]
    sums = sums_of(*columns, kept=[[True, False, True, True], [True, True, False, True]])
    sides = {f"{name}:{side}": 3 for name in ("advantage", "advantage_zero") for side in "ab"}
    signs = {f"{name}:a:b": 1 for name in ("same_sign", "opposite_sign")}  # one pair is 0 and 0
    counts = {name: int(own.number[0]) for name, own in sums.items()}
    assert counts == {**sides, "difference:a:b": 2, "equal:a:b": 2, **signs}


def test_a_measure_of_nothing_has_no_mean():
    sums = sums_of(*[np.ones(4)] * 2, kept=[np.zeros(4, np.bool_)] * 2)
    assert sums["equal:a:b"].facts() == {"count": [0], "total": [0], "mean": [None]}
    empty = {"count": [0], "mean": [None], "std": [None], "min": [None], "max": [None]}
    assert sums["difference:a:b"].facts() == empty


def test_equal_numbers_share_their_rank():
    values = np.array([3.0, 1.0, 3.0, 2.0])
    assert ranks(values).tolist() == pl.Series(values).rank("average").to_list()
