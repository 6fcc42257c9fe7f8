"""Reading for training: windows of slices of row groups, and rows as pieces of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.errors import ReadWriteError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.source import with_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.training.columns import TrainingColumns


WINDOW = 1 << 19  # tokens of a window; memory is that of about three


@dataclass(frozen=True)
class RaggedColumn:
    """A column of lists: flat values [T], and offsets [n+1]."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each row, [n]."""
        return np.diff(self.offsets)

    def rows(self, places: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the values of some rows, without a copy."""
        starts, ends = (x[places].tolist() for x in (self.offsets[:-1], self.offsets[1:]))
        return [self.values[start:end] for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class SliceData:
    """Some rows of the input, decoded; columns by their names in batches."""

    numbers: NDArray[np.int64]
    """The row numbers."""
    lists: dict[str, RaggedColumn]
    rows: dict[str, NDArray[Any]]
    others: dict[str, pa.Array]
    kept: NDArray[np.bool_]
    """Whether the sample mask keeps a response."""
    tokens: NDArray[np.int64]
    """Tokens of each response that are trained on."""
    lengths: NDArray[np.int64]
    """Tokens of each response; 1 in an input without tokens."""
    sizes: NDArray[np.int64]
    """Tokens of each response, with its prompt if that is read."""


class BatchRows(NamedTuple):
    """The rows of a batch; columns by their names."""

    numbers: NDArray[np.int64]
    lists: dict[str, list[NDArray[Any]]]
    rows: dict[str, NDArray[Any]]
    others: dict[str, list[Any]]

    @classmethod
    def of(cls, rows: Iterable[tuple[SliceData, int]]) -> BatchRows:
        """Return rows by their slices and the places in these; those of a slice stay together."""
        by_slice: dict[int, tuple[SliceData, list[int]]] = {}
        for data, place in rows:
            by_slice.setdefault(id(data), (data, []))[1].append(place)
        parts = [(data, np.array(places)) for data, places in by_slice.values()]
        first = parts[0][0]
        return cls(
            np.concatenate([data.numbers[places] for data, places in parts]),
            {x: [row for data, places in parts for row in data.lists[x].rows(places)]
             for x in first.lists},
            {x: np.concatenate([data.rows[x][places] for data, places in parts])
             for x in first.rows},
            {x: [value.as_py() for data, places in parts for value in data.others[x].take(places)]
             for x in first.others},
        )  # fmt: skip


def windows(
    source: Source, columns: TrainingColumns, random: np.random.Generator | None
) -> Iterator[list[SliceData]]:
    """Yield the slices of windows of about WINDOW tokens; `random` shuffles the row groups.

    Raises:
        DataError: a row has lists of different lengths, or a value of the wrong type.
        ReadWriteError: the input cannot be read.
    """
    window: list[SliceData] = []
    tokens = 0
    for data in _slices(source, columns, random):
        window.append(data)
        tokens += int(data.sizes.sum())
        if tokens >= WINDOW:
            yield window
            window, tokens = [], 0
    if window:
        yield window


def _slices(
    source: Source, columns: TrainingColumns, random: np.random.Generator | None
) -> Iterator[SliceData]:
    """Yield slices of at most a quarter of a window."""
    groups = [
        (file, group, source.first_rows[file] + first)
        for file, footer in enumerate(source.footers)
        for group, first in enumerate(_first_rows(footer))
    ]
    order = range(len(groups)) if random is None else random.permutation(len(groups))
    mean = 1.0 if columns.lengths is None else source.values_of(columns.lengths) / source.rows
    rows = max(1, int(WINDOW / 4 / max(mean, 1.0)))
    for number in order:
        file, group, first = groups[number]
        for batch in _batches(source, file, group, columns.of_batches, rows):
            path, before = str(source.files[file].path), source.first_rows[file]
            yield _slice_data(batch, columns, first, path, first - before)
            first += batch.num_rows


def _first_rows(footer: pq.FileMetaData) -> list[int]:
    """Return the first row of each row group."""
    rows = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    return [*accumulate(rows, initial=0)][:-1]


def _batches(
    source: Source, file: int, group: int, names: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows of a row group."""
    try:
        physical = [name for name in names if name in source.schemas[file].names]
        path, footer = source.files[file].path, source.footers[file]
        with ParquetReader(path, footer, frugal=source.frugal) as reader:
            for batch in reader.batches(rows, group, physical, ahead=False):
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
    mask, count = decoded["mask"], batch.num_rows
    lengths = mask.lengths if columns.lengths is not None else np.ones(count, np.int64)
    inside = np.concatenate([[0], mask.values.cumsum(dtype=np.int64)])
    tokens = inside[mask.offsets[1:]] - inside[mask.offsets[:-1]]
    prompts = decoded.get("prompt_token_ids")
    sizes = lengths if prompts is None else lengths + prompts.lengths
    if columns.lengths is None:
        del decoded["mask"]
    kept = _kept(batch, columns, at)
    return SliceData(numbers, decoded, row_values, others, kept, tokens, lengths, sizes)


def _kept(batch: pa.RecordBatch, columns: TrainingColumns, at: Any) -> NDArray[np.bool_]:
    """Return whether the sample mask keeps each response, [n]."""
    if columns.sample_mask is None:
        return np.ones(batch.num_rows, np.bool_)
    location: CellLocation = at(columns.sample_mask)
    kept: NDArray[np.bool_] = ragged.numbers(batch.column(columns.sample_mask), location) != 0
    return kept


def _numbers(array: pa.Array, location: CellLocation) -> NDArray[Any]:
    """Return a number per row: int64 of integers, bool of bools, float32 of floats."""
    if not pa.types.is_floating(array.type) and not array.null_count:
        values = ragged.to_numpy(array)
        return values if pa.types.is_boolean(array.type) else values.astype(np.int64)
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
    return RaggedColumn(values, offsets)


def _without_first(mask: RaggedColumn, prompts: RaggedColumn | None) -> RaggedColumn:
    """Return the mask without the first tokens of responses that have no prompt."""
    bare = mask.lengths > 0
    if prompts is not None:
        bare &= prompts.lengths == 0
    values = mask.values.copy()
    values[mask.offsets[:-1][bare]] = False
    return RaggedColumn(values, mask.offsets)


def _check_lengths(decoded: dict[str, RaggedColumn], at: Any, columns: TrainingColumns) -> None:
    """Raise DataError if a list of a row has another length than the mask."""
    offsets = decoded["mask"].offsets
    ids = {"response_token_ids": columns.response_token_ids}
    for name, column in {**columns.tokens, **ids}.items():
        if column is None or np.array_equal(decoded[name].offsets, offsets):
            continue
        lengths = decoded[name].lengths, decoded["mask"].lengths
        row = int(np.flatnonzero(np.not_equal(*lengths))[0])
        raise at(column).error(
            row,
            f"has {lengths[0][row]} values but `{columns.lengths}` has {lengths[1][row]}",
            "every token column of a row needs the same length",
        )
