"""Footers that are safe to hand to pyarrow: checked first, since nothing catches what C++ throws.

pyarrow's objects for row groups and column chunks are made outside of its error handling, and its
schema code recurses. A footer that contradicts itself there ends the whole process, or its stack
(seen with pyarrow 26: a histogram of levels of the wrong length, a chunk without metadata). So
the footer is read once, by the codec that bounds everything, checked, and given on from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnMeta,
    DamagedError,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    decode,
    encode,
    read_footer_bytes,
)
from rlpost.io.parquet.splice_plan import column_metas
from rlpost.io.ranges import close_file, open_file

if TYPE_CHECKING:
    from rlpost.io.paths import AnyPath


MAX_NESTING = 100  # groups within groups; Arrow itself reads few types beyond 60
MAX_CREATOR = 1024  # bytes of the writer's name, which a backtracking pattern goes over
_REPETITIONS = 3  # required, optional, repeated
_OPTIONAL, _REPEATED = 1, 2
_SIZES, _LEVELS = 16, (2, 3)  # SizeStatistics, and its histograms of repetition and definition
_PHYSICAL_TYPES = 8
_CODECS = 8


class _Leaf(NamedTuple):
    """A column of the file: where it is, its type, and how many levels its values can have."""

    path: tuple[bytes, ...]
    type: int
    repetition: int
    definition: int


def read_metadata(place: AnyPath, groups: tuple[int, int] | None = None) -> pq.FileMetaData:
    """A Parquet file's footer as pyarrow has it.

    Args:
        place: the file.
        groups: the first row group that the footer shall have, and the one behind the last; None
            for all.

    Raises:
        pyarrow.ArrowException: it is damaged, encrypted, or of no Parquet file.
        OSError: a local file can't be read.
        ReadWriteError: a remote one can't.
    """
    file, size = open_file(place)
    try:
        data, _ = read_footer_bytes(file, size)
        footer, _ = decode(data)
        _check(footer)
        data = data if groups is None else _cut(footer, *groups)
    except FooterError as error:
        raise pa.ArrowInvalid(str(error)) from None
    finally:
        close_file(file)
    whole = MAGIC + data + len(data).to_bytes(4, "little") + MAGIC
    return pq.read_metadata(pa.BufferReader(whole))


def _cut(footer: Struct, first: int, stop: int) -> bytes:
    """A footer with some of its row groups only."""
    kept = footer.structs(FileMeta.ROW_GROUPS)[first:stop]
    footer.put_list(FileMeta.ROW_GROUPS, Wire.STRUCT, kept)
    footer.put(FileMeta.ROWS, Wire.I64, sum(group.integer(RowGroup.ROWS) for group in kept))
    return encode(footer)


def check_utf8(table: pa.RecordBatch) -> None:
    """Refuse texts that are not UTF-8: pyarrow reads them, and what takes them from it may not.

    Raises:
        pyarrow.ArrowInvalid: a column has such a text.
    """
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if "string" in str(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r}: {error}") from None


def _check(footer: Struct) -> None:
    """Refuse what pyarrow's objects could not be made of."""
    leaves = _leaves(footer.structs(FileMeta.SCHEMA))
    writer = footer.binary(FileMeta.CREATED_BY, b"")
    if len(writer) > MAX_CREATOR or not _is_text(writer):
        raise DamagedError("the name of its writer is too long, or no text")
    rows = 0
    for number, group in enumerate(footer.structs(FileMeta.ROW_GROUPS)):
        metas = column_metas(group)
        if len(metas) != len(leaves):
            raise DamagedError(
                f"row group {number} has {len(metas)} columns, the schema {len(leaves)}"
            )
        if group.integer(RowGroup.ROWS) < 0:
            raise DamagedError(f"row group {number} has {group.integer(RowGroup.ROWS)} rows")
        rows += group.integer(RowGroup.ROWS)
        for place, (meta, leaf) in enumerate(zip(metas, leaves, strict=True)):
            _check_chunk(meta, leaf, f"column {place} of row group {number}")
    if rows != footer.integer(FileMeta.ROWS):
        raise DamagedError(f"its row groups have {rows} rows, its footer says otherwise")


def _check_chunk(meta: Struct, leaf: _Leaf, where: str) -> None:
    if meta.integer(ColumnMeta.TYPE) != leaf.type:
        raise DamagedError(f"{where} has another type than the schema says")
    if tuple(meta.values_of(ColumnMeta.PATH, Wire.BINARY)) != leaf.path:
        raise DamagedError(f"{where} has another name than the schema says")
    if not 0 <= meta.integer(ColumnMeta.CODEC) < _CODECS:
        raise DamagedError(
            f"{where} is compressed in the unknown way {meta.integer(ColumnMeta.CODEC)}"
        )
    if meta.integer(ColumnMeta.VALUES) < 0 or meta.integer(ColumnMeta.COMPRESSED) < 0:
        raise DamagedError(f"{where} has fewer than no values or bytes")
    if _SIZES in meta:
        sizes = meta.struct(_SIZES)
        for field, most in zip(_LEVELS, (leaf.repetition, leaf.definition), strict=True):
            found = len(sizes.values_of(field, Wire.I64))
            if found not in (0, most + 1):
                raise DamagedError(f"{where} counts {found} levels where there are {most + 1}")


class _Open(NamedTuple):
    """A group of the schema whose children are still to come."""

    left: int
    path: tuple[bytes, ...]
    repetition: int
    definition: int


def _leaves(elements: list[Struct]) -> list[_Leaf]:
    """The columns of a schema, which is a tree in depth-first order."""
    if not elements:
        raise DamagedError("it has no schema")
    found: list[_Leaf] = []
    pending = [_Open(elements[0].integer(SchemaElement.CHILDREN, 0), (), 0, 0)]
    for element in elements[1:]:
        while pending and not pending[-1].left:
            pending.pop()
        if not pending:
            raise DamagedError("its schema goes on behind its end")
        above = pending.pop()
        pending.append(above._replace(left=above.left - 1))
        below = _below(above, element)
        if SchemaElement.TYPE in element:
            found.append(_Leaf(below.path, _physical(element), below.repetition, below.definition))
        elif below.left < 0 or len(pending) > MAX_NESTING:
            raise DamagedError(f"its columns are nested more than {MAX_NESTING} deep, or wrongly")
        else:
            pending.append(below)
    if any(one.left for one in pending):
        raise DamagedError("its schema ends too early")
    return found


def _below(above: _Open, element: Struct) -> _Open:
    """An element of the schema, by the group that it is in."""
    kind = element.integer(SchemaElement.REPETITION, 0)
    if not 0 <= kind < _REPETITIONS:
        raise DamagedError(f"a column repeats in the unknown way {kind}")
    name = element.binary(SchemaElement.NAME)
    if not _is_text(name):
        raise DamagedError(f"the column name {name!r} is not UTF-8")
    return _Open(
        element.integer(SchemaElement.CHILDREN, 0),
        (*above.path, name),
        above.repetition + (kind == _REPEATED),
        above.definition + (kind in (_OPTIONAL, _REPEATED)),
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _physical(element: Struct) -> int:
    kind = element.integer(SchemaElement.TYPE)
    if not 0 <= kind < _PHYSICAL_TYPES or element.integer(SchemaElement.CHILDREN, 0):
        raise DamagedError(f"a column has the unknown type {kind}, or columns below it")
    return kind
