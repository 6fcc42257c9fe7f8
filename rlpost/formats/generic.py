"""Any JSON or Parquet: fields become roles by name, by alias or by `--map`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_struct

from rlpost.errors import DataError, UsageError, closest
from rlpost.formats.base import CANONICAL, LENGTH, Format
from rlpost.formats.columns import is_list_role, kept_values
from rlpost.formats.containers import FOLDER, JSON, ZIP, container_of
from rlpost.formats.containers import PARQUET as PARQUET_FILES
from rlpost.formats.fields import column_of
from rlpost.formats.keys import GROUP_OF_TEXT
from rlpost.formats.layout import check_layout
from rlpost.formats.records import first_names
from rlpost.formats.rows import Fields, tables
from rlpost.io.arrow import CellLocation, is_list
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.recipe.roles import ROLES, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


# `rlpost advantages` writes these columns; no canonical column exists for them, so they stay.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}
_NO_FIELD = "no field has a known name for it; name one with --map {}=FIELD"
_MISSING_ROLES = {
    "group": f"{_NO_FIELD.format('group')}, or set --group-size N for blocks of N records",
    **{role: _NO_FIELD.format(role) for role in ("reward", "log_probs", "old_log_probs")},
}
"""Role -> why a converted file lacks it, for the roles that other commands need."""
_NEEDED = {"prompt_id", "reward"}
_ALWAYS = ("group", "reward", "batch")


class Binding:
    """The field, or dotted path, of each role and canonical column, as fields are found.

    Args:
        options: `map` has precedence over names and aliases; a dotted path names a nested field.
        where: the file, for errors.

    Raises:
        UsageError: the map names an unknown role or column, or the layout is unknown.
    """

    def __init__(self, options: ReadOptions, where: str) -> None:
        self.options, self.where = options, where
        self.mapped = {role: path for role, path in options.map.items() if path != "none"}
        self._columns = {column_of(role) for role in self.mapped}
        self.names: dict[str, None] = {}
        self.fields: dict[str, str] = {}
        if options.layout is not None:
            check_layout(options.layout)

    def add(self, table: Fields) -> None:
        """Bind roles to the fields of a table that earlier ones lack.

        Raises:
            DataError: no field has a known name.
            UsageError: a layout is set without a mask.
        """
        first = not self.names
        new = [name for name in table.columns if name not in self.names]
        if not new and not first:
            return
        self.names |= dict.fromkeys(new)
        self.fields = {**self._matched(), **self.fields}
        self.options.stats.sources |= self.sources()
        if first:
            self._check()

    def _matched(self) -> dict[str, str]:
        names = [name for name in self.names if name not in self.options.omitted_columns]
        roles = resolve(names, {}, self.where).columns
        present = {role: path for role, path in self.mapped.items() if path in self.names}
        if any(is_list_role(role) for role in roles.keys() | self.mapped.keys() if role != LENGTH):
            roles.pop(LENGTH, None)  # tokens set it; under its own name it is checked
        fields = {role: name for role, name in roles.items()
                  if role not in _WRITTEN and column_of(role) not in self._columns}  # fmt: skip
        fields |= present
        used = {column_of(role) for role in fields} | {*fields.values()} | self._columns
        columns = [name for name in CANONICAL if name in names and name not in used]
        if "truncated" in fields or "truncated" in self.mapped:
            columns = [name for name in columns if name not in ROLES["truncated"].aliases]
        return fields | {name: name for name in columns}

    def _check(self) -> None:
        """Raise an error if the first rows have no field of a role that all rows need."""
        for role, path in self.mapped.items():
            if role in _ALWAYS and path not in self.names:
                raise self._missing(role, path)
        if self.options.layout is not None and "mask" not in self.fields:
            raise UsageError(
                f"--layout {self.options.layout} needs a mask: name one with --map mask=FIELD"
            )
        if not self.fields and not self.mapped:
            raise DataError(
                f"{self.where}: no field has a known name; name them with --map reward=FIELD, "
                f"--map group=FIELD and so on; fields: "
                f"{first_names(sorted(self.names))}"
            )

    def close(self) -> None:
        """Raise DataError for a field of the map that no record has."""
        for role, path in self.mapped.items():
            if path not in self.names:
                raise self._missing(role, path)

    def _missing(self, role: str, path: str) -> DataError:
        names = sorted(self.names)
        return DataError(
            f"{self.where}: --map {role}={path}: no field {path!r}; fields: {first_names(names)}",
            candidates=closest(path, names),
        )

    @property
    def by_prompt(self) -> bool:
        """Whether equal prompt texts form a group, because no field is a group key."""
        return "prompt" in self.fields and not {"group", "prompt_id"} & self.fields.keys()

    def sources(self) -> dict[str, str]:
        """Return column -> the field that it is read from, or how its values are found."""
        sources = {column_of(role): field for role, field in self.fields.items()}
        if self.options.group_size is not None:
            sources["prompt_id"] = f"blocks of {self.options.group_size} records"
        elif self.by_prompt and "prompt_id" not in self.options.omitted_columns:
            sources["prompt_id"] = f"{self.fields['prompt']} ({GROUP_OF_TEXT})"
        return sources

    def is_kept(self, name: str) -> bool:
        """Return whether a field stays under its name, because it has no role."""
        plain = name not in CANONICAL or name in self.options.omitted_columns
        return plain and name not in self.fields.values()


def sniff_jsonl(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has rlpost's own column names."""
    return fields.keys() >= _NEEDED and ("response_mask" not in fields or has_mask(fields))


def has_mask(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has a mask under rlpost's own name."""
    return isinstance(fields.get("response_mask"), list)


def named_tables(
    path: Path, options: ReadOptions
) -> Iterator[tuple[Fields, dict[str, str], dict[str, pa.Array]]]:
    """Yield the tables of a dump, the field of each role, and the fields without a role."""
    binding = Binding(options, str(path))
    columnar = container_of(path) is PARQUET_FILES and options.rows is None
    for table in (
        _parquet_tables(path, binding) if columnar else _json_tables(path, options, binding)
    ):
        binding.add(table)
        kept = {name: array if columnar else kept_values(array)
                for name, array in table.columns.items() if binding.is_kept(name)}  # fmt: skip
        yield table, binding.fields, kept
    binding.close()


def _records(path: Path, options: ReadOptions) -> Iterator[Record]:
    container = container_of(path)
    assert container is not None
    for record in container.records(path):
        yield from (record,) if options.rows is None else record.rows(options.rows)


def _json_tables(path: Path, options: ReadOptions, binding: Binding) -> Iterator[Fields]:
    """Yield records as tables, with the nested fields that the map names under their paths."""

    def fields() -> Iterator[tuple[str, Mapping[str, Any]]]:
        last = None
        for record in _records(path, options):
            if record.outer is not last:
                last = record.outer
                options.stats.left_out |= record.unread(read)
            values = record.columns
            inner = {name: record.find(name) for name in paths if name not in values}
            given = {name: value for name, value in inner.items() if value is not None}
            yield record.where, {**_without(values, given), **given} if given else values

    paths = [*binding.mapped.values()]
    read = {*(options.rows or "").split("."), *(path.partition(".")[0] for path in paths)}
    return tables(fields(), str(path))


def _without(fields: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """Return the fields without the nested ones of dotted paths, which have columns."""
    for path in paths:
        outer, dot, inner = path.partition(".")
        if path in fields:
            fields = {name: value for name, value in fields.items() if name != path}
        elif dot and isinstance(fields.get(outer), dict):
            fields = {**fields, outer: _without(fields[outer], [inner])}
    return fields


def _parquet_tables(path: Path, binding: Binding) -> Iterator[Fields]:
    """Yield the chunks of a Parquet file, with the fields of structs that the map names."""
    source = Source([InputFile(path, Path(path.name))])
    lists = (column.name for column in source.schemas[0] if is_list(column.type))
    sized_by = next(lists, source.columns[0])
    for chunk in source.read(source.columns, CHUNK_TOKENS, sized_by):
        columns = {
            name: array.cast(pa.binary()) if array.type == pa.large_binary() else array
            for name, array in zip(chunk.table.schema.names, chunk.table.columns, strict=True)
            if not pa.types.is_null(array.type)
        }
        for name in binding.mapped.values():
            if name not in columns and name.partition(".")[0] in columns:
                outer, *inner = name.split(".")
                array = columns[outer]
                while inner and is_struct(array.type) and array.type.get_field_index(inner[0]) >= 0:
                    array = pc.struct_field(array, inner.pop(0))  # null if the struct is null
                columns |= {} if inner else {name: array}
        place = CellLocation(str(path), chunk.first_row, "")
        yield Fields(columns, chunk.table.num_rows, place)


JSONL = Format(
    name="jsonl",
    title="any JSONL or JSON array with one object per response, with --map ROLE=FIELD",
    containers=(JSON, ZIP, FOLDER),
    lacks=_MISSING_ROLES,
    sniff=sniff_jsonl,
    source="any writer; fields are found by role name, by alias or by --map",
    note="--map ROLE=FIELD sets the field of a role; a.b is field b inside a. A list is summed if "
    "the role is one number. Fields without a role are kept.",
)


PARQUET = Format(
    name="parquet",
    title="any Parquet with one row per response, with --map ROLE=COLUMN",
    containers=(PARQUET_FILES,),
    lacks=_MISSING_ROLES,
    sniff=lambda _: False,  # a Parquet file that needs no conversion looks the same
    source="any writer; columns are found by role name, by alias or by --map",
    note="--map ROLE=COLUMN sets the column of a role; a.b is field b of struct a. A list is "
    "summed if the role is one number. Columns without a role are kept.",
)
