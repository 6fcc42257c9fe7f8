"""The rollouts of a replay: whole steps or groups of an input in memory, and what was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.compare.matching import CHUNK_TOKENS, read_keys
from rlpost.analysis.replay.schemas import check_types, common_schema, joined, not_everywhere
from rlpost.analysis.replay.stages import STAGES
from rlpost.analysis.responses import columns as lists
from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import is_list, is_number
from rlpost.io.parquet.inputs import COMPUTED
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline.turns import ROLLOUT_NAMES
from rlpost.recipe.roles import ROLES, ColumnMap, closest, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.compare.matching import RowKeys
    from rlpost.io.parquet.source import Source

    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]

Json = dict[str, Any]
Kept = TypeVar("Kept")
SETS = "rlpost.replay.set."
"""Columns of whole numbers that no recipe reads, such as the rank of a response."""
_MOST_SETS = 256
_LEAST_OF_SET = 4
_NAMES = [
    *(name for role in ROLES.values() if role.kind != "text" for name in role.aliases),
    *(name for stage in STAGES.values() for name in stage.names),
]
"""The names of columns of roles and recorded stages."""
_ONE_STEP = 4
"""A single step may have so many times the tokens of a sample."""


@dataclass(frozen=True)
class Maps:
    """The columns that the user named: of roles, and of recorded stages."""

    roles: dict[str, str]
    recorded: dict[str, str]

    @classmethod
    def of(cls, columns_map: Mapping[str, str]) -> Maps:
        """Separate the values of `--map`.

        Raises:
            UsageError: a name is neither a role nor a stage.
        """
        both = {**ROLES, **STAGES}
        for name, column in columns_map.items():
            if name not in both:
                raise UsageError(f"--map {name}={column}: no role {name!r}{closest(name, both)}")
        stages = {*STAGES} - {"sample_mask"}  # a mask that the user names is an input
        recorded = {name: column for name, column in columns_map.items() if name in stages}
        return cls({k: v for k, v in columns_map.items() if k not in recorded}, recorded)


@dataclass(frozen=True)
class Column:
    """A column of numbers: of tokens, ragged by response, or one for each response."""

    values: Numbers
    """[T] of tokens, [N] of responses; NaN for what is null."""
    offsets: NDArray[np.int64] | None = None
    """[N+1] of the responses; None: one number for each response."""

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array) -> Column:
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
    written_by_rlpost: bool | None = None
    """Whether stages that frameworks record elsewhere are those of rlpost; None: unknown."""
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

    @property
    def total_tokens(self) -> int:
        """About the number of tokens of the input."""
        return round(int(self.offsets[-1]) * self.total / len(self))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """[N+1] of the tokens of responses; each has one if the input has no tokens."""
        found = InputColumns(self.columns, self.recorded)
        column = found.length_column(self.table.schema)
        if column is None:
            return np.arange(len(self) + 1)
        return lists.flat(self.table.column(column).combine_chunks())[0]

    @cached_property
    def mask(self) -> Mask:
        """[T]: policy tokens."""
        if "mask" not in self.columns or self.columns.rows_only:
            return np.ones(int(self.offsets[-1]), np.bool_)
        return Column.of(self.table.column(self.columns.column("mask"))).values > 0

    @cached_property
    def kept(self) -> Mask:
        """[T]: tokens that no recorded mask drops."""
        kept = np.ones(int(self.offsets[-1]), np.bool_)
        for stage in ("sample_mask", "final_response_mask"):
            if stage in self.recorded and not self.columns.rows_only:
                kept &= self.column(stage).on_tokens(self.offsets) > 0
        return kept

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of responses."""
        return np.diff(self.offsets)

    @cached_property
    def reward(self) -> Numbers:
        """[N] raw rewards; lists are summed; NaN without a column."""
        if "reward" not in self.columns:
            return np.full(len(self), np.nan)
        column = Column.of(self.table.column(self.columns.column("reward")))
        if column.offsets is None:
            return column.values
        rows = np.repeat(np.arange(len(self)), np.diff(column.offsets))
        return np.asarray(np.bincount(rows, column.values, len(self)), np.float64)

    def codes(self, *roles: str) -> NDArray[np.int64]:
        """Return the number of each row's combination of roles, [N]; 0 for roles without column."""
        codes = np.zeros(len(self), np.int64)
        for role in roles:
            if role in self.columns:
                own = self.table.column(self.columns.column(role)).combine_chunks()
                own = own.dictionary_encode() if not pa.types.is_dictionary(own.type) else own
                part = lists.numbers(own.indices.fill_null(-1)).astype(np.int64)
                codes = codes * (part.max(initial=0) + 2) + part + 1
        return np.unique(codes, return_inverse=True)[1]

    @cached_property
    def sets(self) -> dict[str, NDArray[np.int64]]:
        """[N] codes of columns of few whole numbers, such as the rank of each response."""
        found = {}
        used = {*self.columns.columns.values(), *self.recorded.values()}
        for column in self.table.schema:
            name = column.name.removeprefix(SETS)
            if name in used or not pa.types.is_integer(column.type):
                continue
            own = self.table.column(column.name).combine_chunks().dictionary_encode()
            codes = lists.numbers(own.indices.fill_null(-1)).astype(np.int64) + 1
            if 1 < len(np.unique(codes)) <= min(_MOST_SETS, len(self) // _LEAST_OF_SET):
                found[name] = codes
        return found

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """[N] prompt groups, of the same step."""
        return self.codes("batch", "group")

    def label(self, role: str, row: int) -> Any:
        """Return the value of a role in a row; None without a column."""
        if role not in self.columns:
            return None
        return self.table.column(self.columns.column(role))[row].as_py()

    def column(self, stage: str) -> Column:
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

    def _column(self, stage: str, name: str) -> Column:
        column = Column.of(self.table.column(name))
        if column.offsets is not None:
            own = np.diff(column.offsets)
            wrong = np.flatnonzero((own != self.lengths) & (own != 0))
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"{self.name}: row {self.rows[row]}: `{name}` has {own[row]} numbers; the "
                    f"response has {self.lengths[row]} tokens; one for each token is needed, "
                    f"without those of the prompt or padding: choose another with --map {stage}="
                )
            if not np.array_equal(own, self.lengths):
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
        rows = np.repeat(np.arange(len(self)), self.lengths)
        return np.unique(rows[wrong & self.mask & ~self.unrecorded(stage)[rows]])

    def unrecorded(self, stage: str) -> Mask:
        """Return which responses have no recorded number, [N]: their value is null, or empty."""
        array = self.table.column(self.recorded[stage]).combine_chunks()
        if not is_list(array.type):
            return np.asarray(array.is_null())
        own = np.diff(lists.flat(array)[0])
        return np.asarray((own == 0) & (self.lengths > 0))

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


def _filled(column: Column, offsets: NDArray[np.int64]) -> Column:
    """Return a column of tokens with NaN for the tokens of rows that are null."""
    assert column.offsets is not None
    present = np.repeat(np.diff(column.offsets) > 0, np.diff(offsets))
    values = np.full(int(offsets[-1]), np.nan)
    values[present] = column.values
    return Column(values, offsets)


def recorded_columns(
    available: Sequence[str], maps: Maps, where: str, used: Collection[str] = ()
) -> dict[str, str]:
    """Return the recorded column of each stage that has one.

    Args:
        available: columns of the input.
        maps: the user's choice.
        where: the input's name, for errors.
        used: columns that serve a role, and are no results.

    Raises:
        DataError: a column that the user named does not exist.
    """
    found = {}
    for stage in STAGES.values():
        chosen = maps.recorded.get(stage.name)
        if chosen is not None and chosen != "none" and chosen not in available:
            raise DataError(
                f"{where}: --map {stage.name}={chosen}: no such column{closest(chosen, available)}"
            )
        names = stage.names if chosen is None else (chosen,)
        free = [name for name in names if name in available and name not in used]
        if free:
            found[stage.name] = free[0]
    return found


def roles_of(
    columns: Sequence[str], maps: Maps, where: str, mask_results: Collection[str] = ()
) -> ColumnMap:
    """Return the roles of an input without its recorded columns.

    Args:
        columns: of the input.
        maps: the user's choice.
        where: the input's name, for errors.
        mask_results: columns that a run computed, and that are no inputs.
    """
    results = {name for stage in STAGES.values() for name in stage.names} - {"sample_mask"}
    results |= set(mask_results) | {*maps.recorded.values()}
    keep = {*maps.roles.values()}
    reward = {*ROLES["reward"].aliases} & {*columns} - results
    if not reward and "reward" not in maps.roles:
        results -= {"response_level_rewards"}  # the only rewards that the input has
    own = [name for name in columns if name not in results or name in keep]
    return resolve(own, maps.roles, where)


def check_tolerance(tolerance: float) -> None:
    """Raise UsageError for a tolerance that is no number from 0 on."""
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"--tolerance {tolerance}: a number from 0 on is needed")


def masks_of_rlpost(source: Source) -> list[str]:
    """Return the names of masks of an input that rlpost computed, which are no inputs."""
    return ["sample_mask"] if COMPUTED.encode() in source.mask_origins else []


def _has_numbers(source: Source | TableSource, name: str) -> bool:
    """Return whether a column has numbers, or lists of them; names of folders have none."""
    schema = common_schema(source)
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    return is_number(kind) or lists.holds_numbers(kind) or pa.types.is_boolean(kind)


def _warnings(source: Source | TableSource, maps: Maps, found: InputColumns) -> list[str]:
    """Return warnings of recorded columns without numbers, and of columns of some files only.

    Raises:
        DataError: the user named one of them, or there is no other; or every recorded column is one
            of some files only.
    """
    texts, lacking = [], not_everywhere(source, _NAMES)
    if not found.recorded and not found.others:
        for name in (name for stage in STAGES.values() for name in stage.names if name in lacking):
            raise DataError(
                f"{lacking[name]}: no column `{name}`, which other files have; a recorded column "
                "of all files is needed: add it, or leave this file out"
            )
    for stage, name in found.others.items():
        kind = _type(source, name)
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        what = "text" if is_text else f"of type {kind}"
        text = f"`{name}` is {what}; a number, or a list of numbers, is needed"
        if not found.recorded or stage in maps.recorded:
            hint = f"choose the recorded column with --map {stage}=COLUMN"
            raise DataError(f"{source.name}: {text}: {hint}")
        texts.append(f"not compared: {text}")
    texts += [f"not read: `{name}`, which {file.name} lacks" for name, file in lacking.items()]
    return texts


class InputColumns(NamedTuple):
    """The columns of an input that a replay reads."""

    roles: ColumnMap
    recorded: dict[str, str]
    """Stage to column."""
    others: Mapping[str, str] = MappingProxyType({})
    """Stage to a column of its name that has no numbers."""

    @property
    def used(self) -> list[str]:
        """The columns of roles."""
        return [self.roles.column(role) for role in self.roles.columns]

    def read(
        self, schema: pa.Schema, needed: Collection[str] | None, also: Collection[str] = ()
    ) -> list[str]:
        """Return the columns to read, those of rollout ids included.

        Args:
            schema: of the input.
            needed: other columns that recipes name; None: every column of numbers.
            also: columns besides these.
        """
        ids = [name for name in ROLLOUT_NAMES if name in schema.names]
        own = [*dict.fromkeys([*self.used, *self.recorded.values(), *(needed or ()), *ids, *also])]
        more = [n for n in schema.names if needed is None and _may_matter(schema, n)]
        return [*dict.fromkeys([*own, *more, *self.whole_numbers(schema)])]

    def whole_numbers(self, schema: pa.Schema) -> list[str]:
        """Return columns of a whole number for each response."""
        return [name for name in schema.names if pa.types.is_integer(schema.field(name).type)]

    def length_column(self, schema: pa.Schema) -> str | None:
        """Return a column of lists with a number for each token; None without tokens."""
        if self.roles.rows_only:
            return None
        roles = ("mask", *(role.name for role in ROLES.values() if role.kind == "tokens"))
        found = next((self.roles.column(role) for role in roles if role in self.roles), None)
        own = (name for stage, name in self.recorded.items() if STAGES[stage].level == "tokens")
        return found or next((name for name in own if is_list(schema.field(name).type)), None)


def columns_of(
    source: Source | TableSource, maps: Maps, mask_results: Collection[str] = ()
) -> InputColumns:
    """Return the roles and the recorded columns of an input; arguments as `read`.

    Raises:
        DataError: there are no rows; a column that the user named does not exist, or has types in
            two files that do not fit.
    """
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to replay")
    roles = roles_of(source.columns, maps, source.name, mask_results)
    used = {roles.column(role) for role in roles.columns}
    recorded = recorded_columns(source.columns, maps, source.name, used)
    check_types(source, {*used, *recorded.values()})
    own = {stage: name for stage, name in recorded.items() if _has_numbers(source, name)}
    others = {stage: name for stage, name in recorded.items() if stage not in own}
    return InputColumns(roles, own, others)


def read(
    source: Source | TableSource,
    maps: Maps,
    needed: Collection[str] | None,
    most_tokens: int,
    mask_results: Collection[str] = (),
    also: Collection[str] = (),
) -> Rollouts:
    """Read whole steps, or whole prompt groups, of an input into memory.

    Args:
        source: the input.
        maps: the user's columns.
        needed: other columns that recipes name; None: every column of numbers.
        most_tokens: read no more tokens than this, but one group at least.
        mask_results: columns that a run computed, and that are no inputs.
        also: columns that the user named; they are read in any case.

    Raises:
        DataError: there are no rows, or recorded columns have no numbers.
    """
    found, schema = columns_of(source, maps, mask_results), common_schema(source)
    warnings = _warnings(source, maps, found)
    names = found.read(schema, needed, also)
    check_types(source, names)
    rows, scope = chosen_rows(source, found.roles, found.recorded, most_tokens)
    table = read_rows(source, names, rows)
    if needed is not None:
        alone = {*found.whole_numbers(schema)} - {*found.used, *found.recorded.values(), *needed}
        own = table.schema.names
        table = table.rename_columns([f"{SETS}{n}" if n in alone else n for n in own])
    return Rollouts(
        source.name, table, found.roles, found.recorded, rows, source.rows, scope, warnings
    )


def _may_matter(schema: pa.Schema, name: str) -> bool:
    """Return whether a recipe could name a column: of numbers, and not of token ids."""
    kind = schema.field(name).type
    if is_list(kind):
        return bool(pa.types.is_floating(kind.value_type))
    return is_number(kind)


def chosen_rows(
    source: Source | TableSource, columns: ColumnMap, recorded: Mapping[str, str], most: int
) -> tuple[NDArray[np.int64], str]:
    """Return the rows of whole steps, or whole groups, of so many tokens; and what they are."""
    sized = next((columns.column(r) for r in ("mask", "old_log_probs") if r in columns), None)
    sized = sized or next(iter(recorded.values()), None)
    per_row = 1.0 if sized is None else max(1.0, source.values_of(sized) / source.rows)
    budget = max(1, int(most / per_row))
    if source.rows <= budget:
        return np.arange(source.rows), "everything"
    keys = read_keys(source, columns)  # type: ignore[arg-type]  # both have `read`
    steps, groups = _codes(keys, "batch"), _codes(keys, "batch", "group")
    for codes, scope in ((steps, "whole steps"), (groups, "whole prompt groups")):
        sizes = np.bincount(codes)
        taken = np.cumsum(sizes) <= budget
        taken[0] |= sizes[0] <= _ONE_STEP * budget
        if len(sizes) > 1 and taken[0]:
            return np.flatnonzero(taken[codes]), scope
    return np.flatnonzero(groups == groups[0]), "one prompt group"


def _codes(keys: RowKeys, *names: str) -> NDArray[np.int64]:
    """Return the number of each row's combination of keys, [N], in order of appearance."""
    codes = np.zeros(keys.count, np.int64)
    for name in names:
        if name in keys.keys:
            own = pc.dictionary_encode(keys.keys[name]).combine_chunks()
            part = lists.numbers(own.indices.fill_null(-1)).astype(np.int64)
            codes = codes * (part.max(initial=0) + 2) + part + 1
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def read_rows(
    source: Source | TableSource, names: Sequence[str], rows: NDArray[np.int64]
) -> pa.Table:
    """Read some rows, in ascending order; stops after the last one."""
    if isinstance(source, TableSource):
        return source.table.select(list(names)).take(pa.array(rows))
    parts, start = [], 0
    sized = next((name for name in names if is_list(_type(source, name))), "")
    for chunk in source.read(list(names), CHUNK_TOKENS, sized):
        end = start + chunk.table.num_rows
        first, last = np.searchsorted(rows, [start, end])
        if last > first:
            parts.append(chunk.table.take(pa.array(rows[first:last] - start)))
        start = end
        if last == len(rows):
            break
    return joined(parts)


def _type(source: Source | TableSource, name: str) -> pa.DataType:
    schema = source.schemas[0]
    return schema.field(name).type if name in schema.names else pa.string()
