"""What a target of `rlpost export` declares, and the columns of an input that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import common_type, is_list, is_number, is_string
from rlpost.io.parquet.source import partition_types
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.roles import ON_DEMAND, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlpost.formats.targets.rows import Rows
    from rlpost.io.outputs import OutputFile
    from rlpost.io.parquet.source import Source


FINAL_MASK = "final_response_mask"
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
    missing = [_missing(item, target, source) for item in target.needs if item not in held]
    if missing:
        raise DataError(*missing)
    types = _types(source)
    kinds = {
        name: kinds_of_files[0] if len(kinds_of_files) == 1 else common_type(kinds_of_files)
        for name, kinds_of_files in types.items()
    }
    left = [name for name in types if name not in held.values() or name not in source.columns]
    reasons = {name: _loss(name, kinds[name], types[name], source, target) for name in left}
    lost = {name: reason for name, reason in reasons.items() if reason}
    if lost and not lossy:
        count = len({*source.columns, *lost})
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


def _loss(
    name: str,
    kind: pa.DataType | None,
    types: Sequence[pa.DataType],
    source: Source,
    target: ExportTarget,
) -> str:
    """Return why a target does not hold a column that no field of it has; empty if it does.

    Args:
        name: of the column.
        kind: the type that has the values of all files; None: there is none.
        types: those of the files.
        source: the input.
        target: the target.
    """
    if name not in source.columns:
        return "in some files only"
    if kind is None:
        return f"{' and '.join(map(_family, types))} in different files"
    if name in target.reserved:
        return f"{target.name} uses this name itself"
    if not target.others:
        return _NO_PLACE
    return "" if target.is_held(kind) else f"{target.name} has no place for {_family(kind)}"


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
    available = source.columns
    known = {*ROLES, *target.fields}
    for name, column in columns_map.items():
        if name not in known:
            raise UsageError(no_such(f"--map {name}={column}: no role {name!r}", name, known))
        if name not in target.fields:
            place = f"place for {name}"
            if target.others:
                place = f"field for {name}, and writes other columns under their own names"
            raise UsageError(
                f"--map {name}={column}: has no effect, because --to {target.name} has no {place}; "
                "leave it out"
            )
        if column not in available and column != "none":
            where = f"{source.name}: --map {name}={column}: no column {column!r}"
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
    expected = f"expected {' or '.join(_names(item)[:4])}"
    if item == "advantages":
        expected = "rlpost advantages IN OUT writes it"
    return (
        f"{source.name}: no column for {item} (--to {target.name}: {target.needs[item]}): "
        f"{expected}; --map {item}=COLUMN names another"
    )
