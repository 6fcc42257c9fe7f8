"""The columns of the files of an input, whose types may differ between files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rlpost.io.parquet.source import Source, TableSource


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return a type that the values of several types convert to without loss; None: there is none.

    Integers and bools become int64, numbers with floats or uint64 float64, texts and integers
    text, and lists those of the common type of their elements. Types of nulls count as any type.
    """
    own = [*dict.fromkeys(kinds)]
    if len(own) == 1:
        return own[0]
    own = [kind for kind in own if not pa.types.is_null(kind)]
    own = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in own]
    if len({*own}) == 1:
        return own[0]
    if all(map(is_list, own)):
        inner = common_type(kind.value_type for kind in own)
        return None if inner is None else pa.large_list(inner)
    if all(map(is_number, own)):
        whole = all(not pa.types.is_floating(kind) and kind != pa.uint64() for kind in own)
        return pa.int64() if whole else pa.float64()
    if all(_is_text(kind) or pa.types.is_integer(kind) for kind in own):
        return pa.large_string()
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def common_schema(source: Source | TableSource) -> pa.Schema:
    """Return the columns that every file has, without those whose types have no common type."""
    first, *others = source.schemas
    fields = []
    for name in first.names:
        if all(name in other.names for other in others):
            kind = common_type(schema.field(name).type for schema in source.schemas)
            if kind is not None:
                fields.append(pa.field(name, kind))
    return pa.schema(fields)


def check_types(source: Source | TableSource, names: Collection[str]) -> None:
    """Raise DataError for the first column, of some, whose types have no common type."""
    first: dict[str, tuple[pa.DataType, str]] = {}
    for file, schema in zip(source.files, source.schemas, strict=True):
        for name in (name for name in names if name in schema.names):
            kind = schema.field(name).type
            other, where = first.setdefault(name, (kind, str(file.path)))
            if common_type([other, kind]) is None:
                raise DataError(
                    f"{file.path}: `{name}` is {_words(kind)}, and {_words(other)} in {where}; one "
                    "type is needed in all files: write one of them again, or replay them one by "
                    "one"
                )


def _words(kind: pa.DataType) -> str:
    """Return a type in words: a list of double, not large_list<element: double>."""
    if is_list(kind):
        return f"a list of {kind.value_type}"
    return f"a single {kind}" if is_number(kind) else f"of type {kind}"


def joined(parts: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches of the same columns as one table, of their common types.

    Args:
        parts: at least one; `check_types` accepts their types.
    """
    kinds = {
        name: common_type(dict.fromkeys(part.column(name).type for part in parts))
        for name in parts[0].schema.names
    }
    schema = pa.schema(list(kinds.items()))
    tables = [pa.Table.from_batches([part]).select(schema.names).cast(schema) for part in parts]
    return pa.concat_tables(tables).unify_dictionaries()
