"""A dump as record batches: container -> records -> layout -> rows -> batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import DataError, UsageError
from rlpost.formats.columns import record_batches
from rlpost.formats.containers import PARQUET, container_of
from rlpost.formats.fields import field_rows
from rlpost.formats.keys import GroupBlocks
from rlpost.formats.records import describe, first_names
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.records import Record, Row


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
    if layout.read is not None:
        yield from layout.read(path, options)
        return
    options.stats.begin_dump()
    if layout.prepare is not None:
        layout.prepare(path, options)
    table = container_of(path) is PARQUET
    yield from record_batches(
        layout_rows(path, layout, options),
        options,
        layout.types,
        path=str(path),
        own=read_fields(layout),
        integers=layout.integers,
        stored=Source([InputFile(path, Path(path.name))]).schemas[0] if table else None,
    )
    if layout.finish is not None:
        layout.finish(path, options)


def read_fields(layout: Format) -> frozenset[str] | None:
    """Return the fields of records that are not kept under their names; None: none is kept."""
    if layout.own is None:
        return None
    paths = (source for source in layout.fields.values() if isinstance(source, str))
    return layout.own.union(() if layout.rows else (path.partition(".")[0] for path in paths))


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


def layout_rows(path: Path, layout: Format, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows of a dump, with the groups of blocks of records."""
    blocks, rollout, block = GroupBlocks(options, str(path)), None, ""
    records = records_of(path, layout, options)
    for row in (layout.rows or partial(field_rows, layout))(records, options):
        if options.group_size is not None:
            last, rollout = rollout, row.values.get("rollout_id")
            if not row.values.get("turn") or rollout != last:  # else a call of the same rollout
                block = blocks.next(row.place)
            row.values["prompt_id"] = block
        yield row
    blocks.close()
