"""Any JSON or Parquet: fields become roles by name, by alias or by `--map`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_struct

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import CANONICAL, LENGTH, Format
from rlpost.formats.columns import KEPT, MAPPED, is_list_role
from rlpost.formats.containers import FOLDER, JSON, ZIP
from rlpost.formats.containers import PARQUET as PARQUET_FILES
from rlpost.formats.fields import column_of
from rlpost.formats.keys import GROUP_OF_TEXT
from rlpost.formats.layout import check_layout
from rlpost.formats.records import first_names
from rlpost.formats.rows import Fields
from rlpost.io.arrow import CellLocation, is_list
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.recipe.roles import ROLES, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlpost.formats.base import ReadOptions


# `rlpost advantages` writes these columns; no canonical column exists for them, so they stay.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}
_NO_FIELD = "no field has a known name for it; name one with --map {}=FIELD"
_MISSING_ROLES = {
    "group": f"{_NO_FIELD.format('group')}, or set --group-size N for blocks of N records",
    **{role: _NO_FIELD.format(role) for role in ("reward", "log_probs", "old_log_probs")},
}
"""Role -> why a converted file lacks it, for the roles that other commands need."""
_NEEDED = {"prompt_id", "reward"}


class Binding:
    """The field of each role and canonical column, as fields are found.

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
        self._names: dict[str, None] = {}
        self._fields: dict[str, str] = {}
        if options.layout is not None:
            check_layout(options.layout)

    def sources_of(self, table: Fields) -> dict[str, str]:
        """Return role or column -> field of a table, of those of earlier ones, too.

        Raises:
            DataError: no field of the first table has a known name.
            UsageError: a layout is set without a mask.
        """
        first = not self._names
        names = {x.removeprefix(KEPT).removeprefix(MAPPED): x for x in table.columns}
        if first or names.keys() - self._names:
            self._names |= dict.fromkeys(names)
            self._fields = {**self._named(), **self._fields}
            self.options.stats.sources |= self._texts()
        if first:
            self._check()
        return {**{role: names.get(name, name) for role, name in self._fields.items()},
                **{role: MAPPED + path for role, path in self.mapped.items()}}  # fmt: skip

    def _named(self) -> dict[str, str]:
        names = [name for name in self._names if name not in self.options.omitted_columns]
        roles = resolve(names, {}, self.where).columns
        if any(is_list_role(role) for role in roles.keys() | self.mapped.keys() if role != LENGTH):
            roles.pop(LENGTH, None)  # tokens set it; under its own name it is checked
        fields = {role: name for role, name in roles.items()
                  if role not in _WRITTEN and column_of(role) not in self._columns}  # fmt: skip
        used = {column_of(role) for role in fields} | {*fields.values()} | self._columns
        columns = [name for name in CANONICAL if name in names and name not in used]
        if "truncated" in fields or "truncated" in self.mapped:
            columns = [name for name in columns if name not in ROLES["truncated"].aliases]
        return fields | {name: name for name in columns}

    def _check(self) -> None:
        """Raise an error if the first rows have no field of a known name."""
        if self.options.layout is not None and "mask" not in {*self._fields, *self.mapped}:
            raise UsageError(
                f"--layout {self.options.layout} needs a mask: name one with --map mask=FIELD"
            )
        if not self._fields and not self.mapped:
            raise DataError(
                f"{self.where}: no field has a known name; name them with --map reward=FIELD, "
                f"--map group=FIELD and so on; fields: {first_names(sorted(self._names))}"
            )

    def _texts(self) -> dict[str, str]:
        """Return column -> the field that it is read from, or how its values are found."""
        fields = {**self._fields, **self.mapped}
        texts = {column_of(role): field for role, field in fields.items()}
        if self.options.group_size is not None:
            texts["prompt_id"] = f"blocks of {self.options.group_size} records"
        elif "prompt" in fields and "prompt_id" not in {*texts, *self.options.omitted_columns}:
            texts["prompt_id"] = f"{fields['prompt']} ({GROUP_OF_TEXT})"
        return texts


def sniff_jsonl(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has rlpost's own column names."""
    return fields.keys() >= _NEEDED and ("response_mask" not in fields or has_mask(fields))


def has_mask(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has a mask under rlpost's own name."""
    return isinstance(fields.get("response_mask"), list)


def without(fields: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """Return the fields without those of dotted paths, which have columns."""
    for path in paths:
        outer, dot, inner = path.partition(".")
        if path in fields:
            fields = {name: value for name, value in fields.items() if name != path}
        elif dot and isinstance(fields.get(outer), dict):
            fields = {**fields, outer: without(fields[outer], [inner])}
    return fields


def parquet_tables(path: Path, missing: set[str]) -> Iterator[Fields]:
    """Yield the chunks of a Parquet file, with the fields of structs that the map names.

    Those that a chunk has are taken out of `missing`.
    """
    paths = [*missing]
    source = Source([InputFile(path, Path(path.name))])
    lists = (column.name for column in source.schemas[0] if is_list(column.type))
    sized_by = next(lists, source.columns[0])
    for chunk in source.read(source.columns, CHUNK_TOKENS, sized_by):
        columns = {
            name: array.cast(pa.binary()) if array.type == pa.large_binary() else array
            for name, array in zip(chunk.table.schema.names, chunk.table.columns, strict=True)
            if not pa.types.is_null(array.type)
        }
        mapped: dict[str, pa.Array] = {}
        for name in paths:
            outer, *inner = [name] if name in columns else name.split(".")
            array = columns.get(outer)
            while inner and array is not None:
                known = is_struct(array.type) and array.type.get_field_index(inner[0]) >= 0
                array = pc.struct_field(array, inner.pop(0)) if known else None
            if array is not None:
                mapped[MAPPED + name] = array  # null if the struct is null
                missing.discard(name)
        kept = {KEPT + name: array for name, array in columns.items() if name not in paths}
        place = CellLocation(str(path), chunk.first_row, "")
        yield Fields({**kept, **mapped}, chunk.table.num_rows, place)


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
