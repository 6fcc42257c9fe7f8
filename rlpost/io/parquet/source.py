"""Sources: files and tables, read as chunks of rows of bounded size.

A `RowChunk` has consecutive rows of one row group. `Source` reads the files of an input,
`TableSource` a table in memory.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.arrow import is_list, string_array
from rlpost.io.memory_limit import is_out_of_memory, rows_that_fit
from rlpost.io.parquet.checks import check_utf8, read_metadata
from rlpost.io.parquet.fingerprint import local_fingerprint
from rlpost.io.parquet.inputs import (
    MASK_KEY,
    RECIPE_KEY,
    InputFile,
    entry_origins,
    lacking_columns,
)
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.paths import RemotePath
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow.parquet as pq

    from rlpost.errors import RlpostError
    from rlpost.io.parquet.footer import DecodedFooter
    from rlpost.io.stores import ObjectInfo


CHUNK_TOKENS = 1 << 19
"""Approximate list elements of a chunk. Measured with 16 M tokens and 2 threads, for 2^18, 2^19 and
2^20: gae with KL takes 2.3, 2.3 and 2.8 s of CPU time and 0.30, 0.39 and 0.61 GB; grpo takes 1.9,
1.8 and 1.8 s, and 0.24, 0.30 and 0.43 GB."""
_FOOTERS = 8  # remote footers to fetch at a time
_OF_FILES = ("files", "fingerprints", "footers", "schemas", "_sizes")  # lists of a `Source`


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of one row group."""

    file: int
    row_group: int
    first_row: int
    """The first row's number in its file."""
    table: pa.RecordBatch
    share: float = 1.0
    """Its part of what a chunk may have; small chunks of several row groups are joined."""


Chunks = tuple[RowChunk, ...]


def join_chunks(chunks: Iterable[RowChunk]) -> Iterator[Chunks]:
    """Group consecutive chunks, of several files too, that together are at most one chunk."""
    group: list[RowChunk] = []
    share = 0.0
    for chunk in chunks:
        if group and share + chunk.share > 1:
            yield tuple(group)
            group, share = [], 0.0
        group.append(chunk)
        share += chunk.share
    if group:
        yield tuple(group)


def count_rows(chunks: Chunks) -> int:
    """Return the number of rows of some chunks."""
    return sum(chunk.table.num_rows for chunk in chunks)


def split_by_row_group(
    chunks: Chunks, columns: pa.RecordBatch
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Split columns by chunk; yield the file, the row group and the columns of each."""
    row = 0
    for chunk in chunks:
        yield chunk.file, chunk.row_group, columns.slice(row, chunk.table.num_rows)
        row += chunk.table.num_rows


class Source:
    """The Parquet files of an input; only their footers are read at first.

    Args:
        files: from `find_inputs`; at least one.

    Raises:
        ReadWriteError: a file cannot be opened.
        DataError: a file is damaged or no Parquet file, or two of its columns have one name.
    """

    page_checksums = False
    """Verify the checksums of pages that have them."""
    frugal = False
    """Decode in one thread, into memory of the C library (`ParquetReader`)."""
    _decoded: DecodedFooter | None = None
    """The decoded footer of the only file, until a splice takes it."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = list(files)
        self.fingerprints = [local_fingerprint(file.path) for file in self.files]
        remote = any(isinstance(file.path, RemotePath) for file in self.files)
        keep = len(self.files) == 1  # decoded, the footers of many files are large
        self.footers = []
        for footer, decoded in map_ordered(_footer, iter(self.files), _FOOTERS if remote else 1):
            self.footers.append(footer)
            self._decoded = decoded if keep else None
        self.schemas = [
            _schema(file, footer) for file, footer in zip(self.files, self.footers, strict=True)
        ]
        self._opened: dict[int, ObjectInfo] = {}
        """Fingerprints of remote files when they were first opened to be read."""

    @classmethod
    def joined(cls, sources: Sequence[Source | TableSource]) -> Source:
        """Return the files of several sources as one, without opening them again."""
        source = cls([])
        for name in _OF_FILES:
            setattr(source, name, [x for part in sources for x in getattr(part, name)])
        return source

    @cached_property
    def name(self) -> str:
        """The input's name in errors."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    @cached_property
    def metadata(self) -> dict[bytes, bytes]:
        """Key-value metadata of all files; of different values for a key, the first file's."""
        metadata: dict[bytes, bytes] = {}
        for footer in reversed(self.footers):
            metadata |= footer.metadata or {}
        return metadata

    @cached_property
    def mask_origins(self) -> dict[bytes, str]:
        """What the column `sample_mask` is (COMPUTED, COMBINED, or empty), as `entry_origins`."""
        return self._origins(MASK_KEY)

    @cached_property
    def recipes(self) -> dict[bytes, str]:
        """The recipes with which rlpost wrote the files, as `entry_origins`."""
        return self._origins(RECIPE_KEY)

    def _origins(self, key: bytes) -> dict[bytes, str]:
        return entry_origins(self.files, [footer.metadata for footer in self.footers], key)

    @cached_property
    def _partitions(self) -> dict[str, pa.DataType]:
        return partition_types(self.files)

    @cached_property
    def lacking(self) -> dict[str, str]:
        """The columns that only some files have, with the first file without each."""
        return lacking_columns(self.files, self.schemas)

    @cached_property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(footer.num_rows for footer in self.footers)

    @cached_property
    def first_rows(self) -> list[int]:
        """Each file's first row number in the whole input."""
        return list(accumulate((footer.num_rows for footer in self.footers), initial=0))

    @cached_property
    def columns(self) -> list[str]:
        """Names that every file has, with hive partitions, in the first file's order."""
        first, *others = [
            [*schema.names, *(key for key, _ in file.partitions if key not in schema.names)]
            for schema, file in zip(self.schemas, self.files, strict=True)
        ]
        return [name for name in first if all(name in names for names in others)]

    def only(self, index: int) -> Source:
        """Return a source of one of the files, whose footer is not read again."""
        source = Source([])
        for name in _OF_FILES:
            setattr(source, name, getattr(self, name)[index : index + 1])
        return source

    def take_decoded(self) -> DecodedFooter | None:
        """Return the decoded footer of the only file, once: a splice changes it."""
        decoded, self._decoded = self._decoded, None
        return decoded

    @cached_property
    def _sizes(self) -> list[_Sizes]:
        return [_sizes_of(footer) for footer in self.footers]

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Return the compressed bytes of some columns in all files."""
        return sum(sizes.compressed[name] for sizes in self._sizes for name in {*columns})

    def values_of(self, column: str) -> int:
        """Return the number of values of a column in all files; an empty list counts as one."""
        return sum(sizes.values[column] for sizes in self._sizes)

    def read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        """Read columns in chunks, in file order.

        Args:
            columns: the columns to decode; without any, chunks only have rows.
            chunk_tokens: approximate list elements of a chunk.
            sized_by: the list column whose elements count; it may be none of `columns`. Empty: each
                row counts as one.
        """
        for index in range(len(self.files)):
            yield from self.read_file(index, columns, chunk_tokens, sized_by)

    def check_unchanged(
        self,
        since: str = "during the run; run again when no other process writes it",
        index: int | None = None,
    ) -> None:
        """Raise ReadWriteError if a local file changed since its footer was read.

        Args:
            since: the end of the error: since when, and what to do.
            index: of the only file to check; None for all.
        """
        for number in range(len(self.files)) if index is None else (index,):
            path, fingerprint = self.files[number].path, self.fingerprints[number]
            if fingerprint is not None and local_fingerprint(path) != fingerprint:
                raise ReadWriteError(f"{path}: was changed or removed {since}")

    def _check_same(self, index: int, opened: ObjectInfo | None) -> None:
        """Raise ReadWriteError if an object is not the one that was opened first."""
        if opened is not None and self._opened.setdefault(index, opened) != opened:
            raise ReadWriteError(
                f"{self.files[index].path}: was written again since it was loaded, and values of "
                "two versions are not mixed: load it anew"
            )

    def read_file(
        self,
        index: int,
        columns: Sequence[str],
        chunk_tokens: int,
        sized_by: str,
        groups: Collection[int] | None = None,
    ) -> Iterator[RowChunk]:
        """Read one file in chunks, as `read`, or some of its row groups.

        A file without rows has no chunks.
        """
        file, footer = self.files[index], self.footers[index]
        physical = [name for name in columns if name in self.schemas[index].names]
        try:
            with (
                ParquetReader(
                    file.path,
                    footer,
                    checksums=self.page_checksums,
                    frugal=self.frugal,
                )
                if physical
                else nullcontext()
            ) as reader:
                if reader is not None:
                    self._check_same(index, reader.opened)
                row = 0
                sized = [i for i, name in enumerate(_leaf_columns(footer)) if name == sized_by]
                for group in range(footer.num_row_groups):
                    facts = footer.row_group(group)
                    if groups is not None and group not in groups:
                        row += facts.num_rows
                        continue
                    rows = max(1, int(chunk_tokens / _tokens_per_row(facts, sized)))
                    if reader is None:
                        count = facts.num_rows
                        rows = rows_that_fit(0, max(count, 1), rows, f"{file.path}: a row")
                        batches = _without_columns(rows, count)
                    else:
                        rows = reader.rows_that_fit(rows, group, physical)
                        batches = reader.batches(rows, group, physical, fitted=True)
                    for batch in batches:
                        if batch.num_rows:
                            check_utf8(batch)
                            table = with_partitions(batch, file, columns, self._partitions)
                            yield RowChunk(index, group, row, table, batch.num_rows / rows)
                        row += batch.num_rows
        except _DAMAGE as error:
            raise _unreadable(file, error) from None


_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def _footer(file: InputFile) -> tuple[pq.FileMetaData, DecodedFooter]:
    try:
        return read_metadata(file.path)
    except _DAMAGE as error:
        raise _unreadable(file, error) from None


def _schema(file: InputFile, footer: pq.FileMetaData) -> pa.Schema:
    try:
        schema = footer.schema.to_arrow_schema()
    except _DAMAGE as error:
        raise _unreadable(file, error) from None
    (name, count), *_ = Counter(schema.names).most_common(1) or [("", 0)]
    if count > 1:
        raise DataError(
            f"{file.path}: {count} columns are named {name!r}; column names must be unique"
        )
    return schema


def _unreadable(file: InputFile, error: Exception) -> RlpostError:
    if is_out_of_memory(error):
        return NotEnoughMemoryError(f"{file.path}: there is not enough memory to read it")
    if isinstance(error, OSError) and error.errno is not None:
        return ReadWriteError(f"{file.path}: cannot be read: {error.strerror}")
    size = file.path.stat().st_size if file.path.exists() else 0
    if size == 0:
        return DataError(f"{file.path}: the file is empty (0 bytes); a Parquet file is needed")
    reason = str(error).splitlines()[0]
    return DataError(
        f"{file.path}: not a Parquet file, or damaged ({reason}); write it again, or convert other "
        "formats with `rlpost convert`"
    )


class _Sizes(NamedTuple):
    """The compressed bytes and the values of each top-level column of a file."""

    compressed: Counter[str]
    values: Counter[str]


def _sizes_of(footer: pq.FileMetaData) -> _Sizes:
    sizes, names = _Sizes(Counter(), Counter()), _leaf_columns(footer)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for place, name in enumerate(names):
            chunk = group.column(place)
            sizes.compressed[name] += chunk.total_compressed_size
            sizes.values[name] += chunk.num_values
    return sizes


def _leaf_columns(footer: pq.FileMetaData) -> list[str]:
    """Return the top-level column of each leaf: of each chunk of a row group."""
    schema = footer.schema
    return [schema.column(place).path.partition(".")[0] for place in range(footer.num_columns)]


def _tokens_per_row(group: pq.RowGroupMetaData, places: list[int]) -> float:
    """Return the mean number of elements that a row of a column has, at least 1."""
    rows = max(group.num_rows, 1)
    most = max((group.column(place).num_values for place in places), default=rows)
    return float(max(1.0, most / rows))


def _without_columns(rows: int, count: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of a number of rows each; their only column has nothing but nulls."""
    for first in range(0, count, rows):
        yield pa.record_batch([pa.nulls(min(rows, count - first))], names=["rows"])


def with_partitions(
    table: pa.RecordBatch, file: InputFile, columns: Sequence[str], types: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Return rows of a file with those of its hive partitions that are among some columns."""
    for key, value in file.partitions:
        if key in columns and key not in table.schema.names:
            table = table.append_column(
                key, string_array([value] * table.num_rows).cast(types[key])
            )
    return table


def partition_types(files: Iterable[InputFile]) -> dict[str, pa.DataType]:
    """Return the type of each hive partition: int64 if it is an integer for all files."""
    types: dict[str, pa.DataType] = {}
    for key, value in (partition for file in files for partition in file.partitions):
        number = value.removeprefix("-")
        is_number = number.isdecimal() and number.isascii() and len(number) < 19  # noqa: PLR2004
        is_number &= types.get(key) != pa.string()
        types[key] = pa.int64() if is_number else pa.string()
    return types


class TableSource:
    """An Arrow table with the reading interface of `Source`; `name` is for errors."""

    name = "table"

    def __init__(self, table: pa.Table, name: str = name) -> None:
        self.table, self.name = table, name
        self.files = [InputFile(Path(self.name), Path(self.name))]
        self.schemas = [table.schema]
        self.first_rows = [0, table.num_rows]
        self.rows = table.num_rows
        self.columns = list(table.schema.names)
        self.metadata: dict[bytes, bytes] = dict(table.schema.metadata or {})
        self.mask_origins = entry_origins(self.files, [self.metadata], MASK_KEY)
        self.recipes = entry_origins(self.files, [self.metadata], RECIPE_KEY)
        self.lacking: dict[str, str] = {}

    def only(self, index: int) -> TableSource:
        """Return the table: it is the only file."""
        assert index == 0
        return self

    def take_decoded(self) -> None:
        """Return nothing: a table has no footer."""

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Return the bytes in memory of some columns."""
        return int(self.table.select(list(columns)).nbytes)

    def values_of(self, column: str) -> int:
        """Return the number of values of a column."""
        return int(self.rows * self._tokens_per_row(column))

    def read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        """Read columns in chunks, as `Source.read`."""
        per_row = max(1.0, self._tokens_per_row(sized_by))
        rows, row = max(1, int(chunk_tokens / per_row)), 0
        table = self.table.select(list(columns))
        for batch in (
            table.to_batches(max_chunksize=rows) if columns else _without_columns(rows, self.rows)
        ):
            if batch.num_rows:
                yield RowChunk(0, 0, row, batch, batch.num_rows / rows)
            row += batch.num_rows

    def read_file(
        self, index: int, columns: Sequence[str], chunk_tokens: int, sized_by: str
    ) -> Iterator[RowChunk]:
        """Read the table in chunks: it is the only file."""
        assert index == 0
        return self.read(columns, chunk_tokens, sized_by)

    def check_unchanged(self) -> None:
        """Do nothing: Arrow tables are immutable."""

    def _tokens_per_row(self, column: str) -> float:
        if not (self.rows and column and is_list(self.table.schema.field(column).type)):
            return 1.0
        chunks = self.table.column(column).chunks
        return sum(len(chunk.flatten()) for chunk in chunks) / float(self.rows)
