"""Page indexes: kept with copied chunks, and written for new columns."""

from __future__ import annotations

import shutil

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from page_indexes import between_indexes, footer_of, indexes_of, unused
from splicing import (
    FIELDS,
    by_polars,
    by_pyarrow,
    check_splice,
    copy_by_duckdb,
    enrich,
    new_columns,
    readable,
    source_table,
    tokens,
)

from rlpost.io.parquet import encode as page_module
from rlpost.io.parquet import indexes
from rlpost.io.parquet.encode import EncodedWriter, Encoder, read_encoded
from rlpost.io.parquet.footer import (
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Struct,
    Wire,
    decode,
    encode,
    file_end,
)

SMALL = {"write_page_index": True, "data_page_size": 64, "write_batch_size": 8}
EVERY = ["advantages.list.element", "returns.list.element", "score", "kept"]


def check_indexes(source, folder, **options):
    """Splice and rewrite; check that columns keep their page indexes and new columns get them."""
    spliced = check_splice(source, folder, **options)
    rewritten = folder / "rewritten.parquet"
    before = indexes_of(source)
    for path in (spliced, rewritten):
        assert between_indexes(path) == 0
        for group, (old, new) in enumerate(zip(before, indexes_of(path), strict=True)):
            names = pq.read_metadata(path).row_group(group)
            names = [names.column(place).path_in_schema for place in range(names.num_columns)]
            kept = names[: len(names) - len(EVERY)]
            assert [*new] == ([*kept, *EVERY] if old else [])
            for name in kept if path == spliced and old else []:
                assert new[name].firsts == old[name].firsts
                assert new[name].bounded == old[name].bounded
            assert all(new[name].bounded for name in EVERY if old)
    if {"keep", "drop"} & {*options}:
        assert unused(spliced) == []
    assert unused(rewritten) == []
    return spliced


@pytest.mark.parametrize(
    "columns",
    [{}, {"drop": ["info", "prompt_id"]}, {"keep": ["step", "messages"]}, {"keep": []}],
    ids=str,
)
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_page_indexes_by_pyarrow_are_kept_and_new_columns_get_them(
    tmp_path, columns, pages, dictionary
):
    source = tmp_path / "source.parquet"
    options = {**SMALL, "data_page_version": pages, "use_dictionary": dictionary}
    pq.write_table(source_table(), source, row_group_size=25, **options)
    assert max(len(found.begins) for found in indexes_of(source)[0].values()) > 1
    found = indexes_of(check_indexes(source, tmp_path, **columns))
    assert all(len(found[0][name].begins) == 2 for name in EVERY)  # 25 rows are two batches


@pytest.mark.parametrize("columns", [{}, {"drop": ["log_probs"]}])
def test_row_groups_without_rows_have_no_page_index(tmp_path, columns):
    table, source = source_table(20), tmp_path / "source.parquet"
    with pq.ParquetWriter(source, table.schema, write_page_index=True) as writer:
        for part in (table[:0], table[:5], table[:0], table[5:], table[:0]):
            writer.write_table(part)
    found = indexes_of(check_indexes(source, tmp_path, **columns))
    assert [bool(group) for group in found] == [False, True, False, True, False]


@pytest.mark.parametrize("rows", [0, 1, 27])
@pytest.mark.parametrize("columns", [{}, {"drop": ["values"]}])
def test_page_indexes_by_polars_are_kept(tmp_path, rows, columns):
    frame = pl.DataFrame(
        {
            "id": (["a", None, "b"] * 9)[:rows],
            "values": ([[1.5, None], [], None] * 9)[:rows],
            "nested": ([[{"a": 1, "b": "t"}], [], None] * 9)[:rows],
            "x": [float(row) for row in range(rows)],
        },
        schema_overrides={"values": pl.List(pl.Float64), "id": pl.String},
    )
    source = tmp_path / "source.parquet"
    frame.write_parquet(source, row_group_size=10, data_page_size=32)
    check_indexes(source, tmp_path, **columns)


def test_files_without_page_indexes_get_none(tmp_path):
    source = tmp_path / "source.parquet"
    copy_by_duckdb("select i, 'p' || (i % 50) as id from range(500) t(i)", source)
    for columns in ({}, {"drop": ["i"]}):
        assert indexes_of(check_splice(source, tmp_path, **columns)) == [{}]
        assert indexes_of(tmp_path / "rewritten.parquet") == [{}]


def test_types_without_an_order_keep_only_an_offset_index(tmp_path):
    source = tmp_path / "source.parquet"
    table = pa.table({"nan": pa.array([np.nan, np.nan]), "i": [1, 2], "none": pa.nulls(2)})
    pq.write_table(table, source, write_page_index=True)
    for columns in ({}, {"drop": ["i"]}):
        (found,) = indexes_of(check_indexes(source, tmp_path, **columns))
        assert not found["nan"].bounded


def test_bloom_filters_and_page_indexes_move_together(tmp_path):
    source = tmp_path / "source.parquet"
    pq.write_table(
        source_table(),
        source,
        row_group_size=25,
        bloom_filter_options={"prompt_id": {"ndv": 100, "fpp": 0.01}},
        **SMALL,
    )
    check_indexes(source, tmp_path, drop=["messages", "log_probs"])


@pytest.mark.parametrize(("window", "gap"), [(30, 0), (10**6, 0), (200, 40), (1, 10**6)])
def test_indexes_that_are_far_apart_are_all_read(tmp_path, monkeypatch, window, gap):
    monkeypatch.setattr(indexes, "_WINDOW", window)
    monkeypatch.setattr(indexes, "_GAP", gap)
    source = tmp_path / "source.parquet"
    pq.write_table(source_table(), source, row_group_size=25, **SMALL)
    check_indexes(source, tmp_path, drop=["messages"])


def test_pages_of_lists_have_correct_bounds(tmp_path, monkeypatch):
    """Several pages of a batch; pages of empty lists; both zeros; infinities; and NaN."""
    monkeypatch.setattr(page_module, "PAGE_VALUES", 4)
    rows = [[1.0, 2.0, 3.0], [4.0, -5.0], [], [], [], [], [-0.0, 0.0], [0.0, np.inf, -np.inf], []]
    kind = pa.list_(pa.float32())
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    for values, bounded in ((rows, True), ([*rows, [np.nan, 1.0]], False)):
        new = pa.record_batch({"x": pa.array(values, kind)})
        table = pa.table({"row": range(len(values))})
        pq.write_table(table, source, write_page_index=True)
        assert enrich(source, target, sub_rows=99, new=new, fields=new.schema) is None
        (found,) = indexes_of(target)
        assert len(found["x.list.element"].begins) > 3
        assert found["x.list.element"].bounded == bounded
        assert found["row"].bounded


def test_pages_of_empty_lists_are_marked_empty(monkeypatch):
    monkeypatch.setattr(page_module, "PAGE_VALUES", 2)
    new = pa.record_batch({"x": pa.array([[], [], [0.0], [-0.0]], pa.list_(pa.float32()))})
    pieces = Encoder(new.schema, indexed=True).encode(new).columns
    (chunk,) = pieces
    assert [(page.rows, page.nulls, page.empty) for page in chunk.index] == [
        (2, 2, True),
        (2, 0, False),
    ]
    zeros = np.array([-0.0, 0.0], np.float32).tobytes()
    assert (chunk.index[1].low, chunk.index[1].high) == (zeros[:4], zeros[4:])
    assert (chunk.index[0].low, chunk.index[0].high) == (b"", b"")


def test_columns_that_pyarrow_encodes_have_indexes_too(tmp_path):
    rows = [[[1.0], None, []], [[2.0, None]], [[3.0]], [None], [[]]]
    kind = pa.list_(pa.float32())
    texts = pa.array([None, "b", "a", None, "", "z", "y"], pa.string())
    new = pa.record_batch({"x": pa.array([row for part in rows for row in part], kind), "t": texts})
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(pa.table({"row": range(7)}), source, write_page_index=True)
    enrich(source, target, sub_rows=2, new=new, fields=new.schema)
    (found,) = indexes_of(target)
    assert [len(found[name].begins) for name in ("row", "x.list.element", "t")] == [1, 4, 4]
    assert all(pages.bounded for pages in found.values())


def test_no_index_entries_are_computed_without_page_indexes():
    assert all(piece.index == [] for piece in Encoder(FIELDS).encode(new_columns(9)).columns)


def test_index_entries_survive_the_transfer_between_processes():
    encoded = Encoder(FIELDS, indexed=True).encode(new_columns(40))
    packer = EncodedWriter()
    packer.add(3, encoded)
    ((group, came),) = read_encoded(packer.finish())
    assert group == 3
    assert [piece.index for piece in came.columns] == [piece.index for piece in encoded.columns]
    assert all(piece.index for piece in came.columns)


def test_an_index_of_pages_with_another_size_is_an_error():
    pages = [indexes.PageStats(10, 1, 0, empty=False, low=b"", high=b"")]
    meta = Struct().put(ColumnMeta.COMPRESSED, Wire.I64, 11)
    with pytest.raises(ValueError, match="do not have the size of their column chunk"):
        indexes.new_indexes(Struct().put(ColumnChunk.META, Wire.STRUCT, meta), 4, pages)


# Files with indexes for some columns, and with invalid ones


def written(folder):
    path = folder / "source.parquet"
    pq.write_table(source_table(), path, row_group_size=25, **SMALL)
    return path


def chunks_of(footer):
    return [c for g in footer.structs(FileMeta.ROW_GROUPS) for c in g.structs(RowGroup.COLUMNS)]


def edited(path, change):
    """Change each chunk's entry in the footer of a file; `change` gets the data, too."""
    data, _, begin = footer_of(path)
    footer, body = decode(data[begin:-8])[0], bytearray(data[:begin])
    for place, chunk in enumerate(chunks_of(footer)):
        change(place, chunk, body)
    path.write_bytes(bytes(body) + file_end(footer))
    return path


@pytest.mark.parametrize("fields", [(4, 5, 6, 7), (6, 7)])
@pytest.mark.parametrize("columns", [{}, {"drop": ["messages"]}])
@pytest.mark.parametrize("odd", [0, 1])
def test_columns_with_and_without_an_index_may_be_mixed(tmp_path, fields, columns, odd):
    def some_less(place, chunk, _):
        if place % 2 == odd:
            for field in fields:
                chunk.pop(field)

    source = edited(written(tmp_path), some_less)
    spliced = check_splice(source, tmp_path, **columns)
    dropped = {"messages"} & {*columns.get("drop", ())}
    for old, new in zip(indexes_of(source), indexes_of(spliced), strict=True):
        kept = {name for name in old if name.split(".")[0] not in dropped}
        new_ones = set() if "prompt_id" not in old else {*EVERY}
        assert {*new} == kept | new_ones
        assert all(new[name].bounded == old[name].bounded for name in kept)


def far(chunk, _):
    chunk.put(ColumnChunk.OFFSET_INDEX, Wire.I64, 10**12)


def beyond(chunk, data):
    chunk.put(ColumnChunk.COLUMN_LENGTH, Wire.I32, len(data))


def before(chunk, _):
    chunk.put(ColumnChunk.COLUMN_INDEX, Wire.I64, -5)


def without_size(chunk, _):
    chunk.pop(ColumnChunk.OFFSET_LENGTH)


def of_no_bytes(chunk, _):
    chunk.put(ColumnChunk.OFFSET_LENGTH, Wire.I32, 0)


def of_another_type(chunk, _):
    chunk.put(ColumnChunk.OFFSET_INDEX, Wire.BINARY, b"x")


def in_a_chunk(chunk, _):
    chunk.put(
        ColumnChunk.OFFSET_INDEX,
        Wire.I64,
        chunk.struct(ColumnChunk.META).integer(ColumnMeta.DATA_PAGE),
    )


def all_the_same(chunk, data):
    chunk.put(ColumnChunk.OFFSET_INDEX, Wire.I64, len(data) - 30).put(
        ColumnChunk.OFFSET_LENGTH, Wire.I32, 30
    )


WRONG_POINTERS = [
    far, beyond, before, without_size, of_no_bytes, of_another_type, in_a_chunk, all_the_same,
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG_POINTERS)
@pytest.mark.parametrize(("place", "columns"), [(0, {}), (5, {"drop": ["messages"]}), (-1, {})])
def test_an_invalid_pointer_drops_all_indexes(tmp_path, columns, change, place):
    source = written(tmp_path)
    count = pq.read_metadata(source).num_columns * 3
    edited(source, lambda at, *rest: at in (place % count, 1) and change(*rest))
    target = tmp_path / "target.parquet"
    assert enrich(source, target, **columns) is None
    assert indexes_of(target) == [{}] * 3
    assert by_pyarrow(target)[1] == by_pyarrow(check_splice(source, tmp_path, **columns))[1]


def overwritten(make):
    """Return a change that replaces a chunk's OffsetIndex by other bytes of the same size."""

    def change(chunk, data):
        begin, size = (
            chunk.integer(ColumnChunk.OFFSET_INDEX),
            chunk.integer(ColumnChunk.OFFSET_LENGTH),
        )
        index, _ = decode(bytes(data[begin : begin + size]))
        new = make(index, size)
        new = new if isinstance(new, bytes) else encode(new)
        data[begin : begin + size] = new[:size].ljust(size, b"\1")
        chunk.put(ColumnChunk.OFFSET_LENGTH, Wire.I32, min(len(new), size))

    return change


def located(field, number):
    def make(index, _):
        index.structs(1)[-1].put(field, Wire.I64, number)
        return index

    return make


WRONG_CONTENT = {
    "zeros": lambda _, size: bytes(size),
    "no struct": lambda _, size: b"\xff" * size,
    "a huge list": lambda *_: b"\x19\xfc\xff\xff\xff\xff\x0f",
    "no list": lambda *_: Struct().put(7, Wire.I32, 1),
    "a list of numbers": lambda *_: Struct().put_list(1, Wire.I32, [1]),
    "empty places": lambda *_: Struct().put_list(1, Wire.STRUCT, [Struct()]),
    "something behind": lambda *_: encode(Struct().put_list(1, Wire.STRUCT, [])) + b"\0",
    "an offset of 1": located(1, 1),
    "no bytes": located(2, 0),
    "fewer": located(2, -1),
    "more rows": located(3, 26),
    "negative rows": located(3, -1),
}


@pytest.mark.parametrize("make", WRONG_CONTENT.values(), ids=WRONG_CONTENT)
@pytest.mark.parametrize("place", [0, 23])
def test_a_damaged_index_of_a_moved_chunk_drops_all_indexes(tmp_path, make, place):
    source = written(tmp_path)
    plain = tmp_path / "plain.parquet"
    shutil.copy(source, plain)
    edited(plain, lambda _, chunk, __: [chunk.pop(field) for field in indexes.POINTERS])
    edited(source, lambda at, *rest: at == place and overwritten(make)(*rest))
    target, twin = tmp_path / "target.parquet", tmp_path / "twin.parquet"
    assert enrich(source, target, drop=["messages"]) is None
    assert enrich(plain, twin, drop=["messages"]) is None
    assert target.read_bytes() == twin.read_bytes()


def test_a_huge_index_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(indexes, "MOST_BYTES", 20)
    source, target = written(tmp_path), tmp_path / "target.parquet"
    assert enrich(source, target, drop=["messages"]) is None
    assert indexes_of(target) == [{}] * 3
    assert unused(target) == []


# Readers that use page indexes


WRITE = """
frame = session.read.parquet(words[0])
frame.coalesce(1).write.option("parquet.page.row.count.limit", 100).parquet(words[1])
"""
QUERY = """
rows = session.read.parquet(words[0]).filter(words[1]).select("row", "score", "advantages")
answer = [[row[0], row[1], list(row[2])] for row in rows.collect()]
"""


def ordered(rows):
    """Return columns with different pages, so that a filter can skip pages."""
    table = pa.table({"row": range(rows), "low": [i % 7 for i in range(rows)]})
    table = table.append_column("text", pa.array([f"t{i}" for i in range(rows)]))
    new = pa.record_batch(
        [tokens(rows), tokens(rows), pa.array(np.arange(rows) / 3, pa.float32()), [True] * rows],
        schema=FIELDS,
    )
    return table, new


QUERIES = ["row < 130", "score >= 300 and score < 310", "row = 777 and low = 0", "score > 1e9"]


def chosen(path, where):
    """Return the rows of a query by pyarrow, which reads the whole file."""
    table = pq.read_table(path)
    row, low, score = (table[name] for name in ("row", "low", "score"))
    masks = {
        QUERIES[0]: pc.less(row, 130),
        QUERIES[1]: pc.and_(pc.greater_equal(score, 300), pc.less(score, 310)),
        QUERIES[2]: pc.and_(pc.equal(row, 777), pc.equal(low, 0)),
        QUERIES[3]: pc.greater(score, 1e9),
    }
    found = table.filter(masks[where]).select(["row", "score", "advantages"])
    return [list(one.values()) for one in found.to_pylist()]


def test_readers_with_filters_find_the_rows(spark, tmp_path):
    table, new = ordered(2000)
    source = tmp_path / "source.parquet"
    options = {"write_page_index": True, "data_page_size": 512, "write_batch_size": 64}
    pq.write_table(table, source, row_group_size=1500, use_dictionary=False, **options)
    queries = []
    for name, drop in (("whole", ()), ("cut", ["text"])):
        target = tmp_path / f"{name}.parquet"
        assert enrich(source, target, sub_rows=100, new=new, drop=drop) is None
        assert all(len(found["row"].begins) > 5 for found in indexes_of(target))
        assert all(len(found["score"].begins) >= 5 for found in indexes_of(target))
        queries += [(str(target), where) for where in QUERIES]
    wanted = [chosen(*query) for query in queries]
    assert [len(rows) for rows in wanted[:4]] == [130, 30, 1, 0]
    for (path, where), rows in zip(queries, wanted, strict=True):
        names = "row, score, advantages"
        with duckdb.connect() as connection:
            found = connection.execute(
                f"select {names} from read_parquet(?) where {where}",  # noqa: S608
                [path],
            ).fetchall()
        assert [list(row) for row in found] == rows
        lazy = pl.scan_parquet(path).filter(pl.sql_expr(where)).select(names.split(", "))
        assert [list(row) for row in lazy.collect().rows()] == rows
    assert [spark.run(QUERY, *query) for query in queries] == wanted


def test_page_indexes_by_spark_are_kept(spark, tmp_path):
    table, new = ordered(1000)
    plain, folder = tmp_path / "plain.parquet", tmp_path / "by_spark"
    pq.write_table(table, plain)
    spark.run(WRITE, plain, folder)
    (source,) = folder.glob("part-*.parquet")
    assert all(len(found.begins) == 10 for found in indexes_of(source)[0].values())
    target = tmp_path / "target.parquet"
    for columns in ({}, {"drop": ["low"]}):
        assert readable(by_polars, check_indexes(source, tmp_path, **columns))
        assert enrich(source, target, sub_rows=100, new=new, drop=columns.get("drop", ())) is None
    rows = spark.run(QUERY, target, "row = 77 or score > 330")
    assert [row[0] for row in rows] == [77, *range(991, 1000)]
