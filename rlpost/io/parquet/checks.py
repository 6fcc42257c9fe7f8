"""Validation of Parquet footers before pyarrow reads them, and of UTF-8 in its columns.

pyarrow constructs the metadata of row groups and column chunks outside its error handling, and its
schema code recurses. An inconsistent footer makes it end the process or overflow the stack (seen
with pyarrow 26: a level histogram of the wrong length, a column chunk without metadata). So rlpost
reads the footer once, with its own bounded codec, validates it, and passes it on from memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.parquet.footer import (
    FOOTER,
    MAGIC,
    ColumnMeta,
    DecodedFooter,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    column_metas,
    decode,
    decoded_structs,
    file_end,
    read_footer_bytes,
)
from rlpost.io.ranges import opened

if TYPE_CHECKING:
    from rlpost.io.paths import AnyPath


MAX_NESTING = 100  # levels of nested groups; Arrow reads few types beyond 60
MAX_CREATOR = 1024  # bytes of the writer's name, which pyarrow matches with a backtracking regex
_REPETITIONS = 3  # required, optional, repeated
_SIZES, _LEVELS = 16, (2, 3)  # SizeStatistics, and its histograms of repetition and definition
_TYPES = (
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
)  # fmt: skip
_CODECS = 8


class _Leaf(NamedTuple):
    """A leaf column of the schema: its path, physical type and maximum levels."""

    path: str
    type: int
    repetition: int
    definition: int


def read_metadata(path: AnyPath) -> tuple[pq.FileMetaData, DecodedFooter]:
    """Read and validate a Parquet file's footer; return pyarrow's object for it, and it decoded.

    Raises:
        pyarrow.ArrowException: the footer is damaged or encrypted, or this is no Parquet file.
        OSError: a local file cannot be read.
        ReadWriteError: a remote file cannot be read.
    """
    try:
        with opened(path) as (file, size):
            data, _ = read_footer_bytes(file, size)
        footer, _ = decode(data, FOOTER)
        _check(footer)
    except (FooterError, UnicodeDecodeError) as error:
        raise pa.ArrowInvalid(str(error)) from None
    file_without_data = MAGIC + data + len(data).to_bytes(4, "little") + MAGIC
    metadata = pq.read_metadata(pa.BufferReader(file_without_data))
    return metadata, DecodedFooter(data, footer)


def check_utf8(table: pa.RecordBatch) -> None:
    """Raise an error if a string is not UTF-8: pyarrow reads such strings, other libraries fail.

    Raises:
        pyarrow.ArrowInvalid: a column has such a string.
    """
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if "string" in str(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r}: {error}") from None


def _check(footer: Struct) -> None:
    """Raise FooterError if pyarrow could not construct its objects from a footer."""
    leaves = _leaves(footer.encoded(FileMeta.SCHEMA))
    writer = footer.binary(FileMeta.CREATED_BY, b"")
    if len(writer) > MAX_CREATOR:
        raise FooterError("its writer's name is too long")
    writer.decode()
    rows = 0
    for number, group in enumerate(footer.structs(FileMeta.ROW_GROUPS)):
        metas = column_metas(group)
        if len(metas) != len(leaves):
            raise FooterError(
                f"row group {number} has {len(metas)} columns, the schema has {len(leaves)}"
            )
        if group.integer(RowGroup.ROWS) < 0:
            raise FooterError(f"row group {number} has {group.integer(RowGroup.ROWS)} rows")
        rows += group.integer(RowGroup.ROWS)
        for index, (meta, leaf) in enumerate(zip(metas, leaves, strict=True)):
            _check_chunk(meta, leaf, f"column {index} of row group {number}")
    total = footer.integer(FileMeta.ROWS)
    if rows != total:
        raise FooterError(f"its row groups have {rows} rows in total, its footer has {total}")


def _check_chunk(meta: Struct, leaf: _Leaf, column: str) -> None:
    if meta.integer(ColumnMeta.TYPE) != leaf.type:
        raise FooterError(f"{column} and the schema have different types")
    if _dotted(meta.encoded(ColumnMeta.PATH)) != leaf.path:
        raise FooterError(f"{column} and the schema have different names")
    if not 0 <= meta.integer(ColumnMeta.CODEC) < _CODECS:
        raise FooterError(
            f"{column} has the unknown compression codec {meta.integer(ColumnMeta.CODEC)}"
        )
    if meta.integer(ColumnMeta.VALUES) < 0 or meta.integer(ColumnMeta.COMPRESSED) < 0:
        raise FooterError(f"{column} has a negative number of values or bytes")
    if _SIZES in meta:
        sizes = meta.struct(_SIZES)
        for field, most in zip(_LEVELS, (leaf.repetition, leaf.definition), strict=True):
            count = sizes.count(field)
            if count not in (0, most + 1):
                raise FooterError(f"{column} has a histogram of {count} levels, not {most + 1}")


@lru_cache(4)
def _leaves(schema: bytes) -> list[_Leaf]:
    """Return the leaf columns of an encoded schema, as pyarrow reads it."""
    _check_nesting(decoded_structs(schema))
    footer = Struct().put(FileMeta.VERSION, Wire.I32, 2).put(FileMeta.ROWS, Wire.I64, 0)
    footer[FileMeta.SCHEMA] = (Wire.LIST, schema)
    end = file_end(footer.put_structs(FileMeta.ROW_GROUPS, []))
    columns = pq.read_metadata(pa.BufferReader(MAGIC + end)).schema
    return [
        _Leaf(x.path, _TYPES.index(x.physical_type), x.max_repetition_level, x.max_definition_level)
        for x in map(columns.column, range(len(columns)))
    ]


def _check_nesting(elements: list[Struct]) -> None:
    """Raise FooterError if groups of a flattened schema are nested too deep, or wrongly."""
    left: list[int] = []  # children of each open group that are not read yet
    for element in elements:
        while left and not left[-1]:
            left.pop()
        if left:
            left[-1] -= 1
        left.append(element.integer(SchemaElement.CHILDREN, 0))
        if not 0 <= element.integer(SchemaElement.REPETITION, 0) < _REPETITIONS:
            raise FooterError("a column has an unknown repetition type")
        if not 0 <= element.integer(SchemaElement.TYPE, 0) < len(_TYPES):
            raise FooterError("a column has an unknown type")
        if len(left) > MAX_NESTING:
            raise FooterError(f"its columns are nested more than {MAX_NESTING} levels deep")


@lru_cache(1024)
def _dotted(path: bytes) -> str:
    """Return the path of a column chunk, as pyarrow joins it."""
    parts = Struct({1: (Wire.LIST, path)}).parts(1, Wire.BINARY)
    return ".".join(Struct({1: (Wire.BINARY, part)}).binary(1).decode() for part in parts)
