"""Checks and reports of conversions: layouts, sources, missing roles, NaN, group blocks."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import TYPE_CHECKING

import format_writers as writers
import format_writers_text as text_writers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import loads, run
from summaries import whole

from rlpost.errors import DataError, UsageError
from rlpost.formats import FORMATS
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.formats.pickles import load

if TYPE_CHECKING:
    from pathlib import Path

MADE = text_writers.rollouts()
KINDS = ("jsonl", "parquet")
# A prompt of two tokens, a response of three, padding of two.
WHOLE = {
    "uid": "a",
    "reward": 1.0,
    "response_length": 3,
    "response_mask": [0, 0, 1, 0, 1, 0, 0],
    "old_log_probs": [9.0, 9.0, -0.5, 0.0, -0.25, 9.0, 9.0],
}


def saved(records: list[dict], folder: Path, kind: str) -> Path:
    """Records as a file of the user's own; fields of `pa.Table` have to agree in kind."""
    path = folder / f"in.{kind}"
    if kind == "jsonl":
        return text_writers.write_lines(path, records)
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def table_of(records: list[dict], folder: Path, kind: str, **options) -> tuple[pa.Table, dict]:
    summary = convert(saved(records, folder, kind), folder / "out.parquet", kind,
                      ReadOptions(**options), overwrite=True)  # fmt: skip
    return pq.read_table(folder / "out.parquet"), summary


# Layouts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [None, "response"])
def test_padded_lists_are_an_error_for_another_layout(layout, kind, tmp_path):
    with pytest.raises(DataError, match=r"in\.\w+, (line 1|row 0): "):
        table_of([WHOLE], tmp_path, kind, layout=layout)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_lists_are_cut_to_the_response_length(kind, tmp_path):
    longer = {**WHOLE, "response_length": 4}  # ends with a tool's output, which is no padding
    table, summary = table_of([WHOLE, longer], tmp_path, kind, layout="padded")
    assert table["old_log_probs"].to_pylist() == [[-0.5, 0.0, -0.25], [-0.5, 0.0, -0.25, 9.0]]
    assert table["response_mask"].to_pylist() == [[1, 0, 1], [1, 0, 1, 0]]
    assert summary["warnings"] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 6])
def test_a_response_length_that_contradicts_the_mask_is_an_error(length, kind, tmp_path):
    record = {**WHOLE, "response_length": length}
    with pytest.raises(DataError, match=f"`response_length` is {length}, but the mask has 7"):
        table_of([record], tmp_path, kind, layout="padded")
    table, _ = table_of([record], tmp_path, kind, layout="padded", map={"response_length": "none"})
    assert table["response_mask"].to_pylist() == [[1, 0, 1]]
    assert "response_length" not in table.column_names


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_response_without_any_policy_token_is_empty(kind, tmp_path):
    masked = {**WHOLE, "response_mask": [0] * 7}
    table, _ = table_of([WHOLE, masked], tmp_path, kind, layout="padded")
    assert table["old_log_probs"].to_pylist()[1] == []
    assert table["response_length"].to_pylist() == [3, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_another_length_than_the_response_are_an_error(kind, tmp_path):
    record = {"uid": "a", "reward": 1.0, "response_length": 3, "old_log_probs": [-0.5] * 4}
    with pytest.raises(DataError, match="has 4 entries and `response_length` is 3"):
        table_of([record], tmp_path, kind)
    table_of([record], tmp_path, kind, map={"response_length": "none"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_begins_with_0_is_a_warning_without_a_layout(kind, tmp_path):
    record = {"uid": "a", "reward": 1.0, "response_mask": [0, 0, 1], "values": [9.0, 9.0, 1.0]}
    _, summary = table_of([record] * 2, tmp_path, kind)
    assert "the mask of 2 responses begins with 0" in summary["warnings"][0]
    assert table_of([record], tmp_path, kind, layout="response")[1]["warnings"] == []
    said = {**record, "response_length": 3}
    assert table_of([said], tmp_path, kind)[1]["warnings"] == []
    with pytest.raises(DataError, match="0 for the first 2 tokens, and the prompt has 2"):
        table_of([{**record, "prompt_length": 2}], tmp_path, kind)


def test_the_number_of_prompt_ids_shows_that_lists_contain_the_prompt(tmp_path):
    record = {"uid": "a", "reward": 1.0, "response_mask": [0, 1], "prompt_token_ids": [5]}
    with pytest.raises(DataError, match="0 for the first 1 token, and the prompt has 1"):
        table_of([record], tmp_path, "jsonl")


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, None], "has null at token 1"),
        ([[1]], "is a list of lists"),
        ([1, 0.5], "has 0.5 at token"),
    ],
)
def test_the_error_for_a_bad_mask_describes_it(mask, message, tmp_path):
    record = {"uid": "a", "reward": 1.0, "response_mask": mask}
    with pytest.raises(DataError, match=f"line 1: `response_mask` .*{message}"):
        table_of([record], tmp_path, "jsonl")


def test_all_or_none_of_nemo_rls_lists_are_in_a_batch_of_one(tmp_path):
    record = {"rewards": 1.0, "token_loss_mask": [[1]], "generation_logprobs": [-0.5],
              "input_lengths": 1}  # fmt: skip
    path = text_writers.write_lines(tmp_path / "train_data_step1.jsonl", [record])
    with pytest.raises(DataError, match="`token_loss_mask` is a list of lists"):
        convert(path, tmp_path / "out.parquet")
    for lists in ({"token_loss_mask": [1]}, {"generation_logprobs": [[-0.5]]}):
        text_writers.write_lines(path, [record | lists])
        assert convert(path, tmp_path / "out.parquet", overwrite=True)["tokens"] == 1


# Sources and missing roles


def test_the_screen_shows_the_field_of_each_role(tmp_path):
    path = text_writers.trl(tmp_path / "completions_1.parquet", MADE)
    ran = run("convert", path, tmp_path / "a.parquet")
    assert "reward = all float columns" in " ".join(ran.err.split())
    assert "The reward is the unweighted sum" in " ".join(ran.err.split())
    one = next(iter(MADE[0].parts))
    ran = run("convert", path, tmp_path / "b.parquet", "--map", f"reward={one}")
    assert f"reward = {one}," in ran.err
    assert "group = prompt (the same text)" in ran.err


@pytest.mark.parametrize("kind", KINDS)
def test_the_sources_are_aliases_and_dotted_paths(kind, tmp_path):
    record = {"score": 1.0, "loss_mask": [1], "meta": {"task": "a"}}
    _, summary = table_of([record], tmp_path, kind, map={"group": "meta.task"})
    assert summary["sources"] == {
        "reward": "score", "response_mask": "loss_mask", "prompt_id": "meta.task",
    }  # fmt: skip


@pytest.mark.parametrize("one", FORMATS.values(), ids=lambda one: one.name)
def test_every_format_has_a_reason_for_missing_log_probs(one):
    assert one.missing_roles["log_probs"]
    assert "log_probs" not in one.roles or one.name in KINDS


def test_the_maps_in_nemo_rls_note_work_for_loss(tmp_path):
    given = writers.made()
    dump = writers.nemo_rl(tmp_path / "in", given)
    words = FORMATS["nemo-rl"].note.split("OUT ")[1].split(".")[0].split()
    ran = run("loss", dump, *words, "--format", "json")
    assert ran.code == 0, ran.err
    gaps = [
        old - infer
        for one in given
        for old, infer, policy in zip(one.old, one.infer, one.mask, strict=True)
        if policy
    ]
    assert whole(loads(ran.out), "ratio")["mean"] == pytest.approx(np.exp(gaps).mean(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_prompts_are_a_group_if_no_field_is_a_group_key(kind, tmp_path):
    records = [{"prompt": text, "reward": 1.0} for text in ("a", "b", "a")]
    table, summary = table_of(records, tmp_path, kind)
    first, second, third = table["prompt_id"].to_pylist()
    assert first == third != second
    assert summary["sources"]["prompt_id"] == "prompt (the same text)"
    table, _ = table_of(records, tmp_path, kind, map={"group": "none"})
    assert "prompt_id" not in table.column_names
    _, summary = table_of([{"reward": 1.0}], tmp_path, kind)
    assert "--group-size N" in summary["missing_roles"]["group"]
    assert "--map ROLE=" in summary["note"]


# The summary


def test_a_conversion_prints_its_summary_in_every_format(tmp_path):
    dump = writers.nemo_rl(tmp_path / "in", writers.made())
    ran = run("convert", dump, tmp_path / "a.parquet", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    summary = json.loads(ran.out)
    assert summary["responses"] == 12
    assert summary["sources"]["reward"] == "filtered_rewards | rewards"
    ran = run("convert", dump, tmp_path / "b.parquet", "--format", "markdown")
    assert "mask = token_loss_mask" in ran.out
    side = tmp_path / "side.json"
    ran = run("convert", dump, tmp_path / "c.parquet", "--summary-json", side, "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert json.loads(side.read_text()).keys() == summary.keys()
    ran = run("convert", dump, tmp_path / "d.parquet", "--summary-json", "-")
    assert json.loads(ran.out)["outputs"] == [str(tmp_path / "d.parquet")]
    ran = run("convert", dump, tmp_path / "e.parquet", "--summary-json", tmp_path / "no" / "x")
    assert ran.code == 4
    assert not (tmp_path / "e.parquet").exists()


# Blocks


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_do_not_make_complete_blocks_are_an_error(kind, tmp_path):
    records = [{"reward": 1.0}] * 4
    with pytest.raises(UsageError, match="the last group would have 1"):
        table_of(records, tmp_path, kind, group_size=3)
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_several_files_are_different_groups(kind, tmp_path):
    for side in "ab":
        (tmp_path / side).mkdir()
        saved([{"reward": 1.0}] * 4, tmp_path / side, kind)
    convert([tmp_path / "a", tmp_path / "b"], tmp_path / "out.parquet", kind,
            ReadOptions(group_size=2))  # fmt: skip
    keys = pq.read_table(tmp_path / "out.parquet")["prompt_id"].to_pylist()
    assert keys == ["0", "0", "1", "1", "2", "2", "3", "3"]


# Dumps as inputs of other commands


def test_several_dumps_are_one_input_of_one_output(tmp_path):
    for step in (1, 2):
        dump = writers.nemo_rl(tmp_path / "in", writers.made(seed=step))
        dump.rename(tmp_path / "in" / f"train_data_step{step}.jsonl.part")
    for part in (tmp_path / "in").glob("*.part"):
        part.rename(part.with_suffix(""))
    ran = run("advantages", tmp_path / "in", tmp_path / "a.parquet", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    assert "2 dumps, read as one input, as nemo-rl, 24 responses" in ran.err
    convert(tmp_path / "in", tmp_path / "joined.parquet")
    assert run("advantages", tmp_path / "joined.parquet", tmp_path / "b.parquet",
               "--estimator", "grpo").code == 0  # fmt: skip
    one, other = (pq.read_table(tmp_path / f"{side}.parquet") for side in "ab")
    assert one.equals(other)
    assert set(one["step"].to_pylist()) == {1, 2}
    files = [tmp_path / "in" / f"train_data_step{step}.jsonl" for step in (1, 2)]
    ran = run("advantages", *files, tmp_path / "c.parquet", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    assert pq.read_table(tmp_path / "c.parquet").equals(one)
    ran = run("advantages", tmp_path / "in", tmp_path / "d.parquet", "--estimator", "gae")
    assert ran.code == 3
    assert f"{tmp_path / 'in'}: no column for values" in ran.err


# Values


class _Code:
    def __reduce__(self):
        return (print, ("ran",))


def test_a_pickle_with_code_is_an_error_without_a_warning(tmp_path, capsys):
    torch.save({"rollout_id": 1, "samples": _Code()}, tmp_path / "1.pt")
    (tmp_path / "2.pt").write_bytes(pickle.dumps(_Code()))
    for name in ("1.pt", "2.pt"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(DataError, match=r"rlpost never executes|damaged"):
                load(tmp_path / name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("number", [2**64, 2**64 + 1, -(2**70) - 1, 10**30 + 7])
def test_integers_of_any_size_are_read_exactly(number, tmp_path):
    line = f'{{"uid": {number}, "reward": 0.12345678901234567, "other": [{number},{number}]}}'
    path = tmp_path / "in.jsonl"
    path.write_text(line + "\n")
    convert(path, tmp_path / "out.parquet", "jsonl")
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert row["prompt_id"] == str(number)
    assert row["reward"] == 0.12345678901234567
    assert json.loads(row["other"]) == [number, number]
