"""Encoding: lists of numbers as pages that other readers read, bit for bit."""

from __future__ import annotations

import itertools

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from splicing import (
    FIELDS,
    new_columns,
)

from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.footer import chunk_extent
from rlpost.io.parquet.sink import open_sink


def written(folder, batches, **options):
    """Write batches as the new columns of a file of one row group, and return its path."""
    source, target = folder / "source.parquet", folder / "target.parquet"
    pq.write_table(pa.table({"row": range(sum(b.num_rows for b in batches))}), source)
    sink = open_sink(source, target, batches[0].schema, **options)
    for rows in sink.encode(batches):
        sink.append(0, rows)
    sink.complete({})
    sink.output.publish()
    return target


def read_back(folder, batches, **options):
    """Return the new columns as pyarrow, polars and DuckDB read them, as Python values."""
    path = written(folder, batches, **options)
    names = batches[0].schema.names
    table = pq.read_table(path, columns=names)
    table.validate(full=True)
    frame = pl.read_parquet(path, columns=names)
    assert repr(frame.to_dicts()) == repr(table.to_pylist())
    with duckdb.connect() as connection:
        rows = connection.read_parquet(str(path)).select(*names).to_arrow_table()
    assert repr(rows.to_pylist()) == repr(table.to_pylist())
    return table


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.lists(st.none() | st.lists(st.none() | st.floats(width=32), max_size=4), max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_lists_survive_a_round_trip_in_any_batches(tmp_path_factory, parts, constant):
    rows = pa.array([*itertools.chain(*parts)], pa.list_(pa.float32()))
    ends = itertools.accumulate(map(len, parts))
    slices = [rows[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
    batches = [pa.record_batch({"x": part}) for part in slices]
    folder = tmp_path_factory.mktemp("lists")
    table = read_back(folder, batches, constant=["x"] if constant else [])
    assert repr(table["x"].to_pylist()) == repr([*itertools.chain(*parts)])


def test_other_types_survive_a_round_trip(tmp_path):
    batch = pa.record_batch(
        {
            "mask": pa.array([[1, 0], [], None], pa.list_(pa.uint8())),
            "doubles": pa.array([[1.0, None], [], None], pa.large_list(pa.float64())),
            "text": pa.array(["a", None, "b"]),
            "struct": pa.array([{"a": 1.0, "b": [True]}, None, {"a": None, "b": None}]),
            "deep": pa.array([[[1.0], []], [], [[2.0, None]]], pa.list_(pa.list_(pa.float32()))),
            "fixed": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        }
    )
    table = read_back(tmp_path, [batch, batch])
    assert table.to_pylist() == batch.to_pylist() * 2
    assert table.schema.equals(batch.schema)


def test_aliases_are_encoded_once_and_stored_twice(tmp_path):
    batch = new_columns(30)
    options = {"aliases": {"returns": "advantages"}, "constant": ["advantages"]}
    encoder = Encoder(FIELDS, **options)
    advantages, returns, *_ = encoder.encode([batch.drop_columns(["returns"])])[0].metas
    assert chunk_extent(advantages) == chunk_extent(returns)
    path = written(tmp_path, [batch, batch], **options)
    expected = pa.Table.from_batches([batch, batch])
    assert pq.read_table(path, columns=FIELDS.names).equals(expected)


def test_scalars_have_statistics_and_tokens_have_none(tmp_path):
    group = pq.read_metadata(written(tmp_path, [new_columns(30)])).row_group(0)
    statistics = [group.column(place).statistics for place in range(1, 5)]
    assert [x is not None and x.has_min_max for x in statistics] == [False, False, True, True]
