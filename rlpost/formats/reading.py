"""A dump as record batches: container -> records -> layout -> tables -> canonical columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_struct

from rlpost.errors import DataError, UsageError, closest
from rlpost.formats.base import LENGTH
from rlpost.formats.columns import Binding
from rlpost.formats.containers import PARQUET, container_of
from rlpost.formats.fields import column_of
from rlpost.formats.layout import MASK, SEQUENCE_IDS
from rlpost.formats.records import Field, describe, first_names
from rlpost.formats.rows import DumpTable, gathered, tables
from rlpost.io.arrow import CellLocation, is_list
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import CHUNK_TOKENS, Source

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.records import Record

_ALWAYS = ("group", "reward", "batch")
"""Roles whose field all rows need."""
_OTHER_SHAPES = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What the code of a layout raises for a record of another shape."""


def read_dump(path: Path, layout: Format, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield a dump as record batches of canonical columns and of others under their names.

    Batches may differ in their columns: a column that a batch lacks is null there.

    Args:
        path: of the dump.
        layout: its format.
        options: what the dump does not contain.

    Raises:
        UsageError: the layout is not found in this container.
        DataError: a record is bad, or of an unknown version; the error names it.
        NotEnoughMemoryError: a record does not fit into the memory of the run.
        ReadWriteError: a file cannot be read.
    """
    check_container(path, layout)
    binding = Binding(str(path), layout, options)
    reader = _Reader(path, layout, options, binding)
    columnar = not layout.fields and container_of(path) is PARQUET and options.rows is None
    for table in reader.parquet_tables() if columnar else reader.record_tables():
        for role in _ALWAYS:
            if binding.mapped.get(role) in reader.missing:
                raise no_field(str(path), role, binding.mapped[role], reader.names)
        yield binding.batch(table)
    for role, field in binding.mapped.items():
        if reader.names and field in reader.missing:
            raise no_field(str(path), role, field, reader.names)
    reader.end_blocks()


def no_field(where: str, role: str, path: str, names: Iterable[str]) -> DataError:
    """Return the error for a field of the map that no record has."""
    fields = sorted(names)
    return DataError(
        f"{where}: --map {role}={path}: no field {path!r}; fields: {first_names(fields)}",
        candidates=closest(path, fields),
    )


def check_container(path: Path, layout: Format) -> None:
    """Raise UsageError if a layout is not found in the container of a path."""
    container = container_of(path)
    if container not in layout.containers:
        needed = " or ".join(kind.name for kind in layout.containers)
        what = container.name if container else "of an unknown kind"
        raise UsageError(f"{path}: is {what}; {layout.name} dumps are {needed}")


def check_version(record: Record, layout: Format) -> None:
    """Raise DataError if a record is of a version that the layout lacks."""
    if layout.version is None:
        return
    field, known = layout.version
    stored = record.fields.get(field, known[0])
    if stored not in known:
        raise DataError(
            f"{record.where}: `{field}` is {describe(stored)}; rlpost reads "
            f"{', '.join(map(str, known))} of {layout.name}"
        )


def without(fields: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """Return the fields without those of dotted paths, which have columns."""
    for path in paths:
        outer, dot, inner = path.partition(".")
        if path in fields:
            fields = {name: value for name, value in fields.items() if name != path}
        elif dot and isinstance(fields.get(outer), dict):
            fields = {**fields, outer: without(fields[outer], [inner])}
    return fields


class _Reader:
    """Reads a dump as tables.

    Args:
        path: of the dump.
        layout: its format.
        options: rows and groups.
        binding: the fields that the user's map names.
    """

    def __init__(self, path: Path, layout: Format, options: ReadOptions, binding: Binding) -> None:
        self.path, self.layout, self.options = path, layout, options
        self.replaced, self.paths = binding.replaced, {*binding.mapped.values()}
        self.replaced |= options.omitted_columns
        self.missing = {*self.paths}
        """Fields of the map that no record had so far."""
        self.names: dict[str, None] = {}
        self._in_rows: dict[str, tuple[bool, str]] = {}
        """Field of the map -> whether a row has it, and not what contains the row; and its place.
        """
        self._place = str(path)
        self._rollouts = 0

    def _next_block(self) -> str:
        """Return the group of the next record, of blocks that go on over all dumps."""
        block = self.options.stats.groups + self._rollouts // (self.options.group_size or 1)
        self._rollouts += 1
        return str(block)

    def end_blocks(self) -> None:
        """End the groups of blocks; raise UsageError if the last one is incomplete."""
        size = self.options.group_size
        if size is None:
            return
        if rest := self._rollouts % size:
            raise UsageError(
                f"{self.path}: --group-size {size} does not divide {self._rollouts:,} "
                f"records: the last group would have {rest}; set the number of responses per "
                "prompt, or repair the file"
            )
        self.options.stats.groups += self._rollouts // size

    def parquet_tables(self) -> Iterator[DumpTable]:
        """Yield the chunks of a Parquet file, with the fields of structs that the map names."""
        source = Source([InputFile(self.path, self.path.relative_to(self.path.parent))])
        lists = (column.name for column in source.schemas[0] if is_list(column.type))
        sized_by = next(lists, source.columns[0])
        for chunk in source.read(source.columns, CHUNK_TOKENS, sized_by):
            fields = {
                name: array.cast(pa.binary()) if array.type == pa.large_binary() else array
                for name, array in zip(chunk.table.schema.names, chunk.table.columns, strict=True)
                if not pa.types.is_null(array.type)
            }
            for path in self.paths - fields.keys():
                outer, *inner = path.split(".")
                array = fields.get(outer)
                while inner and array is not None:
                    known = is_struct(array.type) and array.type.get_field_index(inner[0]) >= 0
                    array = pc.struct_field(array, inner.pop(0)) if known else None
                if array is not None:
                    fields[path] = array  # null if the struct is null
            self.missing -= fields.keys()
            self.names |= dict.fromkeys(fields)
            rows, values = chunk.table.num_rows, {}
            if self.options.group_size is not None:
                values["prompt_id"] = gathered([self._next_block() for _ in range(rows)])
            place = CellLocation(str(self.path), chunk.first_row, "")
            yield DumpTable(values, fields, rows, place, of_records=False)

    def record_tables(self) -> Iterator[DumpTable]:
        """Yield the rows of a dump as tables, with mapped and other fields of their records.

        Raises:
            DataError: a record lacks a field of a role that all dumps have, or is not as the
                layout's code expects it.
        """
        try:
            yield from tables(self._rows(), str(self.path))
        except _OTHER_SHAPES as error:
            raise DataError(
                f"{self._place}: is not as {self.layout.name} writes it "
                f"({type(error).__name__}: {error})",
                tip="--from jsonl  # reads it by its fields",
            ) from error

    def _rows(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield the place, the columns and the fields of each row.

        Fields that no column has are added to what is left out.
        """
        layout, left_out = self.layout, self.options.stats.left_out
        sources = {x: y for x, y in layout.fields.items() if x not in self.replaced}
        needed = self._needed()
        read, walked = layout.read_fields, {*(self.options.rows or "").split(".")}
        used = {path.partition(".")[0] for path in self.paths}
        columns: dict[str, Any] = {}
        last: Record | None = None
        records = self._records()
        for record in layout.rows(records, self.options) if layout.rows else records:
            if last is None or record.fields is not last.fields:  # all calls of a rollout share it
                columns = {
                    column: source.read(record) if isinstance(source, Field)
                    else (record.lookup if column in needed else record.find)(source)
                    for column, source in sources.items()
                }  # fmt: skip
                if self.options.group_size is not None:
                    columns["prompt_id"] = self._next_block()
            computed = {x: y for x, y in record.values.items() if x not in self.replaced}
            fields = {path: record.find(path) for path in self.paths}
            if self.options.rows:
                self._check_lists(record, fields)
            if self.missing:
                self.names |= dict.fromkeys(record.columns)
                self.missing -= {
                    x for x, y in fields.items() if x in record.fields or y is not None
                }
            others = {name: x for name, x in record.columns.items() if name not in read}
            if layout.keeps:
                fields = {**without(others, self.paths), **fields}
            else:
                left_out |= {x: None for x, y in others.items() if x not in used and _has(y)}
            if last is None or record.outer is not last.outer:
                left_out |= record.unread(read | used | walked)
            last = record
            yield record.where, {**columns, **computed}, fields

    def _check_lists(self, record: Record, fields: Mapping[str, Any]) -> None:
        """Raise DataError for a list that has an item for each row of other records alone.

        Rows that are objects have their own fields.
        """
        beside = {} if record.outer is None else record.outer.fields
        items = beside.get((self.options.rows or "").rpartition(".")[2])
        if not isinstance(items, list) or any(isinstance(item, dict) for item in items):
            return
        for path, value in fields.items():
            in_row = path in record.fields
            if in_row or isinstance(value, list):
                before, place = self._in_rows.setdefault(path, (in_row, record.where))
                if before != in_row:
                    what = "of a row alone" if in_row else describe(value)
                    raise DataError(
                        f"{record.where}: `{path}` is {what}, other than in {place}: the lists of "
                        "a record need one length"
                    )

    def _needed(self) -> set[str]:
        """Return the columns whose fields all records have."""
        missing = self.layout.missing_roles
        needed = {column_of(role) for role in self.layout.roles if role not in missing}
        if self.layout.layout == "tail":  # without a mask, all tokens are of the policy
            needed = needed - {MASK} | {LENGTH, SEQUENCE_IDS}
        return needed

    def _records(self) -> Iterator[Record]:
        """Yield the records of the container, or the rows inside of them."""
        container, layout = container_of(self.path), self.layout
        for record in container.records(self.path, layout.members) if container else ():
            self._place = record.where
            check_version(record, layout)
            at = self.options.rows or layout.at
            inside = at is not None and (self.options.rows or record.has_path(at))
            count = 0
            for row in record.rows(at or "") if inside else (record,):
                count += 1
                yield row
            if not count:
                self.options.stats.counts["record", f"without rows in `{at}`, left out"] += 1


def _has(value: object) -> bool:
    return bool(value) if isinstance(value, (str, list, dict)) else value is not None
