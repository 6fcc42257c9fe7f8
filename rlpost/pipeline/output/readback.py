"""The check of a written file before it is published: the file is read from the disk again.

Copied columns are compared with the source, byte for byte. Encoded columns are compared with the
checksums taken when they were written, with the lengths of the source's lists, and with the totals.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.arrow import is_list
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import READ_BYTES, StagedFile
from rlpost.io.system import drop_cache
from rlpost.pipeline.output.columns import TYPES
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import ExactTotals, Totals


ROUNDING = 1e-6  # of float32 columns against float64 totals
_TINY = 1e-36  # about the smallest normal number of float32
_BATCH = 1 << 14  # rows that are read at a time
# Columns and their totals. Totals of tokens are of kept tokens; the others are 0.
_COUNTED = {
    "advantages": "advantage",
    "returns": "return",
    "response_level_rewards": "response_level_reward",
    "sample_weight": "sample_weight",
}


def check_written(
    plan: Plan, index: int, sink: Sink, names: Sequence[str], totals: ExactTotals
) -> None:
    """Read a complete file again, from the disk if the system drops its cache, and compare it.

    Args:
        plan: of the run.
        index: the number of the input file.
        sink: of the complete file.
        names: the new columns.
        totals: of the new columns.

    Raises:
        ReadWriteError: the file differs from what was written.
        UsageError: the output is remote, and cannot be read before it is published.
    """
    staged, source = sink.output, plan.source.files[index].path
    if not isinstance(staged, StagedFile):
        raise UsageError(
            f"--verify: needs a local OUT, and {staged.target} is remote: objects cannot be read "
            "before they are published; run rlpost verify afterwards"
        )
    with _difference_errors(staged.target):
        _forget(staged.path)
        _check_sums(staged)
        with ParquetReader(source) as before, ParquetReader(staged.path) as after:
            _check_rows(before.file.metadata, after.file.metadata)
            _check_order(after.file.schema_arrow.names, names)
            if sink.reason is None:
                _check_copied(source, staged.path, before.file.metadata, after.file.metadata)
            else:
                _check_decoded(before, after, names)
            _check_lengths(before, after, names, plan.sized_by)
            _check_numbers(after, names, totals.total())


class _Different(Exception):  # noqa: N818 - it never leaves this module
    """A difference between the file and what was written."""


@contextmanager
def _difference_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (_Different, pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0]
        raise ReadWriteError(
            f"{target}: what was written reads back wrong: {text}; nothing was published. Check "
            "the disk and the memory of this machine"
        ) from None


def _forget(path: Path) -> None:
    """Drop the file from the system's cache, so that it is read from the disk."""
    with path.open("rb") as file:
        drop_cache(file.fileno())


def _check_sums(staged: StagedFile) -> None:
    """Compare the checksums of encoded columns."""
    with staged.path.open("rb") as file:
        for at, size, wanted in staged.checksums:
            data = read_at(file.fileno(), size, at)
            if len(data) != size or crc32(data) != wanted:
                raise _Different(f"bytes {at:,} to {at + size:,} have another checksum")


def _check_rows(before: pq.FileMetaData, after: pq.FileMetaData) -> None:
    def counts(footer: pq.FileMetaData) -> list[int]:
        return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]

    if before.num_rows != after.num_rows or counts(before) != counts(after):
        raise _Different(f"{after.num_rows} rows, and the source has {before.num_rows}")


def _check_order(columns: Sequence[str], names: Sequence[str]) -> None:
    if list(columns)[-len(names) :] != list(names):
        raise _Different(f"the columns {', '.join(names)} are not its last")


def _check_copied(
    source: AnyPath, written: Path, before: pq.FileMetaData, after: pq.FileMetaData
) -> None:
    """Compare every copied column chunk, byte for byte."""
    (left, _), (right, _) = open_file(source), open_file(written)
    try:
        for group in range(after.num_row_groups):
            chunks = dict(_chunks(before, group))
            for path, (begin, size) in _chunks(after, group):
                if path not in chunks or path.partition(".")[0] in TYPES:
                    continue
                at, own = chunks[path]
                if own != size:
                    raise _Different(f"{path} of row group {group} has another size")
                for done in range(0, size, READ_BYTES):
                    some = min(READ_BYTES, size - done)
                    if read_at(left, some, at + done) != read_at(right, some, begin + done):
                        raise _Different(f"{path} of row group {group} is not as in the source")
    finally:
        close_file(left)
        close_file(right)


def _chunks(footer: pq.FileMetaData, group: int) -> Iterator[tuple[str, tuple[int, int]]]:
    row_group = footer.row_group(group)
    for place in range(row_group.num_columns):
        chunk = row_group.column(place)
        begin = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            begin = min(begin, chunk.dictionary_page_offset)
        yield chunk.path_in_schema, (begin, chunk.total_compressed_size)


def _check_decoded(before: ParquetReader, after: ParquetReader, names: Sequence[str]) -> None:
    """Compare every kept column that was encoded again, value by value."""
    kept = [name for name in after.file.schema_arrow.names if name not in names]
    for group in range(after.file.metadata.num_row_groups) if kept else ():
        for left, right in _aligned(
            before.batches(_BATCH, group, kept), after.batches(_BATCH, group, kept)
        ):
            for name in kept:
                if not same_values(left.column(name), right.column(name)):
                    raise _Different(f"{name} of row group {group} is not as in the source")


def _aligned(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield the rows of two readers, of as many rows in all, in parts of equal length."""
    ours, theirs = next(left, None), next(right, None)
    while ours is not None and theirs is not None:
        rows = min(ours.num_rows, theirs.num_rows)
        yield ours.slice(0, rows), theirs.slice(0, rows)
        ours = ours.slice(rows) if rows < ours.num_rows else next(left, None)
        theirs = theirs.slice(rows) if rows < theirs.num_rows else next(right, None)


def same_values(left: pa.Array, right: pa.Array) -> bool:
    """Return whether two arrays have the same values; NaN equals NaN."""
    if left.equals(right):
        return True
    if len(left) != len(right) or not left.is_null().equals(right.is_null()):
        return False
    if is_list(left.type) and is_list(right.type):
        return left.value_lengths().equals(right.value_lengths()) and same_values(
            left.flatten(), right.flatten()
        )
    if pa.types.is_struct(left.type):
        return all(map(same_values, left.flatten(), right.flatten()))
    if pa.types.is_floating(left.type) and left.type == right.type:
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[left.type.bit_width]
        return bool(left.view(bits).equals(right.view(bits)))
    return False


def _check_lengths(
    before: ParquetReader, after: ParquetReader, names: Sequence[str], column: str
) -> None:
    """Check that every new list has as many values as its row has tokens."""
    lists = [name for name in names if pa.types.is_list(TYPES[name])]
    for group in range(after.file.metadata.num_row_groups) if lists else ():
        wanted = _lengths(before, group, column)
        for name in lists:
            got = _lengths(after, group, name)
            if not np.array_equal(got, wanted):
                row = _first_difference(got, wanted)
                raise _Different(f"{name} of row group {group}, row {row}, has another length")


def _lengths(reader: ParquetReader, group: int, column: str) -> NDArray[np.int64]:
    """Return the length of each list of a row group; 0 for a null."""
    parts = [np.zeros(0, np.int64)]
    for batch in reader.batches(_BATCH, group, [column]):
        counts = batch.column(column).value_lengths().fill_null(0)
        parts.append(counts.to_numpy(zero_copy_only=False).astype(np.int64))
    return np.concatenate(parts)


def _first_difference(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    shared = min(len(left), len(right))
    return int(np.flatnonzero(np.append(left[:shared] != right[:shared], True))[0])


def _check_numbers(after: ParquetReader, names: Sequence[str], totals: Totals) -> None:
    """Compare sums, sums of squares and extremes of new columns with the totals."""
    for name in names:
        counted = _COUNTED.get(name)
        if counted is None or f"{counted}.count" not in totals.sums:
            continue
        found = _Sums()
        for group in range(after.file.metadata.num_row_groups):
            for batch in after.batches(_BATCH, group, [name]):
                found.add(batch.column(name))
        found.compare(name, counted, totals)


class _Sums:
    """Sums and extremes of a column, and the sum of its absolute values as the error's scale."""

    def __init__(self) -> None:
        self.total = self.squares = self.size = 0.0
        self.low, self.high = 0.0, 0.0

    def add(self, column: pa.Array) -> None:
        flat = column.flatten() if is_list(column.type) else column
        values = flat.to_numpy(zero_copy_only=False).astype(np.float64)
        if not len(values):
            return
        if not np.isfinite(values).all():
            raise _Different("a number that is not finite")
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())
        self.size += float(np.abs(values).sum())
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def compare(self, name: str, counted: str, totals: Totals) -> None:
        _, total, squares = (float(totals.total(f"{counted}.{part}")) for part in SPREADS)
        pairs = [
            ("sum", self.total, total, self.size),
            ("sum of squares", self.squares, squares, self.squares),
            ("minimum", self.low, min(0.0, totals.lows[counted]), abs(self.low)),
            ("maximum", self.high, max(0.0, totals.highs[counted]), abs(self.high)),
        ]
        for what, got, wanted, scale in pairs:
            if not math.isclose(got, wanted, rel_tol=ROUNDING, abs_tol=ROUNDING * scale + _TINY):
                raise _Different(f"the {what} of {name} is {got:g}, and was {wanted:g}")
