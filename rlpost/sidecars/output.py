"""The output of a join: the input's column chunks, and the sidecar's, copied or encoded again."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.io.locks import scratch_folder
from rlpost.io.parquet.copied import CopiedColumns
from rlpost.io.parquet.footer import FooterError
from rlpost.io.parquet.sink import READ_BYTES, SourceReader, open_copying_sink, open_sink
from rlpost.io.parquet.splice import SpliceSink
from rlpost.io.ranges import arrow_file, mapped_file
from rlpost.io.staged import file_errors
from rlpost.io.system import cores
from rlpost.io.threads import MOST_WORKERS, map_ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.io.uploads import OutputFile
    from rlpost.pipeline.output.files import Outputs
    from rlpost.sidecars.rows import FileRows


class JoinedFile(NamedTuple):
    """The two files of one output.

    `new` are the sidecar's columns, `drop` the input's that they replace, and `rows` the row of the
    sidecar for each row of the input, None if both have the same rows in order.
    """

    input: FileRows
    sidecar: FileRows
    new: tuple[str, ...]
    drop: tuple[str, ...]
    rows: NDArray[np.int64] | None

    def reader(self) -> SourceReader:
        """Return a reader of the new columns."""
        return SourceReader(self.sidecar.path, self.new, ())


def write_joined(
    outputs: Outputs,
    index: int,
    file: JoinedFile,
    metadata: Mapping[str, str],
    advance: Callable[[int], None],
) -> tuple[int, str | None]:
    """Write one output, which is complete afterwards and not published.

    Args:
        outputs: of the run.
        index: the output's number.
        file: the files to join.
        metadata: additional key-value metadata.
        advance: called with numbers of rows that are done.

    Returns:
        The output's bytes, and the reason if the sidecar's columns were decoded though the input's
        were not.
    """
    with ExitStack() as opened:
        copied, reason = None, "its rows have another order"
        if file.rows is None:
            copied, reason = _copied(file)
        if copied is not None:
            opened.enter_context(copied)

        def open_one(target: AnyPath, _: OutputFile | None) -> Sink:
            nonlocal copied, reason
            if copied is not None:
                footer = file.input.source.take_footer(file.input.number)
                sink = open_copying_sink(
                    file.input.path, target, copied, drop=file.drop, decoded=footer
                )
                if not isinstance(sink, str):
                    return sink
                copied, reason = None, sink
            fields = file.reader().fields
            return open_sink(file.input.path, target, fields, drop=file.drop)

        sink = outputs.open(index, open_one)
        if copied is not None:
            _copy(sink, copied, advance)
        else:
            spool = None
            if file.rows is not None:
                spool = opened.enter_context(scratch_folder(outputs.folder)) / "rows.arrow"
            _encode(sink, _batches(file, spool), advance)
        sink.complete(metadata)
        return sink.size, reason if copied is None and sink.reason is None else None


def _copied(file: JoinedFile) -> tuple[CopiedColumns | None, str]:
    """Return the sidecar's columns, if their chunks can be copied, else the reason."""
    if file.input.row_groups != file.sidecar.row_groups:
        return None, "its row groups have other sizes than the input's"
    try:
        with file_errors(file.sidecar.path, "cannot be read"):
            return CopiedColumns(file.sidecar.path, file.new), ""
    except FooterError as error:
        return None, str(error)


def _copy(sink: Sink, copied: CopiedColumns, advance: Callable[[int], None]) -> None:
    assert isinstance(sink, SpliceSink)
    with file_errors(copied.path, "cannot be read"):
        for rows in copied.rows:
            sink.copy_group(copied)
            advance(rows)


def _encode(
    sink: Sink, batches: Iterator[tuple[int, pa.RecordBatch]], advance: Callable[[int], None]
) -> None:
    """Encode the batches of row groups, in threads, and add them."""

    def encoded(part: tuple[int, pa.RecordBatch]) -> tuple[int, object, int]:
        row_group, batch = part
        return row_group, sink.encode(batch), batch.num_rows

    for row_group, pages, rows in map_ordered(encoded, batches, min(cores(), MOST_WORKERS)):
        sink.append(row_group, pages)
        advance(rows)


def _batches(file: JoinedFile, spool: Path | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the new columns in the row groups of the input; `spool`: a file for another order."""
    reader, groups = file.reader(), file.sidecar.row_groups
    stored = (batch for group, rows in enumerate(groups) for batch in _group(reader, group, rows))
    if file.rows is not None and spool is not None:
        spilled = SpilledRows(file.sidecar.name, reader.fields, stored, spool)
        yield from spilled.take(file.rows, file.input.row_groups)
        return
    rest = pa.RecordBatch.from_pylist([], reader.fields)
    for row_group, rows in enumerate(file.input.row_groups):
        missing = rows
        while missing:
            rest = rest or next(stored)
            part = rest.slice(0, missing)
            rest, missing = rest.slice(part.num_rows), missing - part.num_rows
            yield row_group, part


def _group(reader: SourceReader, group: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Read a row group in batches of bounded size."""
    while rows:
        batch = reader.read(group, rows)
        rows -= batch.num_rows
        yield batch


class SpilledRows:
    """Rows in a temporary file, mapped into memory, to be read in another order.

    Args:
        name: where they are from, for errors.
        fields: their schema.
        batches: all rows.
        path: the file to write.
    """

    def __init__(
        self, name: str, fields: pa.Schema, batches: Iterator[pa.RecordBatch], path: Path
    ) -> None:
        self._name, self._fields = name, fields
        with file_errors(path.parent, "cannot be written"):
            with arrow_file(path, "wb") as file, pa.ipc.new_stream(file, fields) as writer:
                for batch in batches:
                    writer.write_batch(batch.cast(fields))
            self._batches = list(pa.ipc.open_stream(mapped_file(path)))
        self._firsts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._per_batch = max(
            READ_BYTES * int(self._firsts[-1]) // max(sum(b.nbytes for b in self._batches), 1), 1
        )

    def take(
        self, rows: NDArray[np.int64], row_groups: Sequence[int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows, by number, in batches of row groups with these numbers of rows."""
        first = 0
        for row_group, count in enumerate(row_groups):
            for at in range(first, first + count, self._per_batch):
                stop = min(at + self._per_batch, first + count)
                yield row_group, self._take(rows[at:stop])
            first += count

    def _take(self, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Return rows by their numbers: each batch's at once, then all in their order."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        bounds = np.searchsorted(ordered, self._firsts)
        try:
            parts = [
                batch.take(pa.array(ordered[begin:stop] - first))
                for batch, first, begin, stop in zip(
                    self._batches, self._firsts[:-1], bounds[:-1], bounds[1:], strict=True
                )
                if stop > begin
            ]
            back = np.empty(len(rows), np.int64)
            back[order] = np.arange(len(rows))
            return pa.concat_batches(parts).take(pa.array(back))
        except pa.ArrowNotImplementedError as error:
            raise DataError(
                f"{self._name}: its rows have another order, and pyarrow cannot reorder one of its "
                f"columns ({error}); write the sidecar in the order of the input"
            ) from None
