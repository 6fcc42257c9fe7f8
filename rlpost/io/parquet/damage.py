"""Which columns of a Parquet file do not decode: all of it is read, a bounded piece at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.parquet.checks import check_texts
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.io.places import AnyPath


_BYTES = 32 << 20  # decoded bytes that are held at a time
_ROWS = 1 << 14


def damaged_columns(place: AnyPath, advance: Callable[[int], None]) -> dict[str, str]:
    """Decode every column of a file, with its pages' checksums where it has them.

    One column of one row group is read at a time. Texts must be UTF-8, and a row group must have
    the rows that the footer says. A checksum covers the bytes as they were written: without one,
    bits that changed and still decode are not found.

    Args:
        place: the file.
        advance: is told of rows, when all their columns were read.

    Returns:
        For each column that does not decode: the first row group in which, and why.

    Raises:
        DataError: the footer is damaged.
        ReadWriteError: the file can't be read.
    """
    found: dict[str, str] = {}
    try:
        opened = ParquetReader(place, checksums=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{place}: cannot be read as Parquet: {error}") from None
    with opened as reader:
        footer = reader.file.metadata
        for group in range(footer.num_row_groups):
            for name in dict.fromkeys(reader.file.schema_arrow.names):
                why = None if name in found else _damage(reader, place, group, name)
                if why is not None:
                    found[name] = f"row group {group}: {why}"
            advance(footer.row_group(group).num_rows)
    return found


def _damage(reader: ParquetReader, place: AnyPath, group: int, name: str) -> str | None:
    """Why a column of a row group does not decode; None where it does."""
    footer = reader.file.metadata.row_group(group)
    rows = _BYTES * footer.num_rows // max(footer.total_byte_size, 1)
    try:
        for batch in reader.batches(min(max(rows, 1), _ROWS), group, [name]):
            check_texts(batch)
    except MemoryError:  # which is one of Arrow's exceptions, too, and says nothing of the file
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's; those of codecs have none
            raise ReadWriteError(f"{place}: cannot be read: {error.strerror or error}") from None
        return str(error).partition("\n")[0]
    return None
