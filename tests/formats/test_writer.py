"""Canonical files: columns, types and metadata as they are written."""

from __future__ import annotations

import json
from unittest import mock

import format_writers as writers
import pyarrow.parquet as pq
import pytest
from dump_folders import steps

from rlpost.errors import DataError
from rlpost.formats import writer
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert
from rlpost.formats.rows import tables


def test_a_file_has_its_format_its_missing_roles_and_codecs_by_type(dump, tmp_path):
    convert(dump, tmp_path / "out.parquet")
    footer = pq.read_metadata(tmp_path / "out.parquet")
    assert footer.metadata[b"rlpost.format"] == b"nemo-rl"
    missing = json.loads(footer.metadata[b"rlpost.missing_roles"])
    assert missing.keys() == {"log_probs", "ref_log_probs", "values"}
    chunks = [footer.row_group(0).column(place) for place in range(footer.row_group(0).num_columns)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    assert {chunk.path_in_schema for chunk in chunks if "BYTE_STREAM_SPLIT" in chunk.encodings} == {
        f"{name}.list.element" for name in ("old_log_probs", "infer_log_probs", "dumped_advantages")
    }


def test_rows_do_not_depend_on_batches_and_row_groups(dump, tmp_path):
    convert(dump, tmp_path / "whole.parquet")
    with (
        mock.patch.object(writer, "ROW_GROUP_BYTES", 1),
        mock.patch("rlpost.formats.rows.MOST_ROWS", 5),
    ):
        convert(dump, tmp_path / "pieces.parquet")
    assert pq.read_metadata(tmp_path / "pieces.parquet").num_row_groups == 3
    assert pq.read_table(tmp_path / "pieces.parquet").equals(
        pq.read_table(tmp_path / "whole.parquet")
    )


def test_the_bytes_of_a_batch_are_bounded():
    rows = ((str(i), {"response_mask": [1] * 1000}, {}) for i in range(64))
    with mock.patch("rlpost.formats.rows.MOST_BYTES", 10_000):
        sizes = [part.rows for part in tables(rows, "")]
    assert sum(sizes) == 64
    assert max(sizes) <= 10


def test_dumps_with_and_without_log_probs_do_not_become_one_file(tmp_path):
    steps(tmp_path / "in", 1)
    writers.nemo_rl(tmp_path / "in", writers.made(), on_policy=True)
    with pytest.raises(DataError, match="only some have old_log_probs"):
        convert(tmp_path / "in", tmp_path / "all.parquet")
    with (
        mock.patch.object(writer, "ROW_GROUP_BYTES", 1),
        pytest.raises(DataError, match="only some have old_log_probs"),
    ):
        convert(tmp_path / "in", tmp_path / "all.parquet")
    convert(tmp_path / "in", tmp_path / "out")
    convert(
        tmp_path / "in", tmp_path / "all.parquet", options=ReadOptions({"old_log_probs": "none"})
    )


def test_a_column_may_begin_late_and_change_its_type(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("rlpost.formats.rows.MOST_ROWS", 2)
    values = [1, 2, 0.5, None, True, "a", [1], {"b": 2}]
    records = [{"prompt_id": "a", "reward": 1.0, "x": x, **({"late": [i]} if i > 3 else {})}
               for i, x in enumerate(values)]  # fmt: skip
    for count, kind in ((2, "int64"), (4, "double"), (8, "string")):
        lines = "".join(json.dumps(one) + "\n" for one in records[:count])
        (tmp_path / "in.jsonl").write_text(lines)
        convert(tmp_path / "in.jsonl", tmp_path / "out.parquet", "jsonl", overwrite=True)
        table = pq.read_table(tmp_path / "out.parquet")
        assert str(table.schema.field("x").type) == kind
    assert [x and json.loads(x) if x != "a" else x for x in table["x"].to_pylist()] == values
    assert table["late"].to_pylist() == [None] * 4 + [[i] for i in range(4, 8)]
    files = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for file, x in zip(files, (1, "a"), strict=True):
        file.write_text(json.dumps({"prompt_id": "a", "reward": 1.0, "x": x}) + "\n")
    convert(files, tmp_path / "both.parquet", "jsonl")
    assert pq.read_table(tmp_path / "both.parquet")["x"].to_pylist() == ["1", "a"]
