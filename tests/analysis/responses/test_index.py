"""The index of responses: what polars computes from the same columns."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from response_index import ARITHMETIC, CALCULATOR, index_of

from rlpost.analysis.browse.levels import Listings
from rlpost.analysis.responses.reader import ResponseReader


@pytest.mark.parametrize("path", [ARITHMETIC, CALCULATOR])
def test_the_index_is_what_polars_says(path):
    index, frame = index_of(path, measured=["kl"]), pl.read_parquet(path)
    assert index.reward.tolist() == frame["reward"].to_list()
    assert index.length.tolist() == frame["response_mask"].list.sum().to_list()
    assert index.rows["length"].tolist() == frame["response_mask"].list.len().to_list()
    assert index.table.rows["truncated"].tolist() == (frame["finish_reason"] == "length").to_list()
    tokens = frame.with_row_index().explode("old_log_probs", "ref_log_probs", "response_mask")
    tokens = tokens.filter(pl.col("response_mask") == 1)
    gap = pl.col("old_log_probs").cast(pl.Float64) - pl.col("ref_log_probs").cast(pl.Float64)
    wanted = tokens.group_by("index").agg(gap.mean().alias("kl")).sort("index")["kl"]
    np.testing.assert_allclose(index.rows["kl"], wanted.to_numpy(), rtol=1e-12, atol=1e-15)
    groups = frame.select("step", "prompt_id").rows()
    codes = dict(zip(index.group.tolist(), groups, strict=True))
    assert len(codes) == len(set(groups))
    assert [codes[code] for code in index.group.tolist()] == groups


def test_several_files_and_partitions_are_one_input(tmp_path):
    frame = pl.read_parquet(ARITHMETIC)
    for step in range(4):
        folder = tmp_path / f"step={step}"
        folder.mkdir()
        frame.filter(pl.col("step") == step).drop("step").write_parquet(folder / "0.parquet")
    whole, parts = index_of(ARITHMETIC), index_of(tmp_path)
    assert parts.step_rank.tolist() == whole.step_rank.tolist()
    assert parts.group.tolist() == whole.group.tolist()
    response, same = ResponseReader(parts).read([300])[0], ResponseReader(whole).read([300])[0]
    assert (response.text, response.step, response.file_row) == (same.text, 2, 300 - 256)


def test_files_with_nulls_texts_alone_or_nothing_known_are_browsed_too(tmp_path):
    table = pa.table(
        {
            "step": [1, 1, 1],
            "prompt": ["a?", "a?", None],
            "completion": ["yes", None, "no"],
            "accuracy": [1.0, None, 0.0],
        }
    )
    pq.write_table(table, tmp_path / "text.parquet")
    index = index_of(tmp_path / "text.parquet", roles={"reward": "accuracy"})
    assert index.group.tolist() == [0, 0, 1]
    np.testing.assert_equal(index.reward, [1.0, np.nan, 0.0])
    assert [one.text for one in ResponseReader(index).read([2, 1, 0])] == ["no", "", "yes"]
    assert Listings(index, np.ones(3, dtype=bool)).groups(None).cells(0)[3] == "1.000"
    lists = pa.table({"old_log_probs": [[-1.0, None], None, [-3.0]], "prompt_id": [1, 2, 2]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    index = index_of(tmp_path / "lists.parquet", measured=["logprob"])
    assert index.rows["length"].tolist() == [2, 0, 1]
    np.testing.assert_equal(index.rows["logprob"], [np.nan, np.nan, -3.0])
