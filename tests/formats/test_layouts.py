"""Dumps of trainers, as each framework's writer makes them: what comes out is what was put in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import format_writers as writers
import format_writers_text as text_writers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from dump_folders import rows_as_declared
from runs import run

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.recipe.roles import ROLES

TEXTS, SAMPLES = text_writers.rollouts(), writers.made()
OF_TEXTS = {
    "open-instruct": (text_writers.open_instruct, "run_rollouts_000000.jsonl"),
    "roll-board": (text_writers.roll_board, "data_20260101_000000_123.jsonl"),
    "verl": (text_writers.verl, "1.jsonl"),
    "trl": (text_writers.trl, "completions_00001.parquet"),
    "trl chat": (partial(text_writers.trl, chat=True), "completions_00001.parquet"),
    "ms-swift": (text_writers.ms_swift, "completions.jsonl"),
    "ms-swift ray": (text_writers.ms_swift_ray, "completions.jsonl"),
}
TOKENS = {"response_mask": "mask", "response_token_ids": "tokens", "prompt_token_ids": "prompt",
          "infer_log_probs": "infer"}  # fmt: skip
OLD, REF, OURS = "old_log_probs", "ref_log_probs", "dumped_advantages"
NAMES = {**TOKENS, OLD: "old", REF: "ref", "values": "values", OURS: "advantages"}
OF_TOKENS = {
    "nemo-rl": (writers.nemo_rl, {*TOKENS, OLD, OURS}),
    "slime-rollout": (writers.slime_rollout, {*TOKENS}),
    "slime-train": (writers.slime_train, {*NAMES}),
    "prime-rl": (writers.prime_rl_traces, {*TOKENS, REF, OURS}),
    "prime-rl-tokens": (writers.prime_rl_tokens, {*TOKENS, OLD, OURS}),
    "roll-rollout": (writers.roll_rollout, set()),
    "roll-rollout agentic": (writers.roll_agentic, set()),
}
"""Format and kind -> its writer, and the columns of tokens that its dumps have."""
ALL = [*OF_TEXTS, *OF_TOKENS]


def text_dump(name: str, folder: Path, made: list[Any] = TEXTS, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    writer, file = OF_TEXTS[name]
    if name != "verl" or options:
        return writer(folder / file, made, **options)
    for step in sorted({one.step for one in made}):
        writer(folder / f"{step}.jsonl", [one for one in made if one.step == step])
    return folder


def token_dump(name: str, folder: Path, made: list[Any] = SAMPLES, **options: Any) -> Path:
    return OF_TOKENS[name][0](folder / "in", made, **options)


def dump_of(name: str, folder: Path) -> tuple[Path, dict[str, list[Any]], list[Any]]:
    """A dump, the columns that it becomes, and the group of each row."""
    if name in OF_TOKENS:
        columns = {x: [getattr(one, NAMES[x]) for one in SAMPLES] for x in OF_TOKENS[name][1]}
        columns["step"] = [7] * len(SAMPLES)
        if columns.keys() > {"step"}:
            columns["prompt_length"] = [len(one.prompt) for one in SAMPLES]
            columns["response_length"] = [len(one.tokens) for one in SAMPLES]
        if name != "prime-rl-tokens":
            columns["reward"] = [one.reward for one in SAMPLES]
        return token_dump(name, folder), columns, [one.group for one in SAMPLES]
    columns = {x: [getattr(one, x) for one in TEXTS] for x in ("step", "reward")}
    if name == "open-instruct":
        columns |= {
            "response_token_ids": [one.tokens for one in TEXTS],
            "prompt_token_ids": [one.prompt_tokens for one in TEXTS],
            "infer_log_probs": [one.old for one in TEXTS],
            "finish_reason": ["length" if one.length == 9 else "stop" for one in TEXTS],
            "tool_called": [False] * len(TEXTS), "ground_truth": ["[7, 8]"] * len(TEXTS),
        }  # fmt: skip
    elif name == "roll-board":
        columns |= {OLD: [one.old for one in TEXTS], REF: [one.ref for one in TEXTS],
                    "response_mask": [[1] * one.length for one in TEXTS]}  # fmt: skip
    else:
        columns["response"] = [one.response for one in TEXTS]
    groups = [(one.step, one.group) for one in TEXTS]
    return text_dump(name, folder / "in"), columns, groups


def partition(keys: list[Any]) -> list[int]:
    """The first row of each row's group."""
    return [keys.index(key) for key in keys]


def columns_of(dump: Path, out: Path, **chosen: str) -> dict[str, list[Any]]:
    convert(dump, out, options=ReadOptions(map=chosen), overwrite=True)
    return pq.read_table(out).to_pydict()


def grpo(rewards: list[float], groups: list[Any]) -> list[float]:
    """(r - mean) / (std + 1e-6) within a prompt of a step, Bessel's std."""
    of_group = [[x for x, key in zip(rewards, groups, strict=True) if key == own] for own in groups]
    return [(x - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)
            for x, group in zip(rewards, of_group, strict=True)]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_dump_is_known_by_its_contents_and_has_what_was_put_in(name, tmp_path):
    layout = FORMATS[name.partition(" ")[0]]
    dump, expected, groups = dump_of(name, tmp_path)
    for file in [dump] if dump.is_file() else dump.iterdir():
        assert detect(file) is layout
        assert [x.name for x in FORMATS.values() if x.fits(file)] == [layout.name]
    rows, summary = rows_as_declared(dump, tmp_path, layout.name)
    assert {x: [row[x] for row in rows] for x in expected} == expected
    assert not {*NAMES} & {*summary["columns"]} - {*expected}
    keys = [(row["step"], row["prompt_id"]) for row in rows]
    assert partition(keys) == partition(groups)
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    assert metadata[b"rlpost.format"].decode() == layout.name
    assert json.loads(metadata[b"rlpost.missing_roles"]) == summary["missing_roles"]
    assert summary["missing_roles"].keys() <= layout.missing_roles.keys() - {*summary["roles"]}
    assert {*layout.roles, *layout.missing_roles} <= ROLES.keys()
    if name == "prime-rl-tokens":  # which has no rewards
        return
    before = {*tmp_path.rglob("*")}
    summary = rlpost.advantages(dump, tmp_path / "adv.parquet", rlpost.Recipe(estimator="grpo"))
    assert {*tmp_path.rglob("*")} - before == {tmp_path / "adv.parquet"}
    assert summary.groups == len({*groups})
    table, values = pq.read_table(tmp_path / "adv.parquet"), grpo(expected["reward"], groups)
    if "response_advantage" in table.column_names:
        np.testing.assert_allclose(table["response_advantage"].to_pylist(), values, 1e-5, 1e-6)
    else:
        lists = zip(table["advantages"].to_pylist(), values, strict=True)
        assert all(np.allclose([x for x in row if x], value, 1e-5, 1e-6) for row, value in lists)


# A field that is missing, or is of another type: the record is named, exit 3, nothing is left

BAD = [
    ("nemo-rl", lambda x: x.pop("token_loss_mask"), "line 2: no field `token_loss_mask`"),
    ("nemo-rl", lambda x: x.update(generation_logprobs=[[[0.5], [0.5]]]),
     "line 2: `generation_logprobs` is a list of lists"),
    ("nemo-rl", lambda x: x["token_loss_mask"][0].__setitem__(1, math.nan),
     "line 2: `token_loss_mask` has null at token 1"),
    ("nemo-rl", lambda x: x.update(input_lengths=["long"]), 'line 2: `input_lengths` is "long"'),
    ("prime-rl", lambda x: x["traces"][0]["nodes"][1].pop("mask"),
     "line 2, traces 0, node 1: no field `mask`"),
    ("prime-rl", lambda x: x["traces"][0].update(nodes={"0": {}}),
     "line 2, traces 0: `nodes` is an object"),
    ("prime-rl", lambda x: x["traces"][0]["nodes"][0]["token_ids"].append(math.nan),
     "line 2, traces 0, node 0"),
    ("prime-rl-tokens", lambda x: x.pop("trainer_logprobs"), "no field `trainer_logprobs`"),
    ("prime-rl-tokens", lambda x: x.update(loss_mask=[[True], [False]]),
     "line 2: `loss_mask` is a list of lists"),
    ("roll-rollout", lambda x: x.pop("scores"), "line 2, response 0: no field `scores`"),
    ("roll-rollout", lambda x: x.update(scores=1.0), "line 2: `scores` is 1.0; a list"),
    ("roll-rollout", lambda x: x["global_step"].__setitem__(0, math.nan),
     "line 2, response 0: `global_step` is NaN"),
    ("open-instruct", lambda x: x.pop("response_tokens"), "line 2: no field `response_tokens`"),
    ("open-instruct", lambda x: x.update(response_tokens=[[1, 2]]), "is a list of lists"),
    ("roll-board", lambda x: x.pop("logprobs"), "line 2: no field `logprobs`"),
    ("verl", lambda x: x.pop("score"), "line 2: no field `score`"),
    ("verl", lambda x: x.update(score={"reward": 1.0}), "line 2: `score` is an object"),
    ("ms-swift", lambda x: x.pop("completion"), "line 2: no field `completion`"),
    ("ms-swift", lambda x: x.update(completion="a text"), "line 2: no field `step`|line 2"),
    ("ms-swift", lambda x: x["accuracy"].pop(), "`accuracy` is a list of 11; a list of 12 entries"),
    ("ms-swift", lambda x: [x.pop(name) for name in ("accuracy", "format")], "no reward column"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "told"), BAD)
def test_a_record_with_a_bad_field_is_named(name, edit, told, tmp_path):
    dump = dump_of(name, tmp_path)[0]
    file = dump if dump.is_file() else dump / "1.jsonl"
    records = [*map(json.loads, file.read_text().splitlines())]
    records = records if len(records) > 1 else [*records, *map(json.loads, [file.read_text()])]
    edit(records[1])
    writers.lines(file, records)
    before = {*tmp_path.rglob("*")}
    ran = run("convert", file, tmp_path / "out.parquet", "--from", name)
    assert ran.code == 3
    assert any(text in ran.err for text in told.split("|")), ran.err
    assert {*tmp_path.rglob("*")} == before


def slime_edited(dump: Path, edit: Any) -> Path:
    stored = torch.load(dump, weights_only=True)
    edit(stored["samples"])
    return writers.saved(dump, stored)


@pytest.mark.parametrize(
    ("name", "length"),
    [("slime-rollout", "response_length"), ("slime-train", "response_lengths")],
)
def test_a_sample_of_a_pickle_with_a_bad_field_is_named(name, length, tmp_path):
    for edit, told in (
        (lambda x: x[1].pop(length), f"no field `{length}`"),
        (lambda x: x[1].update({length: 10**6}), "the response length is"),
        (lambda x: x[1].update(tokens=[[1, 2]]), "`tokens` is a list of lists"),
        (lambda x: x[1].update(rollout_log_probs=[0.5]), "`rollout_log_probs` has 1 entries"),
    ):
        dump = slime_edited(token_dump(name, tmp_path), edit)
        with pytest.raises(DataError, match=rf"7\.pt, samples 1: {told}"):
            convert(dump, tmp_path / "out.parquet")
    dump.write_bytes(dump.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"not a torch\.save file, or damaged"):
        convert(dump, tmp_path / "out.parquet", name)


# What each writer has of its own


def test_nemo_rl_takes_the_filtered_rewards_which_are_in_step_with_the_rows(tmp_path):
    rows = columns_of(token_dump("nemo-rl", tmp_path, dynamic=True), tmp_path / "o.parquet")
    assert rows["reward"] == [one.reward for one in SAMPLES]


def test_nemo_rl_log_probs_that_are_all_zero_were_not_computed(tmp_path):
    dump = token_dump("nemo-rl", tmp_path, writers.made(groups=10), on_policy=True)
    summary = convert(dump, tmp_path / "out.parquet")
    assert "old_log_probs" not in summary["columns"]
    assert "force_on_policy_ratio" in summary["missing_roles"]["old_log_probs"]
    records = [*map(json.loads, dump.read_text().splitlines())]
    records[20]["prev_logprobs"][0][records[20]["input_lengths"][0] - 1] = -0.5
    with pytest.raises(DataError, match="line 21: has old_log_probs, which earlier records lack"):
        columns_of(writers.lines(dump, records), tmp_path / "out.parquet")


def test_nemo_rl_fields_may_be_in_a_batch_of_one_and_a_mask_of_zeros_is_an_empty_response(tmp_path):
    dump = token_dump("nemo-rl", tmp_path)
    boxed = columns_of(dump, tmp_path / "boxed.parquet")
    bare = [{name: value[0] if isinstance(value, list) else value for name, value in one.items()}
            for one in map(json.loads, dump.read_text().splitlines())]  # fmt: skip
    assert columns_of(writers.lines(dump, bare), tmp_path / "bare.parquet") == boxed
    bare[0]["token_loss_mask"] = [0] * len(bare[0]["token_loss_mask"])
    rows = columns_of(writers.lines(dump, bare), tmp_path / "bare.parquet")
    assert rows["response_mask"][0] == rows["infer_log_probs"][0] == []
    assert rows["infer_log_probs"][1] == SAMPLES[1].infer
    keys = ReadOptions(group_size=6)
    convert(dump, tmp_path / "blocks.parquet", options=keys)
    blocks = pq.read_table(tmp_path / "blocks.parquet")["prompt_id"].to_pylist()
    assert blocks == ["0"] * 6 + ["1"] * 6


@pytest.mark.parametrize("field", ["generation_logprobs", "rewards"])
def test_nan_where_a_number_may_be_one_is_kept_and_advantages_names_the_dump(field, tmp_path):
    dump = token_dump("nemo-rl", tmp_path)
    records = [*map(json.loads, dump.read_text().splitlines())]
    if field == "rewards":
        records[1][field][0] = math.nan
    else:
        records[1][field][0][-3] = math.nan  # in the padding it is of no token
    rows = columns_of(writers.lines(dump, records), tmp_path / "in.parquet")
    if field == "rewards":
        assert math.isnan(rows["reward"][1])
        ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
        assert (ran.code, f"{dump}, row 1: `reward`" in ran.err) == (3, True)
        assert run("advantages", dump, tmp_path / "out.parquet", "--nonfinite", "mask").code == 0


def test_slime_rewards_of_the_trainer_are_the_raw_ones_by_position(tmp_path):
    dump = token_dump("slime-train", tmp_path)
    rows = columns_of(dump, tmp_path / "o.parquet")
    assert rows["normalised_reward"] == [one.reward / 2 for one in SAMPLES]
    assert rows["data_parallel_rank"] == [i % 2 for i in range(len(SAMPLES))]
    slime_edited(dump, lambda samples: [one.pop("rollout_position") for one in samples])
    with pytest.raises(DataError, match=r"7\.pt, samples 0: `rollout_position` is null"):
        columns_of(dump, tmp_path / "o.parquet")
    assert "reward" not in columns_of(dump, tmp_path / "o.parquet", reward="none")


def slime_whitened(dump: Path) -> None:
    """Put in a dump what slime computes with `--normalize-advantages`, over all ranks."""
    stored = torch.load(dump, weights_only=True)
    rewards = torch.tensor(stored["raw_reward"]).reshape(-1, 4)
    normalised = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    for one, reward in zip(stored["samples"], normalised.flatten(), strict=True):
        one["rewards"] = float(reward)
        one["kl"] = torch.zeros(one["response_lengths"])  # what slime stores without a penalty
        one["returns"] = reward.expand(one["response_lengths"]).clone()
    policy = torch.cat([one["returns"][one["loss_masks"] > 0] for one in stored["samples"]])
    for one in stored["samples"]:
        one["advantages"] = (one["returns"] - policy.mean()) * torch.rsqrt(policy.var() + 1e-8)
    writers.saved(dump, stored)


def test_slime_advantages_are_whitened_over_all_ranks(tmp_path):
    dump = token_dump("slime-train", tmp_path, writers.made(groups=8))
    slime_whitened(dump)
    found = rlpost.replay(dump, rlpost.preset("slime", estimator="grpo"))
    assert found.first == "advantages"
    assert "not compared: `dumped_kl` is 0 in all rows" in " ".join(found.warnings)
    assert found.findings[0]["check"] == "option:whiten_advantages"
    assert "reproduced by `--whiten-advantages`" in found.findings[0]["text"]
    charged = rlpost.replay(dump, rlpost.preset("slime", estimator="grpo", kl_coef=0.1))
    assert (charged.first, charged.stages[1]["column"]) == ("kl", "dumped_kl")


def test_slime_samples_may_have_rewards_in_parts_numbers_of_numpy_and_no_tokens(tmp_path):
    def edit(samples: list[dict]) -> None:
        for one in samples:
            one["reward"] = {"format": 0.0, "answer": np.float64(one["reward"])}
            one["rollout_log_probs"] = np.array(one["rollout_log_probs"], np.float32)
        samples[0] |= {"response_length": 0, "loss_mask": None, "rollout_log_probs": None,
                       "status": "aborted"}  # fmt: skip

    dump = slime_edited(token_dump("slime-rollout", tmp_path), edit)
    with pytest.raises(DataError, match="samples 0: `reward` is an object with the fields format"):
        columns_of(dump, tmp_path / "out.parquet")
    rows = columns_of(dump, tmp_path / "out.parquet", reward="reward.answer")
    assert rows["reward"] == [one.reward for one in SAMPLES]
    assert rows["infer_log_probs"] == [[], *(one.infer for one in SAMPLES[1:])]
    assert rows["finish_reason"][:2] == ["aborted", "length"]
    alone = writers.slime_sample(SAMPLES[0]) | {"rollout_id": None}
    with pytest.raises(DataError, match="`rollout_id` is null"):
        convert(writers.saved(tmp_path / "7.pt", alone), tmp_path / "o.parquet", "slime-rollout")


def test_prime_rl_gives_a_row_for_each_branch_and_each_attempt_to_compact_that_was_resumed(
    tmp_path,
):
    dump = token_dump("prime-rl", tmp_path, SAMPLES[:1])
    episode = json.loads(dump.read_text())
    nodes = episode["traces"][0]["nodes"]
    attempt = {"semantic_parents": [{"node": 0, "type": "compaction_attempt"}]}
    nodes.append({**nodes[1], **attempt, "logprobs": [-9.0] * len(nodes[1]["logprobs"])})
    writers.lines(dump, [episode])
    assert columns_of(dump, tmp_path / "one.parquet")["sample_id"] == ["trace0:0"]
    nodes[-2]["semantic_parents"] = [{"node": len(nodes) - 1, "type": "compaction"}]
    rows = columns_of(writers.lines(dump, [episode]), tmp_path / "two.parquet")
    assert rows["sample_id"] == ["trace0:0", "trace0:1"]
    assert (rows["rollout_id"], rows["reward"]) == (["trace0"] * 2, [SAMPLES[0].reward] * 2)
    assert rows["infer_log_probs"][1] == nodes[-1]["logprobs"]


def test_kinds_of_rollouts_are_never_added_up(tmp_path):
    for cohort in ("all", "effective"):
        target = tmp_path / "dump" / "step_7" / "train" / cohort / "traces.jsonl"
        target.parent.mkdir(parents=True)
        token_dump("prime-rl", tmp_path).rename(target)
    with pytest.raises(UsageError, match="twice, in all/ and in effective/"):
        convert(tmp_path / "dump", tmp_path / "out")
    dump = token_dump("slime-rollout", tmp_path)
    (dump.parent / "eval_7.pt").write_bytes(dump.read_bytes())
    with pytest.raises(UsageError, match=r"of training and of evaluation"):
        convert(dump.parent, tmp_path / "out")
    for pattern in ("[0-9]*.pt", "eval_*.pt"):
        convert(str(dump.parent / pattern), tmp_path / "out")
    assert len([*(tmp_path / "out").iterdir()]) == 2


def test_prime_rl_token_exports_have_no_rewards_and_advantages_says_so(tmp_path):
    dump = token_dump("prime-rl-tokens", tmp_path)
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
    assert (ran.code, "traces.jsonl has them" in ran.err) == (3, True)


def test_open_instruct_without_log_probs_has_lengths_still(tmp_path):
    dump = text_dump("open-instruct", tmp_path, logprobs=False)
    rows = columns_of(dump, tmp_path / "o.parquet", truncated="request_info.timeouts")
    assert rows["response_mask"] == [[1] * one.length for one in TEXTS]
    assert rows["truncated"] == [False] * len(TEXTS)
    assert not {"infer_log_probs", "finish_reason"} & rows.keys()


def test_a_flag_of_open_instruct_may_be_a_number_in_some_rows(tmp_path):
    dump = text_dump("open-instruct", tmp_path)
    records = [*map(json.loads, dump.read_text().splitlines())]
    records[2]["request_info"]["tool_calleds"] = -1
    rows = columns_of(writers.lines(dump, records), tmp_path / "o.parquet")
    assert rows["tool_called"] == [row == 2 for row in range(len(TEXTS))]


def test_rolls_board_is_cut_to_the_response_and_its_prompts_have_padding(tmp_path):
    made = [replace(one, prompt="<PAD>" * (row % 3) + "<|im_start|>user\n" + one.prompt)
            for row, one in enumerate(TEXTS)]  # fmt: skip
    dump = text_dump("roll-board", tmp_path, made)
    records = [*map(json.loads, dump.read_text().splitlines())]
    rows = columns_of(dump, tmp_path / "o.parquet")
    assert partition([*zip(rows["step"], rows["prompt_id"], strict=True)]) == partition(
        [(one.step, one.group) for one in TEXTS]
    )
    assert not {"values", "token_rewards"} & rows.keys()
    lists = ("logprobs", "ref_logprobs", "new_response_mask", "old_log_probs2_entropy")
    records[3] |= {name: [] for name in lists}  # what is written for a mask of zeros
    rows = columns_of(writers.lines(dump, records), tmp_path / "o.parquet")
    assert rows["old_log_probs"][3:5] == [[], TEXTS[4].old]
    assert rows["response_mask"][3] == []


def test_verls_extra_lists_become_columns(tmp_path):
    count = len(TEXTS)
    extra = {
        "acc": [1, 0.5, None] * (count // 3), "pred": ["4", 4, None] * (count // 3),
        "tries": [[1], [2, 3], []] * (count // 3), "odd": [{"a": 1}] * count,
        "late": [None] * (count - 1) + [True], "short": [1], "values": [3.0] * count,
        "prompt_id": ["p"] * count, "reward": [0.0] * count,
    }  # fmt: skip
    dump = text_dump("verl", tmp_path, **extra)
    assert detect(dump) is FORMATS["verl"]
    rows = columns_of(dump, tmp_path / "o.parquet")
    expected = {"pred": ["4", "4", None] * (count // 3), "odd": ['{"a": 1}'] * count}
    for name in ("acc", "pred", "tries", "odd", "late"):
        assert rows[name] == {**extra, **expected}[name]
    assert rows["dumped_values"] == extra["values"]
    assert rows["gts"][4] == '{"answer": 1}'
    assert not {"short", "values"} & rows.keys()
    assert "acc" not in columns_of(dump, tmp_path / "o.parquet", acc="none")
    summary = rlpost.advantages(dump, tmp_path / "lists.parquet")
    assert summary.tokens is None


@pytest.mark.parametrize(
    ("uid", "request_id", "keys"),
    [
        ("3f_2-{group}_{row}_{out}", None, ("3f_2-{group}", "3f_2-{group}_{row}", True)),
        ("3f_a-{group}", "request {row}", ("3f_a-{group}", "request {row}", False)),
        ("task_easy_{group}", None, ("task_easy_{group}", None, False)),  # is not taken apart
    ],
)
def test_verls_uid_names_the_prompt_and_may_name_rollout_and_output(
    uid, request_id, keys, tmp_path
):
    def of_rows(text: str | None) -> list[str | None]:
        return [text and text.format(group=one.group, row=row, out=row % 2)
                for row, one in enumerate(TEXTS)]  # fmt: skip

    extra = {"request_id": of_rows(request_id)} if request_id else {}
    dump = text_dump("verl", tmp_path, uid=of_rows(uid), **extra)
    rows, (prompt, rollout, sample) = columns_of(dump, tmp_path / "o.parquet"), keys
    none = [None] * len(TEXTS)
    assert rows["prompt_id"] == of_rows(prompt)
    assert rows.get("rollout_id", none) == of_rows(rollout)
    assert rows.get("sample_id", none) == of_rows(uid if sample else None)


def test_rewards_of_functions_are_summed_and_those_not_given_left_out(tmp_path):
    parts = [{**one.parts, "format": None if row % 2 else one.parts["format"]}
             for row, one in enumerate(TEXTS)]  # fmt: skip
    parts[5] = dict.fromkeys(parts[5])
    extra = {"solution": pa.array(["x"] * len(TEXTS)), "none": pa.nulls(len(TEXTS))}
    made = [replace(one, parts=own) for one, own in zip(TEXTS, parts, strict=True)]
    rows = columns_of(text_dump("trl", tmp_path, made, **extra), tmp_path / "o.parquet")
    given = [[x for x in own.values() if x is not None] for own in parts]
    assert rows["reward"] == [sum(own) if own else None for own in given]
    assert rows["format"] == [own["format"] for own in parts]
    assert (rows["solution"], "none" in rows) == (["x"] * len(TEXTS), False)
    made = [replace(one, parts={**one.parts, "format": math.nan}) for one in TEXTS]
    rows = columns_of(text_dump("ms-swift", tmp_path, made), tmp_path / "o.parquet")
    assert rows["reward"] == [one.parts["accuracy"] for one in TEXTS]
    summary = convert(text_dump("trl", tmp_path, [replace(one, parts={}) for one in TEXTS]),
                      tmp_path / "none.parquet")  # fmt: skip
    assert "no column has floats" in summary["missing_roles"]["reward"]


def test_old_ms_swift_has_messages_and_one_reward(tmp_path):
    chat = [{"role": "user", "content": "2 + 2?"}]
    line = {"step": ["7"] * 2, "messages": [chat] * 2, "completion": ["4", "5"], "reward": [1, 0.5]}
    rows = columns_of(writers.lines(tmp_path / "c.jsonl", [line]), tmp_path / "o.parquet")
    assert (rows["reward"], json.loads(rows["prompt"][0])) == ([1.0, 0.5], chat)
    assert len({*rows["prompt_id"]}) == 1


def test_trl_files_that_are_none_are_an_error(tmp_path):
    pq.write_table(pa.table({"step": [1], "prompt": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no field `completion`"):
        convert(tmp_path / "a.parquet", tmp_path / "o.parquet", "trl")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file"):
        convert(tmp_path / "a.parquet", tmp_path / "o.parquet", "trl")


@pytest.mark.parametrize(
    ("recipe", "role"),
    [
        ({"estimator": "opo"}, "response_length"),
        ({"estimator": "gae"}, "values"),
        ({"estimator": "reinforce", "kl_coef": 0.1}, "old_log_probs"),
    ],
)
def test_advantages_says_why_a_dump_of_texts_will_not_do(recipe, role, tmp_path):
    convert(text_dump("verl", tmp_path / "in"), tmp_path / "in.parquet")
    with pytest.raises(DataError) as refused:
        rlpost.advantages(tmp_path / "in.parquet", tmp_path / "o.parquet", rlpost.Recipe(**recipe))
    for text in (FORMATS["verl"].missing_roles[role], f"no column for {role} ", f"--map {role}=C"):
        assert text in str(refused.value)
    assert not (tmp_path / "o.parquet").exists()


def test_a_table_in_memory_says_so_too():
    table = pa.table({"prompt_id": ["a", "a"], "reward": [0.0, 1.0], "ids": [[1], [2, 3]]})
    for noted, told in ((b'{"mask": "left out"}', "left out"), (b"", "no column for mask"),
                        (b"not json", "no column"), (b"[1]", "no column")):  # fmt: skip
        given = table.replace_schema_metadata({b"rlpost.missing_roles": noted})
        with pytest.raises(DataError, match=told):
            rlpost.enrich(given, rlpost.Recipe(whiten_rewards=True))
        if told == "left out":
            assert "response_advantage" in rlpost.enrich(given)[0].column_names


# Files that trainers' own functions wrote

WRITTEN = Path(__file__).parents[1] / "written" / "trainers"
TRUTH = json.loads((WRITTEN / "truth.json").read_text())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("verl", {"acc": [True, False, True, False], "rollout_id": ["r0", "r1", "r2", "r3"]}),
        ("verl-v1", {"prompt_id": ["a_b", "a_b", "c", "c"],
                     "rollout_id": ["a_b_0", "a_b_1", "c_0", "c_0"]}),
        ("ms-swift/grpo", {"reward": [1.5, 0.5, 1.5, 1.0],
                           "dumped_advantage": [1.0, -1.0, 0.7, -0.7],
                           "dumped_entropy": [0.1, 0.2, 0.3, 0.4]}),
        ("ms-swift/gkd", {"reward": [None] * 4}),
        ("ms-swift/ray", {}),
    ],
)  # fmt: skip
def test_texts_that_trainers_wrote(name, more, tmp_path):
    rows, summary = rows_as_declared(WRITTEN / name, tmp_path)
    assert name.startswith(summary["format"])
    prompts, responses, rewards = map(list, zip(*TRUTH["texts"], strict=True))
    expected = {
        "step": [7] * 4,
        "prompt": prompts,
        "response": responses,
        "reward": rewards,
        **more,
    }
    assert {key: [row.get(key) for row in rows] for key in expected} == expected
    assert partition([row["prompt_id"] for row in rows]) == [0, 0, 2, 2]


def test_rollouts_that_open_instruct_wrote(tmp_path):
    rows, _ = rows_as_declared(WRITTEN / "open-instruct", tmp_path)
    for row, one in zip(rows, TRUTH["open_instruct"], strict=True):
        assert (row["prompt_token_ids"], row["response_token_ids"]) == (one["prompt"], one["ids"])
        assert row["infer_log_probs"] == np.float32(one["engine"]).tolist()
