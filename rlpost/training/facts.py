"""Facts about the rows of an input, which the order of training needs: read once, at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, to_numpy
from rlpost.training.order import RowFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.training.columns import TrainingColumns


_CHUNK_TOKENS = 1 << 19


def _codes(chunks: list[list[pa.Array]]) -> NDArray[np.int64]:
    """Return codes of keys: of each chunk, the columns that are a key together."""
    codes = np.zeros(sum(len(one[0]) for one in chunks), np.int64)
    for parts in zip(*chunks, strict=True):
        kinds = {part.type for part in parts}
        texts = [part.cast(pa.string()) for part in parts] if len(kinds) > 1 else parts
        encoded = pa.chunked_array(texts).combine_chunks().dictionary_encode()
        own = to_numpy(encoded.indices).astype(np.int64)
        _, codes = np.unique(codes * len(encoded.dictionary) + own, return_inverse=True)
    return codes


def row_facts(source: Source, columns: TrainingColumns, *, drop_masked: bool) -> RowFacts:
    """Read the facts about all rows: 33 bytes in memory for each.

    Args:
        source: the input.
        columns: the columns of the batches.
        drop_masked: leave out responses whose sample mask is 0.

    Raises:
        DataError: a mask has other values than 0 and 1, or a key is null.
        ReadWriteError: the input cannot be read.
    """
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows to train on")
    names = columns.of_facts
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    keys: list[list[pa.Array]] = []
    for chunk in source.read(names, _CHUNK_TOKENS, columns.lengths or ""):
        parts.append(_sizes(chunk, source, columns))
        keys.append(
            [
                ragged.key(chunk.table.column(name), _location(source, chunk, name))
                for name in columns.keys
            ]
        )
    tokens, length, prompt = (np.concatenate(part) for part in zip(*parts, strict=True))
    group = _codes(keys) if columns.keys else np.arange(len(tokens))
    rows = [
        footer.row_group(number).num_rows
        for footer in source.footers
        for number in range(footer.num_row_groups)
    ]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    included = tokens >= 0 if drop_masked else np.ones(len(tokens), np.bool_)
    return RowFacts(tokens.clip(0), length, length + prompt, included, group, starts)


def _sizes(
    chunk: RowChunk, source: Source, columns: TrainingColumns
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return trained tokens, all tokens and tokens of the prompt of each row, [n].

    Trained tokens are -1 if the sample mask leaves the response out. A row of an input without
    tokens has the length 1.
    """

    def lists(column: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        array, location = chunk.table.column(column), _location(source, chunk, column)
        return (ragged.mask if column == columns.mask else ragged.list_values)(array, location)

    count = chunk.table.num_rows
    tokens, length = np.zeros(count, np.int64), np.ones(count, np.int64)
    prompt = np.zeros(count, np.int64)
    if columns.lengths is not None:
        offsets, values = lists(columns.lengths)
        tokens = length = np.diff(offsets)
        if columns.lengths == columns.mask and not values.all():
            inside = np.concatenate([[0], values.cumsum()])
            tokens = inside[offsets[1:]] - inside[offsets[:-1]]
    if columns.prompt_ids is not None:
        prompt = np.diff(lists(columns.prompt_ids)[0])
    if columns.sample_mask is not None:
        location = _location(source, chunk, columns.sample_mask)
        kept = ragged.numbers(chunk.table.column(columns.sample_mask), location) != 0
        tokens = np.where(kept, tokens, -1)
    return tokens, length, prompt


def _location(source: Source, chunk: RowChunk, column: str) -> CellLocation:
    return CellLocation(str(source.files[chunk.file].path), chunk.first_row, column)
