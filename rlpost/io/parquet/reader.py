"""Opening Parquet files, local or remote, and the check that all of their columns decode."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.memory_limit import PARTS, is_out_of_memory, memory_limit
from rlpost.io.parquet.checks import check_utf8, read_metadata
from rlpost.io.parquet.decoded_size import decoded_size, dense_bytes
from rlpost.io.parquet.fingerprint import FileFingerprint
from rlpost.io.parquet.footer import FooterError
from rlpost.io.paths import RemotePath
from rlpost.io.ranges import (
    PrefetchedFile,
    RemoteFile,
    arrow_file,
    close_file,
    open_file,
    read_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rlpost.io.memory_limit import MemoryLimit
    from rlpost.io.parquet.decoded_size import DecodedSize
    from rlpost.io.paths import AnyPath


COPIES = 8
"""Work on decoded columns needs so many times their bytes, as measured."""
_STREAM_BUFFER = 1 << 20  # bytes to read at a time of a column chunk, which may be large
# pyarrow reads the chunks of smaller files whole. So a page header that claims gigabytes gets none.
_SMALL_FILE = 64 << 20
_ONE_THREAD = 1 << 20  # decoded bytes that more threads would not decode sooner
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
        copies: how many times the bytes of decoded columns the work on them needs.

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
        copies: int = COPIES,
    ) -> None:
        self._path = path
        self._checksums = checksums
        self._frugal = frugal
        self._copies = copies
        remote = RemoteFile(path) if isinstance(path, RemotePath) else None
        self._prefetched = None if remote is None else PrefetchedFile(remote)
        self.opened = None if remote is None else FileFingerprint.of_object(remote.info)
        """The fingerprint of a remote file when it was opened; None if its store has none."""
        try:
            self.file = self._open(read_metadata(path) if metadata is None else metadata)
        except BaseException:
            self._close()
            raise

    def _open(
        self, metadata: pq.FileMetaData, with_dictionary: Sequence[str] = ()
    ) -> pq.ParquetFile:
        """Open the file with pyarrow; some columns of texts are decoded as dictionaries."""
        path = self._path
        with _memory_of_c_library() if self._frugal else nullcontext():
            return pq.ParquetFile(
                arrow_file(path)
                if isinstance(path, Path)
                else pa.PythonFile(self._prefetched, mode="r"),
                metadata=metadata,
                read_dictionary=list(with_dictionary),
                buffer_size=_STREAM_BUFFER if path.stat().st_size > _SMALL_FILE else 0,
                pre_buffer=False,
                page_checksum_verification=self._checksums,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close(force=True)
        self._close()

    def batches(
        self, rows: int, group: int, columns: Sequence[str], *, ahead: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of a row group in batches.

        What does not fit into the memory of the run is not decoded. Numbers are checked before, as
        values times width, and so are texts as they are stored. Texts that a dictionary repeats
        are checked batch by batch.

        Args:
            rows: most rows of a batch; those of large rows have fewer.
            group: the row group.
            columns: to decode.
            ahead: of a remote file, prefetch the next row group, too.

        Raises:
            pyarrow.ArrowInvalid: the group has other rows than the footer, which pyarrow accepts.
            NotEnoughMemoryError: a row, or a page, does not fit into the memory of the run.
        """
        metadata = self.file.metadata
        if self._prefetched is not None:
            self._prefetched.forget(group)
            for number in range(group, min(group + 1 + ahead, metadata.num_row_groups)):
                self._prefetched.announce(number, column_extents(metadata, number, columns))
        limit, expected = memory_limit(), metadata.row_group(group).num_rows
        size = self._decoded_size(group, columns)
        rows = self._rows_that_fit(limit, size, rows, group)
        batches = self._decoded(limit, size, rows, group, columns)
        return _check_rows(self._fitting(limit, batches, group), group, expected)

    def _decoded_size(self, group: int, columns: Sequence[str]) -> DecodedSize:
        """Return the size of columns of a row group; of a remote file, as its footer states it."""
        row_group = self.file.metadata.row_group(group)
        if self._prefetched is not None:
            return decoded_size(row_group, columns, None)
        file, _ = open_file(self._path)
        try:
            return decoded_size(row_group, columns, partial(read_at, file))
        except FooterError as error:
            raise pa.ArrowInvalid(f"row group {group}: {error}") from None
        finally:
            close_file(file)

    def _rows_that_fit(self, limit: MemoryLimit, size: DecodedSize, most: int, group: int) -> int:
        """Return how many rows of average size fit into the part of a chunk, at most `most`."""
        rows = self.file.metadata.row_group(group).num_rows
        limit.check(size.largest_page, self._name(group))
        needed = self._copies * (size.numbers + size.texts) / max(rows, 1)
        limit.check(needed, self._name(group, None if rows > 1 else 0))
        return max(1, min(most, int(limit.room / PARTS / needed))) if needed else most

    def _decoded(
        self, limit: MemoryLimit, size: DecodedSize, rows: int, group: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches; as dictionaries if the texts that they repeat may not fit."""
        repeated = size.repeated * rows / max(self.file.metadata.row_group(group).num_rows, 1)
        threads = not self._frugal and size.numbers + size.texts > _ONE_THREAD
        if self._copies * repeated <= limit.room / PARTS:
            yield from self.file.iter_batches(rows, [group], columns=columns, use_threads=threads)
            return
        file = self._open(self.file.metadata, size.with_dictionary)
        yield from file.iter_batches(rows, [group], columns=columns, use_threads=threads)

    def _fitting(
        self, limit: MemoryLimit, batches: Iterator[pa.RecordBatch], group: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded batches in parts that fit, with texts in place of dictionaries."""
        kinds, first = self.file.schema_arrow, 0
        try:
            for batch in batches:
                for part in self._parts(limit, batch, group, first):
                    same = part.schema.types == [
                        kinds.field(name).type for name in part.schema.names
                    ]
                    yield part if same else _with_texts(part, kinds)
                first += batch.num_rows
        except (MemoryError, OSError) as error:  # codecs raise OSErrors
            if not is_out_of_memory(error):
                raise
            text = "there is not enough memory to decode it; --chunk-tokens makes chunks smaller"
            raise NotEnoughMemoryError(f"{self._name(group)}: {text}") from None

    def _parts(
        self, limit: MemoryLimit, batch: pa.RecordBatch, group: int, first: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield slices of a batch that fit; `first` is its first row in the row group."""
        needed = self._copies * sum(map(dense_bytes, batch.columns))
        if needed <= limit.room / PARTS:
            yield batch
        elif batch.num_rows == 1:
            limit.check(needed, self._name(group, first))
            yield batch
        else:
            middle = batch.num_rows // 2
            yield from self._parts(limit, batch.slice(0, middle), group, first)
            yield from self._parts(limit, batch.slice(middle), group, first + middle)

    def _name(self, group: int, row: int | None = None) -> str:
        """Return the name of a row group, and of a row of it, in errors."""
        name = f"{self._path}: row group {group}"
        if row is None:
            return name
        before = (self.file.metadata.row_group(number).num_rows for number in range(group))
        return f"{name}, row {sum(before) + row}"

    def _close(self) -> None:
        if self._prefetched is not None:
            self._prefetched.close()


def _with_texts(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the types of a schema, which has no dictionaries for texts."""
    fields = [schema.field(name) for name in batch.schema.names]
    return batch.cast(pa.schema(fields, batch.schema.metadata))


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


def column_bytes(footer: pq.FileMetaData) -> Counter[str]:
    """Return the compressed bytes of each top-level column."""
    sizes: Counter[str] = Counter()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            sizes[chunk.path_in_schema.partition(".")[0]] += chunk.total_compressed_size
    return sizes


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
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
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
