"""Facts about the rows of an input, which the order of training needs: read once, at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.keys import KeyColumn, encode_keys
from rlpost.kernels.codes import joint_codes
from rlpost.training.order import RowFacts

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.training.columns import TrainingColumns
    from rlpost.training.order import Together


_CHUNK_TOKENS = 1 << 19
_SHOWN = 8  # rollout steps that an error shows


class _StepFilter:
    """Which responses are of the rollout steps to train on."""

    def __init__(self, steps: Collection[int | str]) -> None:
        self._steps = steps
        self._listed = None if isinstance(steps, range) else frozenset(steps)
        self._present: set[int | str] = set()
        """All steps of the input, as far as it was read."""

    def _has(self, step: int | str) -> bool:
        if self._listed is not None:
            return step in self._listed
        return isinstance(step, int) and step in self._steps  # a range is searched for a text

    def kept(self, column: pa.Array) -> NDArray[np.bool_]:
        """Return which rows are kept, [n]."""
        steps = KeyColumn.of([column])
        values = steps.labels.to_pylist()
        self._present.update(values)
        return np.array([self._has(value) for value in values], np.bool_)[steps.codes]

    def check(self, where: str) -> None:
        """Raise UsageError if a step is absent; of a range only if all of its steps are."""
        if self._listed is None:
            absent = [] if any(map(self._has, self._present)) else [next(iter(self._steps))]
        else:
            absent = [step for step in self._steps if step not in self._present]
        if not absent:
            return
        shown = sorted(self._present, key=lambda step: (isinstance(step, str), step))
        more = ", ..." if len(shown) > _SHOWN else ""
        raise UsageError(
            f"load: steps={self._steps!r}: {where} has no rollout step {absent[0]!r}; its steps "
            f"are {', '.join(map(repr, shown[:_SHOWN]))}{more}"
        )


def row_facts(
    source: Source,
    columns: TrainingColumns,
    *,
    together: Together,
    drop_masked: bool,
    steps: Collection[int | str] | None = None,
) -> RowFacts:
    """Read the facts about all rows: 33 bytes in memory for each, 41 if rollouts stay together.

    Args:
        source: the input.
        columns: the columns of the batches.
        together: whose rows are in one batch.
        drop_masked: leave out responses whose sample mask is 0.
        steps: leave out responses of other rollout steps; None: none.

    Raises:
        UsageError: the input has no response of a rollout step in `steps`.
        DataError: a mask has other values than 0 and 1, a key is null, or masks drop all responses.
        ReadWriteError: the input cannot be read.
    """
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows to train on")
    chosen = None if steps is None else _StepFilter(steps)
    step = columns.rollout_step
    rollout = columns.rollout if together == "rollout" else None
    keys_of = [*columns.keys, *([] if rollout is None else [rollout])]
    names = list(dict.fromkeys([*columns.of_facts, *keys_of, *([step] if chosen and step else [])]))
    inside: list[NDArray[np.bool_]] = []
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    keys: list[list[pa.DictionaryArray]] = []
    for chunk in source.read(names, _CHUNK_TOKENS, columns.lengths or ""):
        parts.append(_sizes(chunk, source, columns))
        if chosen is not None and step is not None:
            array = chunk.table.column(step)
            inside.append(chosen.kept(ragged.key(array, _location(source, chunk, step))))
        keys.append(
            [
                encode_keys(ragged.key(chunk.table.column(name), _location(source, chunk, name)))
                for name in keys_of
            ]
        )
    tokens, length, prompt = (np.concatenate(part) for part in zip(*parts, strict=True))
    codes = [KeyColumn.of(chunks).codes for chunks in zip(*keys, strict=True)]
    unit = joint_codes(*codes) if codes else np.arange(len(tokens))
    group = unit
    if rollout is not None:
        group = joint_codes(*codes[:-1]) if codes[1:] else np.arange(len(tokens))
    pa.default_memory_pool().release_unused()  # of the keys' texts
    rows = [
        footer.row_group(number).num_rows
        for footer in source.footers
        for number in range(footer.num_row_groups)
    ]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    included = tokens >= 0 if drop_masked else np.ones(len(tokens), np.bool_)
    if chosen is not None:
        chosen.check(source.name)
        included &= np.concatenate(inside)
    if not included.any():
        raise DataError(
            f"{source.name}: no response is left to train on: masks drop all of them; "
            "drop_masked=False keeps them in batches, with a mask that is false"
        )
    return RowFacts(tokens.clip(0), length, length + prompt, included, group, unit, starts)


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
    prompt, first = np.zeros(count, np.int64), np.zeros(count, np.int64)
    if columns.lengths is not None:
        offsets, values = lists(columns.lengths)
        tokens = length = np.diff(offsets)
        first = (length > 0).astype(np.int64)
        if columns.lengths == columns.mask and not values.all():
            inside = np.concatenate([[0], values.cumsum()])
            tokens = inside[offsets[1:]] - inside[offsets[:-1]]
            first = inside[offsets[:-1] + first] - inside[offsets[:-1]]
    if columns.prompt_token_ids is not None:
        prompt = np.diff(lists(columns.prompt_token_ids)[0])
    if columns.input_ids:
        tokens = tokens - np.where(prompt == 0, first, 0)
    if columns.sample_mask is not None:
        location = _location(source, chunk, columns.sample_mask)
        kept = ragged.numbers(chunk.table.column(columns.sample_mask), location) != 0
        tokens = np.where(kept, tokens, -1)
    return tokens, length, prompt


def _location(source: Source, chunk: RowChunk, column: str) -> CellLocation:
    return CellLocation(str(source.files[chunk.file].path), chunk.first_row, column)
