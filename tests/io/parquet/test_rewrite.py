from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from splicing import (
    FIELDS,
    rewrite,
    rewriting_sink,
    source_table,
)

from rlpost.errors import DataError


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
