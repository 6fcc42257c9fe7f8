"""Tables in memory: those of any library that has Arrow's interface, and back to its own type."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable


class ArrowStream(Protocol):
    """A table of any library with the Arrow PyCapsule interface.

    Polars frames, pandas frames (2.2), duckdb relations, Arrow tables, record batches and datasets
    of Hugging Face have it.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None, /) -> object:
        """Return a capsule with a stream of record batches."""


def is_table(value: object) -> TypeGuard[ArrowStream]:
    """Return whether a value is a table in memory, or one that is read into memory."""
    return hasattr(value, "__arrow_c_stream__") or _kind(value) in ("LazyFrame", "Dataset")


def arrow_table(value: Any) -> pa.Table:
    """Return a table of any library as Arrow; columns share memory where the library can.

    Lazy polars frames are collected. The index of a pandas frame becomes a column, if it is more
    than the numbers of the rows.
    """
    kind = _kind(value)
    if kind == "LazyFrame":
        value = value.collect()
    if kind == "Dataset":  # of Hugging Face; its rows may be chosen by indices
        value = value.with_format("arrow")[:]
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if kind == "DataFrame" and _module(value) == "pandas":
        return pa.Table.from_pandas(value)
    if kind in ("DataFrame", "LazyFrame"):  # polars: without views of strings, which few can read
        return value.to_arrow()
    return pa.table(value)


def like(table: pa.Table, value: Any) -> Any:
    """Return a table in the type of another one, from which it was computed.

    That is a polars or pandas frame, a duckdb relation, a dataset of Hugging Face, or a record
    batch; an Arrow table for all other types. A lazy frame becomes one that has its rows.
    """
    back = _BACK.get((_module(value), _kind(value)))
    return table if back is None else back(table)


def _polars(table: pa.Table) -> Any:
    return sys.modules["polars"].from_arrow(table)


def _lazy_polars(table: pa.Table) -> Any:
    return _polars(table).lazy()


def _pandas(table: pa.Table) -> Any:
    return table.to_pandas()


def _relation(table: pa.Table) -> Any:
    return sys.modules["duckdb"].from_arrow(table)


def _dataset(table: pa.Table) -> Any:
    metadata = {k: v for k, v in (table.schema.metadata or {}).items() if k != b"huggingface"}
    return sys.modules["datasets"].Dataset(
        sys.modules["datasets.table"].InMemoryTable(table.replace_schema_metadata(metadata))
    )


def _record_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in table.columns], schema=table.schema
    )


_BACK: dict[tuple[str, str], Callable[[pa.Table], Any]] = {
    ("polars", "DataFrame"): _polars,
    ("polars", "LazyFrame"): _lazy_polars,
    ("pandas", "DataFrame"): _pandas,
    ("duckdb", "DuckDBPyRelation"): _relation,
    ("_duckdb", "DuckDBPyRelation"): _relation,
    ("datasets", "Dataset"): _dataset,
    ("pyarrow", "RecordBatch"): _record_batch,
}


def _kind(value: object) -> str:
    """Return the name of a type, or that of the class of a library that it is derived from."""
    return _known(value)[1]


def _module(value: object) -> str:
    return _known(value)[0]


def _known(value: object) -> tuple[str, str]:
    """Return the library and the name of the first class of a value that `like` can build."""
    names = [(one.__module__.partition(".")[0], one.__name__) for one in type(value).__mro__]
    return next((name for name in names if name in _BACK), ("", ""))
