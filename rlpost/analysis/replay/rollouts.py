"""The rollouts of a replay: whole steps or groups of an input in memory, and what was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from rlpost.analysis.compare.matching import read_keys
from rlpost.analysis.replay.input_columns import (
    InputColumns,
    check_types,
    columns_of,
    joined,
    lacking_warnings,
    schema_of,
    text_warnings,
)
from rlpost.analysis.responses import columns as lists
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, to_arrow
from rlpost.io.keys import KeyColumn
from rlpost.io.parquet.source import CHUNK_TOKENS, TableSource
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.segments import count_true, segment_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.compare.matching import RowKeys
    from rlpost.analysis.replay.input_columns import NamedColumns
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap

    Codes = NDArray[np.int64]
    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]

Kept = TypeVar("Kept")
_ONE_STEP = 4
"""A single step may have so many times the tokens of a sample."""


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: of tokens, ragged by response, or one for each response."""

    values: Numbers
    """[T] of tokens, [N] of responses; NaN for what is null."""
    offsets: NDArray[np.int64] | None = None
    """[N+1] of the responses; None: one number for each response."""

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array) -> NumberColumn:
        """Return a column of a table; a null list is empty."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if is_list(array.type):
            offsets, values = lists.flat(array)
            return cls(values, offsets)
        return cls(lists.numbers(array))

    def on_tokens(self, offsets: NDArray[np.int64]) -> Numbers:
        """Return one number for each token, [T], of responses with these offsets."""
        if self.offsets is None:
            return np.repeat(self.values, np.diff(offsets))
        return self.values


@dataclass
class Rollouts:
    """Whole steps or groups of an input in memory, with the columns that a replay reads."""

    name: str
    table: pa.Table
    columns: ColumnMap
    """Roles of the input; none is a recorded column."""
    recorded: dict[str, str]
    """Stage to column."""
    rows: NDArray[np.int64]
    """[N] numbers of the rows in the input."""
    total: int
    """Rows of the input."""
    scope: str = "everything"
    """What the rows are: everything, whole steps, or whole prompt groups."""
    warnings: list[str] = field(default_factory=list)
    around: Rollouts | None = None
    """Whole steps that these groups are of, if recipes that couple a batch are computed on them."""
    _kept: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def steps(self) -> Rollouts:
        """The whole steps that these rows are of, or these rows."""
        return self if self.around is None else self.around

    @property
    def whole(self) -> bool:
        """Whether these are all rows of the input."""
        return len(self) == self.total

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """[N+1] of the tokens of responses; each has one if the input has no tokens."""
        column = InputColumns(self.columns, self.recorded).length_column(self.table.schema)
        if column is None:
            return np.arange(len(self) + 1)
        return lists.flat(self.table.column(column).combine_chunks())[0]

    @cached_property
    def mask(self) -> Mask:
        """[T]: policy tokens."""
        if "mask" not in self.columns or self.columns.rows_only:
            return np.ones(int(self.offsets[-1]), np.bool_)
        return NumberColumn.of(self.table.column(self.columns.column("mask"))).values > 0

    @cached_property
    def kept(self) -> Mask:
        """[T]: tokens that no recorded mask drops."""
        kept = np.ones(int(self.offsets[-1]), np.bool_)
        for stage in ("sample_mask", "final_response_mask"):
            if stage in self.recorded and not self.columns.rows_only:
                kept &= self.column(stage).on_tokens(self.offsets) > 0
        return kept

    @cached_property
    def lengths(self) -> Codes:
        """[N] tokens of responses."""
        return np.diff(self.offsets)

    @cached_property
    def policy_lengths(self) -> Codes:
        """[N] policy tokens of responses."""
        tokens: Codes = count_true(self.mask, self.offsets)
        return tokens

    @cached_property
    def of_tokens(self) -> Codes:
        """[T] the response of each token."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def reward(self) -> Numbers:
        """[N] raw rewards; lists are summed; NaN without a column."""
        if "reward" not in self.columns:
            return np.full(len(self), np.nan)
        column = NumberColumn.of(self.table.column(self.columns.column("reward")))
        if column.offsets is None:
            return column.values
        sums: Numbers = segment_sum(column.values, column.offsets)
        return sums

    def codes(self, *roles: str) -> Codes:
        """Return the code of each row's combination of roles, [N]; 0 for roles without column."""
        names = (self.columns.column(role) for role in roles if role in self.columns)
        keys = (KeyColumn.of(self.table.column(name).chunks).codes for name in names)
        return joint_codes(np.zeros(len(self), np.int64), *keys)

    @cached_property
    def groups(self) -> Codes:
        """[N] prompt groups, of the same step."""
        return self.codes("batch", "group")

    def label(self, role: str, row: int) -> Any:
        """Return the value of a role in a row; None without a column."""
        if role not in self.columns:
            return None
        return self.table.column(self.columns.column(role))[row].as_py()

    def column(self, stage: str) -> NumberColumn:
        """Return a recorded column.

        Raises:
            DataError: its lists have other lengths than the tokens of the responses.
        """
        name = self.recorded[stage]
        return self.once(("column", stage, name), lambda: self._column(stage, name))

    def once(self, key: tuple[Any, ...], make: Callable[[], Kept]) -> Kept:
        """Return what belongs to a key; made at the first call, and kept."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: Kept = self._kept[key]
        return kept

    def _column(self, stage: str, name: str) -> NumberColumn:
        column = NumberColumn.of(self.table.column(name))
        if column.offsets is not None:
            counts = np.diff(column.offsets)
            wrong = np.flatnonzero((counts != self.lengths) & (counts != 0))
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"{self.name}: row {self.rows[row]}: `{name}` has {counts[row]} numbers; the "
                    f"response has {self.lengths[row]} tokens; one for each token is needed, "
                    f"without those of the prompt or padding: choose another with --map {stage}="
                )
            if not np.array_equal(counts, self.lengths):
                column = _filled(column, self.offsets)
        return column

    def not_finite(self, stage: str) -> NDArray[np.int64]:
        """Return the responses of which a recorded number is null, NaN or infinite, [n] positions.

        Responses without any number, whose list is null or empty, are not among them.
        """
        column = self.column(stage)
        wrong = ~np.isfinite(column.values)
        if column.offsets is None:
            array = self.table.column(self.recorded[stage]).combine_chunks()
            return np.flatnonzero(wrong & ~np.asarray(array.is_null()))
        rows = self.of_tokens
        return np.unique(rows[wrong & self.mask & ~self.unrecorded(stage)[rows]])

    def unrecorded(self, stage: str) -> Mask:
        """Return which responses have no recorded number, [N]: their value is null, or empty."""
        array = self.table.column(self.recorded[stage]).combine_chunks()
        if not is_list(array.type):
            return np.asarray(array.is_null())
        counts = np.diff(lists.flat(array)[0])
        return np.asarray((counts == 0) & (self.lengths > 0))

    def take(self, rows: NDArray[np.int64], scope: str) -> Rollouts:
        """Return some rows, [n] positions in ascending order."""
        part = self.table.take(pa.array(rows))
        return replace(self, table=part, rows=self.rows[rows], scope=scope, around=None)

    def within(self, steps: Rollouts) -> Rollouts:
        """Return these rows as some of those of whole steps."""
        return replace(self, around=steps)

    def without(self, stages: Collection[str]) -> Rollouts:
        """Return the rows without the recorded columns of some stages."""
        left = {name: column for name, column in self.recorded.items() if name not in stages}
        around = None if self.around is None else self.around.without(stages)
        return replace(self, recorded=left, around=around)


def _filled(column: NumberColumn, offsets: NDArray[np.int64]) -> NumberColumn:
    """Return a column of tokens with NaN for the tokens of rows that are null."""
    assert column.offsets is not None
    present = np.repeat(np.diff(column.offsets) > 0, np.diff(offsets))
    values = np.full(int(offsets[-1]), np.nan)
    values[present] = column.values
    return NumberColumn(values, offsets)


def rollouts_of(
    source: Source | TableSource,
    named: NamedColumns,
    most_tokens: int,
    also: Collection[str] = (),
    whole: Literal["", "batch", "run"] = "",
) -> Rollouts:
    """Return the first whole steps of an input, or prompt groups, of so many tokens.

    Args:
        source: the input.
        named: the user's columns.
        most_tokens: that are read; one group is read whole.
        also: columns that the recipe names, besides roles.
        whole: what is read whole, whatever its size: a batch, or all rows.

    Raises:
        DataError: there are no rows, or recorded columns have no numbers.
    """
    columns = columns_of(source, named)
    names = columns.read(source.columns, also)
    check_types(source, names)
    warnings = lacking_warnings(source, columns.recorded)
    warnings += text_warnings(schema_of(source), columns)
    rows, scope = np.arange(source.rows), "everything"
    if whole != "run":
        rows, scope = _first_rows(source, columns, most_tokens, steps=whole == "batch")
    table = read_rows(source, names, rows)
    return Rollouts(source.name, table, columns.roles, columns.recorded, rows, source.rows, scope,
                    warnings)  # fmt: skip


def _first_rows(
    source: Source | TableSource, columns: InputColumns, most: int, *, steps: bool
) -> tuple[NDArray[np.int64], str]:
    """Return the rows of a sample, [n], and what they are.

    They are whole steps, if one has at most a few times the tokens, else whole prompt groups.

    Args:
        source: the input.
        columns: of the input.
        most: tokens of the sample.
        steps: whether steps are whole, whatever their size.
    """
    roles = columns.roles
    sized = next((roles.column(r) for r in ("mask", "old_log_probs") if r in roles), None)
    sized = sized or next(iter(columns.recorded.values()), None)
    per_row = 1.0 if sized is None else max(1.0, source.values_of(sized) / source.rows)
    budget = max(1, int(most / per_row))
    if source.rows <= budget and not steps:
        return np.arange(source.rows), "everything"
    keys = read_keys(source, roles)
    codes, scope = _codes(keys, "batch"), "whole steps"
    sizes = np.bincount(codes)
    if not steps and (len(sizes) == 1 or sizes[0] > _ONE_STEP * budget):
        codes, scope = _codes(keys, "batch", "group"), "whole prompt groups"
        sizes = np.bincount(codes)
    count = max(1, int(np.searchsorted(np.cumsum(sizes), budget, side="right")))
    return np.flatnonzero(codes < count), scope


def _codes(keys: RowKeys, *names: str) -> Codes:
    """Return the code of each row's combination of keys, [N], in order of appearance."""
    columns = (KeyColumn.of(keys.keys[name].chunks).codes for name in names if name in keys.keys)
    joint = joint_codes(np.zeros(keys.count, np.int64), *columns)
    return KeyColumn.of([to_arrow(joint, pa.int64())]).codes


def read_rows(
    source: Source | TableSource, names: Sequence[str], rows: NDArray[np.int64]
) -> pa.Table:
    """Return some rows of all files; row groups without such a row are not read.

    Args:
        source: the input.
        names: of the columns; `check_types` accepts them.
        rows: [n] row numbers in the input, ascending.
    """
    if isinstance(source, TableSource):
        return source.table.select(list(names)).take(pa.array(rows))
    schema = schema_of(source)
    sized = next((name for name in names if is_list(schema.field(name).type)), "")
    parts: list[pa.RecordBatch] = []
    for index, (first, last) in enumerate(pairwise(source.first_rows)):
        positions = rows[(rows >= first) & (rows < last)] - first
        footer = source.footers[index]
        sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        needed = {*np.searchsorted(np.cumsum(sizes), positions, side="right").tolist()}
        chunks = (
            source.read_file(index, names, CHUNK_TOKENS, sized, needed) if len(positions) else ()
        )
        for chunk in chunks:
            begin = chunk.first_row
            low, high = np.searchsorted(positions, [begin, begin + chunk.table.num_rows])
            parts += [chunk.table.take(pa.array(positions[low:high] - begin))] if high > low else []
    return joined(parts)
