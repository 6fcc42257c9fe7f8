"""Checks of a file that was written, before it gets its name: does the disk give it back?

What was copied is compared with the source, byte for byte; what was encoded with the checksums
that were taken as it was written, row by row with the source's lengths, and in its sums with what
the summary counted.
"""

from __future__ import annotations

import math
import os
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
from rlpost.pipeline.output import TYPES
from rlpost.pipeline.totals import SPREADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import ExactTotals, Totals


ROUNDING = 1e-6  # of float32, in which is written what was counted in float64
_TINY = 1e-36  # about float32's smallest normal number
_BATCH = 1 << 14  # rows that are read at a time
# Columns, and what the summary counts of them; where it counts kept tokens, the others are 0.
_COUNTED = {
    "advantages": "advantage",
    "returns": "return",
    "response_level_rewards": "response_level_reward",
    "sample_weight": "sample_weight",
}


def check_written(
    plan: Plan, index: int, sink: Sink, names: Sequence[str], totals: ExactTotals
) -> None:
    """Read a completed file again, from the disk where the system lets go of what it remembers.

    Args:
        plan: what was done.
        index: the number of the input file.
        sink: has written the file, which is complete and not published yet.
        names: the new columns.
        totals: of the new columns.

    Raises:
        ReadWriteError: the file is not what was written.
        UsageError: the output is remote, and can't be read before it is published.
    """
    staged, source = sink.output, plan.source.files[index].path
    if not isinstance(staged, StagedFile):
        raise UsageError(
            f"{staged.target}: --verify needs a local OUT: an object can't be read before it is "
            "published; rlpost verify reads it after that"
        )
    with _naming(staged.target):
        _forget(staged.path)
        _check_sums(staged)
        with ParquetReader(source) as before, ParquetReader(staged.path) as after:
            _check_rows(before.file.metadata, after.file.metadata)
            _check_order(after.file.schema_arrow.names, names)
            if sink.reason is None:
                _check_copied(source, staged.path, before.file.metadata, after.file.metadata)
            else:
                _check_decoded(before, after, names)
            _check_lengths(before, after, names, plan.columns.column(plan.length_role))
            _check_numbers(after, names, totals.total())


class _Different(Exception):  # noqa: N818 - it never leaves this module
    """What does not agree."""


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    try:
        yield
    except (_Different, pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0]
        raise ReadWriteError(
            f"{target}: what was written reads back wrong: {text}; nothing was published. Is the "
            "disk or the memory failing?"
        ) from None


def _forget(path: Path) -> None:
    """Let the system drop the file from its memory, so that the disk is asked."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _check_sums(staged: StagedFile) -> None:
    """What was encoded, by the checksums of what was written."""
    with staged.path.open("rb") as file:
        for at, size, wanted in staged.checksums:
            data = os.pread(file.fileno(), size, at)
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
    """Every copied column chunk, byte for byte."""
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
    """Every column that was encoded anew, value by value."""
    kept = [name for name in after.file.schema_arrow.names if name not in names]
    for group in range(after.file.metadata.num_row_groups) if kept else ():
        for left, right in zip(
            before.batches(_BATCH, group, kept), after.batches(_BATCH, group, kept), strict=True
        ):
            for name in kept:
                if not same(left.column(name), right.column(name)):
                    raise _Different(f"{name} of row group {group} is not as in the source")


def same(left: pa.Array, right: pa.Array) -> bool:
    """Whether two arrays hold the same values, NaN being the same as NaN."""
    if left.equals(right):
        return True
    if len(left) != len(right) or not left.is_null().equals(right.is_null()):
        return False
    if is_list(left.type) and is_list(right.type):
        return left.value_lengths().equals(right.value_lengths()) and same(
            left.flatten(), right.flatten()
        )
    if pa.types.is_struct(left.type):
        return all(map(same, left.flatten(), right.flatten()))
    if pa.types.is_floating(left.type) and left.type == right.type:
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[left.type.bit_width]
        return bool(left.view(bits).equals(right.view(bits)))
    return False


def _check_lengths(
    before: ParquetReader, after: ParquetReader, names: Sequence[str], column: str
) -> None:
    """Every new list has as many values as its row has tokens."""
    lists = [name for name in names if pa.types.is_list(TYPES[name])]
    for group in range(after.file.metadata.num_row_groups) if lists else ():
        wanted = _lengths(before, group, column)
        for name in lists:
            got = _lengths(after, group, name)
            if not np.array_equal(got, wanted):
                row = _first_difference(got, wanted)
                raise _Different(f"{name} of row group {group}, row {row}, has another length")


def _lengths(reader: ParquetReader, group: int, column: str) -> NDArray[np.int64]:
    """Values in each list of a row group; a null has none."""
    parts = [np.zeros(0, np.int64)]
    for batch in reader.batches(_BATCH, group, [column]):
        counts = batch.column(column).value_lengths().fill_null(0)
        parts.append(counts.to_numpy(zero_copy_only=False).astype(np.int64))
    return np.concatenate(parts)


def _first_difference(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    shared = min(len(left), len(right))
    return int(np.flatnonzero(np.append(left[:shared] != right[:shared], True))[0])


def _check_numbers(after: ParquetReader, names: Sequence[str], totals: Totals) -> None:
    """Sums, sums of squares and extremes of the new columns, against what was counted."""
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
    """Count, sum, sum of squares and extremes of a column, and how large a sum's error may be."""

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
        _, total, squares = (float(totals.sums[f"{counted}.{part}"]) for part in SPREADS)
        pairs = [
            ("sum", self.total, total, self.size),
            ("sum of squares", self.squares, squares, self.squares),
            ("minimum", self.low, min(0.0, totals.lows[counted]), abs(self.low)),
            ("maximum", self.high, max(0.0, totals.highs[counted]), abs(self.high)),
        ]
        for what, got, wanted, scale in pairs:
            if not math.isclose(got, wanted, rel_tol=ROUNDING, abs_tol=ROUNDING * scale + _TINY):
                raise _Different(f"the {what} of {name} is {got:g}, and was {wanted:g}")
