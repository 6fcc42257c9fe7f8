"""Dumps of texts and scores, logging boards, and anybody's JSONL and Parquet -> Parquet."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import format_writers_text as writers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_dumps import MADE, columns, converted, plain, refusal

import rlpost
from rlpost.errors import DataError
from rlpost.formats import FORMATS, detect
from rlpost.formats.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

TEXT_ONLY = ("verl", "trl", "ms-swift")


def write(name: str, folder: Path, made: list[writers.Rollout] = MADE) -> Path:
    """A dump of a framework: a file, or for those of several the folder they are in."""
    if name == "verl":
        for step in sorted({one.step for one in made}):
            writers.verl(folder / f"{step}.jsonl", [one for one in made if one.step == step])
    else:
        writer = {
            "open-instruct": (writers.open_instruct, "run_rollouts_000000.jsonl"),
            "roll-board": (writers.roll_board, "data_20260101_000000_123.jsonl"),
            "trl": (writers.trl, "completions_00001.parquet"),
            "trl-chat": (partial(writers.trl, chat=True), "completions_00001.parquet"),
            "ms-swift": (writers.ms_swift, "completions.jsonl"),
            "ms-swift-ray": (writers.ms_swift_ray, "completions.jsonl"),
            "plain": (plain, "rows.jsonl"),
        }[name]
        return writer[0](folder / writer[1], made)
    return folder


WRITTEN = ("open-instruct", "roll-board", *TEXT_ONLY)


def partition(keys: list[Any]) -> set[frozenset[int]]:
    """Which rows are together, whatever the keys are called."""
    groups: dict[Any, set[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, set()).add(row)
    return {frozenset(rows) for rows in groups.values()}


# Every framework


@pytest.fixture(params=WRITTEN)
def dump(request, tmp_path):
    (tmp_path / "dump").mkdir()
    path = write(request.param, tmp_path / "dump")
    return request.param, path, tmp_path / "out.parquet"


def test_rewards_groups_texts_and_lengths_come_back(dump):
    name, path, out = dump
    table = converted(path, out)
    assert json.loads(pq.read_metadata(out).metadata[b"rlpost.missing_roles"]).keys() <= {
        *FORMATS[name].missing_roles
    }
    assert pq.read_metadata(out).metadata[b"rlpost.format"].decode() == name
    (rewards,) = columns(table, "reward")
    assert rewards == [one.reward for one in MADE]
    steps = [one.step for one in MADE]
    assert table["step"].to_pylist() == steps
    keys = zip(steps, table["prompt_id"].to_pylist(), strict=True)
    assert partition(list(keys)) == partition([(one.step, one.group) for one in MADE])
    if name != "open-instruct":
        assert all(
            one.prompt in prompt and one.response in response
            for one, prompt, response in zip(
                MADE, *columns(table, "prompt", "response"), strict=True
            )
        )
    if "response_length" in table.column_names:
        assert table["response_length"].to_pylist() == [one.length for one in MADE]


def test_the_format_is_found_by_its_contents(dump):
    name, path, _ = dump
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    found = [detect(file) for file in files if file.name != "aggregated_results.jsonl"]
    assert found
    assert all(one is FORMATS[name] for one in found)


CARRIED = {"response_token_ids", "prompt_token_ids"}
"""Roles of token ids, of which most recipes need none."""


BESIDE = {"open-instruct": {"mask"}, "verl": {"rollout"}}
"""Roles of files of the trainer, which are not beside these dumps, and of another version."""


def test_what_a_format_gives_is_there_and_what_it_lacks_is_not(dump):
    name, path, out = dump
    summary, beside = convert(path, out), BESIDE.get(name, set())
    never = {*FORMATS[name].missing_roles} - {*FORMATS[name].roles}
    assert {*summary["roles"]} - CARRIED == {*FORMATS[name].roles} - beside
    told = {role for role in beside if FORMATS[name].missing_roles[role]}
    assert {*summary["missing_roles"]} == never | told


# Formats with tokens: enriched, equal to what was put in


def test_open_instruct_has_the_engines_log_probs(tmp_path):
    table = converted(writers.open_instruct(tmp_path / "a.jsonl", MADE), tmp_path / "o.parquet")
    assert table["infer_log_probs"].to_pylist() == [one.old for one in MADE]
    assert table["response_token_ids"].to_pylist() == [one.tokens for one in MADE]
    assert table["prompt_token_ids"].to_pylist() == [one.prompt_tokens for one in MADE]
    assert table["finish_reason"].to_pylist() == [
        "length" if one.length == 9 else "stop" for one in MADE
    ]
    assert set(table["tool_called"].to_pylist()) == {False}
    assert json.loads(table["ground_truth"][0].as_py()) == [7, 8]
    assert "response_mask" not in table.column_names


def test_open_instruct_without_log_probs_has_lengths_still(tmp_path):
    path = writers.open_instruct(tmp_path / "a.jsonl", MADE, logprobs=False)
    table = converted(path, tmp_path / "o.parquet")
    assert table["response_mask"].to_pylist() == [[1] * one.length for one in MADE]
    assert "infer_log_probs" not in table.column_names


def test_padding_before_a_prompt_does_not_split_its_group(tmp_path):
    made = [
        replace(one, prompt="<PAD>" * (row % 3) + "<|im_start|>user\n" + one.prompt)
        for row, one in enumerate(MADE)
    ]
    table = converted(writers.roll_board(tmp_path / "a.jsonl", made), tmp_path / "o.parquet")
    keys = [(one.step, one.group) for one in made]
    got = list(zip(*columns(table, "step", "prompt_id"), strict=True))
    assert partition(got) == partition(keys)


def reference_grpo(made: list[writers.Rollout]) -> list[float]:
    """(r - mean) / (std + 1e-6) within a prompt of a step, Bessel's std."""
    groups: dict[Any, list[float]] = {}
    for one in made:
        groups.setdefault((one.step, one.group), []).append(one.reward)
    return [
        (one.reward - float(np.mean(group))) / (float(np.std(group, ddof=1)) + 1e-6)
        for one in made
        for group in [groups[one.step, one.group]]
    ]


# Formats of texts and scores: one advantage per response, in one command


@pytest.mark.parametrize("name", [*TEXT_ONLY, "trl-chat", "ms-swift-ray", "plain"])
def test_a_dump_of_texts_gets_one_advantage_per_response(name, tmp_path):
    (tmp_path / "dump").mkdir()
    dump = write(name, tmp_path / "dump")
    summary = rlpost.advantages(dump, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert summary.tokens is None
    assert summary.groups == len({(one.step, one.group) for one in MADE})
    rewards, advantages = columns(table, "reward", "response_advantage")
    assert rewards == [one.reward for one in MADE]
    np.testing.assert_allclose(advantages, reference_grpo(MADE), rtol=1e-5, atol=1e-6)
    if name == "verl":
        writers.verl(tmp_path / "9.jsonl", MADE, tries=[[1, 2.5]] * len(MADE))
        rlpost.advantages(tmp_path / "9.jsonl", tmp_path / "lists.parquet")
        lists = pq.read_table(tmp_path / "lists.parquet")
        assert lists["tries"][0].as_py() == [1, 2.5]
        assert lists["response_advantage"].to_pylist() == advantages
    if name != "plain":
        assert table["response"].to_pylist() == [one.response for one in MADE]


@pytest.mark.parametrize(
    ("recipe", "role"),
    [
        ({"estimator": "opo"}, "response_length"),
        ({"estimator": "gae"}, "values"),
        ({"estimator": "reinforce", "kl_coef": 0.1}, "old_log_probs"),
    ],
)
def test_advantages_says_why_a_dump_of_texts_will_not_do(recipe, role, tmp_path):
    converted(writers.verl(tmp_path / "1.jsonl", MADE), tmp_path / "in.parquet")
    with pytest.raises(DataError) as refused:
        rlpost.advantages(
            tmp_path / "in.parquet", tmp_path / "out.parquet", rlpost.Recipe(**recipe)
        )
    assert FORMATS["verl"].missing_roles[role] in str(refused.value)
    assert f"no column for {role} " in str(refused.value)
    assert f"--map {role}=COLUMN" in str(refused.value)
    assert not (tmp_path / "out.parquet").exists()


def test_a_table_in_memory_says_so_too():
    lacks = {"mask": "the writer left them out"}
    table = pa.table({"prompt_id": ["a", "a"], "reward": [0.0, 1.0], "ids": [[1], [2, 3]]})
    told = table.replace_schema_metadata({"rlpost.missing_roles": json.dumps(lacks)})
    with pytest.raises(DataError, match="the writer left them out"):
        rlpost.enrich(told, rlpost.Recipe(whiten_rewards=True))
    assert "response_advantage" in rlpost.enrich(told)[0].column_names
    for noted in (b"", b"not json", b"[1]"):
        with pytest.raises(DataError, match="no column for mask"):
            rlpost.enrich(
                table.replace_schema_metadata({b"rlpost.missing_roles": noted}),
                rlpost.Recipe(estimator="grpo"),
            )


# What each writer has of its own


def test_verls_extra_lists_become_columns(tmp_path):
    count = len(MADE)
    extra = {
        "acc": [1, 0.5, None] * (count // 3),
        "pred": ["4", 4, None] * (count // 3),
        "tries": [[1], [2, 3], []] * (count // 3),
        "odd": [{"a": 1}] * count,
        "late": [None] * (count - 1) + [True],
        "short": [1],
        "values": [3.0] * count,
    }
    table = converted(writers.verl(tmp_path / "1.jsonl", MADE, **extra), tmp_path / "o.parquet")
    assert table["acc"].to_pylist() == extra["acc"]
    assert table["pred"].to_pylist() == ["4", "4", None] * (count // 3)
    assert table["tries"].to_pylist() == extra["tries"]
    assert table["odd"].to_pylist() == ['{"a": 1}'] * count
    assert table["late"].to_pylist() == extra["late"]
    assert table["dumped_values"].to_pylist() == extra["values"]
    assert table["gts"].to_pylist()[4] == '{"answer": 1}'
    assert not {"short", "values"} & {*table.column_names}


def test_a_dump_with_names_of_any_file_is_still_that_of_its_framework(tmp_path):
    extra = {"prompt_id": ["p"] * len(MADE), "reward": [0.0] * len(MADE)}
    assert detect(writers.verl(tmp_path / "1.jsonl", MADE, **extra)) is FORMATS["verl"]


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
                for row, one in enumerate(MADE)]  # fmt: skip

    extra = {"request_id": of_rows(request_id)} if request_id else {}
    path = writers.verl(tmp_path / "1.jsonl", MADE, uid=of_rows(uid), **extra)
    rows = converted(path, tmp_path / "o.parquet").to_pylist()
    prompt, rollout, sample = keys
    assert [row["prompt_id"] for row in rows] == of_rows(prompt)
    assert [row.get("rollout_id") for row in rows] == of_rows(rollout)
    assert [row.get("sample_id") for row in rows] == of_rows(uid if sample else None)


def test_fields_without_a_role_can_be_left_out(tmp_path):
    path = writers.verl(tmp_path / "1.jsonl", MADE, acc=[1] * len(MADE))
    assert "acc" not in converted(path, tmp_path / "a.parquet", acc="none").column_names
    path = writers.trl(tmp_path / "c.parquet", MADE, info=pa.array([{"a": 1}] * len(MADE)))
    assert "info" not in converted(path, tmp_path / "b.parquet", info="none").column_names


def test_a_mapped_flag_takes_the_place_of_the_finish_reason(tmp_path):
    path = writers.open_instruct(tmp_path / "a.jsonl", MADE)
    table = converted(path, tmp_path / "o.parquet", truncated="request_info.timeouts")
    assert table["truncated"].to_pylist() == [False] * len(MADE)
    assert "finish_reason" not in table.column_names


def test_a_reward_function_that_gave_nan_gave_nothing(tmp_path):
    made = [replace(one, parts={**one.parts, "format": math.nan}) for one in MADE]
    table = converted(writers.ms_swift(tmp_path / "c.jsonl", made), tmp_path / "o.parquet")
    assert table["reward"].to_pylist() == [one.parts["accuracy"] for one in MADE]


def test_trls_rewards_are_summed_and_those_not_given_left_out(tmp_path):
    made = [
        replace(one, parts={**one.parts, "format": None if row % 2 else one.parts["format"]})
        for row, one in enumerate(MADE)
    ]
    made[5] = replace(made[5], parts={"accuracy": None, "format": None})
    extra = {"solution": pa.array(["x"] * len(made)), "none": pa.nulls(len(made))}
    path = writers.trl(tmp_path / "c.parquet", made, **extra)
    table = converted(path, tmp_path / "o.parquet")
    expected = [
        sum(part for part in one.parts.values() if part is not None)
        if any(part is not None for part in one.parts.values())
        else None
        for one in made
    ]
    assert table["reward"].to_pylist() == expected
    assert table["format"].to_pylist() == [one.parts["format"] for one in made]
    assert table["solution"].to_pylist() == ["x"] * len(made)
    assert "none" not in table.column_names


def test_old_ms_swift_has_messages_and_one_reward(tmp_path):
    chat = [{"role": "user", "content": "2 + 2?"}]
    line = {"step": ["7"] * 2, "messages": [chat] * 2, "completion": ["4", "5"], "reward": [1, 0.5]}
    path = writers.write_lines(tmp_path / "c.jsonl", [line])
    table = converted(path, tmp_path / "o.parquet")
    assert table["reward"].to_pylist() == [1.0, 0.5]
    assert json.loads(table["prompt"][0].as_py()) == chat
    assert len(set(table["prompt_id"].to_pylist())) == 1


# ROLL


def test_rolls_board_is_cut_to_the_response(tmp_path):
    table = converted(writers.roll_board(tmp_path / "a.jsonl", MADE), tmp_path / "o.parquet")
    old, ref, mask = columns(table, "old_log_probs", "ref_log_probs", "response_mask")
    assert old == [one.old for one in MADE]
    assert ref == [one.ref for one in MADE]
    assert mask == [[1] * one.length for one in MADE]


def test_rolls_token_rewards_are_neither_values_nor_process_rewards(tmp_path):
    table = converted(writers.roll_board(tmp_path / "a.jsonl", MADE), tmp_path / "o.parquet")
    assert not {"values", "token_rewards"} & {*table.column_names}
    for one, got in zip(MADE, table["dumped_token_rewards"].to_pylist(), strict=True):
        expected = -0.5 * (np.array(one.old) - np.array(one.ref))
        expected[-1] += one.reward
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_a_board_response_without_tokens_stays(tmp_path):
    path = writers.roll_board(tmp_path / "a.jsonl", MADE)
    record = json.loads(path.read_text().splitlines()[3])
    for name in ("logprobs", "ref_logprobs", "new_response_mask", "log_probs2"):
        record[name] = []  # the writer's empty list for a row whose mask is all zeros
    record["old_log_probs2_entropy"] = []
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:]]) + "\n")
    table = converted(path, tmp_path / "o.parquet")
    assert table["old_log_probs"][3].as_py() == table["response_mask"][3].as_py() == []
    assert table["old_log_probs"][4].as_py() == MADE[4].old


# Malformed input: the record is named, exit 3, nothing left behind


BROKEN = {
    "open-instruct": ("response_tokens", [[1, 2]]),
    "roll-board": ("token_rewards", [[-1.0], [-2.0]]),
    "verl": ("score", {"reward": 1.0}),
    "ms-swift": ("completion", "a text and no list"),
}
"""A field that each record needs, and a value of another type."""


def broken(name: str, folder: Path, change: Any) -> Path:
    """A dump whose second line was changed."""
    folder.mkdir()
    path = write(name, folder)
    file = path if path.is_file() else min(folder.rglob("*[0-9k].jsonl"))
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[1] = change(lines[1])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", ["missing", "nested"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_line_is_named(name, kind, tmp_path):
    def change(text: str) -> str:
        record = {**json.loads(text), field: value}
        return json.dumps({k: x for k, x in record.items() if (k, kind) != (field, "missing")})

    field, value = BROKEN[name]
    file = broken(name, tmp_path / "dump", change)
    said = refusal(file, tmp_path, name)
    assert f"{file}, line 2" in said
    told = {"missing": (f"`{field}`",),
            "nested": (field, "response_token_ids", "dumped_token_rewards")}  # fmt: skip
    assert any(text in said for text in told[kind])


def test_ms_swift_columns_of_different_lengths_are_refused(tmp_path):
    path = write("ms-swift", tmp_path)
    record = json.loads(path.read_text().splitlines()[0])
    record["accuracy"].pop()
    writers.write_lines(path, [record])
    assert "line 1: `accuracy` has 11 entries and `completion` has 12" in refusal(
        path, tmp_path, "ms-swift"
    )


def test_ms_swift_without_a_reward_function_is_refused(tmp_path):
    line = {"step": ["1"], "prompt": ["a"], "completion": ["b"], "advantages": [0.0]}
    path = writers.write_lines(tmp_path / "c.jsonl", [line])
    assert "no reward column" in refusal(path, tmp_path, "ms-swift")


def test_trl_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    assert "a.parquet: not a Parquet file" in refusal(tmp_path / "a.parquet", tmp_path, "trl")
    pq.write_table(pa.table({"step": [1], "prompt": ["a"]}), tmp_path / "b.parquet")
    assert "row 0: no field `completion`" in refusal(tmp_path / "b.parquet", tmp_path, "trl")
    bare = [replace(one, parts={}) for one in MADE]
    summary = convert(writers.trl(tmp_path / "c.parquet", bare), tmp_path / "o.parquet")
    assert "no column has floats" in summary["missing_roles"]["reward"]
    numbers = pa.table(
        {"step": [1, 2], "prompt": ["a", None], "completion": ["a", "b"], "r": [0.5, 1.0],
         "advantage": [0.0, 0.0]}
    )  # fmt: skip
    pq.write_table(numbers, tmp_path / "d.parquet")
    assert "d.parquet, row 1: `prompt` is null" in refusal(tmp_path / "d.parquet", tmp_path, "trl")
