"""Sums, correlations and ranks of two sides."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rlpost.analysis.compare.agreement import Agreement, ValueStats, ranks, spearman


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [250, 251, 700]])
def test_sums_do_not_depend_on_the_pieces(cuts):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) + 1e6
    y = 0.3 * x + rng.standard_normal(1000)
    found, spread = Agreement(), ValueStats()
    for a, b in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
        found.add(Agreement.of(a, b))
        spread.add(ValueStats.of(a))
    assert found.pearson == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    assert spread.facts()["std"] == pytest.approx(x.std(ddof=1), rel=1e-9)


def test_nothing_correlates_with_a_constant():
    ones = np.ones(4)
    assert Agreement.of(ones, np.arange(4.0)).pearson is None
    assert spearman(ones, np.arange(4.0)) is None
    assert Agreement.of(np.zeros(0), np.zeros(0)).facts()["sign"]["agreement"] is None


def test_numbers_that_are_not_finite_are_left_out():
    found = Agreement.of(np.array([1.0, np.nan, 2.0]), np.array([1.0, 1.0, np.inf]))
    assert found.count == 1


def test_equal_numbers_share_their_rank():
    values = np.array([3.0, 1.0, 3.0, 2.0])
    assert ranks(values).tolist() == pl.Series(values).rank("average").to_list()
