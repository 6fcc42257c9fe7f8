"""Sums, correlations and ranks of two sides."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rlpost.analysis.compare.measures import (
    co_moments,
    facts_of,
    measured,
    pearson,
    ranks,
    spearman,
)
from rlpost.analysis.difference import ColumnChunk
from rlpost.pipeline.measures import Numbers
from rlpost.pipeline.totals import ExactTotals


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [250, 251, 700]])
def test_sums_do_not_depend_on_the_pieces(cuts):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) + 1e6
    y = 0.3 * x + rng.standard_normal(1000)
    pieces = [*zip(np.split(x, cuts), np.split(y, cuts), strict=True)]
    products = [co_moments(*piece) for piece in pieces]
    assert pearson(products) == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    numbers = Numbers()
    numbers.add_tokens("x", x, None, np.array([0, *cuts, 1000]))
    keys = np.zeros(len(pieces), np.int64)
    totals = ExactTotals.of(keys, numbers.sums, numbers.spans).total()
    expected = {"count": 1000, "mean": x.mean(), "std": x.std(ddof=1)}
    expected |= {"min": x.min(), "max": x.max()}
    assert totals.numbers("x", 1000) == pytest.approx(expected, rel=1e-9)


def test_nothing_correlates_with_a_constant():
    ones, nothing = np.ones(4), np.zeros(0)
    assert pearson([co_moments(ones, np.arange(4.0))]) is None
    assert spearman(ones, np.arange(4.0)) is None
    assert pearson([co_moments(nothing, nothing)]) is None


def facts_of_two(*columns, kept):
    """All measures of sides a and b, whose rows have three tokens and one."""
    chunks = [ColumnChunk(np.array([3, 1]), np.array(column)) for column in columns]
    masks, slices = [np.array(keep) for keep in kept], {"all": ([None], np.zeros(2, np.int64))}
    rows = measured(chunks, masks, slices, ["a", "b"])
    return {name: entry["all"] for name, entry in facts_of([rows], slices, {"": ""}).items()}


def test_numbers_that_a_side_drops_are_in_no_measure_of_it_or_of_a_pair():
    columns = [1.0, 5.0, 2.0, 0.0], [1.0, 1.0, 9.0, 0.0]
    facts = facts_of_two(*columns, kept=[[True, False, True, True], [True, True, False, True]])
    sides = {f"{name}:{side}": 3 for name in ("advantage", "advantage_zero") for side in "ab"}
    signs = {f"{name}:a:b": 1 for name in ("same_sign", "opposite_sign")}  # one pair is 0 and 0
    counts = {name: entry["count"] for name, entry in facts.items()}
    assert counts == {**sides, "difference:a:b": 2, "equal:a:b": 2, **signs}


def test_a_measure_of_nothing_has_no_mean():
    facts = facts_of_two(*[np.ones(4)] * 2, kept=[np.zeros(4, np.bool_)] * 2)
    assert facts["equal:a:b"] == {"count": 0, "total": 0, "mean": None}
    assert facts["difference:a:b"] == dict.fromkeys(("mean", "std", "min", "max")) | {"count": 0}


def test_equal_numbers_share_their_rank():
    values = np.array([3.0, 1.0, 3.0, 2.0])
    assert ranks(values).tolist() == pl.Series(values).rank("average").to_list()
