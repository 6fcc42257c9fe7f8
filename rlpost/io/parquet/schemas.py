"""Schemas that writers keep in a file's key-value metadata, and believe more than Parquet's own."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.io.parquet.footer import FooterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


def arrow_schema(value: bytes) -> pa.Schema:
    """Decode the Arrow schema that pyarrow and others keep, or FooterError."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FooterError(f"its Arrow schema cannot be read ({error})") from None


def arrow_value(schema: pa.Schema) -> bytes:
    """Encode an Arrow schema; the inverse of `arrow_schema`."""
    return base64.b64encode(schema.serialize())


def joined_arrow(value: bytes, names: Sequence[str], fields: pa.Schema) -> bytes:
    """An Arrow schema that has the columns of these names, and new ones; FooterError as above."""
    schema = arrow_schema(value)
    missing = [name for name in names if schema.get_field_index(name) < 0]
    if missing:
        raise FooterError(f"its Arrow schema lacks {missing[0]!r}, or has it twice")
    kept = (schema.field(name) for name in names)
    return arrow_value(pa.schema([*kept, *fields], schema.metadata))


def joined_metadata(
    metadata: Mapping[bytes, bytes], names: Sequence[str], fields: pa.Schema
) -> dict[bytes, bytes]:
    """A table's metadata, where a Spark schema has the columns of these names, and new ones."""
    told = dict(metadata)
    value = told.pop(SPARK_SCHEMA, None)
    joined = None if value is None else joined_spark(value, names, fields)
    return told if joined is None else {**told, SPARK_SCHEMA: joined}


def joined_spark(value: bytes, names: Sequence[str], fields: pa.Schema) -> bytes | None:
    """A Spark schema that has the columns of these names, and new ones.

    Returns:
        None where it can't be made; without one, Spark takes Parquet's own schema.
    """
    try:
        schema = json.loads(value)
        known = {field["name"]: field for field in schema["fields"]}
        kept = [known[name] for name in names]
        new = [_spark_field(field.name, field.type, null=field.nullable) for field in fields]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return json.dumps({**schema, "fields": [*kept, *new]}, separators=(",", ":")).encode()


def _spark_field(name: str, kind: pa.DataType, *, null: bool) -> dict[str, Any]:
    return {"name": name, "type": _spark_type(kind), "nullable": null, "metadata": {}}


def _spark_type(kind: pa.DataType) -> str | dict[str, Any]:
    """A column's type in Spark's words; KeyError where it has none that is plain."""
    if pa.types.is_list(kind):
        inner = kind.value_field
        element = {"elementType": _spark_type(inner.type), "containsNull": inner.nullable}
        return {"type": "array", **element}
    return _SPARK_TYPES[kind]
