"""Checksums of column chunks: any byte that changes is found, however a file was written."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import run, strict_json
from verified_files import PLAIN, chunk, found, harmed, rewritten, with_kept

from rlpost.errors import ReadWriteError, RlpostError
from rlpost.io.parquet.checksums import CHECKSUMS_KEY, changed_chunks


@pytest.mark.parametrize("column", ["kept", "reward"])
def test_checksums_of_pages_are_compared_where_a_file_has_them(tmp_path, column):
    """Also of a column that the recomputation reads, so that it is decoded once."""
    path = tmp_path / "out.parquet"
    with_kept(path, tmp_path / "in.parquet", write_page_checksum=True, **PLAIN)
    harmed(path, column, -3)
    ran = run("verify", path)
    assert ran.code == 1
    assert re.search(f"{column} +DAMAGED", ran.out)


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
        (notice,) = (line for line in ran.out.splitlines() if line.startswith("! "))
        assert "no checksums" in notice
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
