"""Indexes of streams: a line for each record, with its place and scalars about it.

`stream.index.jsonl` beside `stream/` has `line, chunk, offset, id`, and what the writer summarised.
A condition on these scalars decides which records can match; only those are read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.formats.containers.streams import chunks_of, is_torn
from rlpost.formats.records import as_record, parse_json
from rlpost.io.compressed import RandomAccess, codec_of, frames_of, open_bytes
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import IndexBounds
    from rlpost.formats.records import Record
    from rlpost.formats.where import Where

_OWN = ("where", "trace_ids")  # of a row, no scalars of the index
_ROUNDING = 1e-9  # relative, by which a sum that the index has may differ from the reader's
_LINE_BYTES = 4  # memory for a byte of a line


def indexed_records(folder: Path, known: IndexBounds, where: Where) -> Iterator[Record] | None:
    """Return the records of a stream that can match; None if it has no index."""
    path = folder.with_name(f"{folder.name}.index.jsonl")
    return StreamIndex(path, folder).records(where, known) if path.is_file() else None


class StreamIndex:
    """The index of a stream.

    Args:
        path: of the index.
        folder: the stream.

    Raises:
        DataError: a line is no object with a place, or names a chunk that is not there.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._chunks = chunks_of(folder)
        self.rows: list[dict[str, Any]] = []
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                if is_torn(line):
                    break
                if not line.isspace():
                    self.rows.append(self._row(f"{path}, line {number}", line))

    def _row(self, where: str, line: bytes) -> dict[str, Any]:
        record = as_record(where, parse_json(where, line))
        chunk, offset = record.integer("chunk"), record.integer("offset")
        if chunk not in self._chunks:
            raise DataError(f"{where}: names chunk {chunk}, and the stream has no such file")
        if offset < 0:
            raise record.error("offset", offset, "a position in the chunk")
        return {**record.fields, "where": where}

    def records(self, where: Where, known: IndexBounds) -> Iterator[Record]:
        """Yield the records of a stream that can have a row that matches, in order.

        Records that the index lacks at the end of a chunk are read, too. Each record of the index
        has its other fields as `Record.scalars`.

        Raises:
            DataError: at a place of the index there is no record, or one with another id; or a
                record is damaged.
        """
        possible = self._possible(where, known)
        self._count(where, possible)
        of_chunk: dict[int, list[int]] = {number: [] for number in self._chunks}
        for i, row in enumerate(self.rows):
            of_chunk[row["chunk"]].append(i)
        last = max(self._chunks, default=0)
        for number, own in of_chunk.items():
            own.sort(key=lambda i: self.rows[i]["offset"])
            chunk = _Chunk(self._chunks[number], live=number == last)
            yield from chunk.records([self.rows[i] for i in own], possible[own].tolist())
            if chunk.unindexed:
                count = counted(chunk.unindexed, "episode")
                _note(where, f"read {count} of {chunk.path.name} that {self.path.name} lacks")
        self._note_missing(where, known)

    def _possible(self, where: Where, known: IndexBounds) -> NDArray[np.bool_]:
        """Return which records can have a row that matches, [n]."""
        bounds: dict[str, tuple[pl.Series, pl.Series]] = {}
        for name in self._excluding(where, known):
            field = known.names.get(name, name)
            if name in known.of_trace:
                values = [row.get(field) if known.single(row) else None for row in self.rows]
                bounds[name] = _widened(pl.Series(values, strict=False))
            else:
                exact = pl.Series([row.get(field) for row in self.rows], strict=False)
                bounds[name] = exact, exact
        return where.possible(bounds, len(self.rows))

    def _excluding(self, where: Where, known: IndexBounds) -> list[str]:
        """Return the names of a condition that the index has."""
        fields = {*(self.rows[0] if self.rows else ())} - {*_OWN, *known.others}
        return [name for name in where.names if known.names.get(name, name) in fields]

    def _note_missing(self, where: Where, known: IndexBounds) -> None:
        """Note the names that exclude no episode, because the index lacks them."""
        lacking = [x for x in where.names if x not in self._excluding(where, known)]
        if lacking and self.rows:
            text = f"{self.path.name} has no {', '.join(lacking)}, by which no episode was skipped"
            _note(where, text)

    def _count(self, where: Where, possible: NDArray[np.bool_]) -> None:
        """Count the records that are skipped; the size of the last one of a chunk is unknown."""
        sizes = np.zeros(len(self.rows), np.int64)
        order = sorted(range(len(self.rows)), key=lambda i: _place(self.rows[i]))
        for i, after in pairwise(order):
            (chunk, begin), (other, end) = _place(self.rows[i]), _place(self.rows[after])
            sizes[i] = end - begin if chunk == other else 0
        matches = where.matches
        matches.episodes += len(self.rows)
        matches.episodes_skipped += int((~possible).sum())
        matches.bytes_skipped += int(sizes[~possible].sum())


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["chunk"], row["offset"]


def _widened(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return bounds of what the rows have, which may be rounded otherwise."""
    if not values.dtype.is_numeric():
        return values, values.clone()
    numbers = values.cast(pl.Float64)
    room = _ROUNDING * numbers.abs()
    return numbers - room, numbers + room


def _note(where: Where, text: str) -> None:
    if text not in where.matches.notes:
        where.matches.notes.append(text)


class _Chunk:
    """One file of a stream, read at the places of an index.

    A compressed file without a table of frames is read from its start.

    Args:
        path: of the file.
        live: its last line may not be complete.
    """

    def __init__(self, path: Path, *, live: bool) -> None:
        self.path = path
        self.unindexed = 0
        """Records that were read, and that the index lacks."""
        self._live = live
        self._most = memory_limit().room // _LINE_BYTES

    def records(
        self, rows: Sequence[Mapping[str, Any]], possible: Sequence[bool]
    ) -> Iterator[Record]:
        """Yield the records that are possible, and those after the last one of the index.

        Args:
            rows: of the index, by offset.
            possible: whether each may match.
        """
        if rows and (codec_of(self.path) is None or frames_of(self.path)):
            end = yield from self._at_places(rows, possible)
            yield from self._after(end, len(rows), {})
        else:
            places = zip(rows, possible, strict=True)
            yield from self._after(0, 0, {row["offset"]: (row, own) for row, own in places})

    def _at_places(
        self, rows: Sequence[Mapping[str, Any]], possible: Sequence[bool]
    ) -> Generator[Record, None, int]:
        """Yield the records that are possible; return where the last of all ends."""
        file, end = RandomAccess(self.path), 0
        for line, (row, opened) in enumerate(zip(rows, possible, strict=True), 1):
            if opened or line == len(rows):
                text = file.line_at(row["offset"], self._most)
                record = self._record(row, line, text)
                end = row["offset"] + len(text)
                if opened:
                    yield record
        return end

    def _after(
        self, begin: int, line: int, places: dict[int, tuple[Mapping[str, Any], bool]]
    ) -> Iterator[Record]:
        """Yield the records from a position on, those at these places if they are possible."""
        for offset, number, text in self._lines(begin, line):
            if offset in places:
                row, opened = places.pop(offset)
                record = self._record(row, number, text)
                if opened:
                    yield record
            else:
                self.unindexed += 1
                place = f"{self.path}, line {number}"
                yield as_record(place, parse_json(place, text), self.path)
        for row, _ in places.values():
            raise DataError(f"{_at(row, self.path)} no record begins")

    def _lines(self, begin: int, line: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the lines from a position on: position, number, bytes."""
        with open_bytes(self.path, begin) as file:
            for number, text in enumerate(
                iter(lambda: file.readline(self._most + 1), b""), line + 1
            ):
                if self._live and is_torn(text):
                    return
                if not text.isspace():
                    yield begin, number, text
                begin += len(text)

    def _record(self, row: Mapping[str, Any], line: int, text: bytes) -> Record:
        """Return the record of a row of the index; raise DataError if it is another."""
        place = f"{self.path}, line {line}"
        try:
            record = as_record(place, parse_json(place, text), self.path)
        except DataError:
            raise DataError(f"{_at(row, self.path)} no record begins, or a damaged one") from None
        if record.fields.get("id") != row.get("id"):
            raise DataError(
                f"{_at(row, self.path)} is the record {record.fields.get('id')!r}, and the index "
                f"has {row.get('id')!r} there"
            )
        return replace(record, scalars={key: x for key, x in row.items() if key not in _OWN})


def _at(row: Mapping[str, Any], path: Path) -> str:
    return f"{row['where']}: at offset {row['offset']} of chunk {row['chunk']} ({path})"
