"""Parquet files and pickles of torch.save as records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError
from rlpost.formats.pickles import load
from rlpost.formats.records import Record
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_ROWS = 256
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def table_records(path: Path) -> Iterator[Record]:
    """Yield the rows of a Parquet file as records.

    Raises:
        DataError: the file is not Parquet, or is damaged.
        ReadWriteError: it cannot be read.
    """
    try:
        with ParquetReader(path) as reader:
            row = 0
            for group in range(reader.file.num_row_groups):
                for batch in reader.batches(_ROWS, group, reader.file.schema_arrow.names):
                    for values in batch.to_pylist():
                        yield Record(f"{path}, row {row}", values, path)
                        row += 1
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a Parquet file, or damaged ({why})") from None


def pickle_records(path: Path) -> Iterator[Record]:
    """Yield the dictionary of a torch.save file as one record.

    Raises:
        DataError: the file has no dictionary, or is rejected by `rlpost.formats.pickles.load`.
        NotEnoughMemoryError, ReadWriteError: as `rlpost.formats.pickles.load`.
    """
    dump = load(path)
    if not isinstance(dump, dict):
        raise DataError(f"{path}: contains a {type(dump).__name__}; a dictionary is needed")
    yield Record(str(path), dump, path)
