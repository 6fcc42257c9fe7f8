"""Evidence of why engine and trainer differ, on distributions whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from engine_and_trainer import rollouts

from rlpost.kernels.mismatch import (
    capped_squares,
    grid_of,
    heavy_tail,
    lag_slope,
    larger_labels,
    rare_tokens,
    ratio_of_sums,
    sampled_column,
    temperature,
)


def flat(table, *names):
    """Return token columns as flat float64 arrays, and the response of each token."""
    lists = [table[name].combine_chunks() for name in names]
    rows = np.repeat(np.arange(len(table)), np.diff(lists[0].offsets.to_numpy()))
    return *(one.flatten().to_numpy().astype(np.float64) for one in lists), rows


@pytest.mark.parametrize(("of", "sure"), [("engine", True), ("trainer", True), (None, False)])
def test_the_column_that_tokens_were_sampled_from(of, sure):
    options = {"heat": 0.8, "heat_of": of} if of else {}
    old, infer, rows = flat(rollouts(**options)[0], "old_log_probs", "infer_log_probs")
    found = sampled_column(old - infer, rows)
    assert (found.z > 4) == sure
    if sure:
        assert found.engine == (of == "engine")
        near, far = sorted((found.forward, found.backward), key=lambda one: one.value)
        assert near.value == pytest.approx(1, abs=4 * near.error)
        assert far.value > 1.05


def test_the_slope_of_the_lag_has_a_floor_at_lag_zero():
    random = np.random.default_rng(0)
    lag = np.repeat(random.integers(0, 4, 2000), 10).astype(np.float64)
    squares = (1 + 2 * lag) * random.normal(size=20_000) ** 2
    found = lag_slope(squares, lag, np.arange(20_000) // 10)
    assert found.floor == pytest.approx(1 / 4, rel=0.15)
    assert found.slope.value == pytest.approx(2 / 4, rel=0.15)
    assert found.slope.z(0.0) > 10
    assert lag_slope(squares, lag * 0, np.arange(20_000) // 10) is None
    later = lag_slope(squares, np.where(lag == 0, np.nan, lag), np.arange(20_000) // 10)
    assert later.floor < 0.35  # extrapolated to lag 0


@pytest.mark.parametrize(
    ("grid", "to_grid"),
    [
        ("bfloat16", lambda x: (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view("f4")),
        ("float16", lambda x: x.astype(np.float16)),
        ("4 decimals", lambda x: np.round(x, 4).astype(np.float32)),
        ("2 decimals", lambda x: np.round(x, 2)),
        (None, lambda x: x.astype(np.float32)),
    ],
)
def test_grids_of_narrow_formats_and_of_decimals(grid, to_grid):
    values = -np.random.default_rng(0).exponential(2, 5000)
    assert grid_of(to_grid(values).astype(np.float64)) == grid


def test_the_error_of_a_ratio_counts_windows():
    """Equal tokens within windows carry no more information than one of them."""
    random = np.random.default_rng(0)
    one = random.normal(1, 1, 500)
    repeated, window = np.repeat(one, 20), np.repeat(np.arange(500), 20)
    alone = ratio_of_sums(one, np.ones(500), np.arange(500))
    assert alone.error == pytest.approx(500**-0.5, rel=0.1)
    together = ratio_of_sums(repeated, np.ones(10_000), window)
    assert together.error == pytest.approx(alone.error, rel=1e-9)


def test_degenerate_inputs():
    none, codes = np.zeros(0), np.zeros(0, np.int64)
    assert ratio_of_sums(none, none, codes).z(1.0) == 0
    assert grid_of(none) is None
    assert temperature(np.zeros(100), -np.ones(100), None, np.arange(100)) is None
    assert heavy_tail(np.zeros(100), -np.ones(100))[1] == 0
    assert rare_tokens(none, none) == (0, 0.0)
    assert not len(larger_labels(none, codes))
    assert capped_squares(np.array([-9.0, 2.0])).tolist() == [25, 4]
