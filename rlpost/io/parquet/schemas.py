"""Schemas in key-value metadata, in Arrow's or Spark's format, with new columns.

Their readers prefer them to Parquet's own schema, so they have the columns of the file.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.io.parquet.footer import FileMeta, FooterError, Struct, Wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SOURCE_KEY = b"rlpost.source"  # the input of an output of --skip-existing
_LEFT_OUT = {SOURCE_KEY, b"rlpost.summary"}  # of what Arrow's schema repeats
ARROW_SCHEMA = b"ARROW:schema"
SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
}


def key_values(footer: Struct) -> dict[bytes, bytes]:
    """Return the key-value metadata of a file."""
    pairs = footer.structs(FileMeta.KEY_VALUES)
    return {pair.binary(1): pair.binary(2, b"") for pair in pairs}


def put_key_values(footer: Struct, metadata: Mapping[bytes, bytes]) -> None:
    """Set the key-value metadata of a file."""
    pairs = [Struct().put(1, Wire.BINARY, k).put(2, Wire.BINARY, v) for k, v in metadata.items()]
    footer.pop(FileMeta.KEY_VALUES, None)
    if pairs:
        footer.put_structs(FileMeta.KEY_VALUES, pairs)


def join_file_metadata(
    metadata: Mapping[bytes, bytes], names: Sequence[str], fields: pa.Schema
) -> dict[bytes, bytes]:
    """Return the metadata of a file with some of its columns and new ones, or FooterError.

    What an input says about its own input is not true of the output, and is left out.
    """
    joined = join_table_metadata(metadata, names, fields)
    joined.pop(SOURCE_KEY, None)
    if ARROW_SCHEMA in joined:
        joined[ARROW_SCHEMA] = _join_arrow_schema(joined[ARROW_SCHEMA], (*names,), fields)
    return joined


def add_entries(metadata: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the metadata of a file with new entries, the last ones.

    Arrow's schema has them, too, since pyarrow reads no others with it; but not the long summary.
    """
    joined = {key: value for key, value in metadata.items() if key not in new}
    if ARROW_SCHEMA in joined and new:
        schema = _arrow_schema(joined[ARROW_SCHEMA])
        entries = (schema.metadata or {}) | {key: new[key] for key in new if key not in _LEFT_OUT}
        joined[ARROW_SCHEMA] = base64.b64encode(schema.with_metadata(entries).serialize())
    return {**joined, **new}


def _arrow_schema(value: bytes) -> pa.Schema:
    """Decode an Arrow schema from key-value metadata, or FooterError."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FooterError(f"its Arrow schema cannot be read ({error})") from None


@lru_cache(4)
def _join_arrow_schema(value: bytes, names: tuple[str, ...], fields: pa.Schema) -> bytes:
    """Select columns of an encoded Arrow schema and append new ones, or FooterError."""
    schema = _arrow_schema(value)
    missing = [name for name in names if schema.get_field_index(name) < 0]
    if missing:
        raise FooterError(f"its Arrow schema lacks {missing[0]!r}, or has it twice")
    entries = {key: x for key, x in (schema.metadata or {}).items() if key not in _LEFT_OUT}
    kept = (schema.field(name) for name in names)
    return base64.b64encode(pa.schema([*kept, *fields], entries or None).serialize())


def join_table_metadata(
    metadata: Mapping[bytes, bytes], names: Sequence[str], fields: pa.Schema
) -> dict[bytes, bytes]:
    """Select columns of the Spark schema in a table's metadata, if any, and append new ones.

    One that is damaged is left out: Spark uses Parquet's own schema then.
    """
    joined = dict(metadata)
    if (value := joined.pop(SPARK_SCHEMA, None)) is None:
        return joined
    try:
        schema = json.loads(value)
        by_name = {field["name"]: field for field in schema["fields"]}
        kept = [by_name[name] for name in names]
        new = [_spark_field(field.name, field.type, null=field.nullable) for field in fields]
    except (ValueError, KeyError, TypeError, RecursionError):
        return joined
    text = json.dumps({**schema, "fields": [*kept, *new]}, separators=(",", ":"))
    return {**joined, SPARK_SCHEMA: text.encode()}


def _spark_field(name: str, kind: pa.DataType, *, null: bool) -> dict[str, Any]:
    return {"name": name, "type": _spark_type(kind), "nullable": null, "metadata": {}}


def _spark_type(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a column's type in Spark's JSON; KeyError if Spark has no simple type for it."""
    if pa.types.is_list(kind):
        inner = kind.value_field
        element = {"elementType": _spark_type(inner.type), "containsNull": inner.nullable}
        return {"type": "array", **element}
    return _SPARK_TYPES[kind]
