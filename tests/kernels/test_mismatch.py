"""Evidence of why engine and trainer differ, on distributions whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from engine_and_trainer import rollouts

from rlpost.kernels.mismatch import (
    capped_squares,
    differences_by_shift,
    entropy_deficit,
    grid_of,
    heavy_tail,
    lag_slope,
    larger_labels,
    mean_ratio,
    quantile_bins,
    rare_tokens,
    ratio_of_sums,
    sampled_column,
    size_ratio,
    temperature,
)


def flat(table, *names):
    """Return token columns as flat float64 arrays, and the response of each token."""
    lists = [table[name].combine_chunks() for name in names]
    rows = np.repeat(np.arange(len(table)), np.diff(lists[0].offsets.to_numpy()))
    return *(one.flatten().to_numpy().astype(np.float64) for one in lists), rows


@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_the_mean_ratio_is_the_kept_mass(top_p):
    table, kept = rollouts(top_p=top_p)
    old, infer, rows = flat(table, "old_log_probs", "infer_log_probs")
    found = mean_ratio(old - infer, rows)
    assert found.value == pytest.approx(kept, abs=max(4 * found.error, 1e-4))


@pytest.mark.parametrize("heat", [0.7, 1.3])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_the_temperature_is_estimated_with_and_without_entropies(heat, with_entropy):
    old, infer, entropy, rows = flat(
        rollouts(heat=heat)[0], "old_log_probs", "infer_log_probs", "entropy"
    )
    found = temperature(old - infer, infer, entropy if with_entropy else None, rows)
    assert found.value.value == pytest.approx(heat, abs=3 * found.value.error)
    assert found.value.error < 0.005
    assert abs(found.z) > 10
    assert np.sign(found.correlation) == np.sign(1 - heat)
    if with_entropy:
        assert found.share > 0.9


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_the_error_of_a_temperature_holds_it_under_numerical_noise(side, with_entropy):
    old, infer, entropy, rows = flat(
        rollouts(heat=0.95)[0], "old_log_probs", "infer_log_probs", "entropy"
    )
    columns = [old, infer]
    columns[side] = columns[side] + np.random.default_rng(0).normal(0, 0.02, len(old))
    old, infer = columns
    value = temperature(old - infer, infer, entropy if with_entropy else None, rows).value
    assert value.value == pytest.approx(0.95, abs=2 * value.error)
    assert value.error < 0.01


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


@pytest.mark.parametrize(("heat", "sign"), [(0.7, -1), (1.0, 0), (1.3, 1)])
def test_the_entropy_deficit_has_the_sign_of_the_temperature(heat, sign):
    old, entropy, rows = flat(rollouts(heat=heat)[0], "old_log_probs", "entropy")
    z = entropy_deficit(old, entropy, rows).z(0.0)
    assert abs(z) < 4 if sign == 0 else sign * z > 10


def test_few_tokens_are_found_and_a_wide_distribution_has_none():
    table, _ = rollouts(few=0.01, noise=0.02)
    old, infer, _ = flat(table, "old_log_probs", "infer_log_probs")
    tokens, share = heavy_tail(old - infer, infer)
    assert share > 0.95
    assert 0.005 < tokens.mean() < 0.011
    old, infer, _ = flat(rollouts(drift=0.1, lagging=True)[0], "old_log_probs", "infer_log_probs")
    assert heavy_tail(old - infer, infer)[1] < 0.1


def test_sizes_are_compared_among_like_tokens():
    random = np.random.default_rng(0)
    log_prob = -random.exponential(2, 20_000)
    rare = log_prob < -3
    d = log_prob * random.normal(size=20_000)  # rare tokens differ more, which is no news
    rows, strata = np.arange(20_000) // 20, quantile_bins(log_prob, 64)
    own = random.random(20_000) < np.where(rare, 0.8, 0.2)
    assert abs(size_ratio(d, own, ~own, strata * 0, rows).value) > 0.5
    assert size_ratio(d, own, ~own, strata, rows).value == pytest.approx(0, abs=0.1)
    found = size_ratio(np.where(own, 3, 1) * d, own, ~own, strata, rows)
    assert np.exp(found.value) == pytest.approx(3, rel=0.1)
    assert found.z(0.0) > 10
    assert size_ratio(d, own, ~own, own.astype(np.int64), rows) is None


def test_labels_above_the_widest_gap():
    random = np.random.default_rng(0)
    step = np.repeat(np.arange(10), 2000)
    d = np.where((step == 4) | (step == 5), 9.0, 1 + 0.1 * step) * random.normal(size=20_000)
    assert larger_labels(d, step).tolist() == [4, 5]
    assert not len(larger_labels(d, step * 0))


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


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_is_where_columns_differ_least(shift):
    old, infer, rows = flat(rollouts(shift=shift)[0], "old_log_probs", "infer_log_probs")
    means = differences_by_shift(old, infer, rows)
    assert min(means, key=lambda lag: means[lag].value) == -shift


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
