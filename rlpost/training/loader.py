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
from torch.utils.data import IterableDataset, get_worker_info

from rlpost.errors import DataError, UsageError, warn_caller
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import Prefetcher
from rlpost.pipeline.columns import FINAL_MASK, lost_mask
from rlpost.training.columns import training_columns
from rlpost.training.layout import of_rows, packed, padded
from rlpost.training.reading import LoadedRows, windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


Layout = Literal["padded", "packed"]


class _Part(NamedTuple):
    """Some rows of a window; a batch has them of one or several."""

    window: LoadedRows
    places: NDArray[np.int64]


_Batch = list[_Part]


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
            batch = _rows(batches[self._rank])
            yield {
                **layout(batch),
                **of_rows(batch),
                "totals": _totals([part for batch in batches for part in batch]),
            }

    def _rounds(self) -> Iterator[list[_Batch]]:
        """Yield a batch of each rank, and again."""
        batches: list[_Batch] = []
        yielded = False
        for batch in self._batches():
            batches.append(batch)
            if len(batches) == self._world:
                yielded = True
                yield batches
                batches = []
        if batches and (divided := _divided(batches, self._world)):
            yield divided
        elif not yielded:
            left = sum(_count(batch) for batch in batches)
            raise DataError(
                f"{self._source.name}: {left} responses are left to train on by {self._world} "
                "ranks; sample masks drop the others"
            )

    def _batches(self) -> Iterator[_Batch]:
        """Cut what is trained on into batches of at most so many tokens, and at least one row."""
        batch: _Batch = []
        count = longest = total = 0
        for window, order in self._windows():
            begin = 0
            for place, size in enumerate(window.sizes[order].tolist()):
                longest, total = max(longest, size), total + size
                tokens = longest * (count + 1) if self._layout == "padded" else total
                if count and tokens > self._most:
                    yield [*batch, _Part(window, order[begin:place])]
                    batch, begin, count, longest, total = [], place, 0, size, size
                count += 1
            batch.append(_Part(window, order[begin:]))
        if count:
            yield batch

    def _windows(self) -> Iterator[_Part]:
        """Yield the responses that are trained on, in the order of training."""
        random = None if self._seed is None else np.random.default_rng(self._seed)
        groups = None if random is None else random.spawn(1)[0]
        ahead = Prefetcher(windows(self._source, self._columns, groups), 1)
        try:
            for window in ahead:
                kept = np.flatnonzero(window.kept)
                yield _Part(window, kept if random is None else random.permutation(kept))
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


def _count(batch: _Batch) -> int:
    return sum(len(part.places) for part in batch)


def _rows(batch: _Batch) -> LoadedRows:
    """Return the rows of a batch."""
    parts = [part.window.take(part.places) for part in batch if len(part.places)]
    return LoadedRows.joined(parts)


def _divided(batches: Sequence[_Batch], count: int) -> list[_Batch] | None:
    """Divide batches in two, the one of the most rows first, until there are `count`.

    None if there are too few rows.
    """
    parts = [_Part(_rows(batch), np.arange(_count(batch))) for batch in batches]
    while len(parts) < count:
        number = max(range(len(parts)), key=lambda i: len(parts[i].places))
        window, places = parts[number]
        half = len(places) // 2
        if not half:
            return None
        parts[number : number + 1] = [_Part(window, places[:half]), _Part(window, places[half:])]
    return [[part] for part in parts]


def _totals(parts: Sequence[_Part]) -> dict[str, int]:
    """Return what `totals` of a policy loss needs."""
    tokens, lengths = (
        np.concatenate([getattr(part.window, name)[part.places] for part in parts])
        for name in ("tokens", "lengths")
    )
    return {
        "tokens": int(tokens.sum()),
        "responses": int((tokens > 0).sum()),
        "rows": len(tokens),
        "longest": int(lengths.max()),
    }


load = TrainingData
"""The same class by a name like those of the other functions."""
