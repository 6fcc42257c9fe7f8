"""Statistics of policy tokens: those of the summary and of plain computations."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspected_files import spread

from rlpost.analysis.inspect.facts import inspect


def policy_tokens(sample):
    lists = ["response_mask", "old_log_probs", "infer_log_probs", "ref_log_probs", "values"]
    frame = pl.read_parquet(sample).with_row_index("row")
    lengths = pl.int_ranges(pl.col("response_mask").list.len())
    tokens = frame.select("row", *lists, place=lengths).explode([*lists, "place"])
    tokens = tokens.filter(pl.col("response_mask") == 1)
    own = pl.int_range(pl.len()).over("row")
    return tokens.with_columns(pl.col(lists).cast(pl.Float64), place=own)


def test_token_facts_equal_a_plain_computation(sample, facts):
    tokens = policy_tokens(sample)
    for name in ("old_log_probs", "infer_log_probs", "ref_log_probs", "values"):
        one, column = facts.token_facts.columns[name], tokens[name]
        assert one.tokens == len(column)
        assert facts.whole(name)["mean"] == pytest.approx(column.mean(), rel=1e-12)
        assert facts.whole(name)["std"] == pytest.approx(column.std(), rel=1e-12)
        assert (one.min, one.max) == (column.min(), column.max())
        assert one.zero == (column == 0).sum()
    gap = (tokens["old_log_probs"] - tokens["infer_log_probs"]).to_numpy()
    sizes = np.abs(gap)
    want = {"mean": sizes.mean(), "std": sizes.std(ddof=1), "min": sizes.min(), "max": sizes.max()}
    assert spread(facts, "engine_gap") == pytest.approx(want, rel=1e-12)
    want = (np.exp(gap) - 1 - gap).mean()
    assert facts.whole("engine_k3")["mean"] == pytest.approx(want, rel=1e-6)


def test_a_signalling_nan_is_nan(tmp_path):
    """numpy warns when it casts one: a damaged file may have it, and a warning is an error here."""
    log_probs = np.full((8, 64), -0.5, np.float32)
    log_probs.view(np.uint32)[3, 5] = 0x7FA00000
    columns = {"prompt_id": ["a"] * 8, "reward": [0.0, 1.0] * 4}
    table = pa.table({**columns, "old_log_probs": [*log_probs], "infer_log_probs": [*log_probs]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).token_facts.columns["old_log_probs"].nan == 1


def test_long_responses_are_split_by_position(tmp_path):
    rng = np.random.default_rng(0)
    lengths = [1, 3, 4, 17, 64, 65, 1000, 0]
    old = [-rng.exponential(1, n) for n in lengths]
    infer = [values - rng.exponential(0.1, len(values)) for values in old]
    columns = {"prompt_id": ["a"] * 8, "reward": [0.0, 1.0] * 4}
    pq.write_table(
        pa.table({**columns, "old_log_probs": old, "infer_log_probs": infer}),
        tmp_path / "a.parquet",
    )
    facts = inspect([tmp_path / "a.parquet"])
    bounds = [0, 1, 4, 16, 64, 256, 1024]
    names = ["0", "1 to 3", "4 to 15", "16 to 63", "64 to 255", "256 to 1,023", "last"]
    assert facts.by("position", "engine_gap", "label") == names
    slices = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    for at, part in enumerate([*slices, slice(-1, None)]):
        gaps = np.concatenate([a[part] - b[part] for a, b in zip(old, infer, strict=True)])
        assert facts.by("position", "engine_gap", "count")[at] == len(gaps)
        assert facts.by("position", "engine_gap")[at] == pytest.approx(np.abs(gaps).mean())
        k3 = facts.by("position", "engine_k3")[at]
        assert k3 == pytest.approx((np.expm1(gaps) - gaps).mean())


def test_nonfinite_tokens_and_rows_of_unequal_lists_are_left_out(tmp_path):
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 60, 40)
    mask = [(rng.random(n) < 0.8).astype(np.uint8) for n in lengths]
    old = [-rng.exponential(1, n) for n in lengths]
    infer = [values - rng.exponential(0.3, len(values)) for values in old]
    old[3][0], old[7][-1], infer[9][0], infer[11][0] = np.nan, -np.inf, -np.inf, -1e6
    mask[3][0] = mask[7][-1] = mask[9][0] = mask[11][0] = 1
    infer[20] = infer[20][:-1]
    columns = {"prompt_id": ["a"] * 40, "reward": rng.random(40), "response_mask": mask}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns | {"old_log_probs": old, "infer_log_probs": infer}), path)
    inspected = inspect([path])
    facts, gaps = inspected.token_facts, inspected.whole("engine_gap")

    rows = [row for row in range(40) if row != 20]
    chosen = np.concatenate([mask[row] for row in rows]) == 1
    left = np.concatenate([old[row] for row in rows])[chosen]
    right = np.concatenate([infer[row] for row in rows])[chosen]
    finite = left[np.isfinite(left)]
    assert facts.columns["old_log_probs"].tokens == len(finite)
    assert inspected.whole("old_log_probs")["mean"] == pytest.approx(finite.mean())
    assert facts.columns["infer_log_probs"].unequal_rows == 1
    both = np.isfinite(left) & np.isfinite(right)
    sizes = np.abs(left[both] - right[both])
    gap = (left[both] - right[both]).clip(-40, 40)
    assert gaps["count"] == both.sum()
    assert gaps["mean"] == pytest.approx(sizes.mean())
    assert (gaps["max"], inspected.whole("engine_clamped")["total"]) == (sizes.max(), 1)
    k3 = inspected.whole("engine_k3")["mean"]
    assert k3 == pytest.approx((np.expm1(gap) - gap).mean())
    weights = np.exp(gap)
    ess = weights.sum() ** 2 / (len(gap) * (weights**2).sum())
    assert inspected.whole("engine_ess")["value"] == pytest.approx(ess)
