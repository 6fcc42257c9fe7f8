"""Dumps of NeMo-RL: padding, batches of one, log-probs that were not computed."""

from __future__ import annotations

import json

import format_writers as writers
import numpy as np
import pyarrow.parquet as pq
import pytest
from runs import run
from token_dumps import (
    converted,
    edited,
)

from rlpost.errors import DataError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert


def test_nemo_rl_takes_the_filtered_rewards_which_are_in_step_with_the_rows(tmp_path):
    table = converted("nemo_rl", tmp_path, dynamic=True)
    assert table["reward"].to_pylist() == [one.reward for one in writers.made()]


def test_nemo_rl_log_probs_that_are_all_zero_were_not_computed(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", writers.made(), on_policy=True)
    summary = convert(dump, tmp_path / "out.parquet")
    assert "old_log_probs" not in summary["columns"]
    assert "force_on_policy_ratio" in summary["missing_roles"]["old_log_probs"]


def test_nemo_rl_fields_without_the_batch_of_one_are_read_as_well(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", writers.made())
    bare = [
        {name: value[0] if isinstance(value, list) else value for name, value in one.items()}
        for one in map(json.loads, dump.read_text().splitlines())
    ]
    convert(writers.lines(tmp_path / "bare_step7.jsonl", bare), tmp_path / "bare.parquet")
    convert(dump, tmp_path / "boxed.parquet")
    assert pq.read_table(tmp_path / "bare.parquet").equals(
        pq.read_table(tmp_path / "boxed.parquet")
    )


def test_nemo_rl_blocks_are_groups_where_their_size_is_given(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", writers.made())
    convert(dump, tmp_path / "out.parquet", options=ReadOptions(group_size=6))
    keys = pq.read_table(tmp_path / "out.parquet")["prompt_id"].to_pylist()
    assert keys == ["0"] * 6 + ["1"] * 6


def test_a_nemo_rl_sequence_that_nothing_trains_on_is_an_empty_response(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", writers.made())
    records = [json.loads(line) for line in dump.read_text().splitlines()]
    records[0]["token_loss_mask"] = [[0] * len(records[0]["token_loss_mask"][0])]
    convert(writers.lines(dump, records), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["response_mask"][0].as_py() == table["infer_log_probs"][0].as_py() == []
    assert table["infer_log_probs"][1].as_py() == writers.made()[1].infer


def test_nemo_rl_log_probs_that_begin_late_are_not_taken_for_none(tmp_path):
    given = writers.made(groups=10)
    dump = writers.nemo_rl(tmp_path / "in", given, on_policy=True)
    records = [json.loads(line) for line in dump.read_text().splitlines()]
    length = records[20]["input_lengths"][0]
    records[20]["prev_logprobs"][0][length - 1] = -0.5
    with pytest.raises(DataError, match="line 21: `prev_logprobs` has values here, but only zeros"):
        convert(writers.lines(dump, records), tmp_path / "out.parquet")
    records[3]["prev_logprobs"][0][records[3]["input_lengths"][0] - 1] = -0.5
    convert(writers.lines(dump, records), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["old_log_probs"][3].as_py()[-1] == table["old_log_probs"][20].as_py()[-1] == -0.5


def test_a_length_that_is_no_number_is_named(tmp_path):
    dump = edited("nemo_rl", tmp_path, lambda one: one.update(input_lengths=["long"]))
    with pytest.raises(DataError, match='line 2: `input_lengths` is "long"'):
        convert(dump, tmp_path / "out.parquet")


@pytest.mark.parametrize("field", ["generation_logprobs", "rewards"])
def test_nan_where_a_number_may_be_one_is_kept_and_advantages_names_the_dump(field, tmp_path):
    def edit(one):
        holder = one[field] if field == "rewards" else one[field][0]
        holder[-3 if field != "rewards" else 0] = float("nan")

    dump = edited("nemo_rl", tmp_path, edit)
    if field == "generation_logprobs":  # in the padding it is of no token
        convert(dump, tmp_path / "padding.parquet")
        return
    convert(dump, tmp_path / "converted.parquet")
    assert np.isnan(pq.read_table(tmp_path / "converted.parquet")["reward"][1].as_py())
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
    assert ran.code == 3
    assert f"{dump}, row 1: `reward`" in ran.err
    ran = run("advantages", dump, tmp_path / "out.parquet", "--nonfinite", "mask")
    assert ran.code == 0
