"""A dump as record batches: container -> records -> layout -> rows -> batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError, closest
from rlpost.formats.base import LENGTH
from rlpost.formats.calls import call_rows
from rlpost.formats.columns import FLAGS, KEPT, MAPPED, Canonical, kept_values
from rlpost.formats.containers import PARQUET, container_of
from rlpost.formats.fields import column_of
from rlpost.formats.generic import Binding, parquet_tables, without
from rlpost.formats.layout import SEQUENCE_IDS
from rlpost.formats.records import Field, Row, describe, first_names
from rlpost.formats.rows import tables
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.keys import GroupBlocks
    from rlpost.formats.records import Record


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
    canonical = Canonical(str(path), layout, options)
    binding = None if layout.fields else Binding(options, str(path))
    mapped = {role: field for role, field in options.map.items() if field != "none"}
    missing = {*mapped.values()}
    columnar = binding is not None and container_of(path) is PARQUET and options.rows is None
    if columnar:
        parts = parquet_tables(path, missing)
    else:
        rows = layout_rows(path, layout, options, canonical.blocks)
        parts = tables(_values(rows, layout, options, mapped, missing), str(path))
    names: dict[str, None] = {}
    for part in parts:
        names |= dict.fromkeys(name.removeprefix(KEPT) for name in part.columns)
        for role in _ALWAYS if missing else ():
            if mapped.get(role) in missing:
                raise no_field(str(path), role, mapped[role], names)
        if binding is None:
            sources = {x: x for x in part.columns if not x.startswith((MAPPED, KEPT))}
            sources |= {role: MAPPED + field for role, field in mapped.items()}
        else:
            sources = binding.sources_of(part)
        taken = {*sources.values()}
        kept = {name.removeprefix(KEPT): array if columnar
                else kept_values(array, integers=layout.integers)
                for name, array in part.columns.items()
                if name.startswith(KEPT) and name not in taken}  # fmt: skip
        yield canonical.batch(part, sources, kept)
    for role in [role for role, field in mapped.items() if field in missing and names]:
        raise no_field(str(path), role, mapped[role], names)
    canonical.blocks.close()


_ALWAYS = ("group", "reward", "batch")
"""Roles whose field all rows need."""


def no_field(where: str, role: str, path: str, names: Iterable[str]) -> DataError:
    """Return the error for a field of the map that no record has."""
    fields = sorted(name for name in names if not name.startswith(MAPPED))
    return DataError(
        f"{where}: --map {role}={path}: no field {path!r}; fields: {first_names(fields)}",
        candidates=closest(path, fields),
    )


def _has(value: object) -> bool:
    return bool(value) if isinstance(value, (str, list, dict)) else value is not None


def _values(
    rows: Iterable[Row],
    layout: Format,
    options: ReadOptions,
    mapped: Mapping[str, str],
    missing: set[str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the values of each row, with mapped and other fields of its record.

    Fields that no column has are added to what is left out, and those that a record has are taken
    out of `missing`.
    """
    replaced = {*map(column_of, mapped), *(FLAGS if "truncated" in mapped else ())}
    paths = {*mapped.values()}
    used = {path.partition(".")[0] for path in paths}
    read, walked = layout.read_fields, {*(options.rows or "").split(".")}
    left_out, last = options.stats.left_out, None
    for row in rows:
        record = row.record
        values = {name: x for name, x in row.values.items() if name not in replaced}
        values |= {MAPPED + path: record.find(path) for path in paths}
        if missing:
            missing -= {x for x in missing if x in record.fields or record.find(x) is not None}
        others = {name: x for name, x in record.columns.items() if name not in read}
        if layout.keeps:
            values |= {KEPT + name: x for name, x in without(others, paths).items()}
        else:
            left_out |= {name: None for name, x in others.items() if name not in used and _has(x)}
        if last is None or record.outer is not last.outer:
            left_out |= record.unread(read | used | walked)
        last = record
        yield row.where, values


def check_container(path: Path, layout: Format) -> None:
    """Raise UsageError if a layout is not found in the container of a path."""
    container = container_of(path)
    if container not in layout.containers:
        needed = " or ".join(kind.name for kind in layout.containers)
        what = container.name if container else "of an unknown kind"
        raise UsageError(f"{path}: is {what}; {layout.name} dumps are {needed}")


def check_version(record: Record, layout: Format) -> None:
    """Raise DataError if a record is of a version that the layout lacks."""
    version = layout.version
    stored = None if version is None else record.fields.get(version.field, version.known[0])
    if version is not None and stored not in version.known:
        raise DataError(
            f"{record.where}: `{version.field}` is {describe(stored)}; rlpost reads "
            f"{', '.join(map(str, version.known))} of {layout.name}"
        )


def layout_rows(
    path: Path, layout: Format, options: ReadOptions, blocks: GroupBlocks
) -> Iterator[Row]:
    """Yield the rows of a dump, with the groups of blocks of rollouts.

    Raises:
        DataError: a record lacks a field of a role that all dumps have, or is not as the layout's
            code expects it.
    """
    container, place = container_of(path), str(path)

    def records() -> Iterator[Record]:
        nonlocal place
        for record in container.records(path, layout.members) if container else ():
            place = record.where
            check_version(record, layout)
            at = options.rows or layout.at
            inside = options.rows or (at is not None and record.has_path(at))
            for part in record.rows(at or "") if inside else (record,):
                yield from layout.split(part) if layout.split is not None else (part,)

    try:
        prepared = layout.prepare(records(), options) if layout.prepare else records()
        for rows in _rows_of_records(prepared, layout, options):
            block = None
            for row in rows:
                if layout.fields and options.group_size is not None:
                    block = block or blocks.next()  # all calls of a rollout are of one
                    row.values["prompt_id"] = block
                yield row
    except _OTHER_SHAPES as error:
        name = type(error).__name__
        raise DataError(
            f"{place}: is not as {layout.name} writes it ({name}: {error})",
            tip="--from jsonl  # reads it by its fields",
        ) from error


def _rows_of_records(
    records: Iterator[Record], layout: Format, options: ReadOptions
) -> Iterator[Iterable[Row]]:
    """Yield the rows of each record: itself, or the calls of its rollout."""
    mapped = {ROLES[role].aliases[0] if role in ROLES else role for role in options.map}
    fields = {column: x for column, x in layout.fields.items() if column not in mapped}
    missing = layout.missing_roles
    needed = {ROLES[role].aliases[0] for role in layout.roles if role not in missing}
    if layout.layout == "tail":  # without a mask, all tokens are of the policy
        needed = needed - {"response_mask"} | {LENGTH, SEQUENCE_IDS}
    for record in records:
        values: dict[str, Any] = {}
        for column, source in fields.items():
            if isinstance(source, Field):
                values[column] = source.read(record)
            else:
                values[column] = (record.lookup if column in needed else record.find)(source)
        if layout.calls is None:
            yield [Row(record, values)]
        elif (calls := layout.calls(record, options)) is not None:
            yield call_rows(record, values, calls)


_OTHER_SHAPES = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What the code of a layout raises for a record of another shape."""
