from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from splicing import (
    FIELDS,
    new_columns,
    rewrite,
    rewriting_sink,
    source_table,
)

from rlpost.errors import DataError
from rlpost.io.parquet import sink as sinks


def test_aliases_may_be_missing_in_a_rewrite(tmp_path):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(source_table(30), source)
    new = new_columns(30).drop_columns(["returns"])
    rewrite(source, target, new=new, aliases={"returns": "advantages"})
    table = pq.read_table(target)
    assert table["returns"].equals(table["advantages"])


def test_a_rewrite_keeps_the_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_ROWS", 7)
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(source_table(), source, row_group_size=40)
    rewrite(source, target)
    table = pq.read_table(target)
    assert table.select(source_table().column_names).equals(source_table())
    assert [pq.read_metadata(target).row_group(i).num_rows for i in (0, 1)] == [40, 20]


def test_a_rewrite_reports_damaged_pages_as_data_error(tmp_path):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(source_table(), source)
    data = bytearray(source.read_bytes())
    data[4:200] = bytes(196)
    source.write_bytes(data)
    with pytest.raises(DataError, match=r"source\.parquet: cannot be read as Parquet"):
        rewriting_sink(source, target, FIELDS)
    assert list(tmp_path.iterdir()) == [source]


def test_a_rewrite_reports_missing_rows_as_data_error(tmp_path, monkeypatch):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(source_table(), source)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: iter(()))
    with pytest.raises(DataError, match="row group 0 has 0 rows, its footer has 60"):
        rewriting_sink(source, target, FIELDS)


@pytest.mark.parametrize("keep", [None, ["step"], []], ids=str)
def test_a_rewrite_keeps_the_wanted_columns_and_all_metadata(tmp_path, keep):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    table = source_table(60).replace_schema_metadata({"note": "kept"})
    pq.write_table(table, source, row_group_size=25)
    rewrite(source, target, keep=keep, drop=["info"])
    names = [x for x in table.column_names if x != "info" and (keep is None or x in keep)]
    again = pq.read_table(target)
    assert again.column_names == [*names, *FIELDS.names]
    assert again.select(names).equals(table.select(names))
    assert again.num_rows == 60
    assert again.schema.metadata[b"note"] == b"kept"
