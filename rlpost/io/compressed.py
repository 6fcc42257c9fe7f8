"""Bytes of local files that may be compressed with gzip or zstd.

A zstd file may be seekable: independent frames, and a table of their sizes at its end, as pyzstd's
`SeekableZstdFile` and `zstd_seekable_format.md` of facebook/zstd define it.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from collections import OrderedDict
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.memory_limit import memory_limit
from rlpost.io.ranges import arrow_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Suffix -> codec."""
_BUFFER = 1 << 20  # bytes: a line with token lists has 10 to 500 kB
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes -> codec."""
_SKIPPABLE = b"\x2a\x4d\x18"  # bytes 1 to 3 of a frame without data; byte 0 is 0x50 to 0x5f
_TABLE_MAGIC, _FOOTER_MAGIC = 0x184D2A5E, 0x8F92EAB1
_HEAD, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_CHECKSUMS, _RESERVED = 0x80, 0x7C  # bits of the footer's descriptor
_FRAMES_KEPT = 4


class Frame(NamedTuple):
    """One independent part of a zstd file: where its bytes are, and where its contents begin."""

    at: int
    size: int
    begin: int
    length: int

    @property
    def end(self) -> int:
        """Position after its last byte, in the contents of the file."""
        return self.begin + self.length


def codec_of(path: Path) -> str | None:
    """Return how a file is compressed, by its first bytes; None for other files.

    Raises:
        DataError: its suffix is that of a compressed file, and its contents are not.
        ReadWriteError: it cannot be read.
    """
    with read_errors(path), path.open("rb") as file:
        head = file.read(4)
    for magic, codec in MAGIC.items():
        if head.startswith(magic):
            return codec
    if head[1:] == _SKIPPABLE and head[0] >> 4 == 5:  # noqa: PLR2004
        return "zstd"
    if head and path.suffix in COMPRESSED:
        raise DataError(
            f"{path}: damaged, or not {COMPRESSED[path.suffix]}: it begins with {head!r}"
        )
    return None


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Raise the errors of reading a file as DataError (its bytes) or ReadWriteError (the system).

    Of zstd and gzip, a file that ends early is a DataError.
    """
    try:
        yield
    except MemoryError:
        raise NotEnoughMemoryError(f"{path}: there is not enough memory to read it") from None
    except OSError as error:
        if error.errno is None:
            first = str(error).splitlines()[0] if str(error) else "unreadable"
            raise DataError(f"{path}: damaged or incomplete: {first}") from None
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open the contents of a file, decompressed.

    Raises:
        DataError: the compressed data is damaged or ends early.
        ReadWriteError: the file cannot be read.
    """
    codec = codec_of(path)
    with read_errors(path):
        if codec is None:
            with path.open("rb", buffering=_BUFFER) as file:
                yield file
            return
        with (
            arrow_file(path) as file,
            pa.CompressedInputStream(file, codec) as stream,
            io.BufferedReader(stream, _BUFFER) as contents,
        ):
            yield contents


def frames_of(path: Path) -> list[Frame]:
    """Return the frames of a seekable zstd file; empty for other files.

    Raises:
        DataError: its table of frames is damaged, or does not fit the file.
        ReadWriteError: the file cannot be read.
    """
    size = path.stat().st_size
    with read_errors(path), path.open("rb") as file:
        if size < _HEAD.size + _FOOTER.size:
            return []
        file.seek(size - _FOOTER.size)
        count, descriptor, magic = _FOOTER.unpack(file.read(_FOOTER.size))
        if magic != _FOOTER_MAGIC:
            return []
        entry = struct.Struct("<III" if descriptor & _CHECKSUMS else "<II")
        table = count * entry.size
        start = size - _FOOTER.size - table - _HEAD.size
        if start < 0 or descriptor & _RESERVED:
            raise DataError(f"{path}: damaged: its table of {count:,} zstd frames does not fit")
        memory_limit().check(20 * table, f"{path}: its table of {count:,} zstd frames")
        file.seek(start)
        head = _HEAD.unpack(file.read(_HEAD.size))
        data = file.read(table)
    frames, at, begin = [], 0, 0
    for stored, length, *_ in entry.iter_unpack(data):
        frames.append(Frame(at, stored, begin, length))
        at, begin = at + stored, begin + length
    if head != (_TABLE_MAGIC, table + _FOOTER.size) or at != start:
        raise DataError(
            f"{path}: damaged: its zstd frames have {at:,} bytes by their table, and "
            f"{start:,} bytes are before it"
        )
    return frames


class RandomAccess:
    """Reads lines of a file at positions in its contents; a seekable file frame by frame.

    Args:
        path: plain or zstd with a table of frames.

    Raises:
        DataError: the file is compressed, and has no table of frames.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._codec = codec_of(path)
        self._frames = frames_of(path) if self._codec == "zstd" else []
        if self._codec and not self._frames:
            raise DataError(
                f"{path}: is {self._codec} without a table of frames, so no position in it can be "
                "read without all before it"
            )
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def line_at(self, begin: int, most: int) -> bytes:
        """Return the bytes from a position to the next line break, at most `most` and one more.

        Raises:
            DataError: a frame is damaged.
        """
        with read_errors(self.path):
            if not self._frames:
                with self.path.open("rb") as file:
                    file.seek(begin)
                    return file.readline(most + 1)
            parts: list[bytes] = []
            number = bisect_right(self._frames, begin, key=lambda one: one.begin) - 1
            at = begin - self._frames[number].begin
            while number < len(self._frames) and sum(map(len, parts)) <= most:
                data = self._contents(number)
                end = data.find(b"\n", at)
                parts.append(data[at:] if end < 0 else data[at : end + 1])
                if end >= 0:
                    break
                number, at = number + 1, 0
            return b"".join(parts)[: most + 1]

    def _contents(self, number: int) -> bytes:
        """Return a frame's contents; the last frames stay in memory."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        frame = self._frames[number]
        memory_limit().check(frame.length, f"{self.path}: zstd frame {number}")
        with self.path.open("rb") as file:
            file.seek(frame.at)
            stored = file.read(frame.size)
        data: bytes = pa.decompress(stored, frame.length, "zstd", asbytes=True)
        self._kept[number] = data
        if len(self._kept) > _FRAMES_KEPT:
            self._kept.popitem(last=False)
        return data
