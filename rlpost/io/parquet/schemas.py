"""Key-value metadata of a file with new columns, and the schema that Arrow's writer has in it.

Arrow's readers prefer it to Parquet's own schema, so it has the columns of the file.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.io.parquet.footer import FileMeta, Struct, Wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SOURCE_KEY = b"rlpost.source"  # the input of an output of --skip-existing
_LEFT_OUT = {SOURCE_KEY, b"rlpost.summary"}  # of what Arrow's schema repeats
ARROW_SCHEMA = b"ARROW:schema"
SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Without it Spark reads Parquet's own schema, which has the new columns."""


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
    """Return the metadata of a file with some of its columns and new ones.

    What an input says about its own input is not true of the output, and is left out; so is an
    Arrow schema with other columns than the file's.
    """
    left_out = (SOURCE_KEY, SPARK_SCHEMA)
    joined = {key: value for key, value in metadata.items() if key not in left_out}
    if ARROW_SCHEMA in joined:
        joined[ARROW_SCHEMA] = _join_arrow_schema(joined[ARROW_SCHEMA], (*names,), fields)
    return {key: value for key, value in joined.items() if value or key != ARROW_SCHEMA}


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
    """Decode an Arrow schema from key-value metadata."""
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value)))


@lru_cache(4)
def _join_arrow_schema(value: bytes, names: tuple[str, ...], fields: pa.Schema) -> bytes:
    """Select columns of an encoded Arrow schema and append new ones; empty if it lacks one."""
    try:
        schema = _arrow_schema(value)
    except (pa.ArrowException, OSError, ValueError):
        return b""
    if any(schema.get_field_index(name) < 0 for name in names):
        return b""
    entries = {key: x for key, x in (schema.metadata or {}).items() if key not in _LEFT_OUT}
    kept = (schema.field(name) for name in names)
    return base64.b64encode(pa.schema([*kept, *fields], entries or None).serialize())
