"""Reading for training: row groups in windows of decoded rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.kernels.segments import offsets_of
from rlpost.training.columns import PROMPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

    def take(self, places: NDArray[np.int64]) -> RaggedColumn:
        """Return some rows."""
        starts, ends = (x[places].tolist() for x in (self.offsets[:-1], self.offsets[1:]))
        rows = [self.values[start:end] for start, end in zip(starts, ends, strict=True)]
        values = np.concatenate([self.values[:0], *rows])
        return RaggedColumn(values, offsets_of(self.lengths[places]))

    @classmethod
    def joined(cls, parts: Sequence[RaggedColumn]) -> RaggedColumn:
        """Return the rows of several columns as one."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.values for part in parts]), offsets_of(lengths))


@dataclass(frozen=True)
class LoadedRows:
    """Some rows of the input, decoded; columns by their names in batches."""

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

    def take(self, places: NDArray[np.int64]) -> LoadedRows:
        """Return some rows."""
        return LoadedRows(
            {name: column.take(places) for name, column in self.lists.items()},
            {name: column[places] for name, column in self.rows.items()},
            {name: column.take(pa.array(places)) for name, column in self.others.items()},
            self.kept[places],
            self.tokens[places],
            self.lengths[places],
            self.sizes[places],
        )

    @classmethod
    def joined(cls, parts: Sequence[LoadedRows]) -> LoadedRows:
        """Return the rows of several parts as one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        numbers = ("kept", "tokens", "lengths", "sizes")
        return cls(
            lists={x: RaggedColumn.joined([part.lists[x] for part in parts]) for x in first.lists},
            rows={x: np.concatenate([part.rows[x] for part in parts]) for x in first.rows},
            others={x: pa.concat_arrays([part.others[x] for part in parts]) for x in first.others},
            **{x: np.concatenate([getattr(part, x) for part in parts]) for x in numbers},
        )


def windows(
    source: Source, columns: TrainingColumns, random: np.random.Generator | None
) -> Iterator[LoadedRows]:
    """Yield windows of about WINDOW tokens; `random` shuffles the row groups.

    Raises:
        DataError: a row has lists of different lengths, or a value of the wrong type.
        ReadWriteError: the input cannot be read, or was written again.
    """
    window: list[LoadedRows] = []
    tokens = 0
    for rows in _parts(source, columns, random):
        window.append(rows)
        tokens += int(rows.sizes.sum())
        if tokens >= WINDOW:
            yield LoadedRows.joined(window)
            window, tokens = [], 0
    if window:
        yield LoadedRows.joined(window)


def _parts(
    source: Source, columns: TrainingColumns, random: np.random.Generator | None
) -> Iterator[LoadedRows]:
    """Yield parts of row groups, of at most about a window."""
    groups = [
        (file, group)
        for file, footer in enumerate(source.footers)
        for group in range(footer.num_row_groups)
    ]
    names, sized_by = columns.of_batches, columns.lengths or ""
    for number in range(len(groups)) if random is None else random.permutation(len(groups)):
        file, group = groups[number]
        for chunk in source.read_file(file, names, WINDOW, sized_by, groups=(group,)):
            source.check_unchanged("since it was loaded; load it anew", file)
            path = str(source.files[file].path)
            yield _loaded(chunk.table, columns, path, chunk.first_row, source.first_rows[file])


def _loaded(
    batch: pa.RecordBatch, columns: TrainingColumns, path: str, first: int, before: int
) -> LoadedRows:
    """Return decoded rows, which share the memory of the batch.

    Args:
        batch: the rows.
        columns: of batches.
        path: of the file.
        first: the number of the first row in the file.
        before: the rows of the files before it.
    """

    def at(column: str) -> CellLocation:
        return CellLocation(path, first, column)

    lists = {"mask": _mask(batch, columns, at)}
    for name, column in columns.lists.items():
        offsets, values = ragged.list_values(batch.column(column), at(column))
        lists[name] = RaggedColumn(values, offsets)
    _check_lengths(lists, at, columns)
    prompts = lists.get(PROMPT)
    if columns.input_ids:
        lists["mask"] = _without_first(lists["mask"], prompts)
    rows = {name: _numbers(batch.column(c), at(c)) for name, c in columns.rows.items()}
    rows["rows"] = np.arange(before + first, before + first + batch.num_rows)
    others = {name: batch.column(column) for name, column in columns.others.items()}
    mask, lengths = lists["mask"], np.ones(batch.num_rows, np.int64)
    inside = np.concatenate([[0], mask.values.cumsum(dtype=np.int64)])
    tokens = inside[mask.offsets[1:]] - inside[mask.offsets[:-1]]
    if columns.lengths is None:
        del lists["mask"]
    else:
        lengths = mask.lengths
    sizes = lengths if prompts is None else lengths + prompts.lengths
    if columns.sample_mask is None:
        kept = np.ones(batch.num_rows, np.bool_)
    else:
        kept = ragged.numbers(batch.column(columns.sample_mask), at(columns.sample_mask)) != 0
    return LoadedRows(lists, rows, others, kept, tokens, lengths, sizes)


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
    lengths = decoded["mask"].lengths
    for name, column in columns.lists.items():
        others = decoded[name].lengths
        if name != PROMPT and len(wrong := np.flatnonzero(others != lengths)):
            row = int(wrong[0])
            raise at(column).error(
                row,
                f"has {others[row]} values but `{columns.lengths}` has {lengths[row]}",
                "every token column of a row needs the same length",
            )
