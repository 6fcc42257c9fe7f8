"""What a target of `rlpost export` declares, and the columns and rows of an input that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import types

from rlpost.errors import DataError, ErrorPart, UsageError, no_such
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, is_list, is_number, is_string, is_tokens
from rlpost.io.finish_reasons import truncations
from rlpost.io.parquet.source import partition_types
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.roles import ON_DEMAND, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.outputs import OutputFile
    from rlpost.io.parquet.source import Source


FINAL_MASK = "final_response_mask"
LENGTH_OF = ("response_token_ids", "mask", "advantages")
"""Items whose lists have an entry per response token; the first that there is sets the length."""


@dataclass(frozen=True)
class Held:
    """The columns of an input, by what becomes of them in an export."""

    columns: Mapping[str, str]
    """Item of the target's fields -> column."""
    others: tuple[str, ...]
    """Other columns, which are written under their own names."""
    lost: Mapping[str, str]
    """Column -> why the target does not hold it."""


@dataclass(frozen=True)
class ExportTarget:
    """One kind of file that `rlpost export` writes."""

    name: str
    title: str
    files: tuple[str, ...]
    """The paths of its files: `{out}`, or behind it; with `{step}` there is a file a step."""
    source: str
    """The reader whose code defines the format."""
    write: Callable[[Iterable[Rows], Sequence[OutputFile], Held, int], list[str]]
    """Writes the rows of a step to its files, and returns warnings; a DataError names a bad row.
    The last argument is the step, 0 without steps."""
    use: str
    """How the target reads the output, whose path is `{out}`."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What the target has a place for, a role or a canonical column -> the target's field."""
    needs: tuple[str, ...] = ()
    """Those of `fields` without which there is no output."""
    hook: tuple[str, str, str] = ("", "", "")
    """Name and text of a file beside the others that hands the advantages over, if there are any,
    and what `use` continues with then."""
    trains: bool = False
    """Whether its trainer reads the advantages of the file, if they are there."""
    others: str = ""
    """Where all other columns go; empty: they are lost."""
    note: str = ""
    """One line on what becomes different, which each result has."""
    library: str = ""
    """The framework's package, if it writes the file itself; rlpost's extra has its name."""
    reserved: tuple[str, ...] = ()
    """Names of the target's own, which no other column can have."""

    @property
    def suffix(self) -> str:
        """The suffix of OUT, if that is a file."""
        return ".jsonl" if self.files == ("{out}",) else ""


def held_columns(source: Source, target: ExportTarget, columns_map: Mapping[str, str]) -> Held:
    """Return the columns of the input that the target holds.

    Raises:
        UsageError: the map has an unknown name.
        DataError: the input lacks a column that the target needs, or a mapped one.
    """
    columns = _columns(source, target, columns_map)
    if missing := [_missing(item, target, source) for item in target.needs if item not in columns]:
        raise DataError(*missing)
    kinds = {name: {kind} for name, kind in partition_types(source.files).items()}
    for column in (column for schema in source.schemas for column in schema):
        kinds.setdefault(column.name, set()).add(column.type)
    lost: dict[str, str] = {}
    for name in dict.fromkeys([*source.columns, *kinds]):
        unfit = next((x for x in kinds[name] if not (_is_plain(x) or _is_text(x))), None)
        if name in columns.values():
            continue
        if name not in source.columns:
            lost[name] = "in some files only"
        elif not target.others:
            lost[name] = "no place for it"
        elif name in target.reserved:
            lost[name] = f"{target.name} uses this name itself"
        elif unfit is not None:
            lost[name] = f"no place for {str(unfit).partition('<')[0]}"
    taken = {*columns.values(), *lost}
    return Held(columns, tuple(name for name in source.columns if name not in taken), lost)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values are numbers or texts, or lists or structs of them."""
    if is_list(kind) or types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(part.type) for part in kind)
    return is_number(kind) or is_string(kind) or bool(types.is_null(kind))


def _is_text(kind: pa.DataType) -> bool:
    """Return whether values are written as texts: dates, timestamps and decimals."""
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind))


def _columns(
    source: Source, target: ExportTarget, columns_map: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each of the target's fields that the input has."""
    available, known = source.columns, {*ROLES, *target.fields}
    for name, column in columns_map.items():
        flag = f"--map {name}={column}"
        if name not in known:
            raise UsageError(no_such(f"{flag}: no role {name!r}", name, known))
        if name not in target.fields:
            why = f"{flag}: has no effect, because --to {target.name} has no field for {name}"
            raise UsageError(why, tip="leave it out")
        if column not in available and column != "none":
            where = f"{source.name}: {flag}: no column {column!r}"
            raise DataError(no_such(where, column, available))
    roles = {role: column for role, column in columns_map.items() if role in ROLES}
    columns = resolve_input(source, roles).columns
    if FINAL_MASK in available and FINAL_MASK not in target.fields:
        columns["mask"] = FINAL_MASK
    for item in target.fields:
        if item not in ROLES or ROLES[item].kind in ON_DEMAND:
            columns[item] = next(filter(available.__contains__, _names(item)), "none")
    columns |= columns_map
    return {x: columns[x] for x in target.fields if columns.get(x, "none") != "none"}


def _names(item: str) -> Sequence[str]:
    """Return the names of columns that serve an item."""
    return ROLES[item].aliases if item in ROLES else (item,)


def _missing(item: str, target: ExportTarget, source: Source) -> ErrorPart:
    """Return the error for a column that the target needs and the input lacks."""
    text = f"{source.name}: no column for {item}, which --to {target.name} needs"
    if item == "advantages":
        return ErrorPart(text, tip="rlpost advantages IN OUT  # writes it")
    return ErrorPart(f"{text}: {' or '.join(_names(item)[:4])}", tip=f"--map {item}=COLUMN")


@dataclass(frozen=True)
class Rows:
    """Some rows of one file.

    Args:
        table: the rows.
        path: of the file.
        places: [n] row numbers in the file.
        before: the number of rows of the files before it.
        columns: as `Held.columns`.
    """

    table: pa.RecordBatch
    path: str
    places: NDArray[np.int64]
    before: int
    columns: Mapping[str, str]

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def __contains__(self, item: str) -> bool:
        """Whether there is a column for an item."""
        return item in self.columns

    def __getitem__(self, item: str) -> list[Any]:
        """Return the values of an item; None for all if it has no column.

        Masks are bools [T], other lists of tokens vectors [T], numbers floats (lists are summed),
        keys integers or texts, `truncated` bools; without a column no response is truncated, and
        all tokens are the policy's.

        Raises:
            DataError: a list of tokens has another length than the ids, or the mask.
        """
        if item not in self:
            if item == "mask":
                return [np.ones(length, bool) for length in self._lengths.tolist()]
            return [False if item == "truncated" else None] * len(self)
        array, place = self._cells(self.columns[item])
        kind = ROLES[item].kind if item in ROLES else "tokens" if is_tokens(array.type) else ""
        if kind in ("tokens", "ids"):
            masks = item in ("mask", FINAL_MASK)
            offsets, values = (ragged.mask if masks else ragged.list_values)(array, place)
            if item != "prompt_token_ids":
                self._check_lengths(item, np.diff(offsets))
            return [values[i:j] for i, j in pairwise(offsets.tolist())]
        if kind == "flag":
            return list(truncations(array, place).truncated.tolist())
        if kind == "number":
            return list(ragged.numbers(array, place).tolist())
        return list(ragged.key(array, place).to_pylist()) if kind == "key" else _objects(array)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each response."""
        item = next(item for item in LENGTH_OF if item in self)
        return np.diff(ragged.list_values(*self._cells(self.columns[item]))[0])

    def _check_lengths(self, item: str, lengths: NDArray[np.int64]) -> None:
        if (differ := np.flatnonzero(lengths != self._lengths)).size:
            first = int(differ[0])
            raise self.error(
                first,
                f"`{self.columns[item]}` has {lengths[first]} values, but the response has "
                f"{self._lengths[first]} tokens; every token column of a row needs the same length",
            )

    def _cells(self, column: str) -> tuple[pa.Array, CellLocation]:
        first = int(self.places[0]) if len(self) else 0
        return self.table.column(column), CellLocation(self.path, first, column)

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows the sample mask keeps, [n]."""
        masked = "sample_mask" in self
        return np.array(self["sample_mask"]) != 0 if masked else np.ones(len(self), bool)

    def trained(self) -> list[NDArray[np.bool_]]:
        """Return the mask of the tokens to train on: none of a response that is left out."""
        return [mask & kept for mask, kept in zip(self["mask"], self.kept(), strict=True)]

    def plain(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns, with dates, timestamps and decimals as texts."""
        table = self.table.select([*columns])
        for i, column in enumerate(table.schema):
            if _is_text(column.type):
                table = table.set_column(i, column.name, table.column(i).cast(pa.string()))
        return table

    def objects(self, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Return columns as Python objects; lists of numbers as vectors."""
        table = self.plain(columns)
        return dict(zip(columns, map(_objects, table.columns), strict=True))

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        table = self.table.take(pa.array(rows))
        return Rows(table, self.path, self.places[rows], self.before, self.columns)

    def error(self, row: int, problem: str) -> DataError:
        """Return an error about a row."""
        return DataError(f"{self.path}, row {self.places[row]}: {problem}")


def _objects(array: pa.Array) -> list[Any]:
    if is_list(array.type) and is_number(array.type.value_type) and not array.null_count:
        flat = array.flatten()
        if not flat.null_count and not types.is_boolean(flat.type):
            offsets, values = ragged.list_values(array, CellLocation("", 0, ""))
            return [values[i:j] for i, j in pairwise(offsets.tolist())]
    return list(array.to_pylist())


class Lines:
    """Appends JSON lines to a staged file."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self.size = 0
        """Bytes so far."""

    def append(self, records: Sequence[Any]) -> None:
        """Write a line for each record; numbers that are not finite are null."""
        if records:
            self.size = self._file.write(self.size, self._encoder.encode_lines(records))
