"""Dumps as inputs of commands: converted to temporary files, which are always removed."""

from __future__ import annotations

from pathlib import Path

from dump_folders import names, steps
from runs import rollout, run, save

from rlpost.formats.inputs import canonical_inputs


def test_parquet_of_responses_is_returned_unchanged(tmp_path):
    path = save(rollout(), tmp_path / "in.parquet")
    with canonical_inputs([path, str(tmp_path), str(tmp_path / "*.parquet")]) as inputs:
        assert [*map(str, inputs.paths)] == [str(path), str(tmp_path), str(tmp_path / "*.parquet")]
        assert inputs.names == {}


def test_a_directory_of_dumps_becomes_one_of_parquet_files(tmp_path):
    steps(tmp_path / "in" / "run", 1, 2)
    lines, files = [], ["run/train_data_step1.parquet", "run/train_data_step2.parquet"]
    with canonical_inputs([tmp_path / "in"], tmp_path / "out", note=lines.append) as inputs:
        (made,) = inputs.paths
        assert names(Path(made)) == files
        dumps = [tmp_path / "in" / "run" / f"train_data_step{step}.jsonl" for step in (1, 2)]
        assert inputs.names == {made: str(tmp_path / "in")} | {
            f"{made}/run/{dump.stem}.parquet": str(dump) for dump in dumps
        }
    (line,) = lines
    assert "train_data_step2.jsonl: 2 dumps, read as nemo-rl, " in line
    assert "it has no ref_log_probs, log_probs, values" in line
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    assert names(tmp_path / "out") == files


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
