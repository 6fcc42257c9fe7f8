"""Rows of two files are matched by their keys, or by their order."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compared_files import ARITHMETIC, compared, enriched, kept_by_both, measure, plain

from rlpost.errors import DataError


def with_ids(path, out, order, row_group_size=100):
    frame = pl.read_parquet(path).with_columns(sample_id=pl.int_range(pl.len()))
    pq.write_table(frame[order].to_arrow(), out, row_group_size=row_group_size)
    return out


def test_rows_in_another_order_are_matched_by_their_keys(pair, tmp_path):
    count = pq.read_metadata(pair[0]).num_rows
    order = np.random.default_rng(3).permutation(count)
    first = with_ids(pair[0], tmp_path / "a.parquet", np.arange(count))
    second = with_ids(pair[1], tmp_path / "b.parquet", order, row_group_size=37)
    shuffled, straight = compared(first, second), compared(*pair)
    assert "sample_id" in shuffled["matched_by"]
    assert not shuffled["by_order_within"]
    for name in ("difference", "response_difference"):
        assert measure(shuffled, name) == pytest.approx(measure(straight, name), rel=1e-12)
    pearson = [comparison["pairs"][0]["pearson"] for comparison in (shuffled, straight)]
    assert pearson[0] == pytest.approx(pearson[1], rel=1e-12)


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_without_a_match_are_left_out_and_counted(pair, tmp_path, shuffled):
    count = pq.read_metadata(pair[0]).num_rows
    kept = np.random.default_rng(5).permutation(count)[:300]
    first = with_ids(pair[0], tmp_path / "a.parquet", np.arange(count))
    second = with_ids(pair[1], tmp_path / "b.parquet", kept if shuffled else np.sort(kept))
    comparison = compared(first, second)
    assert comparison["responses"] == 300
    (finding,) = comparison["findings"]
    assert finding["text"].startswith(f"{count - 300} responses of {first} have no match")
    means, tokens = plain(pair)
    rows = np.sort(kept)
    a, b = kept_by_both(means[0][rows], means[1][rows])
    (facts,) = comparison["pairs"]
    assert facts["pearson"]["responses"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    lengths, mask = (
        pl.read_parquet(pair[0])["response_mask"].list.sum(),
        pl.read_parquet(pair[1])["sample_mask"],
    )
    wanted = sum(lengths[row] for row in rows.tolist() if mask[row])
    assert measure(comparison, "difference")["count"] == wanted < len(tokens[0])
    groups = pl.read_parquet(pair[0])[rows].select("step", "prompt_id").n_unique()
    assert comparison["groups"] == groups


def test_rows_of_equal_keys_are_matched_by_their_order(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, estimator in zip(paths, ("grpo", "rloo"), strict=True):
        enriched(ARITHMETIC, path, estimator)
    comparison = compared(*paths)
    assert comparison["matched_by"] == ["batch", "group"]
    assert comparison["by_order_within"]
    assert comparison["responses"] == 512


def test_without_keys_position_decides_and_counts_must_agree(tmp_path):
    for name, rows in (("a", 4), ("b", 4), ("c", 5)):
        values = [[float(row), -1.0] for row in range(rows)]
        pq.write_table(pa.table({"advantages": values}), tmp_path / f"{name}.parquet")
    comparison = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert comparison["matched_by"] == ["position"]
    with pytest.raises(DataError, match=r"c\.parquet \(5 rows\).*by position"):
        compared(tmp_path / "a.parquet", tmp_path / "c.parquet")


def test_no_row_in_common_is_an_error(tmp_path):
    for name in "ab":
        table = pa.table(
            {"prompt_id": [f"{name}{row}" for row in range(3)], "advantages": [[1.0]] * 3}
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="no row has the same group"):
        compared(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_rows_of_unequal_length_count_as_responses_alone(tmp_path):
    lists = {"a": [[1.0, 2.0], [3.0]], "b": [[1.0, 2.0, 6.0], [5.0]]}
    for name, values in lists.items():
        pq.write_table(
            pa.table({"prompt_id": ["x", "y"], "advantages": values}), tmp_path / f"{name}.parquet"
        )
    comparison = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")
    (finding,) = comparison["findings"]
    assert finding["text"] == "1 response with different lengths; their tokens are not compared"
    assert measure(comparison, "difference")["count"] == 1
    assert measure(comparison, "response_difference")["count"] == 2
    assert measure(comparison, "response_difference")["max"] == 2.0
    assert measure(comparison, "advantage", "b.parquet")["count"] == 4
