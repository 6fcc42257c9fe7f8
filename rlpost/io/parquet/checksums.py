"""Checksums of column chunks: computed while a file is written, stored in its footer.

The footer's key-value metadata have the CRC-32 of every column chunk, in the order of row groups
and columns, 4 bytes each, in base64; and a CRC-32 of the offsets and sizes of all chunks. A program
that writes the file again may copy the metadata, but its chunks have other offsets or sizes, so
that their checksums are not compared with those of the first file.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from rlpost.io.parquet.footer import ColumnMeta, FileMeta, FooterError, key_values, read_footer
from rlpost.io.parquet.splice_plan import chunk_extent, column_metas
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import READ_BYTES, file_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow.parquet as pq

    from rlpost.io.parquet.footer import Struct
    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile


CHECKSUMS_KEY = "rlpost.checksums"
Extent = tuple[int, int]
"""Begin and end of a column chunk."""


class ExtentChecksums:
    """CRC-32 of extents of a file, from blocks of the file.

    The blocks of an extent must arrive in order; blocks of different extents in any order.

    Args:
        extents: which do not overlap.
    """

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.extents = list(extents)
        self.values = [0] * len(self.extents)
        """The checksum of each extent."""
        self._order = sorted(range(len(self.extents)), key=lambda i: self.extents[i])
        self._begins = [self.extents[i][0] for i in self._order]

    def add(self, begin: int, block: bytes | memoryview) -> None:
        """Add a block of the file that begins at an offset."""
        stop = begin + len(block)
        at = max(bisect_right(self._begins, begin) - 1, 0)
        with memoryview(block) as view:
            while at < len(self._order) and self._begins[at] < stop:
                number = self._order[at]
                first, last = self.extents[number]
                part = view[max(first, begin) - begin : max(min(last, stop) - begin, 0)]
                self.values[number] = crc32(part, self.values[number])
                at += 1


def extents_of(groups: Iterable[Struct]) -> list[Extent]:
    """Return the extents of all column chunks of some row groups, in order."""
    return [chunk_extent(meta) for group in groups for meta in column_metas(group)]


def footer_extents(footer: pq.FileMetaData) -> list[Extent]:
    """Return the extents of all column chunks from pyarrow's footer.

    They are those of `extents_of`, unless a chunk has an index page, which no writer has.
    """
    extents = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            offsets = [chunk.data_page_offset]
            offsets += [chunk.dictionary_page_offset] if chunk.has_dictionary_page else []
            begin = min((at for at in offsets if at > 0), default=0)
            extents.append((begin, begin + chunk.total_compressed_size))
    return extents


def encode_checksums(extents: Sequence[Extent], values: Sequence[int]) -> str:
    """Return the value of CHECKSUMS_KEY for all column chunks of a file."""
    packed = b64encode(np.asarray(values, "<u4").tobytes()).decode()
    return json.dumps({"crc32": packed, "layout": _layout(extents)})


def _layout(extents: Sequence[Extent]) -> int:
    return crc32(np.asarray(extents, "<i8").tobytes())


class ChangedChunk(NamedTuple):
    """A column chunk that differs from what was written."""

    column: str
    """The top-level column."""
    row_group: int
    begin: int
    end: int


def changed_chunks(path: AnyPath) -> list[ChangedChunk] | None:
    """Compare all column chunks of a file with its checksums.

    Returns:
        Those that differ; None if the file has no checksums, or if another program wrote it again.

    Raises:
        ReadWriteError: the file cannot be read.
    """
    with file_errors(path, "cannot be read"):
        file, size = open_file(path)
        try:
            footer, _ = read_footer(file, size)
            groups = footer.structs(FileMeta.ROW_GROUPS)
            extents = extents_of(groups)
            values = stored_checksums(footer, extents)
            if values is None:
                return None
            names = [(g, meta) for g, group in enumerate(groups) for meta in column_metas(group)]
            return [
                ChangedChunk(_name(meta), group, *extent)
                for (group, meta), extent, value in zip(names, extents, values, strict=True)
                if _checksum(file, extent) != value
            ]
        except FooterError:
            return None  # `damaged_columns` raises it
        finally:
            close_file(file)


def stored_checksums(footer: Struct, extents: Sequence[Extent]) -> list[int] | None:
    """Return the checksums in a footer; None if there are none of this layout."""
    pairs = key_values(footer)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        stored: Any = json.loads(pairs[CHECKSUMS_KEY.encode()])
        values = np.frombuffer(b64decode(stored["crc32"]), "<u4").tolist()
        if len(values) == len(extents) and stored["layout"] == _layout(extents):
            return list(values)
    return None


def _name(meta: Struct) -> str:
    """Return the top-level column of a chunk."""
    path: list[bytes] = meta[ColumnMeta.PATH][1][1]
    return path[0].decode(errors="replace")


def _checksum(file: OpenFile, extent: Extent) -> int:
    value, (begin, stop) = 0, extent
    for at in range(begin, stop, READ_BYTES):
        block = read_at(file, min(READ_BYTES, stop - at), at)
        value = crc32(block, value)
    return value
