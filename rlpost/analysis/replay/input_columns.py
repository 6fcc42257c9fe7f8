"""The columns of an input that a replay reads: their types in all files, roles, recorded stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rlpost.analysis.replay.stages import STAGE_COLUMNS, STAGES
from rlpost.analysis.responses.columns import holds_numbers
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import common_type, is_list, is_number, is_string
from rlpost.io.parquet.inputs import COMPUTED
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.roles import ROLES, ColumnMap

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rlpost.io.parquet.source import Source, TableSource


def schema_of(source: Source | TableSource) -> pa.Schema:
    """Return the columns that every file has, of the types of the first file; folders are texts."""
    first = source.schemas[0]
    kinds = ((x, first.field(x).type if x in first.names else pa.string()) for x in source.columns)
    return pa.schema([*kinds])


def check_types(source: Source | TableSource, names: Collection[str]) -> None:
    """Raise DataError for the first column, of some, that is lists in a file and not in another."""
    schema, where = schema_of(source), source.files[0].path
    for file, other in zip(source.files, source.schemas, strict=True):
        for name in (name for name in names if name in other.names):
            kinds = other.field(name).type, schema.field(name).type
            if is_list(kinds[0]) != is_list(kinds[1]):
                raise DataError(
                    f"{file.path}: `{name}` is {_words(kinds[0])}, and {_words(kinds[1])} in "
                    f"{where}; one type is needed in all files: write one of them again, or replay "
                    "them one by one"
                )


def _words(kind: pa.DataType) -> str:
    """Return a type in words: a list of double, not large_list<element: double>."""
    if is_list(kind):
        return f"a list of {kind.value_type}"
    return f"a single {kind}" if is_number(kind) else f"of type {kind}"


def joined(parts: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches of the same columns as one table; keys of two types are texts.

    Args:
        parts: at least one; `check_types` accepts their types.
    """
    columns = {}
    for name in parts[0].schema.names:
        chunks = [part.column(name) for part in parts]
        kinds = [*dict.fromkeys(chunk.type for chunk in chunks)]
        if len(kinds) > 1:
            kind = common_type(kinds) or pa.large_string()
            chunks = [chunk.cast(kind) for chunk in chunks]
        columns[name] = pa.chunked_array(chunks)
    return pa.table(columns).unify_dictionaries()


@dataclass(frozen=True)
class NamedColumns:
    """The columns that the user named: of roles, and of recorded stages."""

    roles: dict[str, str]
    recorded: dict[str, str]

    @classmethod
    def of(cls, columns_map: Mapping[str, str]) -> NamedColumns:
        """Separate the values of `--map`.

        Raises:
            UsageError: a name is neither a role nor a stage.
        """
        both = {**ROLES, **STAGES}
        for name, column in columns_map.items():
            if name not in both:
                raise UsageError(no_such(f"--map {name}={column}: no role {name!r}", name, both))
        stages = {*STAGES} - {"sample_mask"}  # a mask that the user names is an input
        recorded = {name: column for name, column in columns_map.items() if name in stages}
        return cls({k: v for k, v in columns_map.items() if k not in recorded}, recorded)


def recorded_columns(
    available: Sequence[str], named: NamedColumns, where: str, used: Collection[str] = ()
) -> dict[str, str]:
    """Return the recorded column of each stage that has one.

    Args:
        available: columns of the input.
        named: the user's choice.
        where: the input's name, for errors.
        used: columns that serve a role, and are no results.

    Raises:
        DataError: a column that the user named does not exist.
    """
    columns = {}
    for stage in STAGES.values():
        chosen = named.recorded.get(stage.name)
        if chosen is not None and chosen != "none" and chosen not in available:
            text = f"{where}: --map {stage.name}={chosen}: no such column"
            raise DataError(no_such(text, chosen, available))
        names = stage.names if chosen is None else (chosen,)
        free = [name for name in names if name in available and name not in used]
        if free:
            columns[stage.name] = free[0]
    return columns


def roles_of(source: Source | TableSource, named: NamedColumns) -> ColumnMap:
    """Return the roles of an input without its recorded columns.

    A sample mask is one of these if rlpost computed it.
    """
    results = {*STAGE_COLUMNS, *named.recorded.values()}
    if COMPUTED.encode() not in source.mask_origins:
        results.discard("sample_mask")
    hidden = results - {*named.roles.values()}
    return resolve_input(source, named.roles, results=False, hidden=hidden)


def lacking_warnings(source: Source | TableSource, recorded: Mapping[str, str]) -> list[str]:
    """Return warnings of columns that some files of an input lack.

    Raises:
        DataError: every recorded column is one of some files only.
    """
    names = {name for role in ROLES.values() if role.kind != "text" for name in role.aliases}
    names |= {*STAGE_COLUMNS}
    lacking = {name: file for name, file in source.lacking.items() if name in names}
    for name in (name for name in STAGE_COLUMNS if name in lacking and not recorded):
        raise DataError(
            f"{lacking[name]}: no column `{name}`, which other files have; a recorded column "
            "of all files is needed: add it, or leave this file out"
        )
    return [f"not read: `{name}`, which {file} lacks" for name, file in lacking.items()]


def text_warnings(schema: pa.Schema, columns: InputColumns) -> list[str]:
    """Return warnings of columns that are named as recorded ones and have no numbers."""
    read = {*columns.used, *columns.recorded.values()}
    kinds = {name: schema.field(name).type for name in STAGE_COLUMNS if name in schema.names}
    return [
        f"not compared: `{name}` is {_words(kind)}, no numbers"
        for name, kind in kinds.items()
        if name not in read and not is_number(kind) and not holds_numbers(kind)
    ]


class InputColumns(NamedTuple):
    """The columns of an input that a replay reads."""

    roles: ColumnMap
    recorded: dict[str, str]
    """Stage to column."""

    @property
    def used(self) -> list[str]:
        """The columns of roles."""
        return [self.roles.column(role) for role in self.roles.columns]

    def read(self, available: Sequence[str], named: Collection[str]) -> list[str]:
        """Return the columns to read: of roles, recorded ones, ids of rollouts, and named ones."""
        ids = (name for name in ROLES["rollout"].aliases if name in available)
        return [*dict.fromkeys([*self.used, *self.recorded.values(), *ids, *named])]

    def length_column(self, schema: pa.Schema) -> str | None:
        """Return a column of lists with a number for each token; None without tokens."""
        if self.roles.rows_only:
            return None
        roles = ("mask", *(role.name for role in ROLES.values() if role.kind == "tokens"))
        column = next((self.roles.column(role) for role in roles if role in self.roles), None)
        recorded = (
            name for stage, name in self.recorded.items() if STAGES[stage].level == "tokens"
        )
        return column or next((name for name in recorded if is_list(schema.field(name).type)), None)


def columns_of(source: Source | TableSource, named: NamedColumns) -> InputColumns:
    """Return the roles and the recorded columns of an input.

    Raises:
        DataError: there are no rows; a column that the user named does not exist, or has types in
            two files that do not fit.
    """
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to replay")
    roles = roles_of(source, named)
    used = {roles.column(role) for role in roles.columns}
    recorded = recorded_columns(source.columns, named, source.name, used)
    check_types(source, {*used, *recorded.values()})
    schema = schema_of(source)
    for stage, name in [*recorded.items()]:
        kind = schema.field(name).type
        if is_number(kind) or holds_numbers(kind):
            continue
        if stage in named.recorded:
            what = "text" if is_string(kind) else f"of type {kind}"
            raise DataError(
                f"{source.name}: `{name}` is {what}; a number, or a list of numbers, is needed: "
                f"choose the recorded column with --map {stage}=COLUMN"
            )
        del recorded[stage]
    return InputColumns(roles, recorded)
