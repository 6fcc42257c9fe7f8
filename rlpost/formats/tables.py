"""Parquet files of other tools as records, read in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import DataError, ReadWriteError
from rlpost.formats.records import Record
from rlpost.parquet.reader import footer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rlpost.parquet.places import Place

_ROWS = 256
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def columns_in(path: Place) -> set[str]:
    """The names of a Parquet file's columns, for a sniff; none if it is no such file.

    Raises:
        ReadWriteError: it is remote, and can't be read.
    """
    try:
        return set(footer_of(path).schema.to_arrow_schema().names)
    except _DAMAGE:
        return set()


def table_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The rows of a Parquet file as records of these columns; `a.b` reads one field of a struct.

    Raises:
        DataError: the file is no Parquet, is damaged, or lacks a column.
        ReadWriteError: it can't be read.
    """
    try:
        with pq.ParquetFile(path, metadata=footer_of(path), pre_buffer=False) as file:
            names = file.schema_arrow.names
            for name in columns:
                if name.partition(".")[0] not in names:
                    raise DataError(f"{path}: no column {name!r}; there are {', '.join(names)}")
            row = 0
            for batch in file.iter_batches(_ROWS, columns=list(columns)):
                for values in batch.to_pylist():
                    yield Record(f"{path}, row {row}", values)
                    row += 1
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a Parquet file, or damaged ({why})") from None
