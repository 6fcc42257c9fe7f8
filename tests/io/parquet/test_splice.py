from __future__ import annotations

import datetime as dt
import decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from splicing import (
    FIELDS,
    by_pyarrow,
    check_splice,
    copy_by_duckdb,
    enrich,
    new_columns,
    readable,
    source_table,
    unused_bytes,
)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "column_encoding": {"step": "DELTA_BINARY_PACKED"}},
        {"use_dictionary": False, "column_encoding": {"prompt_id": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"prompt_id": "DELTA_LENGTH_BYTE_ARRAY"}},
        {
            "use_dictionary": False,
            "column_encoding": {"log_probs.list.element": "BYTE_STREAM_SPLIT"},
        },
        {"write_page_index": True, "data_page_size": 64, "write_batch_size": 8},
        {"write_page_checksum": True},
        {"write_statistics": False},
        {"version": "1.0"},
        {"sorting_columns": [pq.SortingColumn(6), pq.SortingColumn(0)]},
        {"bloom_filter_options": {"prompt_id": {"ndv": 100, "fpp": 0.01}}},
        {"use_content_defined_chunking": True},
        {"dictionary_pagesize_limit": 64},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_files_with_any_option_of_pyarrow_are_spliced(tmp_path, options):
    source = tmp_path / "source.parquet"
    try:
        pq.write_table(source_table(), source, **{"row_group_size": 25, **options})
    except TypeError:
        if "bloom_filter_options" not in options:
            raise
        pytest.skip(f"pyarrow {pa.__version__} writes no Bloom filters")
    check_splice(source, tmp_path)


def test_files_by_polars_are_spliced(tmp_path):
    frame = pl.DataFrame(
        {
            "id": ["a", None, "b"] * 9,
            "kind": pl.Series(["x", "y", "x"] * 9, dtype=pl.Enum(["x", "y"])),
            "category": pl.Series(["x", "y", None] * 9, dtype=pl.Categorical),
            "values": [[1.5, None], [], None] * 9,
            "nested": [[{"a": 1, "b": "t"}], [], None] * 9,
            "when": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 27,
            "money": pl.Series([decimal.Decimal("1.50")] * 27, dtype=pl.Decimal(10, 2)),
        }
    )
    source = tmp_path / "source.parquet"
    frame.write_parquet(source, row_group_size=10)
    spliced = check_splice(source, tmp_path)
    after = pl.read_parquet(spliced).select(frame.columns)
    assert after.schema == frame.schema
    assert after.equals(frame)


@pytest.mark.parametrize("options", ["", ", codec zstd, parquet_version v2", ", codec lz4_raw"])
def test_files_by_duckdb_are_spliced(tmp_path, options):
    source = tmp_path / "source.parquet"
    query = (
        "select i, i % 5 as low, 'p' || (i % 50) as id, [i, i + 1] as xs, "
        "{'a': i, 'b': ['q']} as s, map {'k': i} as m, i::hugeint % 3 = 1 as flag "
        "from range(5000) t(i)"
    )
    copy_by_duckdb(query, source, ", row_group_size 2048" + options)
    check_splice(source, tmp_path, sub_rows=700)


@pytest.mark.parametrize("columns", [{}, {"drop": ["i"]}])
def test_bloom_filters_still_work(tmp_path, columns):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    query = "select i // 100 as i, 'p' || (i % 50) as id from range(5000) t(i)"
    copy_by_duckdb(query, source, ", row_group_size 2048")
    enrich(source, target, sub_rows=5000, **columns)
    with duckdb.connect() as connection:
        query = "select bloom_filter_excludes from parquet_bloom_probe(?, 'id', ?)"
        for value, excluded in (("p7", False), ("absent", True)):
            answers = connection.execute(query, [str(target), value]).fetchall()
            assert answers == [(excluded,)] * len(answers)
            assert answers


def test_files_and_row_groups_without_rows_are_spliced(tmp_path):
    table = source_table(20)
    source = tmp_path / "source.parquet"
    with pq.ParquetWriter(source, table.schema) as writer:
        for part in (table[:0], table[:5], table[:0], table[5:], table[:0]):
            writer.write_table(part)
    check_splice(source, tmp_path)


SCALARS = st.sampled_from(
    [
        (pa.int64(), st.integers(-(2**62), 2**62)),
        (pa.uint8(), st.integers(0, 255)),
        (pa.float32(), st.floats(width=32)),
        (pa.float64(), st.floats()),
        (pa.string(), st.text(max_size=4)),
        (pa.binary(), st.binary(max_size=4)),
        (pa.bool_(), st.booleans()),
        (pa.date32(), st.dates()),
        (pa.timestamp("us"), st.datetimes()),
    ]
)


def nested(kinds):
    lists = kinds.map(lambda k: (pa.list_(k[0]), st.lists(st.none() | k[1], max_size=3)))
    structs = kinds.map(
        lambda k: (
            pa.struct([("a", k[0]), ("b", pa.int8())]),
            st.fixed_dictionaries({"a": st.none() | k[1], "b": st.integers(-9, 9)}),
        )
    )
    return lists | structs


@st.composite
def tables(draw):
    rows = draw(st.integers(0, 12))
    columns = {}
    for place in range(draw(st.integers(1, 4))):
        kind, values = draw(st.recursive(SCALARS, nested, max_leaves=3))
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"column {place}"] = pa.array(drawn, kind)
    return pa.table(columns)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=tables(),
    sub_rows=st.integers(1, 6),
    drop=st.sets(st.sampled_from(["column 0", "column 1"])),
    options=st.fixed_dictionaries(
        {
            "row_group_size": st.integers(1, 12),
            "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli", "lz4"]),
            "use_dictionary": st.booleans(),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "write_page_index": st.booleans(),
            "store_schema": st.booleans(),
            "data_page_size": st.sampled_from([16, 1 << 20]),
        }
    ),
)
def test_any_table_is_spliced(tmp_path, table, sub_rows, drop, options):
    source = tmp_path / "source.parquet"
    pq.write_table(table, source, **options)
    # pyarrow cannot read its own uncompressed second-version pages of nothing but null booleans
    assume(readable(by_pyarrow, source) and pq.read_table(source).num_rows == table.num_rows)
    spliced = check_splice(source, tmp_path, sub_rows=sub_rows, drop=drop)
    names = [name for name in table.column_names if name not in drop]
    before = pq.read_table(source, columns=names)
    assert repr(pq.read_table(spliced, columns=names).to_pylist()) == repr(before.to_pylist())
    new = pa.Table.from_batches([new_columns(table.num_rows)])
    assert pq.read_table(spliced, columns=FIELDS.names).equals(new)
    assert not unused_bytes(spliced) or len(names) == table.num_columns
