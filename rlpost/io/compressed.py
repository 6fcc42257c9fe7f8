"""Bytes of local files that may be compressed with gzip or zstd."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
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
def read_errors(path: Path | str) -> Iterator[None]:
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
