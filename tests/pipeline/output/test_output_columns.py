"""The columns that are written: their names, types and order, and what a recipe writes."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from processed_files import ALL_ON, USUAL
from runs import rollout

from rlpost.recipe.recipe import EXTRA, WRITTEN

FLOATS = pa.list_(pa.field("element", pa.float32()))
TYPES = {
    "advantages": FLOATS,
    "returns": FLOATS,
    "raw_advantages": FLOATS,
    "token_level_rewards": FLOATS,
    "kl": FLOATS,
    "engine_log_ratio": FLOATS,
    "final_response_mask": pa.list_(pa.field("element", pa.uint8())),
    "response_advantage": pa.float32(),
    "response_level_rewards": pa.float32(),
    "sample_mask": pa.bool_(),
    "sample_weight": pa.float32(),
    "is_weight": FLOATS,
    "group_mean": pa.float32(),
    "group_std": pa.float32(),
    "group_size": pa.int32(),
    "group_pass_rate": pa.float32(),
}
EVERY = {*WRITTEN, *EXTRA}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_column_can_be_written_and_has_its_type(process, name):
    table, weighed, words = rollout(), [], ALL_ON
    if name in ("is_weight", "engine_log_ratio"):
        table = table.append_column("infer_log_probs", table["old_log_probs"])
        weighed = ["--is-weight", "token"] if name == "is_weight" else []
    if name == "response_advantage":  # KL would give each token its own
        words = [word for word in words if word not in ("--kl-coef", "0.1")]
    out = process(table, "--emit", name, *words, *weighed)
    assert out.column_names == [*table.column_names, name]
    assert out.schema.field(name).type == TYPES[name]
    assert out[name].null_count == 0
    if pa.types.is_list(TYPES[name]):
        assert str(out.schema.field(name).type).startswith("list<element: ")
        lengths = [len(mask) for mask in rollout()["response_mask"].to_pylist()]
        assert [len(values) for values in out[name].to_pylist()] == lengths


def test_the_engine_log_ratio_is_old_minus_infer(process):
    old = rollout()["old_log_probs"]
    infer = pa.array([[x - 0.25 * i for i, x in enumerate(row)] for row in old.to_pylist()])
    out = process(rollout().append_column("infer_log_probs", infer), "--emit", "engine_log_ratio")
    for row, mask in zip(
        out["engine_log_ratio"].to_pylist(), out["response_mask"].to_pylist(), strict=True
    ):
        assert row == pytest.approx([0.25 * i * own for i, own in enumerate(mask)])


def test_what_is_written_by_default_follows_from_the_recipe(process):
    assert process(rollout()).column_names[5:] == USUAL
    masked = process(rollout(), "--drop-equal-rewards", "--length-weight")
    assert masked.column_names[5:] == [*USUAL, "sample_mask", "sample_weight"]


def test_emitted_columns_come_in_the_order_in_which_they_are_named(process):
    out = process(rollout(), "--emit", "returns, advantages")
    assert out.column_names[5:] == ["returns", "advantages"]


def test_group_columns_hold_the_statistics_of_raw_rewards(process):
    table = rollout(6, 2).set_column(1, "reward", pa.array([0, 1, 1, 1, 0, 0], pa.float32()))
    names = ["group_mean", "group_std", "group_size", "group_pass_rate"]
    out = process(table, "--emit", ",".join(names)).select(names).to_pydict()
    assert out["group_mean"] == [0.5, 0.5, 1, 1, 0, 0]
    assert out["group_std"] == pytest.approx([math.sqrt(0.5)] * 2 + [0] * 4)
    assert out["group_size"] == [2] * 6
    assert out["group_pass_rate"] == [0.5, 0.5, 1, 1, 0, 0]


def test_only_the_keys_stay_where_nothing_else_is_wanted(process):
    keys = {"step": [1] * 12, "domain": ["math"] * 12, "traj_id": [f"t{row}" for row in range(12)]}
    table = rollout()
    for name, values in keys.items():
        table = table.append_column(name, [values])
    out = process(table, "--emit-only", "--emit", "advantages")
    assert set(out.column_names) == {"prompt_id", *keys, "advantages"}
    for name in ("prompt_id", *keys):
        assert out[name].equals(table[name])
    assert out["advantages"].equals(process(table)["advantages"])
