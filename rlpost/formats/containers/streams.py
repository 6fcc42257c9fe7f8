"""Directories of numbered files of JSON lines, which a program appends to: one stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlpost.errors import DataError
from rlpost.formats.containers.json_text import first_fields, lines_of
from rlpost.formats.records import as_record, parse_json
from rlpost.io.compressed import open_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlpost.formats.records import Record


_CHUNK = re.compile(r"(\d{5,})\.jsonl(\.zst|\.gz)?")


def chunks_of(folder: Path) -> dict[int, Path]:
    """Return the files of a stream by their numbers, in order.

    A writer that compresses a finished file removes the plain one afterwards, so of two files of
    one number the plain one is read.
    """
    chunks: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        if (match := _CHUNK.fullmatch(file.name)) and file.is_file():
            chunks.setdefault(int(match.group(1)), file)  # x.jsonl is before x.jsonl.zst
    return dict(sorted(chunks.items()))


def stream_records(folder: Path) -> Iterator[Record]:
    """Yield the objects of a stream; a last line without its end is not yet written, and left out.

    Raises:
        DataError: compressed data is damaged, or a line is no object.
        NotEnoughMemoryError: a line does not fit into the memory of the run.
        ReadWriteError: a file cannot be read.
    """
    chunks = [*chunks_of(folder).values()]
    for path in chunks:
        with open_bytes(path) as file:
            for text, place in lines_of(file, str(path)):
                if not (path == chunks[-1] and is_torn(text)):
                    yield as_record(place, parse_json(place, text), path)


def is_torn(line: bytes) -> bool:
    """Return whether a line is the beginning of one that is not complete yet."""
    if line.endswith(b"\n"):
        return False
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return True
    return False


def stream_fields(folder: Path) -> Mapping[str, Any]:
    """Return the fields of the first record of a stream; empty without one. Never raises."""
    try:
        chunks = chunks_of(folder)
    except (OSError, DataError):
        return {}
    return first_fields(next(iter(chunks.values()))) if chunks else {}
