"""Encoded pages of new columns as Arrow IPC, to be put into a file by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.parquet.encode import Encoded, Piece
from rlpost.parquet.footer import decode, encode
from rlpost.parquet.indexes import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = pa.struct(
    {
        "size": pa.int64(),
        "rows": pa.int64(),
        "nulls": pa.int64(),
        "empty": pa.bool_(),
        "low": pa.binary(),
        "high": pa.binary(),
    }
)
_SCHEMA = pa.schema(
    {
        "row_group": pa.int64(),
        "rows": pa.int64(),
        "meta": pa.binary(),
        "pages": pa.large_binary(),
        "index": pa.list_(_PAGE),
    }
)


class Packer:
    """Packs what `Encoder.encode` gave, as it comes; a record batch each, a row a column."""

    def __init__(self) -> None:
        self._out = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(self._out, _SCHEMA)

    def add(self, row_group: int, encoded: Encoded) -> None:
        """Add the next rows of a row group."""
        pieces = encoded.pieces
        columns = [
            pa.array([row_group] * len(pieces), pa.int64()),
            pa.array([encoded.rows] * len(pieces), pa.int64()),
            pa.array([encode(piece.meta) for piece in pieces], pa.binary()),
            pa.array([b"".join(piece.pages) for piece in pieces], pa.large_binary()),
            pa.array(
                [[page._asdict() for page in piece.index] for piece in pieces], pa.list_(_PAGE)
            ),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))

    def finish(self) -> pa.Buffer:
        """All that was added."""
        self._writer.close()
        return self._out.getvalue()


def unpacked(data: pa.Buffer) -> Iterator[tuple[int, Encoded]]:
    """What was added to a `Packer`, in order: row groups, and rows for `Sink.append`."""
    reader = pa.ipc.open_file(data)
    for place in range(reader.num_record_batches):
        batch = reader.get_batch(place)
        groups, rows, metas, pages, indexes = batch.columns
        pieces = [
            Piece(
                decode(meta.as_py())[0],
                [memoryview(page.as_buffer())],
                [Page(**page) for page in index.as_py()],
            )
            for meta, page, index in zip(metas, pages, indexes, strict=True)
        ]
        yield groups[0].as_py(), Encoded(rows[0].as_py(), pieces)
