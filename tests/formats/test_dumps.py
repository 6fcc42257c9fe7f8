"""The formats of dumps: found by contents, not mixed, and steps of path names."""

from __future__ import annotations

from unittest import mock

import format_writers as writers
import numpy as np
import pytest
from dump_folders import names, steps
from runs import run

from rlpost import formats
from rlpost.errors import ReadWriteError, UsageError
from rlpost.formats import detect, format_named
from rlpost.formats.convert import convert
from rlpost.formats.keys import prompt_key
from rlpost.io.input_paths import step_key_of as step_of


def test_a_file_of_an_unknown_format_is_an_error(tmp_path):
    path = writers.lines(tmp_path / "metrics.jsonl", [{"loss": 1}])
    with pytest.raises(UsageError, match="the format is unknown"):
        convert(path, tmp_path / "out.parquet")
    with pytest.raises(UsageError, match="the format is unknown"):
        convert(tmp_path, tmp_path / "out")
    path.write_text("no JSON")
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
    twin = mock.Mock(fits=lambda _: True)
    twin.name = "twin"
    with (
        mock.patch.dict(formats.FORMATS, {"twin": twin}),
        pytest.raises(UsageError, match="may be nemo-rl or twin; select one with --from"),
    ):
        detect(dump)


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
