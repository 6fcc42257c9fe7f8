"""Dumps with token data: what each framework writes is what the converted file holds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import format_writers as writers
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import run

from rlpost import Recipe, enrich, preset, replay
from rlpost.errors import DataError, UsageError
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = {
    "response_mask": "mask",
    "response_token_ids": "tokens",
    "old_log_probs": "old",
    "ref_log_probs": "ref",
    "infer_log_probs": "infer",
    "values": "values",
    "dumped_advantages": "advantages",
}
BASIC = {"response_mask", "response_token_ids", "infer_log_probs"}
# writer -> the format, and the token columns that its dumps give
WRITERS = {
    "nemo_rl": ("nemo-rl", BASIC | {"old_log_probs", "dumped_advantages"}),
    "slime_rollout": ("slime-rollout", BASIC),
    "slime_train": ("slime-train", {*TOKENS}),
    "miles": ("miles", BASIC | {"old_log_probs", "ref_log_probs"}),
    "prime_rl_traces": ("prime-rl", BASIC | {"ref_log_probs", "dumped_advantages"}),
    "prime_rl_tokens": ("prime-rl-tokens", BASIC | {"old_log_probs", "dumped_advantages"}),
    "grail": ("grail", BASIC),
}
REWARDED = [name for name in WRITERS if name != "prime_rl_tokens"]
GRPO = Recipe(estimator="grpo")


def samples(writer: str) -> list[writers.Sample]:
    """What a writer is given; GRAIL has one turn alone, so all its tokens are the policy's."""
    everything = writers.made()
    return [one for one in everything if 0 not in one.mask] if writer == "grail" else everything


def converted(writer: str, folder: Path, **how) -> pa.Table:
    given = how.pop("given", None) or samples(writer)
    dump = getattr(writers, writer)(folder / "in", given, **how)
    convert(dump, folder / "out.parquet")
    return pq.read_table(folder / "out.parquet")


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


def partition(keys: list) -> list[int]:
    """Which rows share a key, whatever the keys are called."""
    places = {key: place for place, key in reversed(list(enumerate(keys)))}
    return [places[key] for key in keys]


# What comes out is what was put in


@pytest.mark.parametrize("writer", WRITERS)
def test_every_list_is_the_one_that_was_dumped(writer, tmp_path):
    given, table = samples(writer), converted(writer, tmp_path)
    _, columns = WRITERS[writer]
    assert {name for name in table.column_names if name in TOKENS} == columns
    for name in columns:
        assert table[name].to_pylist() == [getattr(one, TOKENS[name]) for one in given], name


@pytest.mark.parametrize("writer", WRITERS)
def test_keys_lengths_and_rewards_are_those_that_were_dumped(writer, tmp_path):
    given, table = samples(writer), converted(writer, tmp_path)
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
def test_a_converted_dump_is_enriched_as_the_same_rows_are(writer, tmp_path):
    given, table = samples(writer), converted(writer, tmp_path)
    there, _ = enrich(table, GRPO)
    here, _ = enrich(directly(given), GRPO)
    assert there["advantages"].to_pylist() == here["advantages"].to_pylist()
    assert any(any(row) for row in here["advantages"].to_pylist())


@pytest.mark.parametrize("writer", REWARDED)
def test_advantages_takes_a_dump_directly(writer, tmp_path):
    given = samples(writer)
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
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    name, _ = WRITERS.get(writer, ("roll-rollout", None))
    assert detect(dump) is FORMATS[name]
    knows = [one.name for one in FORMATS.values() if one.sniff(dump)]
    assert knows == [name]


@pytest.mark.parametrize("writer", [*WRITERS, "roll_rollout"])
def test_a_dump_gives_what_its_format_says(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    summary = convert(dump, tmp_path / "out.parquet")
    one = FORMATS[summary["format"]]
    assert {*summary["roles"]} <= {*one.roles}
    assert {*one.roles} <= {*summary["roles"], *one.missing_roles}
    assert {*one.roles, *one.missing_roles} <= ROLES.keys()
    assert summary["missing_roles"].keys().isdisjoint(summary["roles"])


# The traps of each format


def test_nemo_rl_takes_the_filtered_rewards_which_are_in_step_with_the_rows(tmp_path):
    table = converted("nemo_rl", tmp_path, dynamic=True)
    assert table["reward"].to_pylist() == [one.reward for one in samples("nemo_rl")]


def test_nemo_rl_log_probs_that_are_all_zero_were_not_computed(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", samples("nemo_rl"), on_policy=True)
    summary = convert(dump, tmp_path / "out.parquet")
    assert "old_log_probs" not in summary["columns"]
    assert "force_on_policy_ratio" in summary["missing_roles"]["old_log_probs"]


def test_nemo_rl_fields_without_the_batch_of_one_are_read_as_well(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", samples("nemo_rl"))
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
    dump = writers.nemo_rl(tmp_path / "in", samples("nemo_rl"))
    convert(dump, tmp_path / "out.parquet", options=ReadOptions(group_size=6))
    keys = pq.read_table(tmp_path / "out.parquet")["prompt_id"].to_pylist()
    assert keys == ["0"] * 6 + ["1"] * 6


def test_a_nemo_rl_sequence_that_nothing_trains_on_is_an_empty_response(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", samples("nemo_rl"))
    records = [json.loads(line) for line in dump.read_text().splitlines()]
    records[0]["token_loss_mask"] = [[0] * len(records[0]["token_loss_mask"][0])]
    convert(writers.lines(dump, records), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["response_mask"][0].as_py() == table["infer_log_probs"][0].as_py() == []
    assert table["infer_log_probs"][1].as_py() == samples("nemo_rl")[1].infer


def test_slime_rewards_of_the_trainer_are_the_raw_ones_by_position(tmp_path):
    table = converted("slime_train", tmp_path)
    given = samples("slime_train")
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["normalised_reward"].to_pylist() == [one.reward / 2 for one in given]
    assert table["data_parallel_rank"].to_pylist() == [i % 2 for i in range(len(given))]


def slime_whitened(dump, sets) -> None:
    """Put in a dump what slime computes with `--normalize-advantages`: whitened within the sets."""
    held = torch.load(dump, weights_only=True)
    rewards = torch.tensor(held["raw_reward"]).reshape(-1, 4)
    normalised = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    for one, reward in zip(held["samples"], normalised.flatten(), strict=True):
        one["rewards"] = float(reward)
        one["kl"] = torch.zeros(one["response_lengths"])  # what slime stores without a penalty
        one["returns"] = one["advantages"] = reward.expand(one["response_lengths"]).clone()
    for ranks in sets:
        own = [one for one in held["samples"] if one["data_parallel_rank"] in ranks]
        policy = torch.cat([one["returns"][one["loss_masks"] > 0] for one in own])
        for one in own:
            scale = torch.rsqrt(policy.var() + 1e-8)
            one["advantages"] = (one["returns"] - policy.mean()) * scale
    writers.saved(dump, held)


@pytest.mark.parametrize(
    ("sets", "finding", "text"),
    [
        ([{0, 1}], "option:whiten_advantages", "reproduced by `--whiten-advantages`"),
        ([{0}, {1}], "within-sets", "within each `data_parallel_rank`"),
    ],
)
def test_slime_advantages_are_whitened_over_all_ranks_or_within_each(sets, finding, text, tmp_path):
    dump = writers.slime_train(tmp_path, writers.made(groups=8))
    slime_whitened(dump, sets)
    found = replay(dump, preset("slime", estimator="grpo"))
    assert found.first == "advantages"
    assert "not compared: `dumped_kl` is 0 in all rows" in " ".join(found.warnings)
    charged = replay(dump, preset("slime", estimator="grpo", kl_coef=0.1))
    assert charged.first == "kl"
    assert charged.stages[1]["column"] == "dumped_kl"
    assert found.findings[0]["name"] == finding
    assert text in found.findings[0]["text"]


def test_a_dump_whose_end_is_missing_is_damaged(tmp_path):
    dump = writers.slime_train(tmp_path, samples("slime_train"))
    dump.write_bytes(dump.read_bytes()[:-500])
    with pytest.raises(DataError, match="damaged: a zip archive whose end is missing"):
        replay(dump, preset("slime", estimator="grpo"))


def test_slime_raw_rewards_without_positions_are_not_guessed(tmp_path):
    dump = writers.slime_train(tmp_path / "in", samples("slime_train"))
    held = torch.load(dump, weights_only=True)
    for one in held["samples"]:
        del one["rollout_position"]
    writers.saved(dump, held)
    with pytest.raises(DataError, match=r"7\.pt, sample 0: `rollout_position` is None"):
        convert(dump, tmp_path / "out.parquet")
    convert(dump, tmp_path / "out.parquet", options=ReadOptions({"reward": "none"}))
    assert "reward" not in pq.read_table(tmp_path / "out.parquet").column_names


def test_slime_rewards_in_parts_need_one_to_be_picked(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    for one in held["samples"]:
        one["reward"] = {"format": 0.0, "answer": one["reward"]}
    dump = writers.saved(tmp_path / "7.pt", held)
    with pytest.raises(DataError, match=r"sample 0: `reward` has the parts format, answer"):
        convert(dump, tmp_path / "out.parquet")
    convert(dump, tmp_path / "out.parquet", options=ReadOptions({"reward": "reward.answer"}))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reward"].to_pylist() == [one.reward for one in writers.made()]


def test_slime_responses_that_were_aborted_have_no_tokens(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    held["samples"][0] |= {
        "response_length": 0, "loss_mask": None, "rollout_log_probs": None, "status": "aborted",
    }  # fmt: skip
    convert(writers.saved(tmp_path / "7.pt", held), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["infer_log_probs"][0].as_py() == []
    assert table["finish_reason"][:2].to_pylist() == ["aborted", "length"]


def test_numpy_numbers_in_a_pickle_are_plain_data(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    for one in held["samples"]:
        one["reward"] = np.float64(one["reward"])
        one["rollout_log_probs"] = np.array(one["rollout_log_probs"], np.float32)
    convert(writers.saved(tmp_path / "7.pt", held), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reward"].to_pylist() == [one.reward for one in writers.made()]
    assert table["infer_log_probs"].to_pylist() == [one.infer for one in writers.made()]


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


def test_prime_rl_gives_one_row_for_each_branch_of_a_trace(tmp_path):
    dump = writers.prime_rl_traces(tmp_path / "in", samples("prime_rl_traces")[:1])
    (episode,) = map(json.loads, dump.read_text().splitlines())
    trace = episode["traces"][0]
    fork = dict(trace["nodes"][1], logprobs=[-9.0] * len(trace["nodes"][1]["logprobs"]))
    trace["nodes"].append(fork)
    convert(writers.lines(dump, [episode]), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["sample_id"].to_pylist() == ["trace0:0", "trace0:1"]
    assert table["rollout_id"].to_pylist() == ["trace0"] * 2
    assert table["reward"].to_pylist() == [samples("prime_rl_traces")[0].reward] * 2
    assert table["infer_log_probs"][1].as_py() == fork["logprobs"]


def test_prime_rl_attempts_to_compact_count_only_if_they_were_resumed(tmp_path):
    dump = writers.prime_rl_traces(tmp_path / "in", samples("prime_rl_traces")[:1])
    (episode,) = map(json.loads, dump.read_text().splitlines())
    nodes = episode["traces"][0]["nodes"]
    link = [{"node": 0, "type": "compaction_attempt"}]
    nodes.append({**nodes[1], "semantic_parents": link})
    convert(writers.lines(dump, [episode]), tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 1
    nodes[-2]["semantic_parents"] = [{"node": len(nodes) - 1, "type": "compaction"}]
    convert(writers.lines(dump, [episode]), tmp_path / "two.parquet")
    assert pq.read_metadata(tmp_path / "two.parquet").num_rows == 2


def test_prime_rl_traces_of_both_cohorts_are_never_added_up(tmp_path):
    for cohort in ("all", "effective"):
        dump = writers.prime_rl_traces(tmp_path / "in", samples("prime_rl_traces"))
        target = tmp_path / "dump" / "step_7" / "train" / cohort / "traces.jsonl"
        target.parent.mkdir(parents=True)
        dump.rename(target)
    with pytest.raises(UsageError, match="twice, in all/ and in effective/"):
        convert(tmp_path / "dump", tmp_path / "out")


def test_rollouts_of_training_and_evaluation_are_never_mixed(tmp_path):
    dump = writers.slime_rollout(tmp_path, samples("slime_rollout"))
    (dump.parent / "eval_7.pt").write_bytes(dump.read_bytes())
    with pytest.raises(UsageError, match=r"of training and of evaluation \(.*eval_7\.pt\)"):
        convert(dump.parent, tmp_path / "out")
    convert(str(dump.parent / "[0-9]*.pt"), tmp_path / "out")
    convert(str(dump.parent / "eval_*.pt"), tmp_path / "out")
    assert len([*(tmp_path / "out").iterdir()]) == 2


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


def test_prime_rl_token_exports_have_no_rewards_and_advantages_says_so(tmp_path):
    dump = writers.prime_rl_tokens(tmp_path / "in", samples("prime_rl_tokens"))
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
    assert ran.code == 3
    assert "traces.jsonl has them" in ran.err


def test_grail_log_probs_may_cover_the_completion_alone(tmp_path):
    table = converted("grail", tmp_path, whole=False)
    assert table["infer_log_probs"].to_pylist() == [one.infer for one in samples("grail")]


@pytest.mark.parametrize("writer", ["roll_rollout", "roll_agentic"])
def test_roll_columns_become_rows(writer, tmp_path):
    given, table = samples(writer), converted(writer, tmp_path)
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["step"].to_pylist() == [7] * len(given)
    assert partition(table["prompt_id"].to_pylist()) == partition([one.group for one in given])
    if writer == "roll_rollout":
        assert table["response"].to_pylist() == [f"answer {one.index}" for one in given]
        assert table["difficulty"].to_pylist() == [0.5 if one.group else None for one in given]


def test_roll_text_dumps_get_one_advantage_per_response(tmp_path):
    given = samples("roll_rollout")
    dump = writers.roll_rollout(tmp_path / "in", given)
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "dr_grpo")
    assert ran.code == 0, ran.err
    assert "responses, without columns of tokens" in ran.err
    table = pq.read_table(tmp_path / "out.parquet")
    rewards = np.array([one.reward for one in given])
    groups = np.array([one.group for one in given])
    expected = [one.reward - rewards[groups == one.group].mean() for one in given]
    np.testing.assert_allclose(table["response_advantage"], expected, rtol=1e-5, atol=1e-6)


# Bad dumps: the record is named, and nothing is left behind


def refused(dump: Path, folder: Path, *words: str) -> str:
    """The error of converting, and of enriching directly; both exit 3 and leave nothing."""
    before = {*folder.rglob("*")}
    ran = run("convert", dump, folder / "out.parquet", *words)
    again = run("advantages", dump, folder / "out.parquet", "--estimator", "grpo")
    assert (ran.code, again.code) == (3, 3), ran.err + again.err
    assert {*folder.rglob("*")} == before
    return ran.err


JSONL = ["nemo_rl", "prime_rl_traces", "prime_rl_tokens", "roll_rollout"]
TABLES = {"miles": "tokens", "grail": "rollout_index"}


@pytest.mark.parametrize("writer", JSONL)
def test_a_line_that_is_cut_off_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    text = dump.read_text()
    extra = text if text.count("\n") == 1 else ""
    dump.write_text(extra + text[: len(text) - 30])
    line = len(dump.read_text().splitlines())
    assert f"{dump}, line {line}: not JSON: the line is incomplete" in refused(dump, tmp_path)


@pytest.mark.parametrize("writer", JSONL)
def test_a_line_that_is_no_object_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    dump.write_text(dump.read_text() + "[1, 2]\n")
    line = len(dump.read_text().splitlines())
    assert f"{dump}, line {line}: is a list of 2; a JSON object is needed" in refused(
        dump, tmp_path
    )


def edited(writer: str, folder: Path, edit) -> Path:
    """A dump whose second record (or only line) is edited, once the first is right."""
    dump = getattr(writers, writer)(folder / "in", samples(writer))
    text = dump.read_text()
    text = text if text.count("\n") > 1 else text * 2
    records = [json.loads(line) for line in text.splitlines()]
    edit(records[1])
    return writers.lines(dump, records)


MISSING = {
    "nemo_rl": (lambda one: one.pop("token_loss_mask"), "line 2: no field `token_loss_mask`"),
    "prime_rl_traces": (
        lambda one: one["traces"][0]["nodes"][1].pop("mask"),
        "line 2, trace 0, node 1: no field `mask`",
    ),
    "prime_rl_tokens": (lambda one: one.pop("trainer_logprobs"), "no field `trainer_logprobs`"),
    "roll_rollout": (lambda one: one.pop("scores"), "line 2, response 0: no field `scores`"),
}
NESTED = {
    "nemo_rl": (
        lambda one: one.update(generation_logprobs=[[[0.5], [0.5]]]),
        "line 2: `generation_logprobs` is nested 2 deep",
    ),
    "prime_rl_traces": (
        lambda one: one["traces"][0].update(nodes={"0": {}}),
        "line 2, trace 0: `nodes` is an object",
    ),
    "prime_rl_tokens": (
        lambda one: one.update(loss_mask=[[True], [False]]),
        "line 2: `loss_mask` is nested 2 deep",
    ),
    "roll_rollout": (lambda one: one.update(scores=1.0), "line 2: `scores` is 1.0; a list"),
}
NAN = {
    "nemo_rl": (
        lambda one: one["token_loss_mask"][0].__setitem__(1, float("nan")),
        "line 2: `token_loss_mask` has nan at token 1",
    ),
    "prime_rl_traces": (
        lambda one: one["traces"][0]["nodes"][0]["token_ids"].append(float("nan")),
        "line 2, trace 0, node 0",
    ),
    "prime_rl_tokens": (
        lambda one: one["loss_mask"].__setitem__(0, float("nan")),
        "line 2: `loss_mask` has nan at token 0",
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


SLIME = {
    "slime_rollout": ("response_length", "samples"),
    "slime_train": ("response_lengths", "samples"),
}


@pytest.mark.parametrize("writer", SLIME)
def test_a_sample_of_a_pickle_with_a_bad_field_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    length, _ = SLIME[writer]
    cases = (
        (lambda one: one.pop(length), f"7.pt, sample 1: no field `{length}`"),
        (lambda one: one.update({length: 10**6}), "7.pt, sample 1: the response length is"),
        (lambda one: one.update(tokens=[[1, 2]]), "7.pt, sample 1: `tokens` is nested 2 deep"),
        (
            lambda one: one.update(rollout_log_probs=[0.5]),
            "7.pt, sample 1: `rollout_log_probs` has 1 entries",
        ),
    )
    for edit, told in cases:
        held = torch.load(dump, weights_only=True)
        edit(held["samples"][1])
        writers.saved(dump, held)
        assert told in refused(dump, tmp_path)
        dump = getattr(writers, writer)(tmp_path / "in", samples(writer))


@pytest.mark.parametrize("writer", SLIME)
def test_a_pickle_that_is_cut_off_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    dump.write_bytes(dump.read_bytes()[:-200])
    name, _ = WRITERS[writer]
    assert f"{dump}: not a torch.save file, or damaged" in refused_as(name, dump, tmp_path)


def refused_as(name: str, dump: Path, folder: Path) -> str:
    before = {*folder.rglob("*")}
    ran = run("convert", dump, folder / "out.parquet", "--from", name)
    assert ran.code == 3, ran.err
    assert {*folder.rglob("*")} == before
    return ran.err


class Harmful:
    """Unpickled without care, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("writer", SLIME)
def test_code_in_a_pickle_is_refused_and_never_run(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    held = torch.load(dump, weights_only=True)
    held["samples"][0]["metadata"] = Harmful(tmp_path / "harm")
    writers.saved(dump, held)
    assert "rlpost never executes code from a dump" in refused(dump, tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("writer", TABLES)
def test_a_parquet_dump_that_lacks_a_column_or_is_cut_off_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", samples(writer))
    whole = pq.read_table(dump)
    pq.write_table(whole.drop_columns([TABLES[writer]]), dump)
    told = refused_as(WRITERS[writer][0], dump, tmp_path)
    assert f"{dump}: no column {TABLES[writer]!r}" in told
    pq.write_table(whole, dump)
    dump.write_bytes(dump.read_bytes()[:-50])
    assert f"{dump}: not a Parquet file, or damaged" in refused_as(
        WRITERS[writer][0], dump, tmp_path
    )


def test_a_grail_rollout_whose_lengths_do_not_add_up_is_named(tmp_path):
    given = samples("grail")
    dump = writers.grail(tmp_path / "in", given)
    rows = pq.read_table(dump).to_pylist()
    rows[1]["commit"]["rollout"]["completion_length"] += 1
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(dump)), dump)
    assert f"{dump}, row 1: prompt_length" in refused(dump, tmp_path)


def test_a_miles_sample_without_a_reward_beside_it_is_named(tmp_path):
    dump = writers.miles(tmp_path / "in", samples("miles"), train=False)
    frame = pl.read_parquet(dump)
    frame.with_columns(sample_index=pl.col("sample_index") + 1).write_parquet(dump)
    told = refused(dump, tmp_path)
    assert f"{dump}, row 11: sample_index 12 is not in rollout_data/" in told
