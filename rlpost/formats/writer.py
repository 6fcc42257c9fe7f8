"""Canonical Parquet files: written beside their target, which appears when it is complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost._version import __version__
from rlpost.errors import DataError, ReadWriteError
from rlpost.formats.base import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.rows import unfit
from rlpost.io.uploads import stage_file
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.formats.base import Format
    from rlpost.io.paths import AnyPath


ROW_GROUP_BYTES = 64 << 20
"""Bytes of a row group in memory, about."""
LEVEL = 1


class CanonicalFile:
    """Takes record batches whose columns may differ, and writes one Parquet file.

    The columns are those that the first row group has a value in. Log-probs and other lists of
    floats are byte-stream split: zstd finds more in their exponents' bytes side by side.

    Raises:
        ReadWriteError: the target can't be written.
    """

    def __init__(self, target: AnyPath) -> None:
        self.target = target
        self.rows = 0
        self.tokens = 0
        self._staged = stage_file(target)
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._sources: dict[str, int] = {}
        self._rewarded = 0
        self._unfit: dict[str, list[int]] = {}

    @property
    def columns(self) -> list[str]:
        """The columns that the file has; known when the first row group is written."""
        return list(self._writer.schema.names) if self._writer else []

    @property
    def nonfinite(self) -> dict[str, dict[str, int]]:
        """Columns with numbers that are not finite: how many, and in how many `responses`."""
        found = {
            name: {"entries": entries, "responses": rows}
            for name, (entries, rows) in self._unfit.items()
        }
        if missing := self.rows - self._rewarded if self._rewarded else 0:
            count = found.get("reward", {"entries": 0, "responses": 0})
            found["reward"] = {name: number + missing for name, number in count.items()}
        return found

    def _count_unfit(self, batch: pa.RecordBatch) -> None:
        if "reward" in batch.schema.names:  # a batch without any reward has no such column
            self._rewarded += batch.num_rows
        for name, rows in unfit(batch):
            count = self._unfit.setdefault(name, [0, 0])
            count[0] += len(rows)
            count[1] += len({*rows.tolist()})

    def append(self, batch: pa.RecordBatch, source: str) -> None:
        """Add rows.

        Args:
            batch: canonical columns, from a format's `read`.
            source: the dump they are from, for errors.

        Raises:
            DataError: they lack a token column that the file has, or bring a new one.
        """
        self._sources.setdefault(source, self.rows)
        self.rows += batch.num_rows
        self.tokens += _tokens(batch)
        self._count_unfit(batch)
        if self._writer is not None:
            batch = self._conformed(batch, source)
        self._kept.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def complete(self, one: Format) -> None:
        """Write what is left and the footer; nothing has the target's name yet.

        Raises:
            DataError: there was no row.
            ReadWriteError: writing failed.
        """
        if not self.rows:
            names = ", ".join(self._sources) or "the input"
            raise DataError(f"{names}: no records, so there is nothing to convert")
        self._flush()
        assert self._writer is not None
        lacks = missing_roles(one, self.columns)
        self._writer.add_key_value_metadata(
            {
                "rlpost.version": __version__,
                "rlpost.format": one.name,
                "rlpost.lacks": json.dumps(lacks, ensure_ascii=False),
            }
        )
        try:
            self._writer.close()
        except OSError as error:
            raise self._failed(error) from None
        self._staged.complete()

    def publish(self) -> None:
        """Give the completed file the target's name."""
        self._staged.publish()

    def abort(self) -> None:
        """Remove what was written; does nothing after `publish`."""
        self._staged.discard()

    def _flush(self) -> None:
        if not self._kept:
            return
        try:
            if self._writer is None:
                table = self._first()
                self._writer = self._opened(table.schema)
            else:
                table = pa.Table.from_batches(self._kept, self._writer.schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        except OSError as error:
            raise self._failed(error) from None
        self._kept, self._bytes = [], 0

    def _first(self) -> pa.Table:
        """The first row group, which decides the columns; those without a value are left out."""
        tables = [pa.Table.from_batches([batch]) for batch in self._kept]
        try:
            table = pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{', '.join(self._sources)}: a column has values of kinds that do not fit "
                f"together: {str(error).splitlines()[0]}"
            ) from None
        dead = [
            name for name in table.schema.names if pa.types.is_null(table.schema.field(name).type)
        ]
        table = table.drop_columns(dead)
        for name in table.column_names:
            if name in TOKEN_COLUMNS and table[name].null_count:
                raise DataError(self._uneven(name))
        order = [*(name for name in CANONICAL if name in table.column_names),
                 *(name for name in table.column_names if name not in CANONICAL)]  # fmt: skip
        return table.select(order)

    def _uneven(self, name: str) -> str:
        return (
            f"{' and '.join(self._sources)}: only some have {name}; all need it or none: convert "
            f"them to a directory, one file each, or leave it out with --map {name}=none"
        )

    def _conformed(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        assert self._writer is not None
        schema = self._writer.schema
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in schema.names and column.null_count < len(column):
                raise DataError(
                    f"{source}: the column {name} begins here, after {self.rows:,} rows without "
                    f"it; leave it out with --map {name}=none, or convert the file by itself"
                )
        arrays = []
        for column_field in schema:
            name = column_field.name
            if name in batch.schema.names:
                try:
                    arrays.append(batch.column(name).cast(column_field.type))
                except pa.ArrowException:
                    kind = batch.schema.field(name).type
                    raise DataError(
                        f"{source}: the column {name} becomes {kind} here; it was "
                        f"{column_field.type} before"
                    ) from None
            elif name in TOKEN_COLUMNS:
                raise DataError(self._uneven(name))
            else:
                arrays.append(pa.nulls(batch.num_rows, column_field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _opened(self, schema: pa.Schema) -> pq.ParquetWriter:
        floats = [
            f"{one.name}.list.element"
            for one in schema
            if pa.types.is_list(one.type) and pa.types.is_floating(one.type.value_type)
        ]
        others = [one.name for one in schema if not pa.types.is_nested(one.type)]
        others += [
            f"{one.name}.list.element"
            for one in schema
            if pa.types.is_list(one.type) and f"{one.name}.list.element" not in floats
        ]
        return pq.ParquetWriter(
            self._staged.path,
            schema,
            compression="zstd",
            compression_level=LEVEL,
            use_dictionary=others,
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        )

    def _failed(self, error: OSError) -> ReadWriteError:
        return ReadWriteError(f"{self.target}: cannot be written: {error.strerror or error}")


def _tokens(batch: pa.RecordBatch) -> int:
    name = next((name for name in TOKEN_COLUMNS if name in batch.schema.names), None)
    return 0 if name is None else len(batch.column(name).flatten())


def given_roles(columns: Collection[str]) -> list[str]:
    """The roles that these columns serve, in the schema's order."""
    return [name for name, role in ROLES.items() if any(alias in columns for alias in role.aliases)]


def missing_roles(one: Format, columns: Collection[str]) -> Mapping[str, str]:
    """Why a converted file lacks roles: those that the format names, less those it has."""
    given = given_roles(columns)
    return {role: why for role, why in one.lacks.items() if role not in given}
