"""Whether a file is whole, or another program still writes it, as far as its end shows.

A program that writes under another name and renames the file has no half-written files. Others
write in place: their files are complete when they end as files of their format do.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlpost.errors import DataError
from rlpost.formats.containers.streams import is_torn
from rlpost.io.compressed import codec_of, open_bytes
from rlpost.io.parquet.footer import EncryptedError, FooterError, read_footer_bytes
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile

_BLOCK = 1 << 16
_ZIP, _STOP = b"PK", b"."  # how files of torch.save begin, and how other pickles end


def is_whole(path: AnyPath, *, table: bool) -> bool:
    """Return whether a file is complete; a remote object always is, and an empty file never.

    Parquet ends with its footer, a pickle with its directory or its stop mark,
    and JSONL with a line break or a line that is JSON. So JSONL that ends between two lines counts
    as complete.

    Args:
        path: of the file.
        table: it is Parquet; otherwise its suffix says what it is.

    Raises:
        ReadWriteError: the file cannot be read.
    """
    if not isinstance(path, Path):
        return True
    if not table and (whole := _is_decompressed(path)) is not None:
        return whole
    with file_errors(path, "cannot be read"):
        file, size = open_file(path)
        try:
            if table:
                return _has_footer(file, size)
            if path.suffix == ".pt":
                start, end = read_at(file, len(_ZIP), 0), read_at(file, 1, max(size - 1, 0))
                return zipfile.is_zipfile(path) if start == _ZIP else end == _STOP
            if path.suffix == ".json":
                return _is_json(read_at(file, size, 0))
            return _has_last_line(file, size)
        finally:
            close_file(file)


def _is_decompressed(path: Path) -> bool | None:
    """Return whether gzip or zstd ends as such, and its contents with a line; None of others."""
    last = b""
    try:
        if codec_of(path) is None:
            return None
        with open_bytes(path) as file:
            for line in file:
                last = line if line.strip() else last
    except DataError:
        return False
    return not is_torn(last)


def _has_footer(file: OpenFile, size: int) -> bool:
    try:
        read_footer_bytes(file, size)
    except EncryptedError:
        return True
    except FooterError:
        return False
    return True


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)  # builds no values
    except (msgspec.DecodeError, RecursionError):
        return _lines_of(data)
    return True


def _lines_of(data: bytes) -> bool:
    """Return whether several lines end as JSONL does: some programs call it .json."""
    lines = data.strip().splitlines()
    return len(lines) > 1 and data.endswith(b"\n") and lines[-1].rstrip().endswith(b"}")


def _has_last_line(file: OpenFile, size: int) -> bool:
    """Return whether JSONL ends with a line break, or with a whole line."""
    data = b""
    while size and b"\n" not in data.strip():
        begin = max(size - max(_BLOCK, len(data)), 0)
        data, size = read_at(file, size - begin, begin) + data, begin
    last = data.strip().rpartition(b"\n")[2]
    return bool(last) and (data.endswith((b"\n", b"\r")) or not is_torn(last))
