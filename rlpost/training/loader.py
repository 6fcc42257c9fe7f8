"""`rlpost.load`: enriched files as batches for a training loop.

Every rank reads the same rows in the same order and cuts them into the same batches, of which it
returns its own, so ranks agree without communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from rlpost.errors import DataError, UsageError, warn_caller
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import Prefetcher
from rlpost.pipeline.columns import FINAL_MASK, lost_mask
from rlpost.training.columns import training_columns
from rlpost.training.layout import of_rows, packed, padded
from rlpost.training.reading import BatchRows, windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlpost.training.reading import SliceData


Layout = Literal["padded", "packed"]


class _LoadedRow(NamedTuple):
    """A response in memory."""

    data: SliceData
    place: int
    size: int
    """Tokens, with those of the prompt if it is read."""
    tokens: int
    """Tokens that are trained on."""
    length: int
    """Tokens without the prompt."""


_Rows = list[_LoadedRow]


class TrainingData(IterableDataset[dict[str, Any]]):
    """Enriched files as batches for a training loop: `rlpost.load(paths, batch_tokens=16384)`.

    It is an iterable, and a data set for `torch.utils.data.DataLoader(data, batch_size=None)`,
    which returns the same batches in the same order with any number of worker processes.

    Args:
        paths: Parquet files, directories or globs, local or as URLs; a file that comes twice is
            read once.
        batch_tokens: tokens of a batch at most, with padding in the padded layout and with prompts
            if their ids are read. A single response may have more.
        layout: `padded` returns tensors [B, T]; `packed` one sequence [T] with `cu_seqlens`.
        columns: roles, names of columns, `response_token_ids` or `prompt_token_ids`; None:
            advantages, returns, log-probs, values, weights, reward and ids, as far as the input has
            them.
        columns_map: role to column, as with `--map`; also those of `response_token_ids` and
            `prompt_token_ids`.
        shuffle: seed of the order; None: the order of the input. Row groups are shuffled, and
            responses within windows of half a million tokens.
        rank: of this process, from 0.
        world: processes that divide the batches among themselves. All have as many: the last
            batches are divided, and fewer responses than ranks at the end are left out.

    Yields:
        A batch is a dict: `mask` (bool) of the tokens that are trained on; columns of tokens in
        float32, ids in int64, numbers per response as they are; `lengths`; `rows`, the row numbers
        in the input; `totals` of this batch and those of the other ranks beside it. Responses that
        the sample mask drops are left out. The mask is false at the first token of a response
        without a prompt if there are `input_ids`, since nothing precedes it.

    Raises:
        UsageError: options do not fit together.
        DataError: the data is bad, or lacks a column; from the iteration, too.
        ReadWriteError: a file cannot be read.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        batch_tokens: int,
        layout: Layout = "padded",
        columns: Sequence[str] | None = None,
        columns_map: Mapping[str, str] | None = None,
        shuffle: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        least = {"batch_tokens": (batch_tokens, 1), "rank": (rank, 0), "world": (world, 1)}
        _check_options(layout, {**least, **({} if shuffle is None else {"shuffle": (shuffle, 0)})})
        if rank >= world:
            raise UsageError(f"load: rank={rank}: less than world={world} is needed")
        if columns_map is not None and not isinstance(columns_map, Mapping):
            raise UsageError(
                f"load: columns_map={columns_map!r}: a dict of role and column is needed"
            )
        several: list[Any] = list(paths) if isinstance(paths, list | tuple) else [paths]
        if not several or not all(isinstance(path, str | Path) for path in several):
            raise UsageError("load: a path is needed, or a list of paths; tables are not read")
        self._source = Source(find_inputs(several))
        self._source.frugal = True
        self._columns = training_columns(
            self._source, columns, columns_map or {}, packed=layout == "packed"
        )
        final, sample = self._columns.mask == FINAL_MASK, self._columns.sample_mask is not None
        if text := lost_mask(self._source, final=final, sample=sample):
            warn_caller(f"{text}, and all are trained on")
        self._layout, self._most, self._seed = layout, batch_tokens, shuffle
        self._rank, self._world = rank, world

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the batches of this rank; in a worker process, its share of them."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self._made(number, workers)

    def _made(self, number: int, workers: int) -> Iterator[dict[str, Any]]:
        """Yield each of `workers` batches of this rank, from one on."""
        self._source.check_unchanged("since it was loaded; load it anew")
        layout = padded if self._layout == "padded" else packed
        for batches in islice(self._rounds(), number, None, workers):
            batch = BatchRows.of((row.data, row.place) for row in batches[self._rank])
            yield {
                **layout(batch),
                **of_rows(batch),
                "rows": torch.from_numpy(batch.numbers),
                "totals": _totals([row for batch in batches for row in batch]),
            }

    def _rounds(self) -> Iterator[list[_Rows]]:
        """Yield a batch of each rank, and again."""
        batches: list[_Rows] = []
        yielded = False
        for batch in _cut(self._rows(), self._most, padded=self._layout == "padded"):
            batches.append(batch)
            if len(batches) == self._world:
                yielded = True
                yield batches
                batches = []
        if batches and (divided := _divided(batches, self._world)):
            yield divided
        elif not yielded:
            left = sum(map(len, batches))
            raise DataError(
                f"{self._source.name}: {left} responses are left to train on by {self._world} "
                "ranks; sample masks drop the others"
            )

    def _rows(self) -> Iterator[_LoadedRow]:
        """Yield the responses that are trained on, in the order of training."""
        random = None if self._seed is None else np.random.default_rng(self._seed)
        groups = None if random is None else random.spawn(1)[0]
        ahead = Prefetcher(windows(self._source, self._columns, groups), 1)
        try:
            for window in ahead:
                rows = [row for data in window for row in _kept_rows(data)]
                order = range(len(rows)) if random is None else random.permutation(len(rows))
                yield from (rows[number] for number in order)
        finally:
            ahead.close()


def _check_options(layout: str, numbers: Mapping[str, tuple[object, int]]) -> None:
    """Raise UsageError for an option of another kind or out of range."""
    if layout not in ("padded", "packed"):
        raise UsageError(f"load: layout={layout!r}: padded or packed is needed")
    for name, (number, least) in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            text = f"load: {name}={number!r}: a whole number from {least} is needed"
            raise UsageError(text)


def _kept_rows(data: SliceData) -> Iterator[_LoadedRow]:
    """Yield the rows of a slice that the sample mask keeps."""
    places = np.flatnonzero(data.kept)
    counts = (x[places].tolist() for x in (data.sizes, data.tokens, data.lengths))
    for place, *numbers in zip(places.tolist(), *counts, strict=True):
        yield _LoadedRow(data, place, *numbers)


def _cut(rows: Iterable[_LoadedRow], most: int, *, padded: bool) -> Iterator[_Rows]:
    """Cut rows into batches of at most `most` tokens, and at least one row."""
    batch: _Rows = []
    longest = total = 0
    for row in rows:
        longest = max(longest, row.size)
        total += row.size
        if batch and (longest * (len(batch) + 1) if padded else total) > most:
            yield batch
            batch, longest, total = [], row.size, row.size
        batch.append(row)
    if batch:
        yield batch


def _divided(batches: Sequence[_Rows], count: int) -> list[_Rows] | None:
    """Divide batches in two, the one of the most rows first, until there are `count`.

    None if there are too few rows.
    """
    parts = list(batches)
    while len(parts) < count:
        number = max(range(len(parts)), key=lambda i: len(parts[i]))
        half = len(parts[number]) // 2
        if not half:
            return None
        parts[number : number + 1] = [parts[number][:half], parts[number][half:]]
    return parts


def _totals(rows: Sequence[_LoadedRow]) -> dict[str, int]:
    """Return what `totals` of a policy loss needs."""
    return {
        "tokens": sum(row.tokens for row in rows),
        "responses": sum(row.tokens > 0 for row in rows),
        "rows": len(rows),
        "longest": max(row.length for row in rows),
    }


load = TrainingData
"""The same class by a name like those of the other functions."""
