"""Pieces: what is read, and worked on, at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_TOGETHER = 8  # row groups, at most, that are worked on together; they begin at multiples of it
_MANY = 32 << 20  # decompressed bytes of a row group that is worked on by itself


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one row group."""

    file: int
    row_group: int
    first_row: int
    """Row number of the first row within its file."""
    table: pa.RecordBatch
    tokens: int = 0
    """List elements, about."""
    joins: bool = False
    """May be worked on together with the piece before it, of another row group."""

    def halves(self) -> tuple[Piece, Piece]:
        """The first and the second half of the rows."""
        middle = self.table.num_rows // 2
        first, second = self.table.slice(0, middle), self.table.slice(middle)
        return replace(self, table=first), replace(
            self, table=second, first_row=self.first_row + middle
        )


Pieces = tuple[Piece, ...]


def may_join(groups: Iterable[tuple[int, int]], first: int = 0) -> Iterator[bool]:
    """Whether each row group may be worked on together with what is before it.

    Where the blocks of a scan begin shows in its last bits, so this depends on row groups and on
    their place in the file alone: a file is divided only where this is false.

    Args:
        groups: rows and decompressed bytes of each; those of no rows go with any.
        first: the number of the first one in its file; it begins the file or a part of it.
    """
    window, before = -1, 0
    for number, (rows, held) in enumerate(groups, first):
        own = number // _TOGETHER
        yield not rows or (own == window and before < _MANY and held < _MANY)
        if rows:
            window, before = own, held


def together(pieces: Iterable[Piece], tokens: int) -> Iterator[tuple[Piece, ...]]:
    """Pieces that may be joined in runs of at most so many tokens, about; the others alone."""
    run: list[Piece] = []
    held = 0
    for piece in pieces:
        if run and (not piece.joins or held + piece.tokens > tokens):
            yield tuple(run)
            run, held = [], 0
        run.append(piece)
        held += piece.tokens
    if run:
        yield tuple(run)


def rows_of(pieces: Pieces) -> int:
    """How many rows they have."""
    return sum(piece.table.num_rows for piece in pieces)


def halves_of(pieces: Pieces) -> tuple[Pieces, Pieces]:
    """The first and the second half: of the pieces, or of the rows of the only one."""
    if len(pieces) == 1:
        first, second = pieces[0].halves()
        return (first,), (second,)
    middle = len(pieces) // 2
    return pieces[:middle], pieces[middle:]


def by_group(pieces: Pieces, columns: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each piece, with its row group."""
    row = 0
    for piece in pieces:
        yield piece.row_group, columns.slice(row, piece.table.num_rows)
        row += piece.table.num_rows
