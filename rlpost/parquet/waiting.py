"""Encoded rows that wait until their row group is full: a chunk's pages must follow one another."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from rlpost.parquet.staged import STEP, naming, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from rlpost.parquet.encode import Encoded, Piece

ROOM = 64 << 20  # bytes of pages that wait in memory


class _Lying(NamedTuple):
    """Pages that lie in the file, one behind another."""

    begin: int
    size: int


class Waiting:
    """The new pages of one row group, in memory as long as they are few, then in a file.

    A row group may be as large as its file, and what is made of it with it. The file has no name,
    so nothing is left of it whatever ends the run.

    Args:
        folder: where the file is, if one is needed: on the disk that has room for the output.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._parts: list[Encoded] = []
        self._held: list[Encoded] = []  # those behind them, in memory
        self._size = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    def add(self, encoded: Encoded) -> None:
        """Take the next rows.

        Raises:
            ReadWriteError: the file cannot be written.
        """
        self.rows += encoded.rows
        self._held.append(encoded)
        self._size += sum(map(len, (page for pages in _distinct(encoded) for page in pages)))
        if self._size > ROOM:
            with naming(self._folder, "cannot be written"):
                self._parts += [self._laid(part) for part in self._held]
            self._held, self._size = [], 0

    def take(self) -> list[Encoded]:
        """All rows, in order; the pages are for `bytes_of`, and nothing waits any more."""
        parts = self._parts + self._held
        self._parts, self._held, self._size, self.rows = [], [], 0, 0
        return parts

    def bytes_of(self, piece: Piece) -> Iterator[bytes | memoryview]:
        """The pages of a piece that `take` gave."""
        for page in piece.pages:
            if not isinstance(page, _Lying):
                yield page
                continue
            assert self._file is not None
            for done in range(0, page.size, STEP):
                with naming(self._folder, "what waits there cannot be read"):
                    some = min(STEP, page.size - done)
                    data = os.pread(self._file.fileno(), some, page.begin + done)
                    if len(data) < some:
                        raise OSError("it became shorter")
                yield data

    def clear(self) -> None:
        """Give the file's room back; what `take` gave is not needed any more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _laid(self, encoded: Encoded) -> Encoded:
        """The same rows with their pages in the file."""
        lying = {id(pages): [self._put(pages)] for pages in _distinct(encoded)}
        pieces = [replace(piece, pages=lying[id(piece.pages)]) for piece in encoded.pieces]
        return replace(encoded, pieces=pieces)

    def _put(self, pages: list[bytes | memoryview]) -> _Lying:
        if self._file is None:
            self._file, self._end = tempfile.TemporaryFile(dir=self._folder), 0  # noqa: SIM115
        begin = self._end
        for page in pages:
            self._end += write_all(self._file.fileno(), page, self._end)
        return _Lying(begin, self._end - begin)


def _distinct(encoded: Encoded) -> list[list[bytes | memoryview]]:
    """The lists of pages, each once: columns that hold the same values share theirs."""
    return list({id(piece.pages): piece.pages for piece in encoded.pieces}.values())
