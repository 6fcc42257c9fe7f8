"""Columns of every Arrow type become numbers and tokens: lists, parts of rewards, null, NaN."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processed_files import USUAL
from runs import rollout, run, save
from summaries import whole
from test_left_out import close, flat

import rlpost
from rlpost.errors import DataError

SKIP = {"missing_components": "skip"}


def table(**columns):
    data = {
        "prompt_id": ["a", "a", "b", "b"],
        "right": [0.0, 1.0, 1.0, 0.0],
        "response_mask": [[1, 1], [1, 0, 1], [1], [1, 1]],
    }
    return pa.table({**data, **columns})


@pytest.mark.parametrize("estimator", ["grpo", "gdpo", "raw"])
def test_a_component_that_is_never_scored_is_skipped(estimator):
    empty = pa.nulls(4)
    recipe = rlpost.Recipe(estimator=estimator, reward_components=("right", "form"), numerics=SKIP)
    got, _ = rlpost.enrich(table(form=empty), recipe)
    typed, _ = rlpost.enrich(table(form=empty.cast(pa.float64())), recipe)
    assert got["advantages"].to_pylist() == typed["advantages"].to_pylist()
    alone = rlpost.Recipe(estimator="grpo" if estimator == "gdpo" else estimator,
                          columns={"reward": "right"})  # fmt: skip
    want, _ = rlpost.enrich(table(), alone)
    signs = [[x > 0 for x in flat(one["advantages"].to_pylist())] for one in (got, want)]
    assert signs[0] == signs[1]
    if estimator != "gdpo":
        close(flat(got["advantages"].to_pylist()), flat(want["advantages"].to_pylist()))


@pytest.mark.parametrize("name", ["reward", "form"])
def test_without_skip_the_first_null_is_named(name):
    options = {"reward_components": ("right", "form")} if name == "form" else {}
    with pytest.raises(DataError, match=f"row 0: `{name}` is null; a finite number is needed") as e:
        rlpost.enrich(table(**{name: pa.nulls(4)}), rlpost.Recipe(**options))
    assert ("--numerics missing_components=skip" in str(e.value)) == (name == "form")


def test_no_finish_reason_at_all_is_no_truncation():
    recipe = rlpost.Recipe(drop_truncated=True, columns={"reward": "right"})
    _, summary = rlpost.enrich(table(finish_reason=pa.nulls(4)), recipe)
    assert whole(summary, "dropped:truncated")["total"] == 0


def test_finish_reasons_of_another_type_are_read_only_where_they_are_needed():
    rows = table(finish_reason=[[1.5]] * 4)
    rlpost.enrich(rows, rlpost.Recipe(columns={"reward": "right"}))
    with pytest.raises(DataError, match="finish_reason"):
        rlpost.enrich(rows, rlpost.Recipe(drop_truncated=True, columns={"reward": "right"}))


def test_lists_without_a_type_are_empty_or_null():
    mask = pa.array([[], [], [], []], pa.list_(pa.null()))
    recipe = rlpost.Recipe(columns={"reward": "right"})
    _, summary = rlpost.enrich(table(response_mask=mask), recipe)
    assert summary["tokens"]["all"] == 0
    mask = pa.array([[], [None], [], []], pa.list_(pa.null()))
    with pytest.raises(DataError, match="row 1: `response_mask` has null at token 0"):
        rlpost.enrich(table(response_mask=mask), recipe)


def test_a_reward_of_several_parts_is_their_sum(process):
    parts = [[reward / 2, reward / 2] for reward in rollout()["reward"].to_pylist()]
    table = rollout().set_column(1, "reward", pa.array(parts, pa.list_(pa.float32())))
    assert process(table).select(USUAL).equals(process(rollout()).select(USUAL))


def test_without_a_mask_every_token_counts_and_that_is_said(tmp_path):
    source = save(rollout().drop_columns(["response_mask"]), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "out.parquet")
    assert ran.code == 0
    assert "no mask column: every token counts as a policy token" in " ".join(ran.err.split())


def test_token_ids_alone_set_the_lengths(process):
    lists = [field.name for field in rollout().schema if pa.types.is_list(field.type)]
    ids = pa.array([[7] * len(mask) for mask in rollout()["response_mask"].to_pylist()])
    table = rollout().drop_columns(lists).append_column("completion_ids", ids)
    ones = pa.array([[1] * len(x) for x in ids.to_pylist()])
    masked = rollout().drop_columns(lists).append_column("response_mask", ones)
    assert process(table).select(USUAL).equals(process(masked).select(USUAL))


def test_responses_with_numbers_that_are_not_finite_can_be_left_out(process):
    rewards, old = rollout()["reward"].to_pylist(), rollout()["old_log_probs"].to_pylist()
    rewards[9], old[2][0] = math.nan, None
    table = rollout().set_column(1, "reward", pa.array(rewards, pa.float32()))
    table = table.set_column(3, "old_log_probs", pa.array(old, pa.list_(pa.float32())))
    unread = process(table, "--nonfinite", "mask")["sample_mask"].to_pylist()
    assert [i for i, kept in enumerate(unread) if not kept] == [9]
    out = process(table, "--nonfinite", "mask", "--kl-estimator", "k1").to_pylist()
    assert [i for i, row in enumerate(out) if not row["sample_mask"]] == [2, 9]
    assert {x for i in (2, 9) for x in (*out[i]["advantages"], *out[i]["returns"])} == {0.0}
    assert all(math.isfinite(x) for row in out for x in row["advantages"])


@pytest.mark.parametrize("role", ["prompt_id", "rollout_id", "domain", "step"])
def test_keys_that_are_numbers_in_some_files_alone_are_texts(role, tmp_path):
    texts = table(rollout_id=list("wxyz"), domain=["d"] * 4, step=["1"] * 4, reward=[0.0, 1, 2, 3])
    texts = texts.set_column(texts.schema.get_field_index(role), role, pa.array(["7", "8"] * 2))
    whole = rlpost.enrich(pa.concat_tables([texts, texts]), rlpost.Recipe(unit="row"))[0]
    place = texts.schema.get_field_index(role)
    save(texts, tmp_path / "in" / "a.parquet")
    save(texts.set_column(place, role, pa.array([7, 8] * 2)), tmp_path / "in" / "b.parquet")
    rlpost.advantages(tmp_path / "in", tmp_path / "out", rlpost.Recipe(unit="row"))
    parts = [pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in "ab"]
    got = [row for part in parts for row in part["advantages"].to_pylist()]
    assert got == whole["advantages"].to_pylist()


def test_turns_that_are_no_numbers_are_an_error_where_the_last_one_has_the_reward():
    rows = table(rollout_id=list("wwxx"), turn=["1", "2"] * 2, reward=[0.0, 1, 2, 3])
    with pytest.raises(DataError, match="row 0: `turn` is string; a number per row is needed"):
        rlpost.enrich(rows, rlpost.Recipe(rollout_reward="last"))
    rlpost.enrich(rows, rlpost.Recipe(rollout_reward="sum"))  # in any order
