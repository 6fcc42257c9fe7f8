"""`rlpost verify`: what is wrong with a file is found, and a good one is let be."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from runs import loads, rollout, run, save, strict_json
from strategies import recipes, rollouts, to_table
from summaries import whole
from verified_files import found, rewritten

import rlpost
from rlpost.errors import ReadWriteError, RlpostError
from rlpost.estimators import ESTIMATORS

GOOD = " equal "


def with_column(name, change):
    """Changes the flat values of a column in place."""

    def changed(table):
        column = table[name].combine_chunks()
        flat = column.flatten() if pa.types.is_list(column.type) else column
        values = np.array(flat.to_numpy(zero_copy_only=False))
        change(values)
        made = pa.array(values, flat.type)
        if pa.types.is_list(column.type):
            made = pa.ListArray.from_arrays(column.offsets, made, type=column.type)
        return table.set_column(table.schema.get_field_index(name), table.schema.field(name), made)

    return changed


# rlpost verify


@settings(max_examples=12)
@given(rows=rollouts(), options=recipes(tuple(ESTIMATORS)))
def test_what_any_recipe_writes_is_what_it_claims(rows, options):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.parquet", Path(folder) / "out.parquet"
        pq.write_table(to_table(rows), source, row_group_size=5)
        run_options = rlpost.Options(chunk_tokens=40)
        try:
            rlpost.advantages(source, target, rlpost.Recipe(**options), run_options)
        except ReadWriteError:
            raise
        except RlpostError:
            return  # nothing was left, or a column is missing
        assert found(target)["ok"]


def test_a_good_file_is_let_be(enriched):
    ran = run("verify", enriched)
    assert ran.code == 0
    assert GOOD in ran.out
    assert ran.err == ""
    told = strict_json(run("verify", enriched, "--format", "json").out)
    assert told["ok"] is True
    (file,) = told["files"]
    assert file["rows"] == 48
    assert {column["verdict"] for column in file["columns"]} == {"identical"}


def test_one_number_that_was_changed_is_found_with_its_row(enriched):
    def change(values):
        values[60] += 0.001

    row = next(
        row for row, end in enumerate(np.cumsum(pq.read_table(enriched)["advantages"]
                                                .combine_chunks().value_lengths())) if end > 60
    )  # fmt: skip
    rewritten(enriched, with_column("advantages", change))
    ran = run("verify", enriched)
    assert ran.code == 1
    assert f"DIFFERS in 1 row, first in row {row}, by up to 0.001" in ran.out
    told = strict_json(run("verify", enriched, "--format", "json").out)
    verdicts = {one["column"]: one for one in told["files"][0]["columns"]}
    assert verdicts["advantages"]["first_row"] == row
    assert verdicts["returns"]["verdict"] == "identical"
    assert "| advantages | DIFFERS" in run("verify", enriched, "--format", "markdown").out


def as_double(table):
    lists = table["returns"].cast(pa.list_(pa.float64()))
    return table.set_column(table.schema.get_field_index("returns"), "returns", lists)


def without_summary(metadata):
    del metadata[b"rlpost.summary"]


def other_summary(metadata):
    summary = loads(metadata[b"rlpost.summary"])
    whole(summary, "advantage")["mean"] += 0.5
    summary["groups"] = 7
    metadata[b"rlpost.summary"] = json.dumps(summary).encode()


def other_recipe(**fields):
    """Return a function that writes a recipe of another version."""

    def change(metadata):
        metadata |= {b"rlpost.version": b"0.0.1", b"rlpost.recipe": json.dumps(fields).encode()}

    return change


def same(table):
    return table


def nothing(_):
    pass


HERE = f"written by rlpost 0.0.1, this is {rlpost.__version__}"
CHANGES = {
    "a reward": (with_column("reward", lambda x: x.__setitem__(3, 7.0)), nothing, 1, "DIFFERS"),
    "a log-prob": (with_column("old_log_probs", lambda x: x.__setitem__(3, -9.0)), nothing, 1, ""),
    "a mask": (with_column("response_mask", lambda x: x.__setitem__(0, 0)), nothing, 1, "DIFFERS"),
    "NaN": (with_column("returns", lambda x: x.__setitem__(0, np.nan)), nothing, 1, "DIFFERS"),
    "a number of a response": (
        with_column("response_level_rewards", lambda x: x.__setitem__(47, -1.0)), nothing, 1,
        "row 47",
    ),
    "a type": (
        as_double, nothing, 1,
        "the type is list<element: double>, and should be list<element: float>",
    ),
    "no column": (
        lambda table: table.drop_columns(["returns"]), nothing, 1, "the column is missing"
    ),
    "a summary": (same, other_summary, 1, "groups: 7 stored, 12 recomputed"),
    "a mean": (same, other_summary, 1, "facts.advantage.all.mean: 0.6"),
    "no summary": (same, without_summary, 0, "it has no summary to compare"),
    "a field of another version": (
        same, other_recipe(estimator="gigpo", step_gamma=0.9), 3,
        f"{HERE}, is invalid: rlpost.recipe: no option 'step_gamma'",
    ),
}  # fmt: skip
"""How columns and metadata are changed, the exit code, and what is said."""


@pytest.mark.parametrize("case", CHANGES)
def test_what_was_changed_is_found(enriched, case):
    columns, metadata, code, text = CHANGES[case]
    table = pq.read_table(enriched)
    summary = pq.read_metadata(enriched).metadata[b"rlpost.summary"]
    stored = {**table.schema.metadata, b"rlpost.summary": summary}
    metadata(stored)
    changed = columns(table).replace_schema_metadata(stored)
    pq.write_table(changed, enriched, row_group_size=10)
    ran = run("verify", enriched)
    assert ran.code == code
    assert text in " ".join(f"{ran.out} {ran.err}".split())  # lines end where the terminal does


def test_what_rlpost_did_not_write_is_an_error(tmp_path):
    ran = run("verify", save(rollout(), tmp_path / "in.parquet"))
    assert ran.code == 3
    assert "rlpost.recipe" in ran.err
    assert run("verify", tmp_path / "missing.parquet").code == 4


@pytest.mark.parametrize(
    "text", ["{}", "[]", '[["estimator", "grpo"]]', "null", '"grpo"', "3", '{"a": 1}', "", "x"]
)
def test_metadata_that_is_no_recipe_is_an_error(enriched, text):
    """A recipe that a run wrote has all fields; another one would be verified as the default."""
    table = pq.read_table(enriched)
    entries = {**table.schema.metadata, b"rlpost.recipe": text.encode()}
    pq.write_table(table.replace_schema_metadata(entries), enriched)
    ran = run("verify", enriched)
    assert ran.code == 3
    assert "its metadata" in ran.err
    assert "no recipe" in run("replay", enriched).out


def test_what_could_not_be_compared_is_told(enriched):
    table = pq.read_table(enriched)
    stored = {**table.schema.metadata, b"rlpost.version": b"0.0.1"}
    pq.write_table(table.replace_schema_metadata(stored), enriched)
    notes = ["it has no summary to compare", f"it was {HERE}"]
    (file,) = strict_json(run("verify", enriched, "--format", "json").out)["files"]
    assert file["notes"] == notes
    assert f"- ! {notes[1]}" in run("verify", enriched, "--format", "markdown").out


def test_a_file_that_lacks_what_it_was_made_of_is_an_error(tmp_path):
    source, target = save(rollout(), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    assert run("advantages", source, target, "-q", "--emit-only").code == 0
    ran = run("verify", target)
    assert ran.code == 3
    assert "--emit-only" in ran.err


@pytest.fixture
def several(tmp_path):
    """A run over files that share groups."""
    table = rollout(48).append_column("step", [[i // 16 for i in range(48)]])
    for index in range(3):
        save(table.slice(index * 16, 16), tmp_path / "in" / f"step={index}" / "a.parquet", rows=5)
    assert run("advantages", tmp_path / "in", tmp_path / "out", "-q").code == 0
    return tmp_path / "out"


def test_a_run_over_several_files_needs_all_of_them(several):
    assert run("verify", several).code == 0
    one = several / "step=1" / "a.parquet"
    ran = run("verify", one)
    assert ran.code == 2
    assert "belongs to a run of 3 files" in ran.err
    assert "rlpost verify OUTDIR" in ran.err
    one.unlink()
    assert run("verify", several).code == 2


def test_which_of_several_files_is_wrong_is_told(several):
    wrong = several / "step=2" / "a.parquet"
    rewritten(wrong, with_column("advantages", lambda values: values.__setitem__(0, 99.0)))
    told = found(several)
    assert [file["ok"] for file in told["files"]] == [True, True, False]
    assert told["files"][2]["file"] == str(wrong)


def test_running_moments_that_a_run_began_with_are_in_its_files(tmp_path):
    source, state = save(rollout(48), tmp_path / "in.parquet"), tmp_path / "state.json"
    words = ("-q", "--norm-mean", "running", "--norm-std", "running", "--estimator", "reinforce",
             "--state", state)  # fmt: skip
    for name in ("a.parquet", "b.parquet"):
        assert run("advantages", source, tmp_path / name, *words).code == 0
    a, b = (pq.read_table(tmp_path / name)["advantages"] for name in ("a.parquet", "b.parquet"))
    assert not a.equals(b)
    assert run("verify", tmp_path / "a.parquet").code == 0
    assert run("verify", tmp_path / "b.parquet").code == 0


def test_replay_and_compare_warn_of_a_recipe_of_another_version(enriched):
    table = pq.read_table(enriched)
    entries = {b"rlpost.version": b"0.0.1", b"rlpost.recipe": b'{"clip_reward": 5}'}
    path = enriched.with_name("older.parquet")
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **entries}), path)
    text = "no recipe: that in the metadata, of rlpost 0.0.1, cannot be used"
    assert text in " ".join(rlpost.replay(path).warnings)
    (finding,) = rlpost.compare([path, enriched]).findings
    assert text in finding["text"]
