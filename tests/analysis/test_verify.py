"""`--verify` and `rlpost verify`: what is wrong with a file is found, and a good one is let be."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import rollout, run, save, strict_json
from strategies import recipes, rollouts, to_table

import rlpost
from rlpost.analysis import verify
from rlpost.errors import ReadWriteError, RlpostError
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet import reader
from rlpost.io.parquet.checksums import CHECKSUMS_KEY, changed_chunks
from rlpost.io.parquet.splice import SpliceSink
from rlpost.io.staged import StagedFile
from rlpost.pipeline.output.metadata import RUN_KEY
from rlpost.pipeline.output.readback import same_values
from rlpost.recipe import presets

GOOD = " equal "


@pytest.fixture
def enriched(tmp_path):
    """An enriched file."""
    source = save(rollout(48), tmp_path / "in.parquet", rows=10)
    target = tmp_path / "out.parquet"
    assert run("advantages", source, target, "-q", "--kl-coef", "0.1").code == 0
    return target


def found(*paths):
    return verify.verify(list(paths))


def rewritten(path, change, metadata=None):
    """The file again with changed columns, by pyarrow: as somebody else would change it."""
    table = pq.read_table(path, partitioning=None)  # the file's own columns
    told = {**table.schema.metadata, **(metadata or {})}
    pq.write_table(change(table).replace_schema_metadata(told), path, row_group_size=10)


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


@settings(max_examples=40)
@given(rows=rollouts(), options=recipes(tuple(ESTIMATORS)))
def test_what_any_recipe_writes_is_what_it_claims(rows, options):
    """And `--verify` finds nothing wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.parquet", Path(folder) / "out.parquet"
        pq.write_table(to_table(rows), source, row_group_size=5)
        run_options = rlpost.Options(verify=True, chunk_tokens=40)
        try:
            rlpost.advantages(source, target, rlpost.Recipe(**options), run_options)
        except ReadWriteError:
            raise
        except RlpostError:
            return  # nothing was left, or a column is missing
        assert found(target)["ok"]


@pytest.mark.parametrize("preset", presets.PRESETS)
@pytest.mark.parametrize("estimator", ["grpo", "reinforce_pp", "gae"])
def test_what_presets_write_is_what_it_claims(tmp_path, preset, estimator):
    table = rollout(48)
    values = [[0.1 * t for t, _ in enumerate(mask)] for mask in table["response_mask"].to_pylist()]
    table = table.append_column("values", pa.array(values, pa.list_(pa.float32())))
    source, target = save(table, tmp_path / "in.parquet"), tmp_path / "out.parquet"
    recipe = rlpost.preset(preset, estimator=estimator)
    rlpost.advantages(source, target, recipe, rlpost.Options(verify=True))
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


def test_other_pieces_and_workers_make_no_difference(enriched):
    for words in (("--chunk-tokens", "7"), ("--workers", "3")):
        assert run("verify", enriched, *words).code == 0


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


def nothing(values):
    values[0] = np.nan


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("reward", lambda values: values.__setitem__(3, 7.0)),
        ("old_log_probs", lambda values: values.__setitem__(3, -9.0)),
        ("response_mask", lambda values: values.__setitem__(0, 0)),
        ("returns", nothing),
        ("response_level_rewards", lambda values: values.__setitem__(47, -1.0)),
    ],
)
def test_a_column_that_was_changed_is_found(enriched, name, change):
    rewritten(enriched, with_column(name, change))
    assert run("verify", enriched).code == 1


def test_rows_that_were_swapped_are_found(enriched):
    order = [1, 0, *range(2, 48)]
    rewritten(
        enriched,
        lambda table: table.set_column(
            table.schema.get_field_index("advantages"), "advantages",
            table["advantages"].take(pa.array(order)),
        ),
    )  # fmt: skip
    assert not found(enriched)["ok"]


def test_a_column_that_was_dropped_or_has_another_type_is_found(enriched):
    rewritten(
        enriched,
        lambda table: table.set_column(
            table.schema.get_field_index("returns"), "returns",
            table["returns"].cast(pa.list_(pa.float64())),
        ),
    )  # fmt: skip
    ran = run("verify", enriched)
    assert ran.code == 1
    told = " ".join(ran.out.split())  # lines end where the terminal does
    assert "the type is list<element: double>, and should be list<element: float>" in told
    rewritten(enriched, lambda table: table.drop_columns(["returns"]))
    ran = run("verify", enriched)
    assert (ran.code, "the column is missing" in ran.out) == (1, True)


def test_another_recipe_than_the_files_is_found(enriched):
    recipe = json.loads(pq.read_schema(enriched).metadata[b"rlpost.recipe"])
    other = json.dumps({**recipe, "kl_coef": 0.2}).encode()
    rewritten(enriched, lambda table: table, {b"rlpost.recipe": other})
    assert run("verify", enriched).code == 1


def test_a_summary_that_was_changed_is_found(enriched):
    summary = json.loads(pq.read_schema(enriched).metadata[b"rlpost.summary"])
    summary["advantage"]["mean"] += 0.5
    summary["groups"]["count"] = 7
    rewritten(enriched, lambda table: table, {b"rlpost.summary": json.dumps(summary).encode()})
    ran = run("verify", enriched)
    assert ran.code == 1
    assert "groups.count: 7 stored, 12 recomputed" in ran.out
    assert "advantage.mean" in ran.out


def test_what_rlpost_did_not_write_is_an_error(tmp_path):
    ran = run("verify", save(rollout(), tmp_path / "in.parquet"))
    assert ran.code == 3
    assert "rlpost.recipe" in ran.err
    assert run("verify", tmp_path / "missing.parquet").code == 4


@pytest.mark.parametrize("metadata", [{b"rlpost.recipe": b"{"}, {RUN_KEY.encode(): b"[1]"},
                                      {b"rlpost.summary": b"?"}])  # fmt: skip
def test_metadata_that_is_damaged_is_an_error(enriched, metadata):
    rewritten(enriched, lambda table: table, metadata)
    ran = run("verify", enriched)
    assert ran.code == 3
    assert "damaged" in ran.err


@pytest.mark.parametrize(
    "recipe",
    ['{"no_such_field": 1}', '{"gamma": 1e400}', "[" * 100_000, '{"a": ' * 100 + "1" + "}" * 100,
     '{"estimator": "no_such_one"}', "[1]", '{"domain_moments": []}'],
    ids=["unknown", "infinite", "deep", "nested", "estimator", "list", "other"],
)  # fmt: skip
def test_a_recipe_in_the_metadata_that_is_invalid_is_bad_data(enriched, recipe):
    """Not a wrong command line: nobody typed it."""
    rewritten(enriched, lambda table: table, {b"rlpost.recipe": recipe.encode()})
    ran = run("verify", enriched)
    assert ran.code == 3
    assert enriched.name in ran.err
    assert "recursion" not in ran.err
    assert len(ran.err) < 1500


@pytest.mark.parametrize(
    "metadata",
    [{RUN_KEY.encode(): b'{"run": "a", "file": 0, "files": 1e400, "rows": 1}'},
     {RUN_KEY.encode(): b'{"run": [], "file": 0, "files": 1, "rows": 1}'},
     {b"rlpost.summary": b"[]"}, {b"rlpost.summary": b'{"roles": 1}'},
     {b"rlpost.summary": b"[" * 100_000}],
)  # fmt: skip
def test_metadata_of_another_shape_is_bad_data(enriched, metadata):
    rewritten(enriched, lambda table: table, metadata)
    ran = run("verify", enriched)
    assert (ran.code, enriched.name in ran.err) == (3, True)
    assert "recursion" not in ran.err


def test_a_run_that_claims_to_have_very_many_files_takes_no_memory(enriched):
    part = json.loads(pq.read_schema(enriched).metadata[RUN_KEY.encode()])
    part["files"] = 10**15
    rewritten(enriched, lambda table: table, {RUN_KEY.encode(): json.dumps(part).encode()})
    ran = run("verify", enriched)
    assert (ran.code, "belongs to a run of 1000000000000000 files" in ran.err) == (2, True)


def test_what_could_not_be_compared_is_told(enriched):
    table = pq.read_table(enriched)
    told = {key: value for key, value in table.schema.metadata.items() if key != b"rlpost.summary"}
    told[b"rlpost.version"] = b"0.0.1"
    pq.write_table(table.replace_schema_metadata(told), enriched)
    ran = run("verify", enriched)
    assert ran.code == 0
    assert "it has no summary to compare" in ran.out
    notes = ["it has no summary to compare",
             f"it was written by rlpost 0.0.1, this is {rlpost.__version__}",
             verify.UNCHECKED]  # fmt: skip
    assert strict_json(run("verify", enriched, "--format", "json").out)["files"][0]["notes"] == (
        notes
    )
    assert f"| note | {notes[1]}" in run("verify", enriched, "--format", "markdown").out


# Kept columns, which nothing is compared with


def with_kept(path, source, **how):
    """An enriched file that has two more columns, `kept` and `words`, in it."""
    table = rollout(48).append_column("kept", [np.arange(48) * 0.37])
    table = table.append_column("words", [[f"word {i}" for i in range(48)]])
    pq.write_table(table, source, row_group_size=10, use_dictionary=False, **how)
    assert run("advantages", source, path, "-q").code == 0
    return path


def harmed(path, column, at, group=2):
    """The file with a byte of a column's chunk turned over."""
    begin, size = chunk(path, column, group)
    with path.open("rb+") as file:
        file.seek(begin + at % size)
        byte = file.read(1)[0]
        file.seek(begin + at % size)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("column", ["kept", "words", "prompt_id", "advantages", "reward"])
def test_a_column_that_does_not_decode_is_a_difference(tmp_path, column):
    path = with_kept(tmp_path / "out.parquet", tmp_path / "in.parquet", compression="zstd")
    assert run("verify", path).code == 0
    harmed(path, column, 0)  # the header of its first page
    ran = run("verify", path)
    assert (ran.code, ran.err) == (1, "")
    assert re.search(rf"{column} +DAMAGED: it does not decode: row group 2", ran.out)
    (file,) = strict_json(run("verify", path, "--format", "json").out)["files"]
    verdicts = {one["column"]: one["verdict"] for one in file["columns"]}
    assert verdicts.pop(column) == "damaged"
    recomputed = column not in {"reward", "prompt_id"}
    assert set(verdicts.values()) == ({"identical"} if recomputed else set())
    assert any("were not recomputed" in note for note in file["notes"]) is not recomputed


PLAIN = {"compression": "none", "column_encoding": {"kept": "PLAIN"}}


@pytest.mark.parametrize("column", ["kept", "reward"])
def test_checksums_of_pages_are_compared_where_a_file_has_them(tmp_path, column):
    """Also of a column that the recomputation reads, so that it is decoded once."""
    path = tmp_path / "out.parquet"
    with_kept(path, tmp_path / "in.parquet", write_page_checksum=True, **PLAIN)
    harmed(path, column, -3)
    ran = run("verify", path)
    assert ran.code == 1
    assert re.search(f"{column} +DAMAGED", ran.out)


def test_each_column_is_decoded_and_none_by_itself_that_the_recomputation_reads(
    tmp_path, monkeypatch
):
    path = with_kept(tmp_path / "out.parquet", tmp_path / "in.parquet")
    alone, usual = [], reader._damage
    monkeypatch.setattr(
        reader, "_damage", lambda *found: (alone.append(found[3]), usual(*found))[1]
    )
    assert found(path)["ok"]
    assert {*alone} == {"kept", "words"}


def test_a_changed_number_of_a_kept_column_is_found_although_it_decodes(tmp_path):
    """Plain numbers without a checksum of their page decode whatever their bits are."""
    path = with_kept(tmp_path / "out.parquet", tmp_path / "in.parquet", **PLAIN)
    assert "7 kept columns as written" in run("verify", path).out
    harmed(path, "kept", -3)
    harmed(path, "kept", -3, 4)
    assert pq.read_table(path)["kept"].to_pylist() != (np.arange(48) * 0.37).tolist()
    ran = run("verify", path)
    begin, size = chunk(path, "kept")
    where = f"row group 2, bytes {begin:,} to {begin + size - 1:,}, and 1 more row group"
    assert ran.code == 1
    assert "48 responses, grpo: changed since it was written" in ran.out
    assert f"kept CHANGED since it was written: {where}" in " ".join(ran.out.split())
    (file,) = strict_json(run("verify", path, "--format", "json").out)["files"]
    assert file["checksums"] is False
    verdicts = {one["column"]: one for one in file["columns"]}
    assert verdicts["kept"]["chunks"][0] == {"row_group": 2, "begin": begin, "end": begin + size}
    assert {name for name, one in verdicts.items() if one["verdict"] != "identical"} == {"kept"}


@settings(max_examples=25)
@given(
    at=st.integers(0, 10**6),
    column=st.integers(0, 100),
    group=st.integers(0, 4),
    how=st.sampled_from(["none", "zstd", "snappy"]),
)
def test_any_byte_of_any_chunk_that_changes_is_found(at, column, group, how):
    with tempfile.TemporaryDirectory() as folder:
        path = with_kept(Path(folder) / "out.parquet", Path(folder) / "in.parquet", compression=how)
        footer = pq.read_metadata(path)
        name = footer.schema.column(column % footer.num_columns).path
        harmed(path, name, at, group)
        (changed,) = changed_chunks(path)
        begin, size = chunk(path, name, group)
        assert changed == (name.partition(".")[0], group, begin, begin + size)
        try:
            (file,) = found(path)["files"]
        except ReadWriteError:
            raise
        except RlpostError:
            return  # the damage is in numbers that are read, and an error of theirs
        assert (file["ok"], file["checksums"]) == (False, False)


@pytest.mark.parametrize("words", [(), ("--replace",), ("--emit-only",), ("--emit", "kl")])
def test_every_way_of_writing_has_checksums_of_all_columns(enriched, tmp_path, words):
    source = enriched if words else tmp_path / "in.parquet"
    assert run("advantages", source, tmp_path / "b.parquet", "-q", *words).code == 0
    metadata = pq.read_metadata(tmp_path / "b.parquet")
    packed = json.loads(metadata.metadata[CHECKSUMS_KEY.encode()])["crc32"]
    assert len(base64.b64decode(packed)) == 4 * metadata.num_columns * metadata.num_row_groups
    assert changed_chunks(tmp_path / "b.parquet") == []
    assert CHECKSUMS_KEY.encode() not in (pq.read_schema(tmp_path / "b.parquet").metadata or {})


def test_columns_that_are_encoded_anew_have_checksums_of_what_was_written(monkeypatch, tmp_path):
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "a test wants it so")
    path = with_kept(tmp_path / "out.parquet", tmp_path / "in.parquet", compression="none")
    assert "7 kept columns as written" in run("verify", path).out
    harmed(path, "kept", -3)
    assert [one.column for one in changed_chunks(path)] == ["kept"]


def test_a_source_that_is_larger_than_a_block_of_the_copy(monkeypatch, tmp_path):
    monkeypatch.setattr("rlpost.io.staged.COPY_BYTES", 64)
    path = with_kept(tmp_path / "out.parquet", tmp_path / "in.parquet", compression="none")
    assert changed_chunks(path) == []


def test_files_without_checksums_and_files_written_again_are_decoded_only(enriched):
    table = pq.read_table(enriched)
    stored = pq.read_metadata(enriched).metadata[CHECKSUMS_KEY.encode()]
    for metadata in ({}, {CHECKSUMS_KEY: stored}, {CHECKSUMS_KEY: b"{"}, {CHECKSUMS_KEY: b"[1]"}):
        kept = {**table.schema.metadata, **metadata}
        pq.write_table(table.replace_schema_metadata(kept), enriched, row_group_size=7)
        ran = run("verify", enriched)
        assert ran.code == 0
        assert "5 kept columns decoded\n" in ran.out
        assert "note: kept columns are decoded only: the file has no checksums" in ran.out
        (file,) = strict_json(run("verify", enriched, "--format", "json").out)["files"]
        assert file["checksums"] is None


def test_checksums_of_an_enriched_input_are_not_those_of_the_output(
    enriched, tmp_path, monkeypatch
):
    """Also if its metadata have them in the Arrow schema, which other programs copy."""
    stored = pq.read_metadata(enriched).metadata[CHECKSUMS_KEY.encode()]
    rewritten(enriched, lambda table: table, {CHECKSUMS_KEY: stored})
    assert CHECKSUMS_KEY.encode() in pq.read_schema(enriched).metadata
    out = tmp_path / "b.parquet"
    for patched in (False, True):
        if patched:  # the checksums of the copy are unknown
            monkeypatch.setattr("rlpost.io.parquet.splice.ExtentChecksums", lambda _: None)
        assert run("advantages", enriched, out, "-q", "--emit", "kl", "--overwrite").code == 0
        assert CHECKSUMS_KEY.encode() not in pq.read_schema(out).metadata
        assert changed_chunks(out) == (None if patched else [])


def test_a_text_that_is_no_utf8_is_damage(tmp_path):
    words = pa.array([b"\xff\xfe"] * 48, pa.binary()).view(pa.string())
    source, path = tmp_path / "in.parquet", tmp_path / "out.parquet"
    save(rollout(48).append_column("words", words), source)
    assert run("advantages", source, path, "-q").code == 0
    ran = run("verify", path)
    assert (ran.code, "Invalid UTF8" in ran.out) == (1, True)


def test_the_other_files_of_a_run_that_is_damaged_are_told_of(several):
    wrong = several / "step=1" / "a.parquet"
    harmed(wrong, "reward", 0, 0)
    told = found(several)
    assert not any(file["ok"] for file in told["files"])
    assert [len(file["columns"]) for file in told["files"]] == [0, 1, 0]
    assert all(str(wrong) in file["notes"][-1] for file in told["files"])


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
    assert run("advantages", tmp_path / "in", tmp_path / "out", "-q", "--verify").code == 0
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


def test_several_runs_may_lie_in_one_directory(several, enriched):
    enriched.rename(several / "other.parquet")
    told = found(several)
    assert told["ok"]
    assert len(told["files"]) == 4


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


def test_replaced_columns_are_recomputed(enriched, tmp_path):
    again = tmp_path / "again.parquet"
    assert run("advantages", enriched, again, "-q", "--replace", "--estimator", "rloo").code == 0
    assert run("verify", again).code == 0
    assert run("verify", enriched).code == 0


def test_columns_of_the_same_names_elsewhere_are_no_hindrance(tmp_path):
    """`is_weight` is an input here; `--emit` leaves out what would clash."""
    table = rollout(48)
    table = table.append_column("is_weight", table["old_log_probs"])
    source, target = save(table, tmp_path / "in.parquet"), tmp_path / "out.parquet"
    assert run("advantages", source, target, "-q", "--emit", "advantages,group_mean").code == 0
    assert run("verify", target).code == 0


# --verify


@pytest.fixture
def sabotaged(monkeypatch, tmp_path):
    """Runs with `--verify` a job whose file is harmed when it is complete."""
    source, out = save(rollout(48), tmp_path / "in.parquet", rows=10), tmp_path / "out.parquet"

    def work(harm, *words):
        usual = StagedFile.complete

        def complete(self):
            usual(self)
            harm(self.path)

        monkeypatch.setattr(StagedFile, "complete", complete)
        ran = run("advantages", source, out, "-q", "--verify", *words)
        assert out.exists() == (ran.code == 0)
        assert {path.name for path in tmp_path.iterdir()} <= {"in.parquet", "out.parquet"}
        return ran

    return work


def chunk(path, column, group=2):
    """Where a column chunk lies."""
    row_group = pq.read_metadata(path).row_group(group)
    (found,) = [row_group.column(i) for i in range(row_group.num_columns)
                if row_group.column(i).path_in_schema.startswith(column)]  # fmt: skip
    at = found.dictionary_page_offset or found.data_page_offset
    return at, found.total_compressed_size


def flipped(column):
    def harm(path):
        at, size = chunk(path, column)
        with path.open("rb+") as file:
            file.seek(at + size - 1)
            byte = file.read(1)[0]
            file.seek(at + size - 1)
            file.write(bytes([byte ^ 1]))

    return harm


@pytest.mark.parametrize(
    "column",
    ["prompt_id", "reward", "response_mask", "old_log_probs", "advantages", "returns",
     "response_level_rewards"],
)  # fmt: skip
def test_a_bit_that_flips_on_the_disk_is_found_before_the_file_is_published(sabotaged, column):
    ran = sabotaged(flipped(column))
    assert ran.code == 4
    assert "reads back wrong" in ran.err


def test_a_file_that_is_cut_short_is_found(sabotaged):
    ran = sabotaged(lambda path: os.truncate(path, path.stat().st_size - 9))
    assert ran.code == 4
    assert "reads back wrong" in ran.err


def test_a_bit_in_columns_that_are_encoded_anew_is_found(sabotaged, monkeypatch):
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "a test wants it so")
    monkeypatch.setattr(
        "rlpost.pipeline.output.readback._check_sums", lambda _: None
    )  # they find it at once
    ran = sabotaged(flipped("reward"))
    assert ran.code == 4
    assert "reward of row group 2 is not as in the source" in ran.err


def test_columns_that_are_encoded_anew_pass(sabotaged, monkeypatch):
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "a test wants it so")
    assert sabotaged(lambda _: None).code == 0


def test_numbers_that_are_encoded_wrong_are_found_by_their_sums(monkeypatch, tmp_path):
    """What the summary counted is not what the encoder was given: no checksum can tell."""
    source, out = save(rollout(48), tmp_path / "in.parquet", rows=10), tmp_path / "out.parquet"
    usual = SpliceSink.encode

    def encode(self, columns):
        name = "response_level_rewards"
        place = columns.schema.get_field_index(name)
        arrays = list(columns.columns)
        arrays[place] = pa.array(np.asarray(arrays[place]) + 1, pa.float32())
        return usual(self, pa.record_batch(arrays, columns.schema))

    monkeypatch.setattr(SpliceSink, "encode", encode)
    ran = run("advantages", source, out, "-q", "--verify")
    assert ran.code == 4
    assert "the sum of response_level_rewards" in ran.err
    assert not out.exists()
    assert run("advantages", source, out, "-q").code == 0
    assert run("verify", out).code == 1


def test_a_good_run_is_published_and_its_bytes_are_the_same(sabotaged, tmp_path):
    assert sabotaged(lambda _: None).code == 0
    assert run("advantages", tmp_path / "in.parquet", tmp_path / "b.parquet", "-q").code == 0
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()


@pytest.mark.parametrize("words", [("--replace",), ("--emit-only",), ("--emit", "kl")])
def test_outputs_that_keep_some_columns_pass(enriched, tmp_path, words):
    ran = run("advantages", enriched, tmp_path / "b.parquet", "-q", "--verify", *words)
    assert ran.code == 0, ran.err


def test_arrays_are_the_same_where_nan_is_nan_and_not_where_bits_differ():
    nan = pa.array([[1.0, float("nan")], None, []])
    assert same_values(nan, pa.array([[1.0, float("nan")], None, []]))
    assert not same_values(nan, pa.array([[1.0, 2.0], None, []]))
    assert not same_values(nan, pa.array([[1.0, float("nan")], [], None]))
    assert not same_values(pa.array([1.0, 2.0]), pa.array([1.0]))
    struct = pa.array([{"a": float("nan")}])
    assert same_values(struct, pa.array([{"a": float("nan")}]))
