"""Dumps of miles: the folders beside it, shared indices, lists cut over ranks."""

from __future__ import annotations

import format_writers as writers
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from token_dumps import (
    converted,
    partition,
    refused,
    samples,
)

from rlpost.errors import DataError
from rlpost.formats.convert import convert


def test_miles_rewards_come_from_trajectories_where_the_pickle_holds_its_classes(tmp_path):
    table = converted("miles", tmp_path, own_class=True)
    assert table["reward"].to_pylist() == [one.reward for one in samples("miles")]
    assert partition(table["prompt_id"].to_pylist()) == [0] * 4 + [4] * 4 + [8] * 4


def test_miles_without_the_folders_beside_it_is_refused_with_the_reason(tmp_path):
    dump = writers.miles(tmp_path / "in", samples("miles"))
    lone = dump.rename(tmp_path / "rollout_7.parquet")
    with pytest.raises(DataError, match="has no rewards and no groups"):
        convert(lone, tmp_path / "out.parquet")


def test_miles_samples_that_share_an_index_keep_their_own_lists(tmp_path):
    given = samples("miles")
    for one in given:
        one.index //= 2
    dump = writers.miles(tmp_path / "in", given)
    chats = tmp_path / "in" / "trajectory" / "7.jsonl"
    chats.unlink()
    convert(dump, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["old_log_probs"].to_pylist() == [one.old for one in given]


def test_miles_lists_that_are_cut_over_ranks_are_not_joined(tmp_path):
    dump = writers.miles(tmp_path / "in", samples("miles"))
    shard = tmp_path / "in" / "train_data" / "7_0.pt"
    writers.saved(shard, {**torch.load(shard, weights_only=True), "cp_size": 2})
    with pytest.raises(DataError, match=r"7_0\.pt: its lists are split over 2 ranks"):
        convert(dump, tmp_path / "out.parquet")


def test_a_miles_sample_without_a_reward_beside_it_is_named(tmp_path):
    dump = writers.miles(tmp_path / "in", samples("miles"), train=False)
    frame = pl.read_parquet(dump)
    frame.with_columns(sample_index=pl.col("sample_index") + 1).write_parquet(dump)
    told = refused(dump, tmp_path)
    assert f"{dump}, row 11: sample_index 12 is not in rollout_data/" in told
