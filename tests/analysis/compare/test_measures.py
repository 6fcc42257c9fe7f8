"""Sums, correlations and ranks of two sides."""

from __future__ import annotations

import numpy as np
import pytest

from rlpost.analysis.compare.measures import (
    co_moments,
    pearson,
    spearman,
)
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
