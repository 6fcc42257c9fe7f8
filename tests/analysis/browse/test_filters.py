"""Conditions and searches of lists: what polars keeps and finds."""

from __future__ import annotations

import polars as pl
import pytest
from response_index import CALCULATOR, index_of

from rlpost.analysis.browse import filters
from rlpost.errors import DataError, UsageError

GROUP = ("step", "prompt_id")
LAST = pl.col("turn") == pl.col("turn").max().over(*GROUP, "traj_id")
"""Rows with the rewards of rollouts, which statistics of groups count."""
REWARD = pl.col("reward").filter(LAST)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("reward >= 0.1 and step = 2", (pl.col("reward") >= 0.1) & (pl.col("step") == 2)),
        ("truncated or domain <> 'mul'",
         (pl.col("finish_reason") == "length") | (pl.col("domain") != "mul")),
        ("length > 5", pl.col("response_mask").list.sum() > 5),
        ("length > 5 and prompt_id like '%2'",
         (pl.col("response_mask").list.sum() > 5) & pl.col("prompt_id").str.ends_with("2")),
        ("group_std = 0", REWARD.n_unique().over(GROUP) == 1),
        ("group_size = 8 and reward < group_mean",
         (REWARD.len().over(GROUP) == 8) & (pl.col("reward") < REWARD.mean().over(GROUP))),
        ("row <= 3", pl.int_range(pl.len()) <= 3),
    ],
)  # fmt: skip
def test_conditions_keep_what_polars_keeps(text, expression, tmp_path):
    frame = pl.read_parquet(CALCULATOR)
    frame.write_parquet(tmp_path / "0.parquet", row_group_size=100)
    frame.write_parquet(tmp_path / "1.parquet")
    kept = filters.rows_where(text, index_of(CALCULATOR, rollout_reward="last"))
    assert kept.tolist() == frame.select(expression).to_series().to_list()
    assert text == "group_std = 0" or 0 < kept.sum() < len(kept)
    if not {"row", "group_size"} & {*text.split()}:  # the groups of two copies are twice as large
        kept = filters.rows_where(text, index_of(tmp_path, rollout_reward="last"))
        assert kept.tolist() == 2 * frame.select(expression).to_series().to_list()


def test_kl_and_a_column_of_a_computed_name(tmp_path):
    index = index_of(CALCULATOR)
    kept = filters.rows_where("kl > 0.01", index)
    assert kept.tolist() == (index.numbers["kl"] > 0.01).tolist()
    assert 0 < kept.sum() < len(kept)
    frame = pl.DataFrame({"reward": [0.0, 1.0], "length": [7, 8], "kl": [[1.0], [2.0]]})
    frame.write_parquet(tmp_path / "a.parquet")
    index = index_of(tmp_path / "a.parquet")
    assert filters.rows_where("length = 8", index).tolist() == [False, True]
    assert filters.rows_where("kl > 1.5", index).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [("rewrad < 1", "did you mean reward"), ("group_sdt > 0", "group_std"), ("reward <", "SQL"),
     ("advantage > 0", "no column for advantages")],
)  # fmt: skip
def test_wrong_conditions_are_errors(text, message):
    with pytest.raises((DataError, UsageError), match=message):
        filters.rows_where(text, index_of(CALCULATOR))


def test_a_search_finds_what_polars_finds():
    frame = pl.read_parquet(CALCULATOR)
    both = pl.col("prompt").str.contains("7*", literal=True) | pl.col("response").str.contains(
        "7*", literal=True
    )
    found = filters.search_rows("7*", index_of(CALCULATOR))
    assert found.tolist() == frame.select(both).to_series().to_list()
    assert 0 < found.sum() < len(found)
