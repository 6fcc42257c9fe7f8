"""A dump as record batches: container -> records -> layout -> rows -> batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from rlpost.errors import DataError, RlpostError, UsageError
from rlpost.formats.attempts import renumbered
from rlpost.formats.base import ReadStats
from rlpost.formats.containers import JSON, PARQUET, container_of
from rlpost.formats.containers.json_text import json_fields
from rlpost.formats.fields import apply_map, field_rows
from rlpost.formats.keys import GroupBlocks
from rlpost.formats.records import describe, first_names
from rlpost.formats.rows import (
    EarlierRows,
    OtherFields,
    field_types,
    infer_other_fields,
    record_batches,
)
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source
from rlpost.io.processes import map_here

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.containers.json_text import LineBlock
    from rlpost.formats.records import Record, Row
    from rlpost.formats.rows import BatchReader


MapItems: TypeAlias = Callable[
    [Callable[[Any, Any], Iterator[Any]], Any, Iterator[Any]], Iterator[Any]
]
"""`rlpost.io.processes.map_here`, or the `map` of processes."""


class Part(NamedTuple):
    """What was read of a part of a dump."""

    batches: list[pa.RecordBatch]
    stats: ReadStats
    where: str
    """The first row with tokens, and its token columns; None without one."""
    tokens: frozenset[str] | None
    error: RlpostError | None


def read_dump(
    path: Path, layout: Format, options: ReadOptions, map_items: MapItems = map_here
) -> Iterator[pa.RecordBatch]:
    """Yield a dump as record batches of canonical columns and of others under their names.

    Batches may differ in their columns: a column that a batch lacks is null there. The rows and
    the batches depend on the dump alone, not on the processes that read it.

    Args:
        path: of the dump.
        layout: its format.
        options: what the dump does not contain.
        map_items: yields the results of a function for the parts of the dump, in order.

    Raises:
        UsageError: the layout is not found in this container.
        DataError: a record is bad, or of an unknown version; the error names it.
        NotEnoughMemoryError: a record does not fit into the memory of the run.
        ReadWriteError: a file cannot be read.
    """
    check_container(path, layout)
    batches = None if layout.read is None else layout.read(path, options)
    if batches is not None:
        yield from batches
        return
    options.stats.begin_dump()
    if layout.prepare is not None:
        layout.prepare(path, options)
    lines = lines_of(path, layout, options)
    reader, earlier = _reader(path, layout, options, map_items), EarlierRows()
    if lines is None:
        yield from reader(records_of(path, layout, options), options, earlier)
    else:
        for part in map_items(_read_lines, (layout, reader, options), lines):
            numbers = options.stats.attempt_numbers(part.stats)
            options.stats.add(part.stats)
            if part.tokens is not None:
                earlier.check(part.where, part.tokens)
            if part.error is not None:
                raise part.error
            for batch in part.batches:
                yield renumbered(batch, numbers)
    if layout.finish is not None:
        layout.finish(path, options)


def is_sequential(options: ReadOptions) -> bool:
    """Return whether rows depend on the number of those before them."""
    return options.group_size is not None


def lines_of(path: Path, layout: Format, options: ReadOptions) -> Iterator[LineBlock] | None:
    """Return the lines of a dump, many at a time; None if its records are read one by one."""
    container = container_of(path)
    by_record = layout.by_record(path) if callable(layout.by_record) else layout.by_record
    if not by_record or is_sequential(options) or container is None:
        return None
    return container.lines(path)


def _read_lines(
    shared: tuple[Format, BatchReader, ReadOptions], lines: LineBlock
) -> Iterator[Part]:
    """Yield one part, with the first error of its lines."""
    layout, reader, options = shared
    options, earlier = replace(options, stats=ReadStats()), EarlierRows()
    batches, raised = list[pa.RecordBatch](), None
    try:
        batches += reader(_of_layout(lines.records(), layout, options.rows), options, earlier)
    except (DataError, UsageError) as error:
        raised = error
    yield Part(batches, options.stats, earlier.where, earlier.tokens, raised)


def _reader(
    path: Path,
    layout: Format,
    options: ReadOptions,
    map_items: MapItems,
) -> BatchReader:
    """Return what makes batches of the records of a dump."""
    if layout.bind is not None:
        bound: BatchReader = layout.bind(
            path, options, lambda: _all_fields(path, layout, options, (), map_items)
        )
        return bound
    others = _kept_fields(path, layout, options, map_items)
    named = {} if others is None else others.column_types
    typed = {**layout.types, **named}.items()
    types = {name: kind for name, kind in typed if name not in options.omitted_columns}
    in_all = {x: kind for x, kind in types.items() if x in named or not pa.types.is_nested(kind)}
    return partial(_layout_batches, layout, str(path), others, types, OtherFields(in_all))


def _layout_batches(
    layout: Format,
    path: str,
    others: OtherFields | None,
    types: Mapping[str, pa.DataType],
    in_all: OtherFields,
    records: Iterator[Record],
    options: ReadOptions,
    earlier: EarlierRows,
) -> Iterator[pa.RecordBatch]:
    rows = layout_rows(records, layout, path, options, others)
    return in_all.add_missing_columns(record_batches(rows, options, types, earlier))


def check_container(path: Path, layout: Format) -> None:
    """Raise UsageError if a layout is not found in the container of a path."""
    container = container_of(path)
    if container not in layout.containers:
        needed = " or ".join(one.name for one in layout.containers)
        what = container.name if container else "of an unknown kind"
        raise UsageError(f"{path}: is {what}; {layout.name} dumps are {needed}")


def records_of(path: Path, layout: Format, options: ReadOptions) -> Iterator[Record]:
    """Yield the records of a dump: the rows inside them, or what a layout splits them into."""
    container = container_of(path)
    assert container is not None
    return _of_layout(container.records(path, layout.contents), layout, options.rows)


def _of_layout(records: Iterator[Record], layout: Format, rows: str | None) -> Iterator[Record]:
    for record in records:
        if rows is not None:
            yield from record.rows(rows)
            continue
        if layout.version is not None:
            check_version(record, layout)
        if layout.at is not None:
            yield from record.rows(layout.at)
        elif layout.split is not None:
            yield from layout.split(record)
        else:
            yield record


def check_version(record: Record, layout: Format) -> None:
    """Raise DataError if a record is of a version that the layout lacks."""
    version = layout.version
    assert version is not None
    stored = record.fields.get(version.field, version.known[0])
    if stored in version.known:
        return
    known = ", ".join(map(str, version.known))
    new, lost = record.fields.keys() - version.fields, version.fields - record.fields.keys()
    texts = [f"new: {first_names(sorted(new))}"] if new and version.fields else []
    texts += [f"missing: {first_names(sorted(lost))}"] if lost else []
    raise DataError(
        f"{record.where}: `{version.field}` is {describe(stored)}; rlpost reads {known} of "
        f"{layout.name}" + (f" (fields {'; '.join(texts)})" if texts else ""),
    )


def _kept_fields(
    path: Path, layout: Format, options: ReadOptions, map_items: MapItems
) -> OtherFields | None:
    """Return the fields that a layout keeps under their names, with types of the whole dump."""
    if layout.own is None:
        return None
    paths = (source for source in layout.fields.values() if isinstance(source, str))
    read = () if layout.rows else (path.partition(".")[0] for path in paths)
    skip = {*layout.own, *read, *options.omitted_columns}
    if container_of(path) is PARQUET:
        return OtherFields.of_schema(Source([InputFile(path, Path(path.name))]).schemas[0], skip)
    return _all_fields(path, layout, options, skip, map_items)


def _all_fields(
    path: Path, layout: Format, options: ReadOptions, skip: Collection[str], map_items: MapItems
) -> OtherFields:
    """Return the fields of all records, with types of the whole dump."""
    lines = lines_of(path, layout, options)
    if lines is not None:
        return OtherFields.of_parts(map_items(_types_of_lines, (layout, skip, options.rows), lines))
    fields = (
        json_fields(path)
        if container_of(path) is JSON and not (layout.split or layout.at or options.rows)
        else (record.columns for record in records_of(path, layout, replace(options, where=None)))
    )
    return infer_other_fields(fields, skip, integers=layout.integers)


def _types_of_lines(
    shared: tuple[Format, Collection[str], str | None], lines: LineBlock
) -> Iterator[dict[str, pa.DataType]]:
    layout, skip, rows = shared
    fields = (
        lines.fields()
        if not (layout.split or layout.at or rows)
        else (record.columns for record in _of_layout(lines.records(), layout, rows))
    )
    yield field_types(fields, skip, integers=layout.integers)


def layout_rows(
    records: Iterator[Record],
    layout: Format,
    path: str,
    options: ReadOptions,
    others: OtherFields | None,
) -> Iterator[Row]:
    """Yield the rows of records, with kept fields and the user's map."""
    blocks, rollout, block = GroupBlocks(options, path), None, ""
    for row in (layout.rows or partial(field_rows, layout))(records, options):
        if options.group_size is not None:
            last, rollout = rollout, row.values.get("rollout_id")
            if not row.values.get("turn") or rollout != last:  # else a call of the same rollout
                block = blocks.next(row.place)
            row.values["prompt_id"] = block
        if others is not None:
            row.values |= others.values(row.record.columns)
        apply_map(row, options.map)
        row.record = row.record.position  # its values are many times the row's
        yield row
    blocks.close()
