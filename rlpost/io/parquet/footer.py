"""Parquet footers: a lossless codec of Thrift's compact protocol, and the end of a file.

The metadata of a column's chunks are encoded alike in all row groups. So after some of them, the
others are matched with a regular expression, ten times as fast as they are decoded byte by byte.

The codec needs no schema. A struct is a mapping of field id to (wire type, value), so unknown
fields survive a round trip. Input is untrusted: depth, counts and integers are bounded, and every
violation raises `FooterError`.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from rlpost.io.ranges import read_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlpost.io.ranges import OpenFile


MAGIC = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
TAIL = 8  # bytes of the footer's length and the magic
MAX_DEPTH = 32  # usual footers are 8 levels deep
MAX_VALUES = 20_000_000  # some 2 GB of objects; 200 columns in 1000 row groups are 6 million
_LOW = 127  # the payload bits of a varint's byte
_LONG = 15  # in a list header: a count follows; also the largest delta of a short field header
_WORD = (1 << 64) - 1
_ANY_FIELD = 1 << 64
_CHUNKS = 3  # the depth of the lists of column chunks
_BEFORE_SHAPE = 16  # structs that are decoded before a shape is made, which takes a millisecond
_MOST_SHAPES = 4  # of the column chunks of one column
_NULLS, _HIGHEST, _LOWEST = 3, 5, 6  # field ids of Statistics


class FooterError(ValueError):
    """A footer cannot be used; the message has the reason, the caller adds the file."""


class DamagedError(FooterError):
    """A footer is inconsistent with its file, so no reader can read it."""


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


class Struct(dict[int, tuple[int, Any]]):
    """A Thrift struct: field id -> (wire type, value); a list's value is (element type, list).

    A method raises FooterError if a field has another type, or is missing and has no default.
    """

    __slots__ = ()

    def integer(self, field: int, default: int | None = None) -> int:
        """Return an integer field."""
        return int(self._typed(field, _VARINTS, default))

    def binary(self, field: int, default: bytes | None = None) -> bytes:
        """Return a string or binary field."""
        return bytes(self._typed(field, (Wire.BINARY,), default))

    def struct(self, field: int) -> Struct:
        """Return a struct field."""
        return cast("Struct", self._typed(field, (Wire.STRUCT,), None))

    def values_of(self, field: int, kind: Wire) -> list[Any]:
        """Return a list field; a missing one is empty."""
        inner, values = self._typed(field, (Wire.LIST,), (kind, []))
        if values and inner != kind:
            raise FooterError(f"field {field} is not a list of {kind.name}")
        return cast("list[Any]", values)

    def structs(self, field: int) -> list[Struct]:
        """Return a list of structs; a missing one is empty."""
        return self.values_of(field, Wire.STRUCT)

    def put(self, field: int, kind: Wire, value: Any) -> Self:
        """Set a field, except lists."""
        self[field] = (kind, value)
        return self

    def put_list(self, field: int, kind: Wire, values: list[Any]) -> Self:
        """Set a list field."""
        self[field] = (Wire.LIST, (kind, values))
        return self

    def without(self, *fields: int) -> Struct:
        """Return a shallow copy without some fields."""
        return Struct({field: value for field, value in self.items() if field not in fields})

    def _typed(self, field: int, kinds: tuple[Wire, ...], default: Any) -> Any:
        kind, value = self.get(field, (kinds[0], default))
        if kind not in kinds or value is None:
            raise FooterError(f"field {field} is missing or has another type")
        return value


_VARINTS = (Wire.I64, Wire.I32, Wire.I16)
_SIZES: dict[int, int] = {Wire.BYTE: 1, Wire.DOUBLE: 8}
_BOOLEANS = (Wire.TRUE, Wire.FALSE)


class Shapes:
    """The shapes of column chunks, by column: those of one footer, or of files that are alike."""

    def __init__(self) -> None:
        self.of: defaultdict[int, list[_Shape]] = defaultdict(list)
        self.decoded: defaultdict[int, int] = defaultdict(int)
        """Structs that were decoded since the last shape."""


class _StructReader:
    """A cursor over the bytes of one struct."""

    def __init__(self, data: bytes, shapes: Shapes | None = None) -> None:
        self.data = data
        self.at = 0
        self.left = MAX_VALUES
        self.shapes = shapes or Shapes()

    def varint(self) -> int:
        result = shift = 0
        while (byte := self.data[self.at]) > _LOW:
            result |= (byte & _LOW) << shift
            self.at += 1
            shift += 7
            if shift > _WORD.bit_length():
                raise FooterError("an integer has more than 64 bits")
        self.at += 1
        return result | byte << shift

    def zigzag(self) -> int:
        value = self.varint() & _WORD
        return (value >> 1) ^ -(value & 1)

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FooterError(f"it ends {count - len(self.data) + self.at} bytes too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind: int, depth: int) -> Any:
        if kind in _VARINTS:
            return self.zigzag()
        if kind == Wire.BINARY:
            return self.take(self.varint())
        if kind == Wire.STRUCT:
            return self.struct(depth)
        if kind == Wire.LIST:
            return self.list(depth)
        if kind in _BOOLEANS:
            return None  # the type is the value
        if size := _SIZES.get(kind):
            return self.take(size)
        raise FooterError(f"type {kind} is unknown")

    def struct(self, depth: int, last: int = _ANY_FIELD) -> Struct:
        if depth >= MAX_DEPTH:
            raise FooterError(f"structs are nested more than {MAX_DEPTH} levels deep")
        fields = Struct()
        field = 0
        while header := self.data[self.at]:
            self.at += 1
            field = field + (header >> 4) if header >> 4 else self.zigzag()
            if field > last:
                break
            if field in fields:
                raise FooterError(f"field {field} occurs twice")
            kind = header & 15
            fields[field] = (kind, self.value(kind, depth + 1))
        self.at += 1
        self.count(len(fields))
        return fields

    def list(self, depth: int) -> tuple[int, list[Any]]:
        (header,) = self.take(1)
        count, kind = header >> 4, header & 15
        count = self.varint() if count == _LONG else count
        if count > len(self.data) - self.at or depth >= MAX_DEPTH:
            raise FooterError(f"a list of {count} values does not fit")
        self.count(count)
        element = Wire.BYTE if kind in _BOOLEANS else kind
        if element == Wire.STRUCT and depth == _CHUNKS:
            return kind, [self.chunk(number, depth + 1) for number in range(count)]
        return kind, [self.value(element, depth + 1) for _ in range(count)]

    def chunk(self, column: int, depth: int) -> Struct:
        """Read a struct that is like those at this place of other row groups, or of other files."""
        shapes, decoded = self.shapes.of[column], self.shapes.decoded
        for shape in shapes:
            if (found := shape.match(self.data, self.at)) is not None:
                fields, self.at = found
                self.count(shape.count)
                return fields
        left = self.left
        fields = self.struct(depth)
        decoded[column] += 1
        if decoded[column] > _BEFORE_SHAPE and len(shapes) < _MOST_SHAPES:
            shapes.append(_Shape(fields, left - self.left - 1))
            decoded[column] = 0
        return fields

    def count(self, values: int) -> None:
        self.left -= values + 1
        if self.left < 0:
            raise FooterError(f"it has more than {MAX_VALUES} values")


_VARINT = rb"([\x80-\xff]{0,8}[\x01-\x7f]|\x00)"  # of at most 63 bits, without needless bytes


class _Shape:
    """Decodes structs like one that was decoded.

    They have the same fields; equal are all values but 64-bit integers and binary fields. Equal
    parts are one object in all of them, and must not be changed.

    Args:
        example: the struct.
        count: the number of its values.
    """

    def __init__(self, example: Struct, count: int) -> None:
        self.count = count
        self._literal = bytearray()
        self._patterns = [b""]
        self._build = self._struct(example)
        self._end_of_literal()
        self._segments = [re.compile(pattern, re.DOTALL).match for pattern in self._patterns]

    def match(self, data: bytes, at: int) -> tuple[Struct, int] | None:
        """Decode a struct; return it and its end, None if it has another shape."""
        values: list[int | bytes] = []
        for number, segment in enumerate(self._segments):
            if number:  # a binary field is between two segments
                if not at < len(data) or data[at] > _LOW or at + 1 + data[at] > len(data):
                    return None
                values.append(data[at + 1 : at + 1 + data[at]])
                at += 1 + data[at]
            if (found := segment(data, at)) is None:
                return None
            values += map(_signed, found.groups())
            at = found.end()
        return self._build(iter(values)), at

    def _struct(self, fields: Struct) -> Callable[[Iterator[Any]], Struct]:
        """Add a struct to the patterns; return what makes one from the values that vary."""
        parts: list[tuple[int, int, Any]] = []
        template = Struct({field: fields[field] for field in sorted(fields)})
        last = 0
        for field, (kind, value) in template.items():
            _write_header(self._literal, field, last, kind)
            last = field
            build = self._value(kind, value)
            if build is not None:
                parts.append((field, kind, build))
        self._literal.append(0)

        def build_struct(values: Iterator[Any]) -> Struct:
            built = Struct(template)
            for field, kind, build in parts:
                built[field] = (kind, build(values))
            return built

        return build_struct

    def _value(self, kind: int, value: Any) -> Callable[[Iterator[Any]], Any] | None:
        """Add a value to the patterns; return what makes it, None if it is a constant."""
        if kind == Wire.I64:
            self._end_of_literal()
            self._patterns[-1] += _VARINT
            return next
        if kind == Wire.BINARY:
            self._end_of_literal()
            self._patterns.append(b"")
            return next
        if kind == Wire.STRUCT:
            return self._struct(value)
        if kind == Wire.LIST and value[0] == Wire.I64:
            inner, items = value
            _write_list_header(self._literal, inner, len(items))
            self._end_of_literal()
            self._patterns[-1] += _VARINT * len(items)
            return lambda values: (inner, [next(values) for _ in items])
        _write(self._literal, kind, value)
        return None

    def _end_of_literal(self) -> None:
        self._patterns[-1] += re.escape(bytes(self._literal))
        self._literal.clear()


def _signed(varint: bytes) -> int:
    """Return a zigzag integer."""
    value = 0
    for byte in reversed(varint):
        value = value << 7 | byte & _LOW
    return (value >> 1) ^ -(value & 1)


def decode(data: bytes, shapes: Shapes | None = None) -> tuple[Struct, int]:
    """Decode a struct at the beginning of some bytes; return it and its size, or FooterError.

    Args:
        data: the bytes.
        shapes: of footers that were decoded before.
    """
    reader = _StructReader(data, shapes)
    try:
        return reader.struct(0), reader.at
    except IndexError:
        raise FooterError("it ends in the middle of a value") from None


def encode(fields: Struct) -> bytes:
    """Encode a struct, with its fields in the order of their ids; the inverse of `decode`."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _varint(out: bytearray, value: int) -> None:
    while value > _LOW:
        out.append(value & _LOW | _LOW + 1)
        value >>= 7
    out.append(value)


def _zigzag(out: bytearray, value: int) -> None:
    _varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _VARINTS:
        _zigzag(out, value)
    elif kind == Wire.BINARY:
        _varint(out, len(value))
        out += value
    elif kind == Wire.STRUCT:
        _write_struct(out, value)
    elif kind == Wire.LIST:
        _write_list(out, *value)
    elif kind in _SIZES:
        out += value


def _write_list(out: bytearray, kind: int, values: list[Any]) -> None:
    _write_list_header(out, kind, len(values))
    for value in values:
        _write(out, Wire.BYTE if kind in _BOOLEANS else kind, value)


def _write_list_header(out: bytearray, kind: int, count: int) -> None:
    if count < _LONG:
        out.append(count << 4 | kind)
    else:
        out.append(_LONG << 4 | kind)
        _varint(out, count)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for field in sorted(fields):
        kind, value = fields[field]
        _write_header(out, field, last, kind)
        last = field
        _write(out, kind, value)
    out.append(0)


def _write_header(out: bytearray, field: int, last: int, kind: int) -> None:
    if 0 < field - last <= _LONG:
        out.append(field - last << 4 | kind)
    else:
        out.append(kind)
        _zigzag(out, field)


class DecodedFooter(NamedTuple):
    """A footer that was decoded from these bytes."""

    data: bytes
    fields: Struct


def read_footer(
    file: OpenFile, size: int, decoded: DecodedFooter | None = None
) -> tuple[Struct, int]:
    """Decode a file's footer; return it and its offset.

    Args:
        file: the open file.
        size: its bytes.
        decoded: the result, if the footer has these bytes: decoding takes 15 us a column chunk.

    Raises:
        EncryptedError, FooterError: as `read_footer_bytes`.
    """
    data, start = read_footer_bytes(file, size)
    footer = decoded.fields if decoded and decoded.data == data else decode(data)[0]
    if FileMeta.ENCRYPTION in footer:
        raise EncryptedError("some of its columns are encrypted")
    return footer, start


def read_schema_elements(file: OpenFile, size: int) -> list[Struct]:
    """Decode the flattened schema of a file and nothing behind it; raises as `read_footer`."""
    data, _ = read_footer_bytes(file, size)
    try:
        return _StructReader(data).struct(0, FileMeta.SCHEMA).structs(FileMeta.SCHEMA)
    except IndexError:
        raise FooterError("it ends in the middle of a value") from None


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
    length = struct.unpack("<I", tail[:4])[0]
    start = size - TAIL - length
    if start < len(MAGIC):
        raise FooterError(f"its footer of {length} bytes does not fit in {size} bytes")
    return read_at(file, length, start), start


def file_end(footer: Struct) -> bytes:
    """Return the end of a Parquet file: the encoded footer, its length and the magic."""
    data = encode(footer)
    return data + struct.pack("<I", len(data)) + MAGIC


def statistics(nulls: int, bounds: list[bytes]) -> Struct:
    """Return a chunk's Statistics: its null count and, unless `bounds` is empty, min and max."""
    fields = Struct().put(_NULLS, Wire.I64, nulls)
    if bounds:
        fields.put(_LOWEST, Wire.BINARY, bounds[0]).put(_HIGHEST, Wire.BINARY, bounds[1])
    return fields


def merge_statistics(parts: list[Struct], order: str | None) -> Struct:
    """Add up null counts, and merge min and max.

    Args:
        parts: Statistics.
        order: the `struct` format of the values; None omits min and max, for types whose bytes
            have another order.
    """
    merged = Struct().put(_NULLS, Wire.I64, sum(part.integer(_NULLS, 0) for part in parts))
    for bound, best in ((_HIGHEST, max), (_LOWEST, min)):
        values = [part.binary(bound) for part in parts if bound in part]
        if order and values:
            merged.put(bound, Wire.BINARY, best(values, key=struct.Struct(order).unpack))
    return merged
