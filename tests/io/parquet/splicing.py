"""Helpers for tests of splicing: new columns, files by several writers, and three readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.parquet.footer import (
    ColumnChunk,
    FileMeta,
    RowGroup,
    file_end,
    read_footer,
)
from rlpost.io.parquet.sink import open_sink

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = pa.schema(
    [
        ("advantages", pa.list_(pa.float32())),
        ("returns", pa.list_(pa.float32())),
        ("score", pa.float32()),
        ("kept", pa.bool_()),
    ]
)


def tokens(rows, seed=0):
    """Return lists of 0 to 5 floats."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, rows))]).astype(np.int32)
    values = rng.normal(size=int(offsets[-1])).astype(np.float32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def new_columns(rows, seed=0):
    rng = np.random.default_rng(seed)
    lists = tokens(rows, seed)
    score = pa.array(rng.normal(size=rows).astype(np.float32))
    kept = pa.array(rng.random(rows) < 0.5)
    return pa.record_batch([lists, lists, score, kept], schema=FIELDS)


def source_table(rows=60):
    """Return a table with the types of columns of rollout dumps."""
    return pa.table(
        {
            "prompt_id": pa.array([f"p{i // 4}" for i in range(rows)]),
            "log_probs": tokens(rows, 1),
            "reward": pa.array([None if i % 7 == 0 else i / 3 for i in range(rows)], pa.float32()),
            "messages": pa.array([[{"role": "user", "text": "x" * (i % 5)}] for i in range(rows)]),
            "info": pa.array([{"step": i, "tags": [str(i)] * (i % 3)} for i in range(rows)]),
            "step": pa.array(range(rows), pa.int64()),
        }
    )


def copy_by_duckdb(query, path, options=""):
    """Write the rows of a query with DuckDB."""
    statement = f"copy ({query}) to '{path}' (format parquet{options})"
    with duckdb.connect() as connection:
        connection.execute(statement)


def edited(path: Path, edit) -> Path:
    """Change a file's footer by a function of its FileMetaData."""
    data = path.read_bytes()
    with path.open("rb") as file:
        footer, start = read_footer(file.fileno(), len(data))
    footer.put_structs(FileMeta.SCHEMA, footer.structs(FileMeta.SCHEMA))  # decoded
    edit(footer)
    path.write_bytes(data[:start] + file_end(footer))
    return path


def first_chunk(footer):
    return footer.structs(FileMeta.ROW_GROUPS)[0].structs(RowGroup.COLUMNS)[0]


def first_meta(footer):
    return first_chunk(footer).struct(ColumnChunk.META)


def feed(sink, source, new, sub_rows=13):
    """Write new columns to a sink, row group by row group, in small batches; close it."""
    metadata = pq.read_metadata(source)
    row = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        for at in range(0, rows, sub_rows):
            sink.append(group, *sink.encode([new.slice(row + at, min(sub_rows, rows - at))]))
        row += rows
    sink.complete({"rlpost.version": "0"})
    sink.output.publish()


def enrich(source, target, *, sub_rows=13, new=None, fields=FIELDS, **options):
    """Enrich a file."""
    new = new_columns(pq.read_metadata(source).num_rows) if new is None else new
    sink = open_sink(source, target, fields, **options)
    feed(sink, source, new, sub_rows)


def rewrite(source, target, keep, drop):
    """Write a file again by pyarrow, with new columns."""
    table = pq.ParquetFile(source).read()
    names = [x for x in table.column_names if x not in drop and (keep is None or x in keep)]
    new = new_columns(table.num_rows)
    for field, column in zip(new.schema, new.columns, strict=True):
        table = table.append_column(field, column)
    pq.write_table(table.select([*names, *new.schema.names]), target)


def by_pyarrow(path):
    table = pq.ParquetFile(path).read()
    return table.schema.remove_metadata(), repr(table.to_pylist())


def by_polars(path):
    frame = pl.read_parquet(path, hive_partitioning=False)
    return frame.schema, repr(frame.to_dicts())


def by_duckdb(path):
    with duckdb.connect() as connection:
        rows = connection.execute("select * from read_parquet(?)", [str(path)])
        return [column[:2] for column in rows.description], repr(rows.fetchall())


UNREADABLE = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # what an older polars makes of a newer type
    duckdb.Error,
    NotImplementedError,
)
READERS = [by_pyarrow, by_polars, by_duckdb]


def readable(read, path):
    """Return whether a reader can read a file: not every reader supports every type."""
    try:
        read(path)
    except UNREADABLE:
        return False
    return True


def extents(path: Path):
    """Yield path, begin and end of the column chunks of a file, by pyarrow's footer."""
    metadata = pq.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(metadata.num_columns)):
            pages = [chunk.data_page_offset]
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                pages.append(chunk.dictionary_page_offset)
            begin = min(at for at in pages if at or len(pages) == 1)
            yield chunk.path_in_schema, begin, begin + chunk.total_compressed_size


def chunk_bytes(path: Path):
    """Return column path -> bytes of its chunks, one a row group."""
    data, chunks = path.read_bytes(), {}
    for name, begin, end in extents(path):
        chunks.setdefault(name, []).append(data[begin:end])
    return chunks


def unused_bytes(path: Path) -> int:
    """Return how many bytes lie between a file's chunks, or before or behind them."""
    data = path.read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    return len(data) - 4 - footer - sum(end - begin for _, begin, end in extents(path))


def check_splice(source, folder, **options):
    """Splice and rewrite a file; check that kept chunks are unchanged and all readers agree."""
    spliced, rewritten = folder / "spliced.parquet", folder / "rewritten.parquet"
    enrich(source, spliced, **options)
    rewrite(source, rewritten, options.get("keep"), options.get("drop", ()))
    before, after = chunk_bytes(source), chunk_bytes(spliced)
    for path, chunks in before.items():
        if path in after and path.split(".")[0] not in FIELDS.names:
            assert after[path] == chunks
    for read in READERS:
        if readable(read, source):
            assert read(spliced) == read(rewritten), read.__name__
    metadata = pq.read_metadata(spliced)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    assert len(groups) == pq.read_metadata(source).num_row_groups
    for group in groups:
        columns = [group.column(place) for place in range(group.num_columns)]
        assert not any(chunk.has_offset_index or chunk.has_column_index for chunk in columns)
        assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in columns)
    assert metadata.created_by == pq.read_metadata(source).created_by
    return spliced
