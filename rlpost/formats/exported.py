"""What `rlpost export` adds to its files, so that `rlpost convert` returns the same columns."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost._version import __version__
from rlpost.errors import DataError, ReadWriteError
from rlpost.formats.records import first_names
from rlpost.formats.rows import MOST_BYTES, MOST_ROWS, check_finite
from rlpost.io.arrow import is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


HOOK = "rlpost_advantages.py"
"""The function for slime's advantage hook, beside its samples."""
SUFFIX = ".schema"
"""Of the file beside a JSONL file that has the types of its columns."""


def is_beside(file: Path) -> bool:
    """Return whether a file is one that an export writes beside its rows."""
    return file.name == HOOK or (
        file.suffix == SUFFIX and file.with_name(file.name.removesuffix(SUFFIX)).is_file()
    )


def has_schema(path: Path) -> bool:
    """Return whether a file with the types of a JSONL file's columns is beside it."""
    return path.with_name(path.name + SUFFIX).is_file()


def is_exported(path: Path, options: ReadOptions) -> bool:
    """Return whether a JSONL file is read with the types of its export."""
    changed = options.map or options.layout is not None or options.group_size is not None
    return not changed and has_schema(path)


def encode(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode(text: str) -> pa.Schema:
    """Return the schema of a text; raises ArrowException or ValueError."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def schema_text(schema: pa.Schema) -> str:
    """Return the contents of the file with the types of a JSONL file."""
    columns = {one.name: str(one.type) for one in schema}
    stored = {"rlpost_version": __version__, "columns": columns, "arrow_schema": encode(schema)}
    return json.dumps(stored, indent=1) + "\n"


def schema_of(path: Path) -> pa.Schema | None:
    """Return the types of the columns of a JSONL file that was exported; None of another file.

    Raises:
        DataError: the file with the types is damaged.
        ReadWriteError: it cannot be read.
    """
    if not has_schema(path):
        return None
    beside = path.with_name(path.name + SUFFIX)
    try:
        return decode(json.loads(beside.read_text(encoding="utf-8"))["arrow_schema"])
    except OSError as error:
        raise ReadWriteError(f"{beside}: cannot be read: {error.strerror}") from None
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise DataError(
            f"{beside}: damaged; it has the types of the columns of {path.name}: export again, or "
            "remove it to find the types in the values"
        ) from None


def jsonl_batches(
    path: Path, records: Iterable[Record], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a JSONL file in the types of its export.

    Raises:
        DataError: a record has other fields or values.
    """
    remove = f"remove {path.name}{SUFFIX}, which has the types of the export, to read them anew"
    rows: list[Record] = []
    size = 0
    for record in records:
        if record.fields.keys() != {*schema.names}:
            other = first_names(sorted(record.fields.keys() ^ {*schema.names}))
            raise DataError(
                f"{record.where}: has other fields than the export ({other}); if they are right, "
                + remove
            )
        rows.append(record)
        size += sum(len(x) for x in record.fields.values() if isinstance(x, (str, list)))
        if len(rows) == MOST_ROWS or size * 8 >= MOST_BYTES:
            yield _jsonl_batch(rows, schema, options, remove)
            rows, size = [], 0
    if rows:
        yield _jsonl_batch(rows, schema, options, remove)


def _jsonl_batch(
    rows: list[Record], schema: pa.Schema, options: ReadOptions, remove: str
) -> pa.RecordBatch:
    columns = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            columns[name] = _array([record.fields[name] for record in rows], kind)
        except MemoryError:  # an ArrowException, too, but not about the data
            raise
        except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{rows[0].where} or later: `{name}` has a value that is not {kind} ({error}); if "
                f"it is right, {remove}"
            ) from None
    batch = pa.record_batch(columns, schema)
    if options.nonfinite == "error":
        check_finite(batch, lambda row: rows[row].where)
    return batch


def is_text_in_json(kind: pa.DataType) -> bool:
    """Return whether values are a text in JSON: dates, timestamps and decimals."""
    types = pa.types
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a column, from JSON."""
    if is_text_in_json(kind):
        return pa.array(values, pa.string()).cast(kind)
    _check_exact(values, kind)
    return pa.array(values, kind)


def _check_exact(values: Iterable[Any], kind: pa.DataType) -> None:
    """Raise ValueError for what Arrow would cut off: fractions, and other fields of objects."""
    given = [value for value in values if value is not None]
    if pa.types.is_integer(kind) and float in set(map(type, given)):
        for value in given:
            if value % 1:
                raise ValueError(f"{value} has a fraction")
    elif is_list(kind) and not pa.types.is_floating(kind.value_type):
        for value in given:
            _check_exact(value, kind.value_type)
    elif pa.types.is_struct(kind):
        names = {one.name for one in kind}
        if other := {name for value in given for name in value} - names:
            raise ValueError(f"other fields: {first_names(sorted(other))}")
        for one in kind:
            _check_exact([value.get(one.name) for value in given], one.type)
