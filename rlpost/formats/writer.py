"""Writer of converted Parquet files."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlpost._version import __version__
from rlpost.errors import DataError, ReadWriteError
from rlpost.formats.attempts import KEYS
from rlpost.formats.base import CANONICAL, LENGTH, TOKEN_COLUMNS
from rlpost.formats.rows import has_failed, nonfinite_numbers
from rlpost.io.locks import scratch_folder
from rlpost.io.ranges import arrow_file
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.formats.attempts import Attempts
    from rlpost.formats.base import Format
    from rlpost.io.outputs import OutputFile


ROW_GROUP_BYTES = 64 << 20
"""Approximate bytes of a row group in memory."""
_ZSTD_LEVEL = 1


class CanonicalFile:
    """One Parquet file of record batches whose columns may differ.

    The columns are those with a value in the first row group. Lists of floats, such as log-probs,
    use byte-stream split, because zstd compresses their exponent bytes better side by side.

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
        self._writer: pq.ParquetWriter | None = None
        self._file: pa.OSFile | None = None
        self._sources: dict[str, int] = {}
        self._rewarded = 0
        self._failed = 0  # rows of batches without rewards
        self._nonfinite: dict[str, list[int]] = {}

    @property
    def columns(self) -> list[str]:
        """The columns of the file; empty before the first row group is written."""
        return list(self._writer.schema.names) if self._writer else []

    @property
    def nonfinite(self) -> dict[str, dict[str, int]]:
        """Columns with NaN or infinite numbers: `entries`, and the `responses` that have them."""
        counts = {
            name: {"entries": entries, "responses": rows}
            for name, (entries, rows) in self._nonfinite.items()
        }
        if missing := self.rows - self._rewarded - self._failed if self._rewarded else 0:
            count = counts.get("reward", {"entries": 0, "responses": 0})
            counts["reward"] = {name: number + missing for name, number in count.items()}
        return counts

    def _count_nonfinite(self, batch: pa.RecordBatch) -> None:
        if "reward" in batch.schema.names:  # a batch without any reward has no such column
            self._rewarded += batch.num_rows
        else:
            self._failed += int(has_failed(batch).sum())
        for name, rows in nonfinite_numbers(batch):
            count = self._nonfinite.setdefault(name, [0, 0])
            count[0] += len(rows)
            count[1] += len({*rows.tolist()})

    def append(self, batch: pa.RecordBatch, source: str) -> None:
        """Add rows.

        Args:
            batch: canonical columns, from a format's `read`.
            source: the dump, for errors.

        Raises:
            DataError: the rows lack a token column of the file, or have a new column.
        """
        self._sources.setdefault(source, self.rows)
        self.rows += batch.num_rows
        self.tokens += _tokens(batch)
        self._count_nonfinite(batch)
        if self._writer is not None:
            batch = self._cast_to_schema(batch, source)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def leave_out(self, attempts: Attempts) -> int:
        """Write the file again without rows of older attempts; return their number."""
        if not self.rows or attempts.several.isdisjoint(self._names()):
            return 0
        self._flush()
        with scratch_folder(None) as folder:
            copy, source, rows = folder / "rows.parquet", next(iter(self._sources)), self.rows
            self._close()
            shutil.copyfile(self._staged.path, copy)
            self._clear()
            with arrow_file(copy) as file:
                stored = pq.ParquetFile(file)
                keys = [name for name in KEYS if name in stored.schema_arrow.names]
                kept, first = ~attempts.replaced(stored.read(keys)), 0
                for group in range(stored.num_row_groups):
                    for batch in stored.read_row_group(group).to_batches():
                        own = kept[first : first + batch.num_rows]
                        self.append(batch.filter(pa.array(own)), source)
                        first += batch.num_rows
        return rows - self.rows

    def _names(self) -> set[str]:
        """Return the columns of the rows so far."""
        return {*self.columns, *(name for one in self._batches for name in one.schema.names)}

    def _close(self) -> None:
        """Close the file, whose footer is complete."""
        assert self._writer is not None
        assert self._file is not None
        try:
            self._writer.close()
            self._file.close()
        except OSError as error:
            raise self._write_error(error) from None

    def complete(self, dump_format: Format, tokenizer: str | None = None) -> None:
        """Write the last rows and the footer; the target does not exist yet.

        Args:
            dump_format: the format of the dump.
            tokenizer: made the token ids of the texts.

        Raises:
            DataError: there were no rows.
            ReadWriteError: writing failed.
        """
        if not self.rows:
            names = ", ".join(self._sources) or "the input"
            raise DataError(f"{names}: no records, so there is nothing to convert")
        self._flush()
        assert self._writer is not None
        missing = missing_roles(dump_format, self.columns)
        made = {} if tokenizer is None else {"rlpost.tokenizer": tokenizer}
        self._writer.add_key_value_metadata(
            {
                "rlpost.version": __version__,
                "rlpost.format": dump_format.name,
                "rlpost.missing_roles": json.dumps(missing, ensure_ascii=False),
                **made,
            }
        )
        self._close()
        self._staged.complete()

    def _flush(self) -> None:
        if not self._batches:
            return
        try:
            if self._writer is None:
                table = self._first_table()
                self._writer = self._open_writer(table.schema)
            else:
                table = pa.Table.from_batches(self._batches, self._writer.schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        except OSError as error:
            raise self._write_error(error) from None
        self._batches, self._bytes = [], 0

    def _first_table(self) -> pa.Table:
        """Return the first row group, which determines the columns, without empty columns."""
        tables = [pa.Table.from_batches([batch]) for batch in self._batches]
        try:
            table = pa.concat_tables(tables, promote_options="permissive")
        except MemoryError:  # an ArrowException, too, but not about the data
            raise
        except pa.ArrowException as error:
            raise DataError(
                f"{', '.join(self._sources)}: a column has values of incompatible types: "
                f"{str(error).splitlines()[0]}"
            ) from None
        columns = {column.name: i for i, column in enumerate(table.schema)
                   if not pa.types.is_null(column.type)}  # fmt: skip
        for name in (*TOKEN_COLUMNS, "prompt_token_ids"):
            if name in columns and table[name].null_count:
                if not _has_no_tokens(table.filter(table[name].is_null())):
                    if name not in TOKEN_COLUMNS:  # not every call has its prompt
                        continue
                    raise DataError(self._uneven_text(name))
                filled = pc.coalesce(table[name], pa.scalar([], table[name].type))
                table = table.set_column(columns[name], name, filled)
        order = [*(columns.pop(name) for name in CANONICAL if name in columns), *columns.values()]
        return table.select(order)

    def _uneven_text(self, name: str) -> str:
        return (
            f"{' and '.join(self._sources)}: only some have {name}, and all or none must have it: "
            f"convert them to a directory, one file each, or omit it with --map {name}=none"
        )

    def _cast_to_schema(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        assert self._writer is not None
        schema = self._writer.schema
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        written = set(schema.names)
        for name, column in columns.items():
            if name not in written and column.null_count < len(column):
                raise DataError(
                    f"{source}: the column {name} begins here, after {self.rows:,} rows without "
                    f"it; omit it with --map {name}=none, or convert this file alone"
                )
        arrays = []
        for column_field in schema:
            name = column_field.name
            if name in columns:
                try:
                    arrays.append(columns[name].cast(column_field.type))
                except MemoryError:  # an ArrowException, too, but not about the data
                    raise
                except pa.ArrowException:
                    raise DataError(
                        f"{source}: the column {name} is {columns[name].type} here and "
                        f"{column_field.type} in earlier rows"
                    ) from None
            elif (name in TOKEN_COLUMNS or name == "prompt_token_ids") and _has_no_tokens(batch):
                arrays.append(pa.array([[]] * batch.num_rows, column_field.type))
            elif name in TOKEN_COLUMNS:
                raise DataError(self._uneven_text(name))
            else:
                arrays.append(pa.nulls(batch.num_rows, column_field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _open_writer(self, schema: pa.Schema) -> pq.ParquetWriter:
        floats = {
            f"{one.name}.list.element"
            for one in schema
            if pa.types.is_list(one.type) and pa.types.is_floating(one.type.value_type)
        }
        others = [one.name for one in schema if not pa.types.is_nested(one.type)]
        others += [
            f"{one.name}.list.element"
            for one in schema
            if pa.types.is_list(one.type) and f"{one.name}.list.element" not in floats
        ]
        self._file = arrow_file(self._staged.path, "wb")
        return pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=others,
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        )

    def _write_error(self, error: OSError) -> ReadWriteError:
        return ReadWriteError(f"{self.target}: cannot be written: {error.strerror or error}")


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
    served = served_roles(columns)
    return {
        role: why for role, why in dump_format.missing_roles.items() if why and role not in served
    }
