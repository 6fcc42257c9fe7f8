"""`rlpost.load`: enriched files as batches for a training loop.

The order of an epoch is computed from facts about the rows alone (`order.py`), so ranks, worker
processes and restarts agree on it. Batches are made from windows that a thread reads ahead.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from rlpost.errors import UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import Prefetcher
from rlpost.training.columns import training_columns
from rlpost.training.facts import row_facts
from rlpost.training.layout import of_rows, packed, padded
from rlpost.training.order import BatchOptions, Epoch, epoch_of
from rlpost.training.reading import Piece, windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.training.columns import TrainingColumns
    from rlpost.training.order import Last, RankOrder, RowFacts
    from rlpost.training.reading import SliceData


Layout = Literal["padded", "packed"]
Batch = dict[str, Any]
WINDOW = 1 << 20
_VERSION = 1


class TrainingData(IterableDataset[Batch]):
    """Enriched files as batches for a training loop: `rlpost.load(paths, batch_size=64)`.

    It is an iterable, and a data set for `torch.utils.data.DataLoader(data, batch_size=None)`. With
    worker processes each makes its share of the batches, and the DataLoader returns them in the
    same order as without workers.

    Args:
        paths: Parquet files, directories or globs, local or as URLs.
        batch_size: responses of a batch; this or `batch_tokens` is needed.
        batch_tokens: tokens of a batch at most, with padding in the padded layout and with prompts
            if their ids are read. A single response may have more.
        layout: `padded` returns tensors [B, T]; `packed` one sequence [T] with `cu_seqlens`.
        columns: roles, names of columns, `response_ids` or `prompt_ids`; None: advantages, returns,
            log-probs, values, weights, reward and ids, as far as the input has them.
        columns_map: role to column, as with `--map`.
        shuffle: seed of the order; None: the order of the input. Row groups are shuffled, and
            responses within a window.
        keep_groups: the responses of a prompt group are in one batch, which has one group at least,
            whatever its size.
        drop_masked: leave out responses whose sample mask is 0. If false, they are in batches, and
            their mask is false throughout.
        rank: of this process, from 0.
        world_size: processes that divide the responses among themselves.
        accumulate: batches of each rank in an optimiser step.
        last: if ranks would have different numbers of batches: `even` divides batches, so that
            all have as many; `keep` leaves it so; `drop` leaves out the responses after the last
            full step.
        epoch: its number, which is part of the seed.
        window: tokens of a window. Memory is that of about three windows.

    Yields:
        A batch is a dict: `mask` (bool) of the tokens that are trained on, which includes the
        sample mask; columns of tokens in float32, ids in int64, numbers per response as they are;
        `lengths`; `rows`, the row numbers in the input; `totals` of the whole step over all ranks;
        `step`, `step_end` and `state`, with which `load_state_dict` goes on after this batch.

    Raises:
        UsageError: options do not fit together.
        DataError: the data is bad, or lacks a column; from the iteration, too.
        ReadWriteError: a file cannot be read.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        layout: Layout = "padded",
        columns: Sequence[str] | None = None,
        columns_map: Mapping[str, str] | None = None,
        shuffle: int | None = None,
        keep_groups: bool = False,
        drop_masked: bool = True,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        last: Last = "even",
        epoch: int = 0,
        window: int = WINDOW,
    ) -> None:
        _check(
            batch_size, batch_tokens, layout, shuffle, last, rank=rank, world_size=world_size,
            accumulate=accumulate, epoch=epoch, window=window,
        )  # fmt: skip
        several = list(paths) if isinstance(paths, list | tuple) else [paths]
        if not several or not all(isinstance(path, str | Path) for path in several):
            raise UsageError("load: a path is needed, or a list of paths; tables are not read")
        self._source = Source(find_inputs([str(path) for path in several]))
        self._columns = training_columns(self._source, columns, columns_map or {})
        if self._columns.lengths is None and batch_tokens is not None:
            raise UsageError("batch_tokens: the input has no tokens; batch_size= is needed")
        if keep_groups and not self._columns.keys:
            raise UsageError("load: keep_groups: the input has no column of prompt groups")
        _warn_of_masks(self._source, self._columns)
        self._layout = layout
        self._rank = rank
        self._drop_masked = drop_masked
        self._options = BatchOptions(
            batch_size, batch_tokens, layout == "padded", keep_groups, shuffle, world_size,
            accumulate, last, window,
        )  # fmt: skip
        self._facts: RowFacts | None = None
        self._orders: tuple[int, Epoch] | None = None
        # Shared with worker processes, also persistent ones, which have copies of this object.
        self._position = torch.tensor([epoch, 0]).share_memory_()  # type: ignore[no-untyped-call]
        """The epoch, and the first batch of the next iteration."""
        self._done = 0
        """Batches of the present iteration, in this process."""

    @property
    def epoch(self) -> int:
        """The number of the epoch, which is part of the seed of the order."""
        return int(self._position[0])

    def __len__(self) -> int:
        """The number of batches of this rank in the epoch."""
        return len(self._own)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        It begins at the first batch, or after that of a state of this epoch that was loaded.
        """
        if epoch != self.epoch:
            self._position[:] = torch.tensor([epoch, 0])
            self._done = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch in this process.

        Worker processes of a DataLoader have their own: with them use the `state` of a batch.
        """
        return self._state(self._done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch that has this state.

        Raises:
            UsageError: the state is of other files or options, or of no loader.
        """
        expected = self._state(0)
        if not isinstance(state, Mapping) or state.keys() != expected.keys():
            raise UsageError("load_state_dict: this is not the state of a loader of rlpost")
        if state["version"] != _VERSION:
            raise UsageError(f"load_state_dict: version {state['version']}; {_VERSION} is needed")
        if state["data"] != expected["data"]:
            raise UsageError("load_state_dict: the state is of other files; they were changed")
        if state["options"] != expected["options"]:
            raise UsageError(
                "load_state_dict: the state is of other options: "
                + _difference(state["options"], expected["options"])
            )
        self._position[:] = torch.tensor([int(state["epoch"]), int(state["batch"])])
        self._done = int(state["batch"])

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of this rank: all, or those after a state that was loaded."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order, first = self._own, int(self._position[1])
        if worker is None:
            self._position[1], self._done = 0, first  # the next iteration has all batches
        for batch in self._batches(order, range(first + number, len(order), workers)):
            self._done = batch["state"]["batch"]
            yield batch

    @property
    def _own(self) -> RankOrder:
        return self._order().ranks[self._rank]

    def _order(self) -> Epoch:
        if self._facts is None:
            self._facts = row_facts(self._source, self._columns, drop_masked=self._drop_masked)
        if self._orders is None or self._orders[0] != self.epoch:
            self._orders = self.epoch, epoch_of(self._facts, self._options, self.epoch)
        return self._orders[1]

    def _state(self, batch: int) -> dict[str, Any]:
        options = {**vars(self._options), "rank": self._rank, "drop_masked": self._drop_masked}
        files = [
            [str(file.relative), footer.num_rows, footer.num_row_groups, footer.serialized_size]
            for file, footer in zip(self._source.files, self._source.footers, strict=True)
        ]
        data = sha256(json.dumps(files).encode()).hexdigest()[:16]
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "batch": batch,
            "options": options,
            "data": data,
        }

    def _batches(self, order: RankOrder, numbers: range) -> Iterator[Batch]:
        """Yield the batches of some numbers, ascending."""
        if not numbers:
            return
        epoch, accumulate = self._order(), self._options.accumulate
        held = _Held(self._source, self._columns, epoch, order, numbers)
        layout = padded if self._layout == "padded" else packed
        step, totals = -1, epoch.totals(numbers.start // accumulate)
        try:
            for number in numbers:
                if number // accumulate != step:
                    step = number // accumulate
                    totals = epoch.totals(step)
                rows, pieces = held.batch(number)
                yield {
                    **layout(pieces, len(rows)),
                    **of_rows(pieces, len(rows)),
                    "rows": torch.from_numpy(rows.copy()),
                    "totals": totals._asdict(),
                    "step": step,
                    "step_end": (number + 1) % accumulate == 0 or number + 1 == len(order),
                    "state": self._state(number + 1),
                }
        finally:
            held.close()


class _Held:
    """The slices in memory: those of windows that were read, with rows of later batches."""

    def __init__(
        self,
        source: Source,
        columns: TrainingColumns,
        epoch: Epoch,
        order: RankOrder,
        numbers: range,
    ) -> None:
        wanted = np.zeros(len(order.rows), np.bool_)
        for number in numbers:
            wanted[order.bounds[number] : order.bounds[number + 1]] = True
        self._order = order
        self._use = np.full(len(epoch.facts.tokens), -1)
        """[N] the place in the order of each row that is read, else -1."""
        self._use[order.rows[wanted]] = np.flatnonzero(wanted)
        first = int(order.bounds[numbers.start])
        read = windows(source, columns, epoch.slices, order, first, wanted)
        self._read = Prefetcher(read, 1)
        self._ready = iter(self._read)
        self._slices: list[tuple[int, SliceData]] = []
        """Each with the place of the last of its rows; sorted by row number."""
        self._window = -1

    def batch(self, number: int) -> tuple[NDArray[np.int64], list[Piece]]:
        """Return the rows of a batch, and where they are."""
        order = self._order
        begin, end = order.bounds[number : number + 2].tolist()
        while self._window < int(order.window[end - 1]):
            self._window, more = next(self._ready)
            kept = [(last, data) for last, data in self._slices if last >= begin]
            new = [(int(self._use[data.numbers].max()), data) for data in more]
            self._slices = sorted(kept + new, key=lambda one: int(one[1].numbers[0]))
        rows = order.rows[begin:end]
        starts = np.array([data.numbers[0] for _, data in self._slices])
        which = np.searchsorted(starts, rows, side="right") - 1
        pieces = []
        for index in np.unique(which).tolist():
            into, data = np.flatnonzero(which == index), self._slices[index][1]
            pieces.append(Piece(data, data.places(rows[into]), into))
        return rows, pieces

    def close(self) -> None:
        """Stop the thread that reads."""
        self._read.close()


load = TrainingData
"""The same class by a name like those of the other functions."""


def _warn_of_masks(source: Source, columns: TrainingColumns) -> None:
    """Warn if the recipe of the files masks responses or tokens, and the files lack the mask."""
    try:
        recipe = json.loads(source.metadata.get(b"rlpost.recipe", b"{}"))
        masked = json.loads(source.metadata.get(b"rlpost.summary", b"{}")).get("masked", {})
        dropped = masked.get("all", {}).get("responses", 0)
    except (ValueError, AttributeError):
        return
    lacking = ""
    if recipe.get("is_filter") and columns.mask != "final_response_mask":
        lacking = "final_response_mask"
    elif dropped and columns.mask != "final_response_mask" and columns.sample_mask is None:
        lacking = "sample_mask"
    if lacking:
        text = (
            f"{source.name}: masks of its recipe dropped responses or tokens, which are trained on"
        )
        warnings.warn(f"{text}: write {lacking} with --emit", UserWarning, stacklevel=4)


def _check(
    batch_size: int | None,
    batch_tokens: int | None,
    layout: str,
    shuffle: int | None,
    last: str,
    **numbers: int,
) -> None:
    """Raise UsageError for options that are out of range or do not fit together."""
    least = {"rank": 0, "epoch": 0, "shuffle": 0}
    optional = {"batch_size": batch_size, "batch_tokens": batch_tokens, "shuffle": shuffle}
    given = {name: number for name, number in optional.items() if number is not None}
    for name, number in {**numbers, **given}.items():
        low = least.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int) or number < low:
            text = "a seed is needed: " if name == "shuffle" else ""
            raise UsageError(f"load: {name}={number!r}: {text}a whole number from {low} is needed")
    wrong = (
        (
            (batch_size is None) == (batch_tokens is None),
            "either batch_size= or batch_tokens= is needed",
        ),
        (layout not in ("padded", "packed"), f"layout={layout!r}: padded or packed is needed"),
        (last not in ("even", "keep", "drop"), f"last={last!r}: even, keep or drop is needed"),
        (
            numbers["rank"] >= numbers["world_size"],
            f"rank={numbers['rank']}: less than world_size={numbers['world_size']} is needed",
        ),
    )
    for is_wrong, text in wrong:
        if is_wrong:
            raise UsageError(f"load: {text}")


def _difference(state: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the first option in which a state differs, by its name in `load`."""
    names = {"size": "batch_size", "tokens": "batch_tokens", "seed": "shuffle"}
    for name, value in here.items():
        if state.get(name) != value:
            was, own = state.get(name), value
            if name == "padded":
                was, own = ("padded" if one else "packed" for one in (was, own))
            shown = "layout" if name == "padded" else names.get(name, name)
            return f"{shown} was {was!r} and is {own!r}"
    return "it has other options"
