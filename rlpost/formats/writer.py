"""Writer of converted Parquet files."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost._version import __version__
from rlpost.errors import DataError
from rlpost.formats.base import CANONICAL, LENGTH, TOKEN_COLUMNS
from rlpost.formats.rows import has_failed, text_of
from rlpost.io.arrow import common_type, is_list, is_string, to_arrow
from rlpost.io.locks import scratch_folder
from rlpost.io.outputs import file_errors
from rlpost.io.ranges import arrow_file
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.base import Format
    from rlpost.io.outputs import OutputFile


ROW_GROUP_BYTES = 64 << 20
"""Approximate bytes of a row group in memory."""
_ZSTD_LEVEL = 1
_PROMPT = "prompt_token_ids"


class CanonicalFile:
    """One Parquet file of record batches whose columns may differ.

    A column has a type for the values of all batches, or else is text. If that is not the type of
    the rows that were written, or a column is new, they are written again. Lists of floats, such as
    log-probs, use byte-stream split, because zstd compresses their exponent bytes better side by
    side.

    Args:
        staged: the file, which `complete` completes and the caller publishes.
    """

    def __init__(self, staged: OutputFile) -> None:
        self.target = staged.target
        self._staged = staged
        self._clear()

    def _clear(self) -> None:
        """Begin without rows."""
        self.rows = 0
        self.tokens = 0
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._kinds: dict[str, pa.DataType] = {}
        self._written = self._kinds  # the columns of the rows that are written
        self._writer: pq.ParquetWriter | None = None
        self._file: pa.OSFile | None = None
        self._sources: dict[str, None] = {}

    @property
    def columns(self) -> list[str]:
        """The columns of the file; empty before the first row group is written."""
        return list(self._writer.schema.names) if self._writer else []

    def append(self, batch: pa.RecordBatch, source: str) -> None:
        """Add rows.

        Args:
            batch: canonical columns, from a format's `read`.
            source: the dump, for errors.

        Raises:
            DataError: the rows lack a token column of the file, or earlier ones lack theirs.
        """
        self._sources[source] = None
        self.rows += batch.num_rows
        self.tokens += _tokens(batch)
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
            if not pa.types.is_null(kind):
                self._kinds[name] = joined_type(self._kinds.get(name, kind), kind)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    @contextmanager
    def _rewritten(self) -> Iterator[pq.ParquetFile]:
        """Begin the file again, and yield what was written."""
        with scratch_folder(None) as folder:
            copy = folder / "rows.parquet"
            self._close()
            self._writer = None
            shutil.copyfile(self._staged.path, copy)
            with arrow_file(copy) as file:
                yield pq.ParquetFile(file)

    def flush(self) -> None:
        """Write the rows so far, so that none waits in memory."""
        if self._batches:
            if self._writer is not None and self._kinds != self._written:
                with self._rewritten() as stored:
                    for group in range(stored.num_row_groups):
                        self._write(stored.read_row_group(group).to_batches())
            self._write(self._batches)
            self._batches, self._bytes = [], 0

    def leave_out(self, flags: NDArray[np.bool_]) -> None:
        """Write the file again without some of its rows, [n]."""
        self.flush()
        source, first = next(iter(self._sources)), 0
        with self._rewritten() as stored:
            self._clear()
            for group in range(stored.num_row_groups):
                for batch in stored.read_row_group(group).to_batches():
                    kept = ~flags[first : first + len(batch)]
                    self.append(batch.filter(to_arrow(kept, pa.bool_())), source)
                    first += len(batch)

    def _close(self) -> None:
        """Close the file, whose footer is complete."""
        assert self._writer is not None
        assert self._file is not None
        with file_errors(self.target, "cannot be written"):
            self._writer.close()
            self._file.close()

    def complete(self, dump_format: Format) -> None:
        """Write the last rows, and the footer; the target does not exist yet.

        Raises:
            ReadWriteError: writing failed.
        """
        self.flush()
        assert self._writer is not None
        missing = missing_roles(dump_format, self.columns)
        self._writer.add_key_value_metadata(
            {
                "rlpost.version": __version__,
                "rlpost.format": dump_format.name,
                "rlpost.missing_roles": json.dumps(missing, ensure_ascii=False),
            }
        )
        self._close()
        self._staged.complete()

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write a row group, with all columns so far."""
        names = [*(name for name in CANONICAL if name in self._kinds),
                 *(name for name in self._kinds if name not in CANONICAL)]  # fmt: skip
        schema = pa.schema([(name, self._kinds[name]) for name in names])
        table = pa.Table.from_batches([self._fitted(batch, schema) for batch in batches], schema)
        with file_errors(self.target, "cannot be written"):
            self._writer = self._writer or self._open_writer(schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._written = dict(self._kinds)

    def _fitted(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows with all columns of the file; rows without tokens have empty lists."""
        arrays = []
        for name, kind in zip(schema.names, schema.types, strict=True):
            column = batch.column(name) if name in batch.schema.names else pa.nulls(len(batch))
            if name in (*TOKEN_COLUMNS, _PROMPT) and column.null_count:
                if _has_no_tokens(batch.filter(column.is_null())):
                    column = pa.array([x or [] for x in column.to_pylist()], kind)
                elif name in TOKEN_COLUMNS:  # not every call has its prompt
                    raise DataError(
                        f"{' and '.join(self._sources)}: only some have {name}, and all or none "
                        "must have it: convert them to a directory, one file each, or omit it with "
                        f"--map {name}=none"
                    )
            arrays.append(as_type(column, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _open_writer(self, schema: pa.Schema) -> pq.ParquetWriter:
        floats, others = [], []
        for column in schema:
            kind = column.type.value_type if pa.types.is_list(column.type) else column.type
            name = f"{column.name}.list.element" if kind is not column.type else column.name
            if kind is not column.type and pa.types.is_floating(kind):
                floats.append(name)
            elif kind is column.type or not pa.types.is_int32(kind):
                others.append(name)
        self._file = arrow_file(self._staged.path, "wb")
        return pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=others,
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        )


def joined_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return a type that has the values of two without loss; text if no other has."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if is_list(first) and is_list(second):
        inner = joined_type(first.value_type, second.value_type)
        texts = is_string(first.value_type) or is_string(second.value_type)
        return pa.string() if inner == pa.string() and not texts else pa.list_(inner)
    both = (first, second)
    if any(map(pa.types.is_boolean, both)) or any(map(is_list, both)):
        return pa.string()
    kind = common_type(both)
    rounded = kind == pa.float64() and all(map(pa.types.is_integer, both))
    return pa.string() if kind is None or rounded or is_string(kind) else kind


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the type of its file; what is no text becomes JSON in a column of it."""
    if column.type == kind:
        return column
    if kind == pa.string() and not (is_string(column.type) or pa.types.is_null(column.type)):
        return text_of(column)
    return column.cast(kind, safe=False)


def _has_no_tokens(rows: pa.RecordBatch | pa.Table) -> bool:
    """Return whether all rows have a length of 0, or failed before they had any."""
    names, empty = rows.schema.names, has_failed(rows)
    if LENGTH in names:
        lengths = np.asarray(rows.column(LENGTH).fill_null(-1))
        empty = (lengths == 0) | (empty & (lengths < 0))
    return bool(empty.all())


def _tokens(batch: pa.RecordBatch) -> int:
    name = next((name for name in TOKEN_COLUMNS if name in batch.schema.names), None)
    return 0 if name is None else len(batch.column(name).flatten())


def served_roles(columns: Collection[str]) -> list[str]:
    """Return the roles of these columns, in the order of the schema; tokens set the lengths."""
    served = [
        name
        for name, role in ROLES.items()
        if role.kind != "text" and any(alias in columns for alias in role.aliases)
    ]
    tokens = any(kind_of(role) == "tokens" for role in served)
    return [role for role in served if not (tokens and role == LENGTH)]


def missing_roles(dump_format: Format, columns: Collection[str]) -> Mapping[str, str]:
    """Return role -> why a converted file with these columns lacks it."""
    served, reasons = served_roles(columns), {**dump_format.missing_roles}
    if not {*TOKEN_COLUMNS} & {*columns}:  # a list of any other meaning has no tokens either
        reasons.setdefault("mask", "no field has tokens; name one with --map mask=FIELD")
    return {role: why for role, why in reasons.items() if why and role not in served}
