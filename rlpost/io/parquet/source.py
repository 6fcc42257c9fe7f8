"""Reading: the input's files as one stream of pieces of bounded size.

Pieces: what is read, and worked on, at a time.

Dividing a large file into ranges of its row groups, which tasks read each by itself.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.arrow import is_list, string_array, to_arrow
from rlpost.io.parquet.checks import check_utf8, read_metadata
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.fingerprint import fingerprint_of
from rlpost.io.parquet.footer import FileMeta, FooterError, RowGroup, read_footer
from rlpost.io.parquet.inputs import MISSING_ROLES, InputFile, InputMetadata, distinct_schemas
from rlpost.io.parquet.reader import ParquetReader, column_extents
from rlpost.io.parquet.splice_plan import plan_splice
from rlpost.io.paths import RemotePath
from rlpost.io.ranges import close_file, open_file
from rlpost.io.staged import file_errors
from rlpost.io.threads import Prefetcher, map_ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from rlpost.io.parquet.fingerprint import FileFingerprint
    from rlpost.io.parquet.footer import Struct
    from rlpost.io.paths import AnyPath


_TOGETHER = 8  # row groups, at most, that are worked on together; they begin at multiples of it
_MANY = 32 << 20  # decompressed bytes of a row group that is worked on by itself


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of one row group."""

    file: int
    row_group: int
    first_row: int
    """Row number of the first row within its file."""
    table: pa.RecordBatch
    tokens: int = 0
    """List elements, about."""
    joins: bool = False
    """May be worked on together with the piece before it, of another row group."""

    def halves(self) -> tuple[RowChunk, RowChunk]:
        """The first and the second half of the rows."""
        middle = self.table.num_rows // 2
        first, second = self.table.slice(0, middle), self.table.slice(middle)
        return replace(self, table=first), replace(
            self, table=second, first_row=self.first_row + middle
        )


Chunks = tuple[RowChunk, ...]


def joinable(groups: Iterable[tuple[int, int]], first: int = 0) -> Iterator[bool]:
    """Whether each row group may be worked on together with what is before it.

    Where the blocks of a scan begin shows in its last bits, so this depends on row groups and on
    their place in the file alone: a file is divided only where this is false.

    Args:
        groups: rows and decompressed bytes of each; those of no rows go with any.
        first: the number of the first one in its file; it begins the file or a part of it.
    """
    window, before = -1, 0
    for number, (rows, held) in enumerate(groups, first):
        own = number // _TOGETHER
        yield not rows or (own == window and before < _MANY and held < _MANY)
        if rows:
            window, before = own, held


def join_chunks(pieces: Iterable[RowChunk], tokens: int) -> Iterator[tuple[RowChunk, ...]]:
    """Pieces that may be joined in runs of at most so many tokens, about; the others alone."""
    run: list[RowChunk] = []
    held = 0
    for piece in pieces:
        if run and (not piece.joins or held + piece.tokens > tokens):
            yield tuple(run)
            run, held = [], 0
        run.append(piece)
        held += piece.tokens
    if run:
        yield tuple(run)


def count_rows(pieces: Chunks) -> int:
    """How many rows they have."""
    return sum(piece.table.num_rows for piece in pieces)


def halves(pieces: Chunks) -> tuple[Chunks, Chunks]:
    """The first and the second half: of the pieces, or of the rows of the only one."""
    if len(pieces) == 1:
        first, second = pieces[0].halves()
        return (first,), (second,)
    middle = len(pieces) // 2
    return pieces[:middle], pieces[middle:]


def split_by_row_group(
    pieces: Chunks, columns: pa.RecordBatch
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each piece, with its row group."""
    row = 0
    for piece in pieces:
        yield piece.row_group, columns.slice(row, piece.table.num_rows)
        row += piece.table.num_rows


CHUNK_TOKENS = 1 << 20  # list elements a piece, about, on the CPU
_MOST_AHEAD = 128 << 20  # bytes of columns that wait, decoded, for the run to begin
_FOOTERS = 8  # remote ones that are fetched at a time


class Source:
    """The input's files, opened for their footers only until they are read.

    Args:
        files: from `find_inputs`; at least one.

    Raises:
        ReadWriteError: a file can't be opened.
        DataError: a file is not Parquet, is truncated, or lacks columns the first one has.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = list(files)
        self.stamps = [_stamp(file) for file in self.files]
        remote = any(isinstance(file.path, RemotePath) for file in self.files)
        self.footers = list(map_ordered(_footer, iter(self.files), _FOOTERS if remote else 1))
        self.schemas = [
            _schema(file, footer) for file, footer in zip(self.files, self.footers, strict=True)
        ]
        self.starts = [0] * len(self.files)
        """Row number, in its file, of the first row that is read of each."""
        self.first_groups = [0] * len(self.files)
        """Number, in its file, of the first row group that is read of each."""
        self._begun: tuple[tuple[list[str], int, str], Prefetcher[RowChunk]] | None = None

    @cached_property
    def name(self) -> str:
        """What errors call the input."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    @cached_property
    def metadata(self) -> dict[bytes, bytes]:
        """Key-value metadata of all files; where they differ, the first file's."""
        merged: dict[bytes, bytes] = {}
        for footer in reversed(self.footers):
            merged |= footer.metadata or {}
        return merged

    @cached_property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(footer.num_rows for footer in self.footers)

    @cached_property
    def first_rows(self) -> list[int]:
        """Row number, in the whole input, of each file's first row."""
        return list(accumulate((footer.num_rows for footer in self.footers), initial=0))

    @cached_property
    def columns(self) -> list[str]:
        """The names every file has, hive partitions among them, in the first file's order."""
        own = [
            [*schema.names, *(key for key, _ in file.partitions if key not in schema.names)]
            for schema, file in zip(self.schemas, self.files, strict=True)
        ]
        return [name for name in own[0] if all(name in names for names in own[1:])]

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Compressed bytes of these columns in all files."""
        return sum(
            end - begin
            for footer in self.footers
            for group in range(footer.num_row_groups)
            for begin, end in column_extents(footer, group, columns)
        )

    def read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        """These columns, in pieces of about `chunk_tokens` elements, in file order.

        Args:
            columns: the columns to decode.
            chunk_tokens: elements a piece, about.
            sized_by: the list column whose elements are counted; it need not be read.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            asked, pieces = begun
            if asked == ([*columns], chunk_tokens, sized_by):
                return iter(pieces)
            pieces.close()
        return self._read(columns, chunk_tokens, sized_by)

    def read_ahead(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> None:
        """Begin to read, in a thread, what `read` will be asked for next; `close` ends it."""
        pieces = self._read(columns, chunk_tokens, sized_by)
        ahead = Prefetcher(pieces, _MOST_AHEAD, lambda piece: piece.table.nbytes)
        self._begun = ([*columns], chunk_tokens, sized_by), ahead

    def check_unchanged(self) -> None:
        """Raise ReadWriteError where a local file was changed since it was opened."""
        then = "while it was read; run again when nobody writes it"
        check_unchanged(zip(self.files, self.stamps, strict=True), then)

    def close(self) -> None:
        """End a reading that nobody took over."""
        if self._begun is not None:
            self._begun[1].close()

    def _read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        for index in range(len(self.files)):
            yield from self.read_file(index, columns, chunk_tokens, sized_by)

    def read_file(
        self, index: int, columns: Sequence[str], chunk_tokens: int, sized_by: str
    ) -> Iterator[RowChunk]:
        """The pieces of one file, as `read`; one with no rows has none."""
        file, footer = self.files[index], self.footers[index]
        physical = [name for name in columns if name in self.schemas[index].names]
        try:
            with ParquetReader(file.path, footer) as reader:
                row = self.starts[index]
                for group, joins in enumerate(self._joins(index)):
                    each = _tokens_per_row(footer.row_group(group), sized_by)
                    begin = row
                    for table in reader.batches(max(1, int(chunk_tokens / each)), group, physical):
                        if table.num_rows:
                            check_utf8(table)
                            whole = _with_partitions(table, file, columns)
                            tokens = round(each * table.num_rows)
                            yield RowChunk(index, group, row, whole, tokens, joins and row == begin)
                        row += table.num_rows
        except _DAMAGE as error:
            raise _unreadable(file, error) from None

    def _joins(self, index: int) -> Iterator[bool]:
        """`joinable` of the row groups of a file."""
        groups = map(self.footers[index].row_group, range(self.footers[index].num_row_groups))
        sizes = ((group.num_rows, group.total_byte_size) for group in groups)
        return joinable(sizes, self.first_groups[index])


_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def _stamp(file: InputFile) -> FileFingerprint | None:
    """None for remote files, of which each read checks the size."""
    if isinstance(file.path, RemotePath):
        return None
    with suppress(OSError):
        return fingerprint_of(file.path)
    return None


def check_unchanged(stamped: Iterable[tuple[InputFile, FileFingerprint | None]], then: str) -> None:
    """Raise ReadWriteError where a local file is not what it was.

    Args:
        stamped: files, each with its stamp of before; None for those that are not looked at.
        then: what the error says of the time in between, and what to do.
    """
    for file, stamp in stamped:
        if stamp is not None and _stamp(file) != stamp:
            raise ReadWriteError(f"{file.path}: was changed or removed {then}")


def _footer(file: InputFile) -> pq.FileMetaData:
    try:
        return read_metadata(file.path)
    except _DAMAGE as error:
        raise _unreadable(file, error) from None


def _schema(file: InputFile, footer: pq.FileMetaData) -> pa.Schema:
    try:
        schema = footer.schema.to_arrow_schema()
    except _DAMAGE as error:
        raise _unreadable(file, error) from None
    (name, times), *_ = Counter(schema.names).most_common(1) or [("", 0)]
    if times > 1:
        raise DataError(
            f"{file.path}: {times} columns are called {name!r}; every column needs its own name"
        )
    return schema


def _unreadable(file: InputFile, error: Exception) -> ReadWriteError | DataError:
    if isinstance(error, OSError) and error.errno is not None:
        return ReadWriteError(f"{file.path}: cannot be read: {error.strerror}")
    size = file.path.stat().st_size if file.path.exists() else 0
    if size == 0:
        return DataError(f"{file.path}: the file is empty (0 bytes); a Parquet file is needed")
    return DataError(f"{file.path}: not a Parquet file, or damaged ({str(error).splitlines()[0]})")


def _tokens_per_row(group: pq.RowGroupMetaData, sized_by: str) -> float:
    """How many elements of a list column a row has, at least 1."""
    chunks = (group.column(place) for place in range(group.num_columns))
    values = [
        chunk.num_values for chunk in chunks if chunk.path_in_schema.partition(".")[0] == sized_by
    ]
    rows = max(group.num_rows, 1)
    return float(max(1.0, max(values, default=rows) / rows))


def _with_partitions(
    table: pa.RecordBatch, file: InputFile, columns: Sequence[str]
) -> pa.RecordBatch:
    for key, value in file.partitions:
        if key in columns and key not in table.schema.names:
            table = table.append_column(key, _partition(value, table.num_rows))
    return table


def _partition(value: str, rows: int) -> pa.Array:
    """A hive partition's value as a column: int64 where it is a whole number, else string."""
    number = value.lstrip("-")
    if number.isdecimal() and len(number) < 19:  # noqa: PLR2004
        return to_arrow(np.full(rows, int(value), np.int64), pa.int64())
    return string_array([value] * rows)


class RowGroupRange(NamedTuple):
    """Consecutive row groups of a file."""

    first: int
    stop: int
    """The number of the row group behind the last."""
    row: int
    """Row number, in the file, of the first row."""
    rows: int


def row_group_ranges(place: AnyPath, most: int) -> list[RowGroupRange]:
    """A file's row groups in ranges; none where its column chunks can't be copied.

    Args:
        place: a Parquet file.
        most: decompressed bytes, about, of a range that has several row groups.

    Raises:
        ReadWriteError: it can't be read.
    """
    with file_errors(place, "cannot be read"):
        file, size = open_file(place)
    try:
        with file_errors(place, "cannot be read"):
            footer, end = read_footer(file, size)
        groups = [_measure(group) for group in footer.structs(FileMeta.ROW_GROUPS)]
        plan_splice(footer, end, Encoder(pa.schema([])), None, ())
    except FooterError:
        return []  # whoever writes it will say why
    finally:
        close_file(file)
    found: list[RowGroupRange] = []
    filled = row = 0
    for number, ((rows, held), joins) in enumerate(zip(groups, joinable(groups), strict=True)):
        if found and (filled + held <= most or joins):
            last = found[-1]
            found[-1] = last._replace(stop=number + 1, rows=last.rows + rows)
        else:
            found.append(RowGroupRange(number, number + 1, row, rows))
            filled = 0
        filled += held
        row += rows
    return found


def _measure(group: Struct) -> tuple[int, int]:
    """Rows and decompressed bytes of a row group."""
    return group.integer(RowGroup.ROWS), group.integer(RowGroup.BYTES)


class RangeSource(Source):
    """A range of one file's row groups, to be read as a file with no others would be.

    Pieces have the row numbers of the file.

    Args:
        files: the one file.
        part: which of its row groups.

    Raises:
        ReadWriteError, DataError: as `Source`.
    """

    def __init__(self, files: Sequence[InputFile], part: RowGroupRange) -> None:
        super().__init__(files)
        self.footers = [read_metadata(files[0].path, (part.first, part.stop))]
        self.starts, self.first_groups = [part.row], [part.first]

    @cached_property
    def first_rows(self) -> list[int]:
        """What a piece's first row is added to, for its place among the rows that are read."""
        (start,) = self.starts
        return [-start, self.rows - start]


class TableSource:
    """An Arrow table with the reading interface of `Source`."""

    name = "table"

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.files = [InputFile(Path(self.name), Path(self.name))]
        self.schemas = [table.schema]
        self.first_rows = [0, table.num_rows]
        self.rows = table.num_rows
        self.columns = list(table.schema.names)
        self.metadata: dict[bytes, bytes] = dict(table.schema.metadata or {})

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Bytes of these columns in memory."""
        return int(self.table.select(list(columns)).nbytes)

    def read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        """These columns, in pieces of about `chunk_tokens` elements of one list column."""
        table = self.table.select(list(columns))
        each = max(1.0, self._per_row(sized_by))
        row = 0
        for batch in table.to_batches(max_chunksize=max(1, int(chunk_tokens / each))):
            if batch.num_rows:
                yield RowChunk(0, 0, row, batch, round(each * batch.num_rows), joins=row > 0)
            row += batch.num_rows

    def read_file(
        self, index: int, columns: Sequence[str], chunk_tokens: int, sized_by: str
    ) -> Iterator[RowChunk]:
        """The pieces of the only file there is."""
        assert index == 0
        return self.read(columns, chunk_tokens, sized_by)

    def check_unchanged(self) -> None:
        """Nobody changes an Arrow table."""

    def _per_row(self, column: str) -> float:
        chunks = self.table.column(column).chunks
        if not self.rows or not is_list(self.table.schema.field(column).type):
            return 1.0
        return sum(len(chunk.flatten()) for chunk in chunks) / float(self.rows)


def input_metadata(files: Sequence[InputFile]) -> InputMetadata:
    """Look at the footers of some files; raises as `Source`."""
    source = Source(files)
    return InputMetadata(
        list(files),
        [footer.num_rows for footer in source.footers],
        [
            sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
            for footer in source.footers
        ],
        source.stamps,
        distinct_schemas(source.schemas),
        source.columns,
        {key: value for key, value in source.metadata.items() if key == MISSING_ROLES},
    )
