"""Dumps with token data: what each framework writes is what the converted file holds."""

from __future__ import annotations

import json

import format_writers as writers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run
from token_dumps import (
    TOKENS,
    WRITERS,
    converted,
    edited,
    partition,
    refused,
)

from rlpost import Recipe, enrich
from rlpost.formats import FORMATS, detect
from rlpost.formats.convert import convert
from rlpost.recipe.roles import ROLES

REWARDED = [name for name in WRITERS if name != "prime_rl_tokens"]


GRPO = Recipe(estimator="grpo")


def directly(given: list[writers.Sample]) -> pa.Table:
    """The same samples as a canonical table, without any dump between."""
    return pa.table(
        {
            "step": [7 for _ in given],
            "prompt_id": [str(one.group) for one in given],
            "reward": [one.reward for one in given],
            "response_mask": pa.array([one.mask for one in given], pa.list_(pa.uint8())),
        }
    )


# What comes out is what was put in


@pytest.mark.parametrize("writer", WRITERS)
def test_every_list_is_the_one_that_was_dumped(writer, tmp_path):
    given, table = writers.made(), converted(writer, tmp_path)
    _, columns = WRITERS[writer]
    assert {name for name in table.column_names if name in TOKENS} == columns
    for name in columns:
        assert table[name].to_pylist() == [getattr(one, TOKENS[name]) for one in given], name


@pytest.mark.parametrize("writer", WRITERS)
def test_keys_lengths_and_rewards_are_those_that_were_dumped(writer, tmp_path):
    given, table = writers.made(), converted(writer, tmp_path)
    assert partition(table["prompt_id"].to_pylist()) == partition([one.group for one in given])
    assert table["step"].to_pylist() == [7] * len(given)
    assert table["prompt_length"].to_pylist() == [len(one.prompt) for one in given]
    assert table["response_length"].to_pylist() == [len(one.tokens) for one in given]
    assert table["prompt_token_ids"].to_pylist() == [one.prompt for one in given]
    if writer in REWARDED:
        assert table["reward"].to_pylist() == [one.reward for one in given]
    for name, kind in {"prompt_id": pa.string(), "step": pa.int64()}.items():
        assert table.schema.field(name).type == kind


@pytest.mark.parametrize("writer", REWARDED)
def test_advantages_takes_a_dump_directly(writer, tmp_path):
    given = writers.made()
    dump, out = getattr(writers, writer)(tmp_path / "in", given), tmp_path / "out.parquet"
    ran = run("advantages", dump, out, "--estimator", "grpo", "--summary-json", "-")
    assert ran.code == 0, ran.err
    assert f"{dump}: read as {WRITERS[writer][0]}, {len(given)} responses" in ran.err
    assert json.loads(ran.out)["inputs"] == [str(dump)]
    here, _ = enrich(directly(given), GRPO)
    assert pq.read_table(out)["advantages"].to_pylist() == here["advantages"].to_pylist()
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out.parquet"}


@pytest.mark.parametrize("writer", [*WRITERS, "roll_rollout", "roll_agentic"])
def test_a_dump_is_known_by_its_contents_alone(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", writers.made())
    name, _ = WRITERS.get(writer, ("roll-rollout", None))
    assert detect(dump) is FORMATS[name]
    knows = [one.name for one in FORMATS.values() if one.fits(dump)]
    assert knows == [name]


CARRIED = {"response_token_ids", "prompt_token_ids"}
"""Roles of token ids, of which most recipes need none."""


@pytest.mark.parametrize("writer", [*WRITERS, "roll_rollout"])
def test_a_dump_gives_what_its_format_says(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", writers.made())
    summary = convert(dump, tmp_path / "out.parquet")
    one = FORMATS[summary["format"]]
    assert {*summary["roles"]} - CARRIED <= {*one.roles}
    assert {*one.roles} <= {*summary["roles"], *one.missing_roles}
    assert {*one.roles, *one.missing_roles} <= ROLES.keys()
    assert summary["missing_roles"].keys().isdisjoint(summary["roles"])


JSONL = ["nemo_rl", "prime_rl_traces", "prime_rl_tokens", "roll_rollout"]


MISSING = {
    "nemo_rl": (lambda one: one.pop("token_loss_mask"), "line 2: no field `token_loss_mask`"),
    "prime_rl_traces": (
        lambda one: one["traces"][0]["nodes"][1].pop("mask"),
        "line 2, traces 0, node 1: no field `mask`",
    ),
    "prime_rl_tokens": (lambda one: one.pop("trainer_logprobs"), "no field `trainer_logprobs`"),
    "roll_rollout": (lambda one: one.pop("scores"), "line 2, response 0: no field `scores`"),
}


NESTED = {
    "nemo_rl": (
        lambda one: one.update(generation_logprobs=[[[0.5], [0.5]]]),
        "line 2: `generation_logprobs` is a list of lists",
    ),
    "prime_rl_traces": (
        lambda one: one["traces"][0].update(nodes={"0": {}}),
        "line 2, traces 0: `nodes` is an object",
    ),
    "prime_rl_tokens": (
        lambda one: one.update(loss_mask=[[True], [False]]),
        "line 2: `loss_mask` is a list of lists",
    ),
    "roll_rollout": (lambda one: one.update(scores=1.0), "line 2: `scores` is 1.0; a list"),
}


NAN = {
    "nemo_rl": (
        lambda one: one["token_loss_mask"][0].__setitem__(1, float("nan")),
        "line 2: `token_loss_mask` has null at token 1",
    ),
    "prime_rl_traces": (
        lambda one: one["traces"][0]["nodes"][0]["token_ids"].append(float("nan")),
        "line 2, traces 0, node 0",
    ),
    "prime_rl_tokens": (
        lambda one: one["loss_mask"].__setitem__(0, float("nan")),
        "line 2: `loss_mask` has null at token 0",
    ),
    "roll_rollout": (
        lambda one: one["global_step"].__setitem__(0, float("nan")),
        "line 2, response 0: `global_step` is NaN",
    ),
}


@pytest.mark.parametrize("writer", JSONL)
@pytest.mark.parametrize("cases", [MISSING, NESTED, NAN], ids=["missing", "nested", "nan"])
def test_a_record_with_a_bad_field_is_named(cases, writer, tmp_path):
    edit, told = cases[writer]
    assert told in refused(edited(writer, tmp_path, edit), tmp_path)


# ROLL: columns become rows, texts and scores


@pytest.mark.parametrize("writer", ["roll_rollout", "roll_agentic"])
def test_roll_columns_become_rows(writer, tmp_path):
    given, table = writers.made(), converted(writer, tmp_path)
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["step"].to_pylist() == [7] * len(given)
    assert partition(table["prompt_id"].to_pylist()) == partition([one.group for one in given])
    if writer == "roll_rollout":
        assert table["response"].to_pylist() == [f"answer {one.index}" for one in given]
        assert table["difficulty"].to_pylist() == [0.5 if one.group else None for one in given]
