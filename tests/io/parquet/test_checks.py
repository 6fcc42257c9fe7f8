"""Footers and texts that pyarrow would not check: they are rejected, with the file's name."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save
from splicing import edited, first_meta

from rlpost.io.parquet.checks import MAX_NESTING
from rlpost.io.parquet.footer import (
    FOOTER,
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    decode,
    encode,
)

ROOT = Path(__file__).parents[3]


def levels(footer):
    sizes = Struct().put_parts(3, Wire.I64, [b"\2"] * 4)
    first_meta(footer).put(16, Wire.STRUCT, sizes)


def no_metadata(footer):
    del footer.structs(FileMeta.ROW_GROUPS)[0].structs(RowGroup.COLUMNS)[0][ColumnChunk.META]


def nested(footer):
    depth = 50_000
    group = (
        Struct()
        .put(SchemaElement.REPETITION, Wire.I32, 1)
        .put(SchemaElement.NAME, Wire.BINARY, b"g")
    )
    footer.structs(FileMeta.SCHEMA)[1:1] = [
        Struct(group).put(SchemaElement.CHILDREN, Wire.I32, 1) for _ in range(depth)
    ]


FATAL = {
    "levels": (levels, "a histogram of 4 levels, not 2"),
    "no metadata": (no_metadata, "missing or has another type"),
    "codec": (lambda f: first_meta(f).put(ColumnMeta.CODEC, Wire.I32, 255), "on codec 255"),
    "type": (
        lambda f: first_meta(f).put(ColumnMeta.TYPE, Wire.I32, 1),
        "different types",
    ),
    "name": (
        lambda f: first_meta(f).put_parts(ColumnMeta.PATH, Wire.BINARY, [b"\1a"]),
        "different names",
    ),
    "no name": (
        lambda f: first_meta(f).put_parts(ColumnMeta.PATH, Wire.BINARY, [b"\1\xff"]),
        "codec can't decode",
    ),
    "column type": (
        lambda f: f.structs(FileMeta.SCHEMA)[1].put(SchemaElement.TYPE, Wire.I32, 77),
        "unknown type",
    ),
    "more chunks": (
        lambda f: f.structs(FileMeta.ROW_GROUPS)[0].structs(RowGroup.COLUMNS).pop(),
        "4 columns, the schema has 5",
    ),
    "depth": (nested, f"more than {MAX_NESTING} levels deep"),
    "children": (
        lambda f: f.structs(FileMeta.SCHEMA)[0].put(SchemaElement.CHILDREN, Wire.I32, 2**31 - 1),
        "not enough elements",
    ),
    "too few children": (
        lambda f: f.structs(FileMeta.SCHEMA)[0].put(SchemaElement.CHILDREN, Wire.I32, 1),
        "too many elements",
    ),
    "repetition": (
        lambda f: f.structs(FileMeta.SCHEMA)[1].put(SchemaElement.REPETITION, Wire.I32, 7),
        "unknown repetition type",
    ),
    "writer": (
        lambda f: f.put(FileMeta.CREATED_BY, Wire.BINARY, b"a version " * 9999), "too long"
    ),
    "rows": (lambda f: f.put(FileMeta.ROWS, Wire.I64, 13), "12 rows in total, its footer has 13"),
    "fewer rows": (
        lambda f: f.structs(FileMeta.ROW_GROUPS)[0].put(RowGroup.ROWS, Wire.I64, -4), "has -4 rows"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "case"),
    [*(("advantages", case) for case in FATAL), ("inspect", "levels"), ("loss", "levels")],
)
def test_a_footer_that_contradicts_itself_is_refused(tmp_path, command, case):
    change, text = FATAL[case]
    path = edited(save(rollout(), tmp_path / "in.parquet"), change)
    ran = run(command, path, *([tmp_path / "out.parquet"] if command != "inspect" else []))
    assert (ran.code, ran.out) == (3, "")
    assert "damaged" in ran.err
    assert text in ran.err
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]


def test_columns_may_be_nested(tmp_path):
    kind = pa.list_(pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.list_(pa.int8())))])))
    table = rollout().append_column("deep", pa.array([None, [[{"a": [("k", [1])]}], []]] * 6, kind))
    path = save(table, tmp_path / "in.parquet")
    assert run("advantages", path, tmp_path / "out.parquet", "-q").code == 0
    assert pq.read_table(tmp_path / "out.parquet")["deep"].equals(pq.read_table(path)["deep"])


@pytest.mark.parametrize("rows", [2, 6])
def test_pages_with_other_rows_than_the_footer_says_are_refused(tmp_path, rows):
    def other(footer):
        footer.structs(FileMeta.ROW_GROUPS)[1].put(RowGroup.ROWS, Wire.I64, rows)
        footer.put(FileMeta.ROWS, Wire.I64, 8 + rows)

    path = edited(save(rollout(), tmp_path / "in.parquet"), other)
    target = tmp_path / "out.parquet"
    ran = run("advantages", path, target)
    if rows > 4:  # of more rows than are said, readers take what is said
        assert ran.code == 3
        assert re.search("row group 1 has|damaged", ran.err)
        assert not target.exists()
    elif pa.__version__ < "26":
        pytest.skip(f"pyarrow {pa.__version__} takes more rows than the footer says")
    else:
        same = pq.read_table(target).select(rollout().column_names)
        assert same.equals(pq.read_table(path))


@pytest.mark.nightly
def test_a_page_that_claims_gigabytes_gets_none(tmp_path):
    path = save(rollout(), tmp_path / "in.parquet", rows=12)
    data = path.read_bytes()
    meta = first_meta(
        decode(data[len(data) - 8 - struct.unpack("<I", data[-8:-4])[0] : -8], FOOTER)[0]
    )
    at = meta.integer(ColumnMeta.DICTIONARY_PAGE)
    page, used = decode(data[at:])
    page.put(3, Wire.I32, 2**31 - 1)  # compressed size
    header = encode(page)
    longer = len(header) - used  # what follows is overwritten: it is never reached
    path.write_bytes(data[:at] + header + data[at + used + longer :])
    code = (
        "import sys; sys.path[:0] = ['tests/support', 'tests']\n"
        "from pathlib import Path; from runs import run\n"
        f"print(run('advantages', {str(path)!r}, {str(tmp_path / 'o.parquet')!r}).code)\n"
        # ru_maxrss would be that of the process which started this one, if that is larger
        "print(int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) >> 10)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    code, megabytes = map(int, ran.stdout.split())
    assert code == 3
    assert megabytes < 1200


def not_text(rows: int) -> pa.Array:
    """A string column of bytes that are no UTF-8, which pyarrow neither minds nor mends."""
    return pa.Array.from_buffers(pa.string(), rows, pa.array([b"a\xe8b"] * rows).buffers())


@pytest.mark.parametrize("column", ["prompt_id", "domain", "step", "response"])
def test_texts_that_are_no_utf8_are_refused_where_they_are_read(tmp_path, column):
    table = rollout().drop_columns([column]) if column == "prompt_id" else rollout()
    path = save(table.append_column(column, not_text(12)), tmp_path / "in.parquet")
    for words in (["inspect", path], ["inspect", path, "--row", "3"]):
        ran = run(*words)
        assert ran.code in {3, 4}
        assert "Invalid UTF8" in ran.err
    if column == "response":  # it is copied, and not read
        assert run("advantages", path, tmp_path / "out.parquet", "-q").code == 0
