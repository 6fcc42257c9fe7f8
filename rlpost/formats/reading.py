"""A dump as record batches: container -> records -> layout -> rows -> batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import LENGTH
from rlpost.formats.calls import call_rows
from rlpost.formats.columns import FLAGS, MAPPED, Canonical, kept_values
from rlpost.formats.containers import container_of
from rlpost.formats.fields import column_of
from rlpost.formats.generic import named_tables
from rlpost.formats.layout import SEQUENCE_IDS
from rlpost.formats.records import Field, Row, describe
from rlpost.formats.rows import tables
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.keys import GroupBlocks
    from rlpost.formats.records import Record
    from rlpost.formats.rows import Fields


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
    if layout.fields:
        parts = _declared_tables(path, layout, options, canonical.blocks)
    else:
        parts = named_tables(path, options)
    for table, sources, kept in parts:
        yield canonical.batch(table, sources, kept)
    canonical.blocks.close()


def _declared_tables(
    path: Path, layout: Format, options: ReadOptions, blocks: GroupBlocks
) -> Iterator[tuple[Fields, dict[str, str], dict[str, pa.Array]]]:
    """Yield the rows of a layout as tables, the columns and mapped fields, and other fields."""
    mapped = {role: field for role, field in options.map.items() if field != "none"}
    rows = _values(
        layout_rows(path, layout, options, blocks), layout, mapped, options.stats.left_out
    )
    for table in tables(rows, str(path)):
        sources = {name: name for name in table.columns if not name.startswith((MAPPED, _KEPT))}
        sources |= {role: MAPPED + field for role, field in mapped.items()}
        kept = {name.removeprefix(_KEPT): kept_values(array, integers=layout.integers)
                for name, array in table.columns.items() if name.startswith(_KEPT)}  # fmt: skip
        yield table, sources, kept


_KEPT = "kept "
"""How the names of fields begin that are kept, beside the columns of a layout."""


def _has(value: object) -> bool:
    return bool(value) if isinstance(value, (str, list, dict)) else value is not None


def _values(
    rows: Iterable[Row], layout: Format, mapped: Mapping[str, str], left_out: dict[str, None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the values of each row, with mapped and other fields of its record.

    Fields that no column has are added to `left_out`.
    """
    replaced = {*map(column_of, mapped), *(FLAGS if "truncated" in mapped else ())}
    used = {path.partition(".")[0] for path in mapped.values()}
    read, missing, last = layout.read_fields, {*mapped.values()}, None
    for row in rows:
        values = {name: x for name, x in row.values.items() if name not in replaced}
        values |= {MAPPED + path: row.record.find(path) for path in mapped.values()}
        if missing:
            missing -= {path for path in missing if row.record.has_path(path)}
        others = {name: x for name, x in row.record.columns.items() if name not in read}
        if layout.keeps:
            values |= {_KEPT + name: x for name, x in others.items()}
        else:
            left_out |= {name: None for name, x in others.items() if name not in used and _has(x)}
        if last is None or row.record.outer is not last.outer:
            left_out |= row.record.unread(read | used)
        last = row.record
        yield row.where, values
    if missing and last is not None:
        last.get(min(missing))


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
            inside = layout.at is not None and record.has_path(layout.at)
            for part in record.rows(layout.at or "") if inside else (record,):
                yield from layout.split(part) if layout.split is not None else (part,)

    try:
        prepared = layout.prepare(records(), options) if layout.prepare else records()
        for rows in _rows_of_records(prepared, layout, options):
            block = None
            for row in rows:
                if options.group_size is not None:
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
