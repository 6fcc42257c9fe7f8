"""Conversions as a whole: outputs, errors, and the functions that formats share."""

from __future__ import annotations

import io
import json
from unittest import mock

import format_writers as writers
import numpy as np
import pyarrow.parquet as pq
import pytest
from dump_folders import names, steps
from rich.console import Console
from runs import rollout, run, save

from rlpost import formats
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats import FORMATS, detect, format_named
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.formats.inputs import canonical_inputs, convert_inputs
from rlpost.formats.keys import prompt_key
from rlpost.formats.keys import step_key_of as step_of
from rlpost.render import convert as render_convert

# Outputs


def test_one_dump_goes_to_one_file_whatever_its_name(dump, tmp_path):
    convert(dump, tmp_path / "out.pq")
    assert pq.read_metadata(tmp_path / "out.pq").num_rows == 12


def test_a_directory_goes_to_a_directory_of_the_same_layout(tmp_path):
    steps(tmp_path / "in" / "a", 1, 2)
    steps(tmp_path / "in" / "b", 3)
    (tmp_path / "in" / "a" / "metrics.jsonl").write_text('{"loss": 1}\n')
    summary = convert(tmp_path / "in", tmp_path / "out")
    assert names(tmp_path / "out") == [
        "a/train_data_step1.parquet", "a/train_data_step2.parquet", "b/train_data_step3.parquet",
    ]  # fmt: skip
    assert summary["responses"] == 36


def test_several_dumps_go_to_one_file_if_its_name_ends_in_parquet(tmp_path):
    steps(tmp_path / "in", 1, 2)
    convert(tmp_path / "in", tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["step"].to_pylist() == [1] * 12 + [2] * 12
    assert table["old_log_probs"].to_pylist()[12:] == [one.old for one in writers.made(seed=2)]


def test_a_glob_means_its_matches(tmp_path):
    steps(tmp_path / "in", 1, 2, 13)
    convert(str(tmp_path / "in" / "*step1*.jsonl"), tmp_path / "out")
    assert names(tmp_path / "out") == ["train_data_step1.parquet", "train_data_step13.parquet"]


def test_the_output_of_a_glob_has_the_subfolders_of_its_matches(tmp_path):
    steps(tmp_path / "a" / "run1", 1)
    steps(tmp_path / "a" / "run2", 1)
    convert(str(tmp_path / "a" / "run*" / "*.jsonl"), tmp_path / "out")
    assert names(tmp_path / "out") == [f"run{n}/train_data_step1.parquet" for n in (1, 2)]


def test_dumps_of_one_name_need_the_directory_above_them(tmp_path):
    steps(tmp_path / "a", 1)
    steps(tmp_path / "b", 1)
    dumps = [tmp_path / side / "train_data_step1.jsonl" for side in "ab"]
    with pytest.raises(UsageError, match="would both become"):
        convert(dumps, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_is_replaced_only_with_overwrite(dump, tmp_path):
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists already; --overwrite"):
        convert(dump, out)
    assert run("advantages", dump, out, "--estimator", "grpo").code == 2
    assert out.read_text() == "mine"
    convert(dump, out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 12


def test_an_output_is_never_an_input(dump):
    with pytest.raises(UsageError, match="are the same file"):
        convert(dump, dump, overwrite=True)


def test_nothing_appears_when_the_last_of_several_dumps_is_bad(tmp_path):
    steps(tmp_path / "in", 1, 2)
    last = tmp_path / "in" / "train_data_step2.jsonl"
    last.write_text(last.read_text()[:-40])
    with pytest.raises(DataError, match=r"step2\.jsonl, line 12"):
        convert(tmp_path / "in", tmp_path / "new" / "out")
    assert names(tmp_path) == ["in/train_data_step1.jsonl", "in/train_data_step2.jsonl"]
    assert not (tmp_path / "new").exists()


def test_an_unwritable_output_is_exit_code_4(dump, tmp_path):
    (tmp_path / "file").write_text("")
    ran = run("convert", dump, tmp_path / "file" / "out.parquet")
    assert ran.code == 4
    assert "cannot be written" in ran.err


# Formats


def test_a_file_of_an_unknown_format_is_an_error(tmp_path):
    path = writers.lines(tmp_path / "metrics.jsonl", [{"loss": 1}])
    with pytest.raises(UsageError, match="the format is unknown"):
        convert(path, tmp_path / "out.parquet")
    with pytest.raises(ReadWriteError, match="contains no file of a known format"):
        convert(tmp_path, tmp_path / "out")


def test_formats_are_not_mixed(dump, tmp_path):
    other = writers.roll_rollout(tmp_path / "in", writers.made())
    with pytest.raises(UsageError, match="contains dumps of"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UsageError, match="convert one format at a time"):
        convert([dump, other], tmp_path / "out")
    summary = convert(tmp_path / "in", tmp_path / "out", "nemo-rl")
    assert names(tmp_path / "out") == ["train_data_step7.parquet"]
    assert summary["skipped_files"] == [str(other)]


def test_a_damaged_dump_in_a_directory_is_an_error_if_the_format_is_named(tmp_path):
    steps(tmp_path / "in", 1, 2)
    (tmp_path / "in" / "train_data_step2.jsonl").write_text('{"rewards"')
    ran = run("convert", tmp_path / "in", tmp_path / "out", "--from", "nemo-rl")
    assert ran.code == 3
    assert "step2.jsonl, line 1: not JSON" in ran.err
    ran = run("convert", tmp_path / "in", tmp_path / "out")
    assert ran.code == 0
    assert "! skipped, unknown format" in ran.err
    assert "train_data_step2.jsonl" in ran.err


def test_the_error_for_a_misspelt_format_has_the_closest_name():
    with pytest.raises(UsageError, match="did you mean nemo-rl"):
        format_named("nemo_rl")


def test_a_file_of_two_possible_formats_is_an_error_with_both_names(dump):
    twin = mock.Mock(suffixes=(".jsonl",), sniff=lambda _: True)
    twin.name = "twin"
    with (
        mock.patch.dict(formats.FORMATS, {"twin": twin}),
        pytest.raises(UsageError, match="may be nemo-rl or twin; select one with --from"),
    ):
        detect(dump)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layout", "padded"], "--layout: does not apply to nemo-rl"),
        (["--map", "reword=x"], "no role 'reword'; did you mean reward?"),
        (["--map", "reward"], "write it NAME=VALUE"),
        (["--from", "verll"], "did you mean verl?"),
    ],
)
def test_options_that_do_not_apply_are_an_error(words, message, dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet", *words)
    assert ran.code == 2
    assert message in ran.err


def test_a_role_can_be_omitted_or_read_from_another_field(dump, tmp_path):
    chosen = ReadOptions({"old_log_probs": "none", "reward": "idx"})
    convert(dump, tmp_path / "out.parquet", options=chosen)
    table = pq.read_table(tmp_path / "out.parquet")
    assert "old_log_probs" not in table.column_names
    assert table["reward"].to_pylist() == list(range(12))


def test_every_format_is_listed_and_documented():
    for how in ("table", "json", "markdown"):
        ran = run("convert", "--list", "--format", how)
        assert ran.code == 0
        for one in FORMATS.values():
            assert one.name in ran.out
            assert one.title.split()[0] in ran.out
    listed = json.loads(run("convert", "--list", "--format", "json").out)
    assert [one["format"] for one in listed] == [*FORMATS]
    assert all(one["source"] for one in listed)


def test_the_screen_shows_roles_and_the_reasons_for_missing_roles(dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet")
    assert (ran.code, ran.out) == (0, "")
    for text in ("12 responses, 47 response tokens", "ref_log_probs", "mask = token_loss_mask",
                 "group = token_ids (the same prompt tokens), reward = rewards",
                 "NeMo-RL does not dump the reference policy's log-probs"):  # fmt: skip
        assert text in ran.err
    assert run("convert", dump, tmp_path / "quiet.parquet", "--quiet") == (0, "", "")


def test_the_screen_fits_80_columns(dump, tmp_path):
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    render_convert.show_converted(convert(dump, tmp_path / "out.parquet"), out)
    lines = out.file.getvalue().splitlines()
    assert lines[0].startswith("╭─ rlpost convert · nemo-rl")
    assert {len(line) for line in lines} == {80}


# Keys


def test_the_key_of_a_prompt_does_not_depend_on_the_integer_type():
    assert prompt_key(np.array([1, 2])) == prompt_key(np.array([1, 2], np.int32))
    assert len({prompt_key(np.array(ids)) for ids in ([1, 2], [2, 1], [1], [1, 2, 0])}) == 4


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("train_data_step12.jsonl", 12),
        ("run/step_3/train/traces.jsonl", 3),
        ("step_3/rollout_dump_data.step_40.jsonl", 40),
        ("step=5/x.jsonl", 5),
        ("footsteps_3/x.jsonl", None),
    ],
)
def test_steps_are_read_from_path_names(path, step, tmp_path):
    assert step_of(tmp_path / path) == step


# Dumps as inputs of other commands


def test_parquet_of_responses_is_returned_unchanged(tmp_path):
    path = save(rollout(), tmp_path / "in.parquet")
    with canonical_inputs([path, str(tmp_path), str(tmp_path / "*.parquet")]) as inputs:
        assert inputs.paths == [str(path), str(tmp_path), str(tmp_path / "*.parquet")]
        assert inputs.names == {}


def test_a_directory_of_dumps_becomes_one_of_parquet_files(tmp_path):
    steps(tmp_path / "in" / "run", 1, 2)
    lines = []
    (made,) = convert_inputs([tmp_path / "in"], tmp_path / "staging", lines.append)
    assert names(tmp_path / "staging" / "0") == [
        "run/train_data_step1.parquet", "run/train_data_step2.parquet",
    ]  # fmt: skip
    assert made == str(tmp_path / "staging" / "0")
    (line,) = lines
    assert "train_data_step2.jsonl: 2 dumps, read as nemo-rl, " in line
    assert "it has no log_probs, ref_log_probs, values" in line
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    assert names(tmp_path / "out") == [
        "run/train_data_step1.parquet", "run/train_data_step2.parquet",
    ]  # fmt: skip


def test_temporary_files_are_always_removed(dump, tmp_path):
    out = tmp_path / "deep" / "er" / "out.parquet"
    ran = run("advantages", dump, out, "--estimator", "gae")
    assert ran.code == 3
    assert f"{dump}: no column for values" in ran.err
    assert names(tmp_path) == ["in/train_data_step7.jsonl"]


def test_the_plan_of_a_dump_is_printed(dump):
    ran = run("advantages", dump, "--plan", "--estimator", "grpo")
    assert ran.code == 0
    assert "12 responses" in ran.out
