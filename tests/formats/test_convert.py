"""Conversions as a whole: outputs, errors, and the functions that formats share."""

from __future__ import annotations

import json
import shutil

import format_writers as writers
import pyarrow.parquet as pq
import pytest
from dump_folders import names, steps
from runs import run

from rlpost.errors import DataError, UsageError
from rlpost.formats import FORMATS
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

# Outputs


def test_one_dump_goes_to_a_parquet_file_or_into_a_directory(dump, tmp_path):
    convert(dump, tmp_path / "out.parquet")
    convert(dump, tmp_path / "out")
    for path in (tmp_path / "out.parquet", tmp_path / "out" / f"{dump.stem}.parquet"):
        assert pq.read_metadata(path).num_rows == 12
    with pytest.raises(UsageError, match=r"OUT is a \.parquet file or a directory"):
        convert(dump, tmp_path / "out.pq")


def test_a_name_that_is_nothing_but_a_suffix_stays(dump, tmp_path):
    shutil.copy(dump, tmp_path / ".jsonl")
    convert(tmp_path / ".jsonl", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".jsonl.parquet"]


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


def test_an_output_is_never_an_input(tmp_path, dump):
    convert(dump, tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="are the same file"):
        convert(tmp_path / "a.parquet", tmp_path / "a.parquet", "parquet", overwrite=True)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layout", "padded"], "--layout: does not apply to nemo-rl"),
        (["--map", "reword=x"], "no role 'reword'\n  did you mean reward?"),
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
        ran = run("list", "dumps", "--format", how)
        assert ran.code == 0
        for one in FORMATS.values():
            assert one.name in ran.out
            assert one.title.split()[0] in ran.out
    listed = json.loads(run("list", "dumps", "--format", "json").out)
    assert [one["format"] for one in listed] == [*FORMATS]
    assert all(one["source"] for one in listed)


def test_the_screen_shows_roles_and_the_reasons_for_missing_roles(dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet")
    assert (ran.code, ran.out) == (0, "")
    for text in ("12 responses, 47 response tokens", "ref_log_probs", "mask = token_loss_mask",
                 "group = token_ids (the same prompt tokens), reward = filtered_rewards",
                 "NeMo-RL does not dump the reference policy's log-probs"):  # fmt: skip
        assert text in ran.err
    assert run("convert", dump, tmp_path / "quiet.parquet", "--quiet") == (0, "", "")
