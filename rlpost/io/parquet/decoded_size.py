"""The bytes that columns of a row group have once decoded, from its footer and its page headers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io.arrow import is_list
from rlpost.io.parquet.footer import DamagedError, FooterError, Struct, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow.parquet as pq

    ReadAt = Callable[[int, int], bytes]

_WIDTHS = {"BOOLEAN": 4, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value while it is decoded: pyarrow decodes int8 as int32."""
_TEXT = "BYTE_ARRAY"
_PLAIN_PAGES, _DICTIONARY_PAGE = {0: 5, 3: 8}, 2  # types of data pages, and their headers' fields
_HEADER = 256  # bytes to read of a page's header at first
_MOST_HEADER = 16 << 20  # bytes: statistics in it may be long


class DecodedSize(NamedTuple):
    """Bytes of columns of a row group once decoded.

    Args:
        numbers: values times width.
        texts: of texts as they are stored.
        repeated: most bytes of texts that a dictionary has, which values repeat.
        largest_page: of the decompressed pages.
        with_dictionary: paths of the columns that have such texts.
    """

    numbers: int = 0
    texts: int = 0
    repeated: int = 0
    largest_page: int = 0
    with_dictionary: tuple[str, ...] = ()


def decoded_size(
    group: pq.RowGroupMetaData, columns: Collection[str], read_at: ReadAt | None
) -> DecodedSize:
    """Return the size of top-level columns of a row group.

    Args:
        group: from the file's footer.
        columns: names.
        read_at: reads bytes of the file, as (size, offset); None counts on the footer, although
            pages may have more values.

    Raises:
        FooterError: a page's header is damaged.
    """
    names = {*columns}
    numbers = texts = repeated = largest = 0
    with_dictionary = []
    for index in range(group.num_columns):
        chunk = group.column(index)
        path = chunk.path_in_schema
        if path.partition(".")[0] not in names:
            continue
        pages = _Pages(chunk.num_values, chunk.total_uncompressed_size, 0, 0)
        if read_at is not None:
            pages = _pages(chunk, read_at)
        largest = max(largest, pages.largest)
        if chunk.physical_type != _TEXT:
            width = _WIDTHS.get(chunk.physical_type) or _fixed_width(chunk)
            numbers += max(pages.values, chunk.num_values) * width
            continue
        texts += pages.size + pages.dictionary
        if pages.dictionary or (read_at is None and chunk.has_dictionary_page):
            repeated += pages.values * (pages.dictionary or pages.size)
            with_dictionary.append(path)
    return DecodedSize(numbers, texts, repeated, largest, tuple(with_dictionary))


class _Pages(NamedTuple):
    values: int
    size: int
    """Decompressed bytes of the data pages."""
    dictionary: int
    """Decompressed bytes of the dictionary."""
    largest: int


def _pages(chunk: pq.ColumnChunkMetaData, read_at: ReadAt) -> _Pages:
    """Add up the headers of a column chunk's pages, as far as pyarrow reads them."""
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    end = begin + chunk.total_compressed_size
    values = size = dictionary = largest = 0
    while begin < end and values < chunk.num_values:
        header, length = _header(read_at, begin, end)
        kind, decompressed, compressed = (header.integer(field) for field in (1, 2, 3))
        if min(decompressed, compressed) < 0:
            raise DamagedError(f"a page of {chunk.path_in_schema} has a negative size")
        largest = max(largest, decompressed)
        if kind == _DICTIONARY_PAGE:
            dictionary += decompressed
        elif kind in _PLAIN_PAGES:
            size += decompressed
            values += header.struct(_PLAIN_PAGES[kind]).integer(1)
        begin += length + compressed
    return _Pages(values, size, dictionary, largest)


def _header(read_at: ReadAt, begin: int, end: int) -> tuple[Struct, int]:
    """Decode the page header at an offset; return it and its length."""
    length = _HEADER
    while True:
        data = read_at(min(length, end - begin), begin)
        try:
            return decode(data)
        except FooterError:
            if length >= min(end - begin, _MOST_HEADER):
                raise
            length *= 16


def _fixed_width(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the most bytes that a value of fixed length may have."""
    return max(16, int(chunk.total_uncompressed_size) // max(int(chunk.num_values), 1))


def dense_bytes(array: Any) -> int:
    """Return the bytes of an array with the texts of dictionaries in place of their indices."""
    kind = array.type
    if not _has_dictionary(kind):
        return int(array.nbytes)
    if not pa.types.is_dictionary(kind):
        parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
        return 8 * len(array) + sum(map(dense_bytes, parts))
    if not _is_text(kind.value_type):
        return int(array.nbytes)
    lengths = pc.binary_length(array.dictionary)
    return int(array.nbytes) + int(pc.sum(lengths.take(array.indices)).as_py() or 0)


@cache
def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether arrays of a type have dictionaries that `flatten` leads to."""
    if pa.types.is_struct(kind):
        return any(_has_dictionary(field.type) for field in kind)
    if is_list(kind):
        return _has_dictionary(kind.value_type)
    return bool(pa.types.is_dictionary(kind))


def _is_text(kind: pa.DataType) -> bool:
    text = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)
    return any(is_kind(kind) for is_kind in text)
