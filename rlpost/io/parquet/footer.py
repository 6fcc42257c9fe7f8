"""Parquet footers: a lossless walker over Thrift's compact protocol, and the end of a file.

A struct is a mapping of field id to (wire type, value). Structs that are read or changed are
decoded; all other values keep their bytes, and so do unknown fields. Input is untrusted: depth,
counts and integers are bounded, and every violation raises `FooterError`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from rlpost.io.ranges import read_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.ranges import OpenFile


MAGIC = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
TAIL = 8  # bytes of the footer's length and the magic
MAX_DEPTH = 32  # usual footers are 8 levels deep
MAX_STRUCTS = 4_000_000  # decoded, some 3 GB; 200 columns in 1,000 row groups are 400,000
_LOW = 127  # the payload bits of a varint's byte
_LONG = 15  # in a list header: a count follows; also the largest delta of a short field header
_BITS = 64


class FooterError(ValueError):
    """A footer cannot be used; the message has the reason, the caller adds the file."""


class EncryptedError(FooterError):
    """A footer or a column is encrypted."""


class Wire(IntEnum):
    """Types of the compact protocol; the type of a boolean field is its value."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    STRUCT = 12


# Field ids of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData: 1, 2, ...
FileMeta = IntEnum(
    "FileMeta", "VERSION SCHEMA ROWS ROW_GROUPS KEY_VALUES CREATED_BY COLUMN_ORDERS ENCRYPTION"
)
SchemaElement = IntEnum(
    "SchemaElement", "TYPE LENGTH REPETITION NAME CHILDREN CONVERTED SCALE PRECISION FIELD_ID"
)
RowGroup = IntEnum("RowGroup", "COLUMNS BYTES ROWS SORTING OFFSET COMPRESSED")
ColumnChunk = IntEnum(
    "ColumnChunk",
    "FILE_PATH OFFSET META OFFSET_INDEX OFFSET_LENGTH COLUMN_INDEX COLUMN_LENGTH CRYPTO",
)
ColumnMeta = IntEnum(
    "ColumnMeta",
    "TYPE ENCODINGS PATH CODEC VALUES UNCOMPRESSED COMPRESSED KEY_VALUES DATA_PAGE INDEX_PAGE "
    "DICTIONARY_PAGE STATISTICS ENCODING_STATS BLOOM BLOOM_LENGTH",
)

Spine = dict[int, "Spine"]
"""The fields of a struct whose structs are decoded with it, and those of each of them."""
FOOTER: Spine = {
    FileMeta.ROW_GROUPS: {RowGroup.COLUMNS: {ColumnChunk.META: {}}},
    FileMeta.KEY_VALUES: {},
}
"""That of FileMetaData; the schema stays encoded, since it is the same in many files."""
_VARINTS = (Wire.I64, Wire.I32, Wire.I16)
_BINARY = int(Wire.BINARY)
_INTEGERS = frozenset((int(Wire.I32), int(Wire.I64)))
_SIZES: dict[int, int] = {Wire.TRUE: 0, Wire.FALSE: 0, Wire.BYTE: 1, Wire.DOUBLE: 8}


class Struct(dict[int, tuple[int, Any]]):
    """A Thrift struct: field id -> (wire type, value).

    A value is a Struct, a list of them, or else its encoded bytes. A method raises FooterError if a
    field has another type, or is missing and has no default.
    """

    __slots__ = ()

    def integer(self, field: int, default: int | None = None) -> int:
        """Return an integer field."""
        if field not in self and default is not None:
            return default
        value = self._typed(field, _VARINTS, None)
        number = value[0] if len(value) == 1 else _varint(value, 0)[0]
        return int((number >> 1) ^ -(number & 1))

    def binary(self, field: int, default: bytes | None = None) -> bytes:
        """Return a string or binary field."""
        if (value := self._typed(field, (Wire.BINARY,), default)) is default:
            return cast("bytes", default)
        return cast("bytes", value[_varint(value, 0)[1] :])

    def struct(self, field: int) -> Struct:
        """Return a struct field."""
        value = self._typed(field, (Wire.STRUCT,), None)
        return value if isinstance(value, Struct) else decode(value)[0]

    def structs(self, field: int) -> list[Struct]:
        """Return a list of structs; a missing one is empty."""
        value = self._typed(field, (Wire.LIST,), [])
        return cast("list[Struct]", value) if isinstance(value, list) else decoded_structs(value)

    def encoded(self, field: int) -> bytes:
        """Return an encoded list; a missing one is empty."""
        value = self._typed(field, (Wire.LIST,), b"\0")
        return value if isinstance(value, bytes) else encoded_structs(value)

    def parts(self, field: int, kind: Wire) -> list[bytes]:
        """Return the encoded values of a list; a missing one is empty."""
        data = self._typed(field, (Wire.LIST,), b"\0")
        if isinstance(data, list):
            return [encode(item) for item in data]
        count, inner, at = _list_header(data, 0)
        if count and inner != kind:
            raise FooterError(f"field {field} is not a list of {kind.name}")
        items = []
        for _ in range(count):
            begin, at = at, _skip(data, at, kind, 0)
            items.append(data[begin:at])
        return items

    def count(self, field: int) -> int:
        """Return the number of values of a list; a missing one is empty."""
        data = self._typed(field, (Wire.LIST,), b"\0")
        return len(data) if isinstance(data, list) else _list_header(data, 0)[0]

    def put(self, field: int, kind: Wire, value: int | bytes | Struct) -> Self:
        """Set a field, except lists; a boolean has no value."""
        self[field] = (kind, value if isinstance(value, Struct) else encoded(kind, value))
        return self

    def put_structs(self, field: int, values: list[Struct]) -> Self:
        """Set a list of structs."""
        self[field] = (Wire.LIST, values)
        return self

    def put_parts(self, field: int, kind: Wire, values: Sequence[bytes]) -> Self:
        """Set a list of encoded values."""
        self[field] = (Wire.LIST, _list_start(kind, len(values)) + b"".join(values))
        return self

    def without(self, *fields: int) -> Struct:
        """Return a shallow copy without some fields."""
        return Struct({field: value for field, value in self.items() if field not in fields})

    def _typed(self, field: int, kinds: tuple[Wire, ...], default: Any) -> Any:
        kind, value = self.get(field, (kinds[0], default))
        if kind not in kinds or value is None:
            raise FooterError(f"field {field} is missing or has another type")
        return value


def decode(data: bytes, spine: Spine | None = None, last: int | None = None) -> tuple[Struct, int]:
    """Decode a struct at the beginning of some bytes; return it and its size, or FooterError.

    Args:
        data: the bytes.
        spine: the fields whose structs are decoded, too.
        last: a field after which decoding ends.
    """
    try:
        return _struct(data, 0, spine or {}, [MAX_STRUCTS], last)
    except IndexError:
        raise FooterError("it ends in the middle of a value") from None


def decoded_structs(data: bytes) -> list[Struct]:
    """Decode a list of structs; raises as `decode`."""
    try:
        return _structs(data, 0, {}, [MAX_STRUCTS])[0]
    except IndexError:
        raise FooterError("it ends in the middle of a value") from None


def _struct(
    data: bytes, at: int, spine: Spine, room: list[int], last: int | None = None
) -> tuple[Struct, int]:
    """Decode a struct up to a field; return it and its end. `room`: how many may be decoded."""
    fields, field = Struct(), 0
    value: Any
    while field != last and (header := data[at]):
        kind, at = header & 15, at + 1
        if header > _LONG:
            field += header >> 4
        else:
            number, at = _varint(data, at)
            field = (number >> 1) ^ -(number & 1)
        if field in fields:
            raise FooterError(f"field {field} occurs twice")
        begin = at
        if kind in _INTEGERS:  # most fields
            while data[at] > _LOW:
                at += 1
            at += 1
            value = data[begin:at]
        elif kind in _NESTED and field in spine:
            value, at = _NESTED[kind](data, at, spine[field], room)
        else:
            at = _skip(data, at, kind, 0)
            value = data[begin:at]
        fields[field] = (kind, value)
    return fields, at + 1


def _structs(data: bytes, at: int, spine: Spine, room: list[int]) -> tuple[list[Struct], int]:
    """Decode a list of structs; return it and its end."""
    count, kind, at = _list_header(data, at)
    if count and kind != Wire.STRUCT:
        raise FooterError("a list of structs has other values")
    room[0] -= count
    if room[0] < 0 or count > len(data) - at:
        raise FooterError(f"a list of {count} structs does not fit")
    values = []
    for _ in range(count):
        value, at = _struct(data, at, spine, room)
        values.append(value)
    return values, at


_NESTED: dict[int, Any] = {Wire.STRUCT: _struct, Wire.LIST: _structs}


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return the end of a value."""
    if kind == _BINARY:
        size, at = _varint(data, at)
        return at + size
    if kind in _VARINTS:
        while data[at] > _LOW:
            at += 1
        return at + 1
    if depth >= MAX_DEPTH:
        raise FooterError(f"structs are nested more than {MAX_DEPTH} levels deep")
    if kind == Wire.STRUCT:
        return _skip_struct(data, at, depth)
    if kind == Wire.LIST:
        return _skip_list(data, at, depth)
    if kind not in _SIZES:
        raise FooterError(f"type {kind} is unknown")
    return at + _SIZES[kind]


def _skip_struct(data: bytes, at: int, depth: int) -> int:
    """Return the end of a struct."""
    while header := data[at]:
        at += 1
        if header <= _LONG:
            at = _varint(data, at)[1]
        kind = header & 15
        if kind in _INTEGERS:  # most fields
            while data[at] > _LOW:
                at += 1
            at += 1
        else:
            at = _skip(data, at, kind, depth + 1)
    return at + 1


def _skip_list(data: bytes, at: int, depth: int) -> int:
    """Return the end of a list, in which a boolean is a byte."""
    count, kind, at = _list_header(data, at)
    if count > len(data) - at:
        raise FooterError(f"a list of {count} values does not fit")
    if kind in _INTEGERS:  # most lists
        for _ in range(count):
            while data[at] > _LOW:
                at += 1
            at += 1
        return at
    kind = Wire.BYTE if kind in (Wire.TRUE, Wire.FALSE) else kind
    for _ in range(count):
        at = _skip(data, at, kind, depth + 1)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return it and its end."""
    result = shift = 0
    while (byte := data[at]) > _LOW:
        result |= (byte & _LOW) << shift
        at += 1
        shift += 7
        if shift > _BITS:
            raise FooterError("an integer has more than 64 bits")
    return (result | byte << shift) & ((1 << _BITS) - 1), at + 1


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Decode the header of a list; return count, wire type and end."""
    count, kind = data[at] >> 4, data[at] & 15
    if count < _LONG:
        return count, kind, at + 1
    count, at = _varint(data, at + 1)
    return count, kind, at


def encode(fields: Struct) -> bytes:
    """Encode a struct, with its fields in the order of their ids; the inverse of `decode`."""
    out, last = bytearray(), 0
    for field in sorted(fields):
        kind, value = fields[field]
        if 0 < field - last <= _LONG:
            out.append(field - last << 4 | kind)
        else:
            out.append(kind)
            out += encoded(Wire.I16, field)
        last = field
        if isinstance(value, bytes):
            out += value
        else:
            out += encode(value) if isinstance(value, Struct) else encoded_structs(value)
    out.append(0)
    return bytes(out)


def encoded_structs(values: Sequence[Struct]) -> bytes:
    """Encode a list of structs; the inverse of `decoded_structs`."""
    return _list_start(Wire.STRUCT, len(values)) + b"".join(map(encode, values))


def encoded(kind: Wire, value: int | bytes) -> bytes:
    """Encode an integer or a binary value; return the bytes of other types as they are."""
    if isinstance(value, int):
        return _as_varint(value << 1 if value >= 0 else (-value << 1) - 1)
    return _as_varint(len(value)) + value if kind == Wire.BINARY else value


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > _LOW:
        out.append(value & _LOW | _LOW + 1)
        value >>= 7
    out.append(value)
    return bytes(out)


def _list_start(kind: int, count: int) -> bytes:
    if count < _LONG:
        return bytes([count << 4 | kind])
    return bytes([_LONG << 4 | kind]) + _as_varint(count)


class TopLevelColumn(NamedTuple):
    """A top-level column of a schema."""

    name: str
    elements: list[Struct]
    leaves: range
    """The numbers of its leaf columns."""


def top_level(elements: list[Struct]) -> list[TopLevelColumn]:
    """Group a flattened schema by top-level column; FooterError if it is inconsistent."""
    columns: list[TopLevelColumn] = []
    at, leaf = 1, 0
    while at < len(elements):
        begin, first, pending = at, leaf, 1
        while pending > 0:
            if at == len(elements):
                raise FooterError("its schema ends too early")
            pending += max(elements[at].integer(SchemaElement.CHILDREN, 0), 0) - 1
            leaf += SchemaElement.TYPE in elements[at]
            at += 1
        name = elements[begin].binary(SchemaElement.NAME)
        try:
            columns.append(TopLevelColumn(name.decode(), elements[begin:at], range(first, leaf)))
        except UnicodeDecodeError:
            raise FooterError(f"the column name {name!r} is not UTF-8") from None
    if not elements or elements[0].integer(SchemaElement.CHILDREN, 0) != len(columns):
        raise FooterError(
            f"its schema has {len(columns)} columns, which is not their stated number"
        )
    return columns


def column_metas(group: Struct) -> list[Struct]:
    """Return the metadata of a row group's column chunks."""
    return [chunk.struct(ColumnChunk.META) for chunk in group.structs(RowGroup.COLUMNS)]


_OFFSETS = (ColumnMeta.DATA_PAGE, ColumnMeta.INDEX_PAGE, ColumnMeta.DICTIONARY_PAGE)


def chunk_extent(meta: Struct) -> tuple[int, int]:
    """Return begin and end of a column chunk, from its metadata.

    Raises:
        FooterError: they are impossible.
    """
    offsets = [meta.integer(field, 0) for field in _OFFSETS]
    begin, end = extent_of(offsets, meta.integer(ColumnMeta.COMPRESSED))
    if end != begin and not len(MAGIC) <= begin <= max(offsets) < end:
        raise FooterError(f"a column chunk at bytes {begin} to {end} is not in its data")
    return begin, end


def extent_of(offsets: Sequence[int], size: int) -> tuple[int, int]:
    """Return begin and end of a column chunk, from the offsets of its first pages; 0 is none."""
    begin = min((at for at in offsets if at > 0), default=0)
    return begin, begin + size


def shift_chunk(meta: Struct, delta: int) -> None:
    """Shift a column chunk's offsets."""
    for offset in _OFFSETS:
        if meta.integer(offset, 0) > 0:
            meta.put(offset, Wire.I64, meta.integer(offset) + delta)


class DecodedFooter(NamedTuple):
    """A decoded footer, and the bytes that it was."""

    encoded: bytes
    fields: Struct


def read_footer(
    file: OpenFile, size: int, decoded: DecodedFooter | None = None
) -> tuple[Struct, int]:
    """Decode a file's footer; return it and its offset.

    Args:
        file: the open file.
        size: its bytes.
        decoded: not decoded again if the file's footer still has these bytes.

    Raises:
        EncryptedError, FooterError: as `read_footer_bytes`.
    """
    data, start = read_footer_bytes(file, size)
    if decoded is not None and decoded.encoded == data:
        footer = decoded.fields
    else:
        footer = decode(data, FOOTER)[0]
    if FileMeta.ENCRYPTION in footer:
        raise EncryptedError("some of its columns are encrypted")
    return footer, start


def read_schema_elements(file: OpenFile, size: int) -> list[Struct]:
    """Decode the flattened schema of a file; raises as `read_footer`."""
    data, _ = read_footer_bytes(file, size)
    return decode(data, last=FileMeta.SCHEMA)[0].structs(FileMeta.SCHEMA)


def read_footer_bytes(file: OpenFile, size: int) -> tuple[bytes, int]:
    """Read the encoded footer of an open file of `size` bytes; return it and its offset.

    Raises:
        EncryptedError: the footer is encrypted.
        FooterError: the file is truncated, or no Parquet file.
    """
    tail = read_at(file, min(TAIL, size), max(size - TAIL, 0))
    if tail.endswith(MAGIC_ENCRYPTED):
        raise EncryptedError("its footer is encrypted")
    if size < len(MAGIC) + TAIL or not tail.endswith(MAGIC):
        raise FooterError("it does not end with PAR1, as Parquet files do")
    length = int.from_bytes(tail[:4], "little")
    start = size - TAIL - length
    if start < len(MAGIC):
        raise FooterError(f"its footer of {length} bytes does not fit in {size} bytes")
    return read_at(file, length, start), start


def file_end(footer: Struct) -> bytes:
    """Return the end of a Parquet file: the encoded footer, its length and the magic."""
    data = encode(footer)
    return data + len(data).to_bytes(4, "little") + MAGIC
