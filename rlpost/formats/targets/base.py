"""What a target of `rlpost export` declares, and the columns and rows of an input that it holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, common_type, is_list, is_number, is_string
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
_NO_PLACE = "no place for it"


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a type has numbers, texts or bools, or lists or structs of them."""
    if is_list(kind) or pa.types.is_dictionary(kind):
        return is_plain(kind.value_type)
    if pa.types.is_struct(kind):
        return all(is_plain(part.type) for part in kind)
    return is_number(kind) or is_string(kind) or bool(pa.types.is_null(kind))


class Lines:
    """Appends JSON lines to a staged file."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self.size = 0
        """Bytes so far."""

    def append(self, records: Sequence[Any]) -> None:
        """Write a line for each record."""
        if records:
            self.size = self._file.write(self.size, self._encoder.encode_lines(records))


@dataclass(frozen=True)
class ExportColumns:
    """The columns of an input that an export writes."""

    columns: Mapping[str, str]
    """Role, `response_token_ids`, `prompt_token_ids` or canonical column -> column."""
    others: tuple[str, ...]
    """Other columns, which are written under their own names."""
    lost: Mapping[str, str]
    """Column -> why the target does not hold it."""
    schema: pa.Schema
    """Of the columns that are written."""
    lossy: bool = False
    """Whether values that the target cannot represent may be replaced."""


@dataclass(frozen=True)
class ExportTarget:
    """One kind of file that `rlpost export` writes.

    `fields` has what the target has a place for: the name of a role, of ids of tokens, or of a
    canonical column, and the target's field. `layout` is `file` (all rows in one file), `steps` (a
    file for each step in a directory), or `stream` (a directory, and its index beside it).
    """

    name: str
    title: str
    layout: Literal["file", "steps", "stream"]
    suffix: str
    fields: Mapping[str, str]
    needs: Mapping[str, str]
    """Those of `fields` without which there is no output -> what needs it."""
    source: str
    """The reader whose code defines the format."""
    write: Callable[[Iterable[Rows], Sequence[OutputFile], ExportColumns, int], list[str]]
    """Writes the rows of a step to its files, and returns warnings; a DataError names a bad row.
    The last argument is the step, 0 without steps."""
    use: str
    """How the target reads the output, whose path is `{out}`."""
    use_beside: str = ""
    """What `use` continues with if there are files `beside`."""
    trains: bool = False
    """Whether its trainer reads the advantages of the file, if they are there."""
    others: str = ""
    """Where all other columns go; empty: they are lost."""
    note: str = ""
    """One line on what becomes different, which each result has."""
    library: str = ""
    """The framework's package, if it writes the file itself; rlpost's extra has its name."""
    beside: Callable[[ExportColumns], Mapping[str, str]] = lambda _: {}
    """Returns text files beside the others: what their paths have behind that of OUT -> text."""
    is_held: Callable[[pa.DataType], bool] = is_plain
    """Whether a column of this type fits under its own name."""
    reserved: tuple[str, ...] = ()
    """Names of the target's own, which no other column can have."""


def held_columns(
    source: Source, target: ExportTarget, columns_map: Mapping[str, str], *, lossy: bool
) -> ExportColumns:
    """Return the columns of the input that the target holds.

    Raises:
        UsageError: the map has an unknown name, or columns are lost and that is not allowed.
        DataError: the input lacks a column that the target needs, or a mapped one.
    """
    held = _held(source, target, columns_map)
    if missing := [_missing(item, target, source) for item in target.needs if item not in held]:
        raise DataError(*missing)
    types = _types(source)
    kinds = {name: x[0] if len(x) == 1 else common_type(x) for name, x in types.items()}
    lost: dict[str, str] = {}
    for name in types:
        if name not in source.columns:
            lost[name] = "in some files only"
        elif name in held.values():
            continue
        elif (kind := kinds[name]) is None:
            lost[name] = f"{' and '.join(map(_family, types[name]))} in different files"
        elif name in target.reserved:
            lost[name] = f"{target.name} uses this name itself"
        elif not target.others:
            lost[name] = _NO_PLACE
        elif not target.is_held(kind):
            lost[name] = f"{target.name} has no place for {_family(kind)}"
    if lost and not lossy:
        count = len(types)
        raise UsageError(
            f"{source.name}: --to {target.name} cannot hold {len(lost)} of "
            f"{counted(count, 'column')}: {lost_text(lost)}",
            tip=f"--lossy writes the other {count - len(lost)}",
        )
    written = [name for name in source.columns if name not in lost]
    schema = pa.schema([(name, kinds[name] or types[name][0]) for name in written])
    others = tuple(name for name in written if name not in held.values())
    return ExportColumns(held, others, lost, schema, lossy)


def _types(source: Source) -> dict[str, list[pa.DataType]]:
    """Return the types of each column: of the files that have it, or of the paths."""
    types = {name: [kind] for name, kind in partition_types(source.files).items()}
    for column in (column for schema in source.schemas for column in schema):
        if column.type not in types.setdefault(column.name, []):
            types[column.name].append(column.type)
    return {name: types[name] for name in dict.fromkeys([*source.columns, *types])}


def lost_text(lost: Mapping[str, str]) -> str:
    """Return the names of lost columns, with reasons if these are not that there is no place."""
    return ", ".join(
        name if reason == _NO_PLACE else f"{name} ({reason})" for name, reason in lost.items()
    )


def _family(kind: pa.DataType) -> str:
    """Return a type without its parameters: `struct<...>` is long."""
    return str(kind).partition("<")[0]


def _held(source: Source, target: ExportTarget, columns_map: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each of the target's fields that the input has."""
    available, known = source.columns, {*ROLES, *target.fields}
    for name, column in columns_map.items():
        flag = f"--map {name}={column}"
        if name not in known:
            raise UsageError(no_such(f"{flag}: no role {name!r}", name, known))
        if name not in target.fields:
            why = f"--to {target.name} has no field for {name}"
            why += ", and writes other columns under their own names" if target.others else ""
            raise UsageError(f"{flag}: has no effect, because {why}; leave it out")
        if column not in available and column != "none":
            where = f"{source.name}: {flag}: no column {column!r}"
            raise DataError(no_such(where, column, available))
    roles = {role: column for role, column in columns_map.items() if role in ROLES}
    columns = resolve_input(source, roles).columns
    if FINAL_MASK in available and FINAL_MASK not in target.fields:
        columns["mask"] = FINAL_MASK
    for item in target.fields:
        named = next((name for name in _names(item) if name in available), None)
        if named is not None and (item not in ROLES or ROLES[item].kind in ON_DEMAND):
            columns[item] = named
    columns |= columns_map
    return {x: columns[x] for x in target.fields if columns.get(x, "none") != "none"}


def _names(item: str) -> Sequence[str]:
    """Return the names of columns that serve an item."""
    return ROLES[item].aliases if item in ROLES else (item,)


def _missing(item: str, target: ExportTarget, source: Source) -> str:
    """Return the error for a column that the target needs and the input lacks."""
    written = "rlpost advantages IN OUT writes it"
    expected = written if item == "advantages" else f"expected {' or '.join(_names(item)[:4])}"
    return (
        f"{source.name}: no column for {item} (--to {target.name}: {target.needs[item]}): "
        f"{expected}; --map {item}=COLUMN names another"
    )


@dataclass(frozen=True)
class Rows:
    """Some rows of one file, decoded: vectors of tokens, and plain values.

    Args:
        table: the rows.
        path: of the file.
        places: [n] row numbers in the file.
        before: the number of rows of the files before it.
        columns: as `ExportColumns.columns`.
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

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        return replace(self, table=self.table.take(pa.array(rows)), places=self.places[rows])

    def error(self, row: int, problem: str) -> DataError:
        """Return an error about a row."""
        return DataError(f"{self.path}, row {self.places[row]}: {problem}")

    def plain(self, column: str) -> list[Any]:
        """Return the values of a column: vectors for lists of numbers, else Python objects."""
        array = self.table.column(column)
        if is_list(array.type) and is_number(array.type.value_type) and not array.null_count:
            flat = array.flatten()
            if not flat.null_count and not pa.types.is_boolean(flat.type):
                return _split(*ragged.list_values(array, self._location(column)))
        return list(array.to_pylist())

    def values(self, item: str) -> list[Any]:
        """Return the values of an item as Python objects; None for all if it has no column."""
        return self.plain(self.columns[item]) if item in self else [None] * len(self)

    def keys(self, item: str) -> list[Any]:
        """Return the values of an item that is a key: integers or texts."""
        return list(ragged.key(*self._column(item)).to_pylist())

    def numbers_of(self, item: str) -> NDArray[np.float64]:
        """Return a number per row; lists are summed."""
        return ragged.numbers(*self._column(item))

    def truncated(self) -> list[bool]:
        """Return which responses reached the length limit; False without such a column."""
        if "truncated" not in self:
            return [False] * len(self)
        return list(truncations(*self._column("truncated")).truncated.tolist())

    def lists(self, item: str) -> list[NDArray[Any]]:
        """Return a vector per row: ids of prompts, for example."""
        return _split(*ragged.list_values(*self._column(item)))

    def tokens(self, item: str) -> list[NDArray[Any]]:
        """Return a vector [T] per row, with one number per response token.

        Raises:
            DataError: its length differs from that of the ids, or of the mask.
        """
        values = self.lists(item)
        other = next(name for name in (*LENGTH_OF, item) if name in self)
        for row, pair in enumerate(zip(values, self.lists(other), strict=True)):
            length, expected = map(len, pair)
            if length != expected:
                raise self.error(
                    row,
                    f"`{self.columns[item]}` has {length} values but `{self.columns[other]}` has "
                    f"{expected}; every token column of a row needs the same length",
                )
        return values

    def masks(self, item: str = "mask") -> list[NDArray[np.bool_]]:
        """Return the mask of each row; all tokens without such a column."""
        if item not in self:
            other = next(name for name in LENGTH_OF if name in self)
            return [np.ones(len(tokens), np.bool_) for tokens in self.lists(other)]
        self.tokens(item)  # checks the lengths
        return _split(*ragged.mask(*self._column(item)))

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows the sample mask keeps, [n]."""
        if "sample_mask" not in self:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.numbers_of("sample_mask") != 0)

    def trained(self) -> list[NDArray[np.bool_]]:
        """Return the mask of the tokens to train on: none of a response that is left out."""
        return [mask & kept for mask, kept in zip(self.masks(), self.kept(), strict=True)]

    def _column(self, item: str) -> tuple[pa.Array, CellLocation]:
        name = self.columns[item]
        return self.table.column(name), self._location(name)

    def _location(self, column: str) -> CellLocation:
        return CellLocation(self.path, int(self.places[0]) if len(self) else 0, column)


def _split(offsets: NDArray[np.int64], values: NDArray[Any]) -> list[NDArray[Any]]:
    return [values[i:j] for i, j in pairwise(offsets.tolist())]
