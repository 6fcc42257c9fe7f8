"""Which rows have a text in their prompt or response; the text columns are streamed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.browse.columns import is_text, text_of
from rlpost.browse.index import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.browse.index import Index
    from rlpost.progress import Reporter


def text_columns(index: Index) -> list[str]:
    """The columns of prompts, responses and messages."""
    schema = index.source.schemas[0]
    names = [
        index.names[what] for what in ("prompt", "response", "messages") if what in index.names
    ]
    return [name for name in names if name in schema.names and is_text(schema.field(name).type)]


def rows_with(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """The rows with this text somewhere, [N]; capitals and small letters are the same."""
    columns = text_columns(index)
    if not columns:
        return np.zeros(len(index), dtype=np.bool_)
    parts = []
    for piece in stream(index.source, columns, columns[0], reporter, "search"):
        found = np.zeros(piece.table.num_rows, dtype=np.bool_)
        for name in columns:
            found |= _matches(piece.table.column(name), text)
        parts.append(found)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)


def _matches(array: pa.Array, text: str) -> NDArray[np.bool_]:
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_nested(array.type):
        array = pa.array([text_of(value) for value in array.to_pylist()], pa.large_string())
    found = pc.fill_null(pc.match_substring(array, text, ignore_case=True), False)  # noqa: FBT003
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)
