"""Opening Parquet files, local or remote, and the check that all of their columns decode."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.parquet.checks import check_utf8, read_metadata
from rlpost.io.parquet.fingerprint import FileFingerprint
from rlpost.io.paths import RemotePath
from rlpost.io.ranges import PrefetchedFile, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rlpost.io.paths import AnyPath


_STREAM_BUFFER = 1 << 20  # bytes to read at a time of a column chunk, which may be large
# pyarrow reads the chunks of smaller files whole. So a page header that claims gigabytes gets none.
_SMALL_FILE = 64 << 20
_CHECK_BYTES = 32 << 20  # decoded bytes in memory at a time, in `damaged_columns`
_CHECK_ROWS = 1 << 14


class ParquetReader:
    """A Parquet file, open for reading; a context manager.

    Args:
        path: the file.
        metadata: its footer, if that was read already.
        checksums: verify the checksums of pages that have them.
        frugal: decode in one thread, into memory of the C library. Each thread has a part of
            pyarrow's own pool, which keeps a multiple of what is in use if another thread frees it.

    Raises:
        pyarrow.ArrowException, OSError: the file is damaged or no Parquet file, or a local file
            cannot be opened.
        ReadWriteError: a remote file cannot be read.
    """

    def __init__(
        self,
        path: AnyPath,
        metadata: pq.FileMetaData | None = None,
        *,
        checksums: bool = False,
        frugal: bool = False,
    ) -> None:
        self._frugal = frugal
        remote = RemoteFile(path) if isinstance(path, RemotePath) else None
        self._prefetched = None if remote is None else PrefetchedFile(remote)
        self.opened = None if remote is None else FileFingerprint.of_object(remote.info)
        """The fingerprint of a remote file when it was opened; None if its store has none."""
        try:
            with _memory_of_c_library() if frugal else nullcontext():
                self.file = pq.ParquetFile(
                    path if self._prefetched is None else pa.PythonFile(self._prefetched, mode="r"),
                    metadata=read_metadata(path) if metadata is None else metadata,
                    buffer_size=_STREAM_BUFFER if path.stat().st_size > _SMALL_FILE else 0,
                    pre_buffer=False,
                    page_checksum_verification=checksums,
                )
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close(force=True)
        self._close()

    def batches(
        self, rows: int, group: int, columns: Sequence[str], *, ahead: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of a row group in batches.

        Args:
            rows: of a batch.
            group: the row group.
            columns: to decode.
            ahead: of a remote file, prefetch the next row group, too.

        Raises:
            pyarrow.ArrowInvalid: the group has other rows than the footer, which pyarrow accepts.
        """
        metadata = self.file.metadata
        if self._prefetched is not None:
            self._prefetched.forget(group)
            for number in range(group, min(group + 1 + ahead, metadata.num_row_groups)):
                self._prefetched.announce(number, column_extents(metadata, number, columns))
        batches = self.file.iter_batches(
            rows, [group], columns=columns, use_threads=not self._frugal
        )
        return _check_rows(batches, group, metadata.row_group(group).num_rows)

    def _close(self) -> None:
        if self._prefetched is not None:
            self._prefetched.close()


@contextmanager
def _memory_of_c_library() -> Iterator[None]:
    """Make it pyarrow's default pool for a moment: a `ParquetFile` keeps the default, for good."""
    default, system = pa.default_memory_pool(), pa.system_memory_pool()
    if default.backend_name == system.backend_name:  # also if another thread is here now
        yield
        return
    pa.set_memory_pool(system)
    try:
        yield
    finally:
        pa.set_memory_pool(default)


def _check_rows(batches: Iterator[Any], group: int, expected: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > expected:
            break
        yield batch
    if rows != expected:
        count = "more" if rows > expected else f"{rows}"
        raise pa.ArrowInvalid(f"row group {group} has {count} rows, its footer has {expected}")


def column_extents(
    footer: pq.FileMetaData, group: int, columns: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the column chunks of top-level columns."""
    names = {*columns}
    row_group = footer.row_group(group)
    for index in range(row_group.num_columns):
        chunk = row_group.column(index)
        if chunk.path_in_schema.partition(".")[0] in names:
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page:
                begin = min(begin, chunk.dictionary_page_offset)
            yield begin, begin + chunk.total_compressed_size


def damaged_columns(
    path: AnyPath, advance: Callable[[int], None] | None = None, without: Collection[str] = ()
) -> dict[str, str]:
    """Decode the columns of a file, and return those that do not decode.

    One column of one row group is read at a time. Checksums of pages are verified, strings must be
    UTF-8, and a row group must have the rows of its footer. A page without a checksum may have
    changed and still decode: that is not detected.

    Args:
        path: the file.
        advance: called with a number of rows after all their columns were read.
        without: top-level columns that are not decoded.

    Returns:
        For each column that does not decode: its first such row group, and the reason.

    Raises:
        DataError: the footer is damaged.
        ReadWriteError: the file cannot be read.
    """
    damaged: dict[str, str] = {}
    try:
        opened = ParquetReader(path, checksums=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from None
    with opened as reader:
        footer = reader.file.metadata
        names = [name for name in reader.file.schema_arrow.names if name not in without]
        for group in range(footer.num_row_groups):
            for name in dict.fromkeys(names):
                reason = None if name in damaged else _damage(reader, path, group, name)
                if reason is not None:
                    damaged[name] = f"row group {group}: {reason}"
            if advance is not None:
                advance(footer.row_group(group).num_rows)
    return damaged


def _damage(reader: ParquetReader, path: AnyPath, group: int, name: str) -> str | None:
    """Return why a column of a row group does not decode, None if it does."""
    footer = reader.file.metadata.row_group(group)
    rows = _CHECK_BYTES * footer.num_rows // max(footer.total_byte_size, 1)
    try:
        for batch in reader.batches(min(max(rows, 1), _CHECK_ROWS), group, [name]):
            check_utf8(batch)
    except MemoryError:  # an ArrowException, too, but not about the file
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # codecs raise OSErrors without errno
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror or error}") from None
        return str(error).partition("\n")[0]
    return None
