"""Conversions as a whole: which dumps become which files, what is checked, and what is printed."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path
from unittest import mock

import format_writers as writers
import format_writers_text as text_writers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from dump_folders import names, steps
from runs import loads, run
from summaries import whole

from rlpost import formats
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import canonical_inputs, convert
from rlpost.formats.pickles import load

KINDS = ("jsonl", "parquet")
GRPO = ("--estimator", "grpo")

# Outputs


@pytest.mark.parametrize(
    ("source", "out", "files"),
    [
        ("in", "out", ["a/train_data_step1", "a/train_data_step2", "b/train_data_step13"]),
        ("in/a/*step1*.jsonl", "out", ["train_data_step1"]),
        ("in/*/*step1*.jsonl", "out", ["a/train_data_step1", "b/train_data_step13"]),
        ("in/b/train_data_step13.jsonl", "out", ["train_data_step13"]),
        ("in/b/train_data_step13.jsonl", "out/o.parquet", ["o"]),
        (".jsonl", "out", [".jsonl"]),  # a name that is nothing but a suffix stays
    ],
)
def test_the_output_of_a_directory_or_glob_has_its_subfolders(source, out, files, tmp_path):
    steps(tmp_path / "in" / "a", 1, 2)
    shutil.copy(tmp_path / "in" / "a" / "train_data_step1.jsonl", tmp_path / ".jsonl")
    steps(tmp_path / "in" / "b", 13)
    (tmp_path / "in" / "a" / "metrics.jsonl").write_text('{"loss": 1}\n')
    summary = convert(str(tmp_path / source), tmp_path / out)
    assert names(tmp_path / "out") == sorted(f"{file}.parquet" for file in files)
    assert summary["responses"] == 12 * len(files)


def test_several_dumps_go_to_one_file_or_are_one_input_of_one_output(tmp_path):
    steps(tmp_path / "in", 1, 2)
    files = [tmp_path / "in" / f"train_data_step{step}.jsonl" for step in (1, 2)]
    convert(tmp_path / "in", tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["step"].to_pylist() == [1] * 12 + [2] * 12
    assert table["old_log_probs"].to_pylist()[12:] == [one.old for one in writers.made(seed=2)]
    outputs = []
    for inputs in ([tmp_path / "all.parquet"], [tmp_path / "in"], files):
        out = tmp_path / f"out{len(outputs)}.parquet"
        ran = run("advantages", *inputs, out, *GRPO)
        assert ran.code == 0, ran.err
        outputs.append(pq.read_table(out))
    assert "2 dumps, read as one input, as nemo-rl, 24 responses" in ran.err
    assert outputs[0].equals(outputs[1])
    assert outputs[1].equals(outputs[2])
    ran = run("advantages", tmp_path / "in", tmp_path / "d.parquet", "--estimator", "gae")
    assert (ran.code, f"{tmp_path / 'in'}: no column for values" in ran.err) == (3, True)


def test_an_output_is_replaced_only_with_overwrite_and_is_never_an_input(dump, tmp_path):
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    assert run("advantages", dump, out, *GRPO).code == 2
    other = steps(tmp_path / "other", 7) / dump.name
    for inputs, output, message in (
        (dump, out, "exists already; --overwrite"),
        (dump, tmp_path / "out.pq", r"OUT is a \.parquet file or a directory"),
        ([dump, other], tmp_path / "new", "would both become"),
    ):
        with pytest.raises(UsageError, match=message):
            convert(inputs, output)
    assert (out.read_text(), (tmp_path / "new").exists()) == ("mine", False)
    convert(dump, out, overwrite=True)
    with pytest.raises(UsageError, match="are the same file"):
        convert(out, out, "parquet", overwrite=True)
    assert pq.read_metadata(out).num_rows == 12
    ran = run("convert", dump, out / "out.parquet")
    assert (ran.code, "cannot be written" in ran.err) == (4, True)


def test_nothing_appears_when_the_last_of_several_dumps_is_bad(tmp_path):
    last = steps(tmp_path / "in", 1, 2) / "train_data_step2.jsonl"
    last.write_text(last.read_text()[:-40])
    with pytest.raises(DataError, match=r"step2\.jsonl, line 12"):
        convert(tmp_path / "in", tmp_path / "new" / "out")
    assert names(tmp_path) == ["in/train_data_step1.jsonl", "in/train_data_step2.jsonl"]
    assert not (tmp_path / "new").exists()


# Formats


@pytest.mark.parametrize(
    ("name", "data", "error", "said"),
    [
        ("a.txt", b"no JSON", UsageError, "the format is unknown: it begins with b'no JSON'"),
        ("a.jsonl", b'{"loss": 1}\n', UsageError, "the format is unknown"),
        ("b/a.jsonl", b"no JSON", ReadWriteError, "contains no file of a known format"),
        ("a.jsonl", b"{}\n", UsageError, "unknown: its first record has no fields"),
        ("a.jsonl", b"no JSON", DataError, "line 1: not JSON"),
        ("a.jsonl", b'{"reward": 1, "prom', DataError, "line 1: not JSON: the line is incomplete"),
        ("a", b'[{"reward": 1}, {"rew', DataError, "not JSON: .* after 21 bytes"),
        ("a.jsonl", b"1\n2\n", DataError, "line 1: is 1; a JSON object is needed"),
        ("a.json", b"[]", DataError, "no records"),
        ("a.json", b"[" * 100_000, DataError, "nested too deeply to read"),
        ("a.json", '[{"reward": 1}]'.encode("utf-16"), DataError, "begins with .*, as UTF-16"),
        ("a.parquet", b"no Parquet", DataError, "not a Parquet file, or damaged"),
        ("a.pt", b"no pickle", DataError, "not a torch.save file, or damaged"),
        ("a", b"PAR1\0\0" + b"\xff" * 4 + b"PAR1", DataError, "its footer of 4294967295 bytes"),
    ],
)
def test_a_file_without_records_says_what_it_is(name, data, error, said, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(error, match=said):
        convert(path if path.parent == tmp_path else path.parent, tmp_path / "out.parquet")


def test_formats_are_not_mixed(dump, tmp_path):
    other = writers.roll_rollout(tmp_path / "in", writers.made())
    with pytest.raises(UsageError, match="convert one format at a time; --from NAME"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UsageError, match="convert one format at a time"):
        convert([dump, other], tmp_path / "out")
    summary = convert(tmp_path / "in", tmp_path / "out", "nemo-rl")
    assert names(tmp_path / "out") == ["train_data_step7.parquet"]
    assert summary["skipped_files"] == [str(other)]
    twin = mock.Mock(fits=lambda _: True)
    twin.name = "twin"
    with (
        mock.patch.dict(formats.FORMATS, {"twin": twin}),
        pytest.raises(UsageError, match="may be nemo-rl or twin; select one with --from"),
    ):
        detect(dump)


def test_a_damaged_dump_in_a_directory_is_an_error_if_the_format_is_named(tmp_path):
    (steps(tmp_path / "in", 1, 2) / "train_data_step2.jsonl").write_text('{"rewards"')
    ran = run("convert", tmp_path / "in", tmp_path / "out", "--from", "nemo-rl")
    assert (ran.code, "step2.jsonl, line 1: not JSON" in ran.err) == (3, True)
    ran = run("convert", tmp_path / "in", tmp_path / "out")
    assert ran.code == 0
    assert "! skipped, unknown format" in ran.err
    assert "train_data_step2.jsonl" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "a"], "--rows: does not apply to nemo-rl"),
        (["--map", "reword=x"], "no role 'reword'\n  did you mean reward?"),
        (["--map", "reward"], "write it NAME=VALUE"),
        (["--from", "verll"], "did you mean verl?"),
    ],
)
def test_options_that_do_not_apply_are_an_error(words, message, dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet", *words)
    assert (ran.code, message in ran.err) == (2, True)


# Lists of tokens

BARE = {"uid": "a", "reward": 1.0}


def saved(records: list[dict], folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"in.{kind}"
    if kind == "jsonl":
        return text_writers.write_lines(path, records)
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def rows_of(records: list[dict], folder: Path, kind: str, **options) -> tuple[dict, dict]:
    summary = convert(saved(records, folder, kind), folder / "out.parquet", kind,
                      ReadOptions(**options), overwrite=True)  # fmt: skip
    return pq.read_table(folder / "out.parquet").to_pydict(), summary


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"response_mask": [1], "old_log_probs": [-0.5] * 4}, "`old_log_probs` has 4 entries"),
        (
            {"response_length": 3, "old_log_probs": [-0.5] * 4},
            "`old_log_probs` has 4 entries and `response_length` has 3",
        ),
        ({"response_mask": [1, None]}, "`response_mask` has null at token 1"),
        ({"response_mask": [[1]]}, "`response_mask` is a list of lists"),
        ({"response_mask": [1, 0.5]}, "`response_mask` has 0.5 at token"),
    ],
)
def test_lists_that_contradict_each_other_are_an_error(kind, lists, message, tmp_path):
    with pytest.raises(DataError, match=rf"in\.{kind}, (line 1|row 0): {message}"):
        rows_of([{**BARE, **lists}], tmp_path, kind)


# Groups


@pytest.mark.parametrize("kind", KINDS)
def test_equal_prompts_are_a_group_if_no_field_is_a_group_key(kind, tmp_path):
    records = [{"prompt": text, "reward": 1.0} for text in ("a", "b", "a")]
    rows, summary = rows_of(records, tmp_path, kind)
    first, second, third = rows["prompt_id"]
    assert first == third != second
    assert summary["sources"]["prompt_id"] == "prompt (the same text)"
    assert "prompt_id" not in rows_of(records, tmp_path, kind, map={"group": "none"})[0]
    _, summary = rows_of([{"reward": 1.0}], tmp_path, kind)
    assert "--group-size N" in summary["missing_roles"]["group"]
    assert "--map ROLE=" in summary["note"]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_complete_and_those_of_several_files_are_different_groups(kind, tmp_path):
    folders = [saved([{"reward": 1.0}] * 4, tmp_path / side, kind).parent for side in "ab"]
    convert(folders, tmp_path / "out.parquet", kind, ReadOptions(group_size=2))
    keys = pq.read_table(tmp_path / "out.parquet")["prompt_id"].to_pylist()
    assert keys == ["0", "0", "1", "1", "2", "2", "3", "3"]
    with pytest.raises(UsageError, match="the last group would have 1"):
        convert(folders, tmp_path / "o.parquet", kind, ReadOptions(group_size=3))
    assert not (tmp_path / "o.parquet").exists()


# The result


def test_the_screen_shows_roles_their_fields_and_why_some_are_missing(dump, tmp_path):
    ran = run("convert", dump, tmp_path / "out.parquet")
    assert (ran.code, ran.out) == (0, "")
    for text in ("12 responses, 47 response tokens", "ref_log_probs", "mask = token_loss_mask",
                 "group = token_ids (the same prompt tokens), reward = filtered_rewards",
                 "NeMo-RL does not dump the reference policy's log-probs"):  # fmt: skip
        assert text in ran.err
    path = text_writers.trl(tmp_path / "completions_1.parquet", text_writers.rollouts())
    ran = run("convert", path, tmp_path / "a.parquet")
    assert "reward = all float columns" in " ".join(ran.err.split())
    ran = run("convert", path, tmp_path / "b.parquet", "--map", "reward=accuracy")
    assert "group = prompt (the same text), reward = accuracy," in " ".join(ran.err.split())


def test_a_conversion_prints_its_summary_in_every_format(dump, tmp_path):
    ran = run("convert", dump, tmp_path / "a.parquet", "--format", "json")
    summary = json.loads(ran.out)
    assert (ran.err, summary["responses"]) == ("", 12)
    assert summary["sources"]["reward"] == "filtered_rewards | rewards"
    ran = run("convert", dump, tmp_path / "b.parquet", "--format", "markdown")
    assert "mask = token_loss_mask" in ran.out
    ran = run("convert", dump, tmp_path / "d.parquet", "--summary-json", "-", "--quiet")
    assert json.loads(ran.out).keys() == summary.keys()


def test_the_sources_are_those_of_the_map_before_the_formats(tmp_path):
    record = {"score": 1.0, "loss_mask": [1], "meta": {"task": "a"}}
    _, summary = rows_of([record], tmp_path, "jsonl", map={"group": "meta.task"})
    assert summary["sources"] == {
        "reward": "score", "response_mask": "loss_mask", "prompt_id": "meta.task",
    }  # fmt: skip
    dump = text_writers.verl(tmp_path / "1.jsonl", text_writers.rollouts(), mine=[1.0] * 24)
    sources = convert(dump, tmp_path / "o.parquet", options=ReadOptions({"reward": "mine"}))[
        "sources"
    ]
    assert (sources["reward"], sources["prompt_id"]) == ("mine", "uid | input (the same text)")


def test_a_role_can_be_omitted_by_its_name_or_its_columns(dump, tmp_path):
    for role, column in (("old_log_probs", "old_log_probs"), ("group", "prompt_id")):
        chosen = ReadOptions({role: "none", "reward": "idx"})
        convert(dump, tmp_path / "out.parquet", options=chosen, overwrite=True)
        table = pq.read_table(tmp_path / "out.parquet")
        assert column not in table.column_names
        assert table["reward"].to_pylist() == [*range(12)]


def test_the_maps_in_nemo_rls_note_work_for_loss(dump):
    words = FORMATS["nemo-rl"].note.split("OUT ")[1].split(".")[0].split()
    ran = run("loss", dump, *words, "--format", "json")
    assert ran.code == 0, ran.err
    gaps = [old - infer for one in writers.made()
            for old, infer, policy in zip(one.old, one.infer, one.mask, strict=True)
            if policy]  # fmt: skip
    assert whole(loads(ran.out), "ratio")["mean"] == pytest.approx(np.exp(gaps).mean(), rel=1e-6)


# Dumps as inputs of other commands: converted to temporary files, which are always removed


def test_a_directory_of_dumps_becomes_one_of_parquet_files(tmp_path):
    steps(tmp_path / "in" / "run", 1, 2)
    lines, files = [], ["run/train_data_step1.parquet", "run/train_data_step2.parquet"]
    with canonical_inputs([tmp_path / "in"], tmp_path / "out", note=lines.append) as inputs:
        (folder,) = inputs.paths
        assert names(Path(folder)) == files
        dumps = [tmp_path / "in" / "run" / f"train_data_step{step}.jsonl" for step in (1, 2)]
        assert inputs.names == {folder: str(tmp_path / "in")} | {
            f"{folder}/run/{dump.stem}.parquet": str(dump) for dump in dumps
        }
    (line,) = lines
    assert "train_data_step2.jsonl: 2 dumps, read as nemo-rl, " in line
    assert "it has no ref_log_probs, log_probs, values" in line
    ran = run("advantages", tmp_path / "in", tmp_path / "out", *GRPO)
    assert ran.code == 0, ran.err
    assert names(tmp_path / "out") == files


def test_temporary_files_are_always_removed_and_the_plan_of_a_dump_is_printed(dump, tmp_path):
    out = tmp_path / "deep" / "er" / "out.parquet"
    ran = run("advantages", dump, out, "--estimator", "gae")
    assert (ran.code, f"{dump}: no column for values" in ran.err) == (3, True)
    ran = run("advantages", dump, "--plan", *GRPO)
    assert (ran.code, "12 responses" in ran.out) == (0, True)
    assert names(tmp_path) == ["in/train_data_step7.jsonl"]


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
    (tmp_path / "in.jsonl").write_text(line + "\n")
    convert(tmp_path / "in.jsonl", tmp_path / "out.parquet", "jsonl")
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (row["prompt_id"], row["reward"]) == (str(number), 0.12345678901234567)
    assert json.loads(row["other"]) == [number, number]
