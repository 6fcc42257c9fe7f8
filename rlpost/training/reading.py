"""Reading for training: the slices of an epoch in order, and rows as pieces of them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import ReadWriteError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.source import with_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.training.columns import TrainingColumns
    from rlpost.training.order import RankOrder, Slices


@dataclass(frozen=True)
class RaggedColumn:
    """A column of lists: flat values [T], and offsets [n+1]."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class SliceData:
    """Some rows of a slice, decoded; columns by their names in batches."""

    numbers: NDArray[np.int64]
    """The row numbers, ascending."""
    lists: dict[str, RaggedColumn]
    rows: dict[str, NDArray[Any]]
    others: dict[str, pa.Array]

    def only(self, rows: NDArray[np.int64]) -> SliceData:
        """Return some of the rows, copied if they are less than half, so that the rest is freed."""
        if len(rows) * 2 >= len(self.numbers):
            return self
        places = self.places(rows)
        lists = {}
        for name, one in self.lists.items():
            begins, ends = one.offsets[places], one.offsets[places + 1]
            parts = [one.values[i:j] for i, j in zip(begins.tolist(), ends.tolist(), strict=True)]
            offsets = np.concatenate([[0], (ends - begins).cumsum()])
            lists[name] = RaggedColumn(np.concatenate(parts), offsets)
        others = {name: one.take(pa.array(places)) for name, one in self.others.items()}
        values = {name: one[places] for name, one in self.rows.items()}
        return SliceData(rows, lists, values, others)

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of rows that are here."""
        return np.searchsorted(self.numbers, rows)


@dataclass(frozen=True)
class Piece:
    """Rows of a batch that are in one slice."""

    data: SliceData
    places: NDArray[np.int64]
    """Positions in the slice."""
    into: NDArray[np.int64]
    """Positions in the batch."""


def windows(
    source: Source,
    columns: TrainingColumns,
    slices: Slices,
    order: RankOrder,
    first_row: int,
    wanted: NDArray[np.bool_],
) -> Iterator[tuple[int, list[SliceData]]]:
    """Yield the number of each window that has rows to train on, and its slices.

    Args:
        source: the input.
        columns: to decode.
        slices: of the epoch.
        order: of the rank.
        first_row: an index of `order.rows`; rows before it are not read.
        wanted: [K] which rows of the order are read.

    Raises:
        DataError: a row has lists of different lengths, or a value of the wrong type.
        ReadWriteError: the input cannot be read.
    """
    rows = np.sort(order.rows[first_row:][wanted[first_row:]])
    last = int(order.window[first_row:][wanted[first_row:]].max(initial=-1))
    begins, ends = (np.searchsorted(rows, x) for x in (slices.start, slices.stop))
    ready: list[SliceData] = []
    window = 0
    for number, data in _decoded(source, columns, slices, rows, begins, ends):
        if slices.window[number] > window:
            yield window, ready
            ready, window = [], int(slices.window[number])
        ready.append(data)
    if ready or window <= last:
        yield window, ready


def _decoded(
    source: Source,
    columns: TrainingColumns,
    slices: Slices,
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Iterator[tuple[int, SliceData]]:
    """Yield the number of each slice with rows to read, and these rows."""
    group_of = slices.row_group
    number, count = 0, len(group_of)
    starts = [0]
    for footer in source.footers:
        starts.append(starts[-1] + footer.num_row_groups)
    while number < count:
        stop = number
        while stop < count and group_of[stop] == group_of[number]:
            stop += 1
        needed = [i for i in range(number, stop) if ends[i] > begins[i]]
        if needed:
            group = int(group_of[number])
            file = bisect_right(starts, group) - 1
            size = int(slices.stop[number] - slices.start[number])
            own = range(number, needed[-1] + 1)
            batches = _batches(source, file, group - starts[file], columns.of_batches, size)
            for i, batch in zip(own, batches, strict=False):
                if ends[i] > begins[i]:
                    own_rows = rows[begins[i] : ends[i]]
                    start = int(slices.start[i])
                    first = start - source.first_rows[file]
                    path = str(source.files[file].path)
                    yield i, _slice_data(batch, columns, start, path, first).only(own_rows)
        number = stop


def _batches(
    source: Source, file: int, group: int, names: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of exactly `rows` rows of a row group; the last one may be shorter."""
    try:
        physical = [name for name in names if name in source.schemas[file].names]
        path, footer = source.files[file].path, source.footers[file]
        with ParquetReader(path, footer, frugal=source.frugal) as reader:
            read = reader.batches(rows, group, physical, ahead=False)
            for batch in _of_equal_size(read, rows):
                source.check_same(file, reader)
                yield with_partitions(batch, source.files[file], names)
    except MemoryError:  # an ArrowException, too, but not about the file
        raise
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ReadWriteError(
            f"{source.files[file].path}: cannot be read ({reason}); it is damaged, or was written "
            "again during the loop: load it anew"
        ) from None


def _of_equal_size(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not waiting and batch.num_rows == rows:
            yield batch
            continue
        waiting.append(batch)
        while sum(one.num_rows for one in waiting) >= rows:
            table = _joined(waiting)
            yield table.slice(0, rows).to_batches()[0]
            waiting = table.slice(rows).to_batches()
    if waiting:
        yield _joined(waiting).to_batches()[0]


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return batches as one chunk, without a copy if there is only one."""
    table = pa.Table.from_batches(batches)
    return table if len(batches) == 1 else table.combine_chunks(pa.system_memory_pool())


def _slice_data(
    batch: pa.RecordBatch,
    columns: TrainingColumns,
    start: int,
    path: str,
    first: int,
) -> SliceData:
    """Return the rows of a decoded slice, which share its memory."""
    numbers = np.arange(start, start + batch.num_rows)

    def at(column: str) -> CellLocation:
        return CellLocation(path, first, column)

    lists = {
        name: column
        for name in ("response_token_ids", "prompt_token_ids")
        if (column := getattr(columns, name)) is not None
    }
    lists |= columns.tokens
    decoded = {}
    for name, column in lists.items():
        offsets, values = ragged.list_values(batch.column(column), at(column))
        decoded[name] = RaggedColumn(values, offsets)
    decoded["mask"] = _mask(batch, columns, at)
    _check_lengths(decoded, at, columns)
    if columns.input_ids:
        decoded["mask"] = _without_first(decoded["mask"], decoded.get("prompt_token_ids"))
    others = {name: batch.column(column) for name, column in columns.others.items()}
    row_values = {name: _numbers(batch.column(c), at(c)) for name, c in columns.rows.items()}
    if columns.lengths is None:
        del decoded["mask"]
    return SliceData(numbers, decoded, row_values, others)


def _numbers(array: pa.Array, location: CellLocation) -> NDArray[Any]:
    """Return a number per row: int64 of integers, bool of bools, float32 of floats."""
    if not pa.types.is_floating(array.type) and not array.null_count:
        own = ragged.to_numpy(array)
        return own if pa.types.is_boolean(array.type) else own.astype(np.int64)
    return ragged.numbers(array, location).astype(np.float32)


def _mask(batch: pa.RecordBatch, columns: TrainingColumns, at: Any) -> RaggedColumn:
    """Return the mask of the tokens that are trained on, bool."""
    if columns.lengths is None:
        return RaggedColumn(np.zeros(0, np.bool_), np.zeros(batch.num_rows + 1, np.int64))
    if columns.mask is not None:
        offsets, values = ragged.mask(batch.column(columns.mask), at(columns.mask))
    else:
        offsets, _ = ragged.list_values(batch.column(columns.lengths), at(columns.lengths))
        values = np.ones(offsets[-1], np.bool_)
    if columns.sample_mask is not None:
        column = columns.sample_mask
        kept = ragged.numbers(batch.column(column), at(column)) != 0
        if not kept.all():
            values = values & np.repeat(kept, np.diff(offsets))
    return RaggedColumn(values, offsets)


def _without_first(mask: RaggedColumn, prompts: RaggedColumn | None) -> RaggedColumn:
    """Return the mask without the first tokens of responses that have no prompt."""
    first = mask.offsets[:-1][np.diff(mask.offsets) > 0]
    if prompts is not None:
        bare = (np.diff(prompts.offsets) == 0) & (np.diff(mask.offsets) > 0)
        first = mask.offsets[:-1][bare]
    if not first.size:
        return mask
    values = mask.values.copy()
    values[first] = False
    return RaggedColumn(values, mask.offsets)


def _check_lengths(decoded: dict[str, RaggedColumn], at: Any, columns: TrainingColumns) -> None:
    """Raise DataError if a list of a row has another length than the mask."""
    offsets = decoded["mask"].offsets
    ids = {"response_token_ids": columns.response_token_ids}
    for name, column in {**columns.tokens, **ids}.items():
        if column is None or np.array_equal(decoded[name].offsets, offsets):
            continue
        row = int(np.flatnonzero(np.diff(decoded[name].offsets) != np.diff(offsets))[0])
        own, other = (int(np.diff(x)[row]) for x in (decoded[name].offsets, offsets))
        raise at(column).error(
            row,
            f"has {own} values but `{columns.lengths}` has {other}",
            "every token column of a row needs the same length",
        )
