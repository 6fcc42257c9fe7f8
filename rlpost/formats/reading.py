"""A dump as record batches: container -> records -> layout -> rows -> batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.formats.containers import JSON, PARQUET, STREAM, container_of
from rlpost.formats.containers.json_text import json_fields
from rlpost.formats.fields import apply_map
from rlpost.formats.records import describe, first_names
from rlpost.formats.rows import OtherFields, infer_other_fields, record_batches
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.matching import DumpFilter
    from rlpost.formats.records import Record, Row
    from rlpost.formats.where import Where


def read_dump(path: Path, layout: Format, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield a dump as record batches of canonical columns and of others under their names.

    Batches may differ in their columns: a column that a batch lacks is null there.

    Raises:
        UsageError: the layout is not found in this container.
        DataError: a record is bad, or of an unknown version; the error names it.
        NotEnoughMemoryError: a record does not fit into the memory of the run.
        ReadWriteError: a file cannot be read.
    """
    check_container(path, layout)
    if options.where is None:
        return _with_attempts(_batches(path, layout, options, None), options)
    from rlpost.formats.matching import DumpFilter  # noqa: PLC0415 - imports polars

    kept = DumpFilter(options.where, path)
    return kept.batches(_with_attempts(_batches(path, layout, options, kept), options))


def _with_attempts(
    batches: Iterator[pa.RecordBatch], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, after the attempts of their steps are recorded."""
    for batch in batches:
        options.stats.attempts.add(batch)
        yield batch


def _batches(
    path: Path, layout: Format, options: ReadOptions, kept: DumpFilter | None
) -> Iterator[pa.RecordBatch]:
    """Yield a dump as record batches, with the fields that a condition on its rows names."""
    if layout.read is not None:
        return layout.read(path, options)
    others = _kept_fields(path, layout, options)
    records = records_of(path, layout, options.where)
    rows = layout_rows(records, layout, options, others, kept)
    named = {} if others is None else others.column_types
    typed = {**layout.types, **named}.items()
    types = {name: kind for name, kind in typed if name not in options.omitted_columns}
    in_all = {x: kind for x, kind in types.items() if x in named or not pa.types.is_nested(kind)}
    return OtherFields(in_all).add_missing_columns(record_batches(rows, options, types))


def check_container(path: Path, layout: Format) -> None:
    """Raise UsageError if a layout is not found in the container of a path."""
    container = container_of(path)
    if container not in layout.containers:
        needed = " or ".join(one.name for one in layout.containers)
        what = container.name if container else "of an unknown kind"
        raise UsageError(f"{path}: is {what}; {layout.name} dumps are {needed}")


def records_of(path: Path, layout: Format, where: Where | None = None) -> Iterator[Record]:
    """Yield the records of a dump, after a layout split them.

    Those of which an index excludes that a row matches may be left out.
    """
    container = container_of(path)
    assert container is not None
    records = container.records(path, layout.contents)
    if where is not None and layout.index is not None and container is STREAM:
        from rlpost.formats.stream_index import indexed_records  # noqa: PLC0415 - imports polars

        records = indexed_records(path, layout.index, where) or records
    for record in records:
        if layout.version is not None:
            check_version(record, layout)
        if layout.split is None:
            yield record
        else:
            yield from layout.split(record)


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


def _kept_fields(path: Path, layout: Format, options: ReadOptions) -> OtherFields | None:
    """Return the fields that a layout keeps under their names, with types of the whole dump."""
    if layout.own is None:
        return None
    skip = {*layout.own, *options.omitted_columns}
    container = container_of(path)
    if container is PARQUET:
        return OtherFields.of_schema(Source([InputFile(path, Path(path.name))]).schemas[0], skip)
    fields = (
        json_fields(path)
        if container is JSON and layout.split is None
        else (record.fields for record in records_of(path, layout))
    )
    return infer_other_fields(fields, skip, integers=layout.integers)


def layout_rows(
    records: Iterator[Record],
    layout: Format,
    options: ReadOptions,
    others: OtherFields | None,
    kept: DumpFilter | None = None,
) -> Iterator[Row]:
    """Yield the rows of records, with kept fields, the user's map and what a condition names."""
    assert layout.rows is not None
    for row in layout.rows(records, options):
        if others is not None:
            row.values |= others.values(row.record.fields)
        apply_map(row, options.map)
        if kept is not None:
            kept.add_fields(row)
        row.record = row.record.position  # its values are many times the row's
        yield row
