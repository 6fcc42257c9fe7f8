"""Token columns of several inputs as streams of the same rows, whatever order they are in."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.responses import columns as lists
from rlpost.io.arrow import is_list
from rlpost.io.threads import prefetch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source


PIECE_TOKENS = 1 << 20


class Chunk(NamedTuple):
    """A token column of consecutive rows."""

    lengths: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[n+1], from 0."""
        return np.concatenate([[0], self.lengths.cumsum()])

    def slice(self, start: int, stop: int) -> Chunk:
        """The rows from start to stop."""
        first, last = self.lengths[:start].sum(), self.lengths[:stop].sum()
        return Chunk(self.lengths[start:stop], self.values[first:last])


def chunk_of(array: pa.Array) -> Chunk:
    """A column's rows; one number a row counts as a list of one."""
    if not is_list(array.type):
        return Chunk(np.ones(len(array), dtype=np.int64), lists.numbers(array))
    offsets, values = lists.flat(array)
    return Chunk(np.diff(offsets), values)


def read(source: Source, column: str) -> Generator[Chunk]:
    """A column of an input, in its order, read ahead in a thread."""
    pieces = source.read([column], PIECE_TOKENS, column)
    for piece in prefetch(pieces, 1):
        yield chunk_of(piece.table.column(column))


def chosen(stream: Generator[Chunk], rows: NDArray[np.int64], count: int) -> Generator[Chunk]:
    """These rows of a stream, in this order.

    Args:
        stream: the whole column.
        rows: [m] row numbers.
        count: rows of the stream.

    Rows that go up are picked as they pass; others through a temporary file, as large as the
    column's values in float32, so that memory stays bounded in any order.
    """
    if len(rows) == count and np.array_equal(rows, np.arange(count)):
        return stream
    return _picked(stream, rows) if (np.diff(rows) > 0).all() else _gathered(stream, rows)


def _picked(stream: Generator[Chunk], rows: NDArray[np.int64]) -> Generator[Chunk]:
    first = 0
    for chunk in stream:
        last = first + len(chunk.lengths)
        low, high = np.searchsorted(rows, [first, last])
        keep = np.zeros(len(chunk.lengths), dtype=np.bool_)
        keep[rows[low:high] - first] = True
        yield Chunk(chunk.lengths[keep], chunk.values[np.repeat(keep, chunk.lengths)])
        first = last


def _gathered(stream: Generator[Chunk], rows: NDArray[np.int64]) -> Generator[Chunk]:
    with tempfile.TemporaryFile() as file:
        parts = []
        for chunk in stream:
            parts.append(chunk.lengths)
            chunk.values.astype(np.float32).tofile(file)
        file.flush()
        lengths = np.concatenate(parts)
        if not lengths.sum():
            yield Chunk(lengths[rows], np.zeros(0))
            return
        stored = np.memmap(file, dtype=np.float32, mode="r")
        starts = lengths.cumsum() - lengths
        pieces = np.searchsorted(lengths[rows].cumsum(), np.arange(0, lengths.sum(), PIECE_TOKENS))
        for some in np.split(rows, np.unique(pieces[1:])):
            own = lengths[some]
            places = np.arange(own.sum()) + np.repeat(starts[some] - (own.cumsum() - own), own)
            yield Chunk(own, stored[places].astype(np.float64))


def aligned(streams: Sequence[Generator[Chunk]]) -> Iterator[tuple[Chunk, ...]]:
    """The same rows of every stream at a time, however each is cut; all end with the shortest."""
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(closing(stream))
        waiting: list[Chunk | None] = [None] * len(streams)
        while True:
            for place, stream in enumerate(streams):
                waiting[place] = _filled(waiting[place], stream)
            chunks = [chunk for chunk in waiting if chunk is not None]
            if len(chunks) < len(streams):
                return
            rows = min(len(chunk.lengths) for chunk in chunks)
            yield tuple(chunk.slice(0, rows) for chunk in chunks)
            waiting = [chunk.slice(rows, len(chunk.lengths)) for chunk in chunks]


def _filled(chunk: Chunk | None, stream: Iterator[Chunk]) -> Chunk | None:
    """A chunk with rows in it; None at the end of the stream."""
    while chunk is None or not len(chunk.lengths):
        chunk = next(stream, None)
        if chunk is None:
            return None
    return chunk
