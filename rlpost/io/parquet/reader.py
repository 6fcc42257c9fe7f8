"""Opening Parquet files, local or remote, and the check that all of their columns decode."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlpost.errors import NotEnoughMemoryError
from rlpost.io.memory_limit import is_out_of_memory, rows_that_fit, size_of_chunk
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.parquet.footer import extent_of
from rlpost.io.paths import RemotePath
from rlpost.io.ranges import (
    PrefetchedFile,
    RemoteFile,
    arrow_file,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rlpost.io.paths import AnyPath


_STREAM_BUFFER = 1 << 20  # bytes to read at a time of a column chunk, which may be large
# pyarrow reads the chunks of smaller files whole. So a page header that claims gigabytes gets none.
_SMALL_FILE = 64 << 20
_CODES = 1 << 12  # rows to read at a time, whose texts are codes
_ONE_THREAD = 1 << 20  # decoded bytes that more threads would not decode sooner


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
        self._path = path
        self._checksums = checksums
        self._frugal = frugal
        remote = RemoteFile(path) if isinstance(path, RemotePath) else None
        self._prefetched = None if remote is None else PrefetchedFile(remote)
        self.opened = remote.info if remote is not None and remote.info.changed else None
        """The fingerprint of a remote file when it was opened; None if its store has none."""
        try:
            self.file = self._open(read_metadata(path)[0] if metadata is None else metadata)
        except BaseException:
            self._close()
            raise

    def _open(self, metadata: pq.FileMetaData, as_codes: str | None = None) -> pq.ParquetFile:
        """Open the file with pyarrow; a column may be read as codes of its dictionary."""
        path = self._path
        with _memory_of_c_library() if self._frugal else nullcontext():
            return pq.ParquetFile(
                arrow_file(path)
                if isinstance(path, Path)
                else pa.PythonFile(self._prefetched, mode="r"),
                metadata=metadata,
                buffer_size=_STREAM_BUFFER if path.stat().st_size > _SMALL_FILE else 0,
                pre_buffer=False,
                page_checksum_verification=self._checksums,
                read_dictionary=[as_codes] if as_codes else None,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close(force=True)
        self._close()

    def batches(
        self,
        rows: int,
        group: int,
        columns: Sequence[str],
        *,
        ahead: bool = True,
        fitted: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of a row group in batches.

        Args:
            rows: most rows of a batch, which has fewer if the memory of the run is small.
            group: the row group.
            columns: to decode.
            ahead: of a remote file, prefetch the next row group, too.
            fitted: `rows_that_fit` returned the rows.

        Raises:
            pyarrow.ArrowInvalid: the group has other rows than the footer, which pyarrow accepts.
            NotEnoughMemoryError: a row does not fit into the memory of the run.
        """
        metadata = self.file.metadata
        if self._prefetched is not None:
            self._prefetched.forget(group)
            for number in range(group, min(group + 1 + ahead, metadata.num_row_groups)):
                chunks = chunks_of(metadata.row_group(number), columns)
                self._prefetched.announce(number, map(_extent, chunks))
        rows = rows if fitted else self.rows_that_fit(rows, group, columns)
        row_group = metadata.row_group(group)
        threads = not self._frugal and row_group.total_byte_size > _ONE_THREAD
        batches = self.file.iter_batches(rows, [group], columns=columns, use_threads=threads)
        return self._checked(batches, group, row_group.num_rows)

    def rows_that_fit(self, rows: int, group: int, columns: Sequence[str]) -> int:
        """Return the rows of a chunk of a row group: some, or as many as fit."""
        row_group = self.file.metadata.row_group(group)
        count = max(row_group.num_rows, 1)
        where = self._name(group, None if count > 1 else 0)
        size = decoded_bytes(row_group, columns)
        fitting = rows_that_fit(size, count, rows, where)
        most = size_of_chunk() * count / min(fitting, count)
        more = sum(
            chunk.num_values * self._largest(chunk, group)
            for chunk in chunks_of(row_group, columns)
            if chunk.num_values * chunk.total_uncompressed_size > most and _repeats(chunk)
        )
        return rows_that_fit(size + more, count, rows, where) if more else fitting

    def _largest(self, chunk: pq.ColumnChunkMetaData, group: int) -> int:
        """Return the most bytes that a value of a column chunk can have that its pages repeat.

        Of a dictionary that is its largest text; of texts by what differs from the one before, all.
        """
        if "DELTA_BYTE_ARRAY" in chunk.encodings:
            return int(chunk.total_uncompressed_size)
        name = chunk.path_in_schema
        with self._open(self.file.metadata, name) as file:
            for batch in file.iter_batches(_CODES, [group], columns=[name], use_threads=False):
                array = batch.column(0)
                while pa.types.is_nested(array.type):
                    array = array.field(0) if pa.types.is_struct(array.type) else array.flatten()
                if len(array.dictionary):
                    return int(pc.max(pc.binary_length(array.dictionary)).as_py())
        return 0

    def _checked(
        self, batches: Iterator[pa.RecordBatch], group: int, expected: int
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for batch in batches:
                rows += batch.num_rows
                if rows > expected:
                    break
                yield batch
        except (MemoryError, OSError) as error:  # codecs raise OSErrors
            if not is_out_of_memory(error):
                raise
            raise NotEnoughMemoryError(
                f"{self._name(group)}: there is not enough memory to decode it; a smaller "
                "--max-memory makes chunks smaller"
            ) from None
        if rows != expected:
            number = "more" if rows > expected else f"{rows}"
            raise pa.ArrowInvalid(f"row group {group} has {number} rows, its footer has {expected}")

    def _name(self, group: int, row: int | None = None) -> str:
        """Return the name of a row group, and of a row of it, in errors."""
        name = f"{self._path}: row group {group}"
        return name if row is None else f"{name}, row {self._first_rows[group] + row}"

    @cached_property
    def _first_rows(self) -> list[int]:
        """The first row of each row group."""
        metadata = self.file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [*accumulate((group.num_rows for group in groups), initial=0)]

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


def chunks_of(
    group: pq.RowGroupMetaData, columns: Collection[str]
) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield the column chunks of top-level columns in a row group."""
    names = {*columns}
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema.partition(".")[0] in names:
            yield chunk


def decoded_bytes(group: pq.RowGroupMetaData, columns: Collection[str]) -> int:
    """Return the bytes of top-level columns of a row group once decoded, by its footer.

    Those are 8 for each number; texts have those of the file.
    """
    return sum(
        8 * chunk.num_values if "BYTE" not in chunk.physical_type else chunk.total_uncompressed_size
        for chunk in chunks_of(group, columns)
    )


def _repeats(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return whether a text of a column chunk may be stored once for many values."""
    texts = chunk.physical_type == "BYTE_ARRAY"
    return texts and any("DICTIONARY" in x or x == "DELTA_BYTE_ARRAY" for x in chunk.encodings)


def _extent(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
    return extent_of((chunk.data_page_offset, dictionary), chunk.total_compressed_size)
