"""`rlpost.load`: enriched files as batches for a training loop.

The order of an epoch is computed from facts about the rows alone (`order.py`), so ranks, worker
processes and restarts agree on it. Batches are made from windows that a thread reads ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from rlpost.errors import UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import Prefetcher
from rlpost.training.columns import training_columns
from rlpost.training.facts import row_facts
from rlpost.training.layout import of_rows, packed, padded
from rlpost.training.options import (
    check_columns_map,
    check_options,
    check_whole,
    difference,
    file_difference,
    file_facts,
    named_options,
    rollout_steps,
    warn_of_masks,
)
from rlpost.training.order import UNITS, BatchOptions, Epoch, epoch_of
from rlpost.training.reading import Piece, windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.training.columns import TrainingColumns
    from rlpost.training.order import Last, RankOrder, RowFacts, Together
    from rlpost.training.reading import SliceData


Layout = Literal["padded", "packed"]
WINDOW = 1 << 19
_VERSION = 2
_WORKERS = 1024
_EPOCH, _BATCH, _LOOP, _BY_WORKERS = range(4)
"""Elements of `TrainingData._position`."""


class TrainingBatch(dict[str, Any]):
    """A batch: a dict, which a DataLoader leaves as it is."""


def _collate(batches: list[TrainingBatch], *, collate_fn_map: object) -> TrainingBatch:  # noqa: ARG001
    """Return the one batch that a DataLoader with the default `batch_size=1` collects.

    Raises:
        UsageError: there are several.
    """
    if len(batches) > 1:
        raise UsageError(
            f"DataLoader: batch_size={len(batches)} on batches of rlpost.load; choose the size in "
            "rlpost.load(batch_size=), and pass batch_size=None to DataLoader"
        )
    return batches[0]


default_collate_fn_map[TrainingBatch] = _collate


class TrainingData(IterableDataset[TrainingBatch]):
    """Enriched files as batches for a training loop: `rlpost.load(paths, batch_size=64)`.

    It is an iterable, and a data set for `torch.utils.data.DataLoader(data, batch_size=None)`. With
    worker processes each makes its share of the batches, and the DataLoader returns them in the
    same order as without workers.

    Args:
        paths: Parquet files, directories or globs, local or as URLs; a file that comes twice is
            read once.
        batch_size: responses of a batch; this or `batch_tokens` is needed.
        batch_tokens: tokens of a batch at most, with padding in the padded layout and with prompts
            if their ids are read. A single response may have more.
        layout: `padded` returns tensors [B, T]; `packed` one sequence [T] with `cu_seqlens`.
        columns: roles, names of columns, `response_token_ids`, `prompt_token_ids` or
            `rollout_step`; None: advantages, returns, log-probs, values, weights, reward, rollout
            step and ids, as far as the input has them.
        columns_map: role to column, as with `--map`; also those of `response_token_ids` and
            `prompt_token_ids`.
        steps: only responses of these rollout steps, such as `[3]` or `range(10, 20)`: values of
            the column of role `batch`. None: of all.
        shuffle: seed of the order; None: the order of the input. Row groups are shuffled, and
            responses within a window.
        together: whose rows are in one batch, which has one of these at least, whatever its size:
            `response`, `rollout` or `group` (a prompt group). None: rollouts if the run that wrote
            the file counted them, or if no run did and rollouts have ids; else responses.
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
        `lengths`; `rows`, the row numbers in the input; `rollout_step`, the file's step of each
        response; `totals` of the whole optimiser step over all ranks; its number `step`,
        `step_end` and `state`, with which `load_state_dict` goes on: after the step, and after a
        batch within a step with the first batch of this step. The mask is false at the first token
        of a response without a prompt if there are `input_ids`, since nothing precedes it.

    Raises:
        UsageError: options do not fit together.
        DataError: the data is bad, or lacks a column; from the iteration, too.
        ReadWriteError: a file cannot be read.
    """

    @named_options("load")
    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        layout: Layout = "padded",
        columns: Sequence[str] | None = None,
        columns_map: Mapping[str, str] | None = None,
        steps: Collection[int | str] | None = None,
        shuffle: int | None = None,
        together: Together | None = None,
        drop_masked: bool = True,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        last: Last = "even",
        epoch: int = 0,
        window: int = WINDOW,
    ) -> None:
        check_options(
            batch_size, batch_tokens, layout, shuffle, last, together, drop_masked,
            rank=rank, world_size=world_size, accumulate=accumulate, epoch=epoch, window=window,
        )  # fmt: skip
        check_columns_map(columns_map)
        several: list[Any] = list(paths) if isinstance(paths, list | tuple) else [paths]
        if not several or not all(isinstance(path, str | Path) for path in several):
            raise UsageError("load: a path is needed, or a list of paths; tables are not read")
        self._source = Source(find_inputs(several))
        self._source.frugal = True
        self._columns = training_columns(
            self._source, columns, columns_map or {}, packed=layout == "packed"
        )
        if self._columns.lengths is None and batch_tokens is not None:
            raise UsageError("batch_tokens: the input has no tokens; batch_size= is needed")
        if together is None:
            together = "rollout" if self._columns.counts_rollouts else "response"
        absent = {"group": not self._columns.keys, "rollout": self._columns.rollout is None}
        if absent.get(together):
            text = f"load: together={together!r}: the input has no column of {UNITS[together]}"
            raise UsageError(text, tip=f"columns_map={{{together!r}: COLUMN}} names it")
        if steps is not None and self._columns.rollout_step is None:
            raise UsageError(
                f"load: steps={steps!r}: {self._source.name} has no column of rollout steps; name "
                "it with columns_map={'batch': COLUMN}"
            )
        warn_of_masks(self._source, self._columns)
        self._layout = layout
        self._rank = rank
        self._drop_masked = drop_masked
        self._steps = rollout_steps(steps)
        self._options = BatchOptions(
            batch_size, batch_tokens, layout == "padded", together, shuffle, world_size,
            accumulate, last, window,
        )  # fmt: skip
        self._facts: RowFacts | None = None
        self._orders: tuple[int, Epoch] | None = None
        # Shared with worker processes, also persistent ones, which have copies of this object.
        self._position = _shared([epoch, 0, 0, 0])
        """The epoch, the first batch of the loop `_LOOP` alone, and who began the latest loop."""
        self._begun = _shared([0] * (_WORKERS + 1))
        """Who began a loop since the position was set: this process, or each worker."""
        self._done = 0
        """Batches of the present iteration, in this process."""

    def __repr__(self) -> str:
        size, options = self._source, self._options
        tokens = ""
        if self._columns.lengths is not None:
            tokens = f", {size.values_of(self._columns.lengths):,} tokens"
        chosen = {
            "batch_size": options.size, "batch_tokens": options.tokens, "steps": self._steps,
            "shuffle": options.seed, "accumulate": options.accumulate,
        }  # fmt: skip
        shown = [f"{name}={value!r}" for name, value in chosen.items() if value is not None]
        words = [f"{size.name} ({size.rows:,} responses{tokens})", self._layout, *shown]
        rank = f"rank {self._rank} of {options.world_size}"
        return f"TrainingData: {', '.join([*words, rank, f'epoch {self.epoch}'])}"

    @property
    def epoch(self) -> int:
        """The number of the epoch, which is part of the seed of the order."""
        return int(self._position[_EPOCH])

    def __len__(self) -> int:
        """The number of batches of this rank in the epoch."""
        return len(self._order(self.epoch).ranks[self._rank])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loops.

        They begin at the first batch; if a state of this epoch was loaded, the first of them goes
        on after it.

        Raises:
            UsageError: it is no whole number from 0.
        """
        check_whole("set_epoch", "epoch", epoch, 0)
        if epoch != self.epoch:
            self._go_to(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch in this process.

        Within an optimiser step it is the state before the step: gradients are not in it, so the
        whole step is done again.

        Raises:
            UsageError: worker processes of a DataLoader made the batches, ahead of the loop.
        """
        if get_worker_info() is not None or self._position[_BY_WORKERS]:
            raise UsageError(
                "state_dict: worker processes make the batches, ahead of the loop; keep the "
                "`state` of the last batch instead"
            )
        return self._state(self.epoch, self._done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the step of the batch with this state: the next loop has the epoch's rest.

        After a batch within a step, the loop begins with the first batch of this step.

        Raises:
            UsageError: the state is of other files or options, or of no loader.
        """
        if get_worker_info() is not None:
            raise UsageError("load_state_dict: load the state before the worker processes start")
        expected = self._state(0, 0)
        if (
            not isinstance(state, Mapping)
            or state.keys() != expected.keys()
            or any(type(state[name]) is not type(expected[name]) for name in expected)
        ):
            raise UsageError(
                "load_state_dict: this is not the state of a loader of rlpost; the `state` of a "
                "batch is needed"
            )
        if state["version"] != _VERSION:
            raise UsageError(f"load_state_dict: version {state['version']}; {_VERSION} is needed")
        if state["data"] != expected["data"]:
            try:
                difference_text = file_difference(state["data"], expected["data"])
            except (TypeError, ValueError, IndexError):
                difference_text = "its list of files is damaged"
            raise UsageError(f"load_state_dict: the state is of other files: {difference_text}")
        if state["options"] != expected["options"]:
            raise UsageError(
                "load_state_dict: the state is of other options: "
                + difference(state["options"], expected["options"])
            )
        for name in ("epoch", "batch"):
            check_whole("load_state_dict", name, state[name], 0)
        self._go_to(state["epoch"], state["batch"])
        self._done = int(state["batch"])

    def _go_to(self, epoch: int, batch: int) -> None:
        """Set the epoch, and the first batch of the next loop."""
        self._position[:] = torch.tensor([epoch, batch, 0, 0])
        self._begun.zero_()
        self._done = 0

    def __iter__(self) -> Iterator[TrainingBatch]:
        """Return the batches of this rank: all, or in the first loop those after a loaded state."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        first = self._first_batch()
        if worker is None:
            self._done = first
        return self._loop(self.epoch, first + number, workers)

    def _first_batch(self) -> int:
        """Return the first batch of a loop that begins here.

        All workers of a DataLoader's loop begin it with the same seed. The first loop after a state
        was loaded goes on after it, in all of its workers; another loop has another seed, or
        (persistent workers) is begun by workers that began one before.
        """
        worker, loop, place = get_worker_info(), 1, 0
        if worker is not None:
            loop, place = (worker.seed - worker.id) ^ worker.num_workers, worker.id + 1
        is_first = int(self._position[_LOOP]) in (0, loop) and not self._begun[place]
        self._begun[place] = 1
        if is_first:
            self._position[_LOOP] = loop
        self._position[_BY_WORKERS] = int(worker is not None)
        return int(self._position[_BATCH]) if is_first else 0

    def _loop(self, number: int, first: int, every: int) -> Iterator[TrainingBatch]:
        """Yield each of `every` batches of the epoch of a number, from the first on."""
        epoch, accumulate = self._order(number), self._options.accumulate
        order = epoch.ranks[self._rank]
        numbers = range(first, len(order), every)
        if not numbers:
            return
        held = _LoadedSlices(self._source, self._columns, epoch, order, numbers)
        layout = padded if self._layout == "padded" else packed
        step, totals = -1, epoch.totals(first // accumulate)
        try:
            for batch in numbers:
                if batch // accumulate != step:
                    step = batch // accumulate
                    totals = epoch.totals(step)
                rows, pieces = held.batch(batch)
                step_end = (batch + 1) % accumulate == 0 or batch + 1 == len(order)
                self._done = batch + 1 if step_end else step * accumulate
                yield TrainingBatch(
                    **layout(pieces, len(rows)),
                    **of_rows(pieces, len(rows)),
                    rows=torch.from_numpy(rows.copy()),
                    totals=totals._asdict(),
                    step=step,
                    step_end=step_end,
                    state=self._state(number, self._done),
                )
        finally:
            held.close()

    def _order(self, epoch: int) -> Epoch:
        if self._facts is None:
            self._facts = row_facts(
                self._source, self._columns, together=self._options.together,
                drop_masked=self._drop_masked, steps=self._steps,
            )  # fmt: skip
            self._source.check_unchanged("since it was loaded; load it anew")
        if self._orders is None or self._orders[0] != epoch:
            self._orders = epoch, epoch_of(self._facts, self._options, epoch)
        return self._orders[1]

    def _state(self, epoch: int, batch: int) -> dict[str, Any]:
        options = {**vars(self._options), "rank": self._rank, "drop_masked": self._drop_masked}
        options["steps"] = str(self._steps) if isinstance(self._steps, range) else self._steps
        return {
            "version": _VERSION,
            "epoch": epoch,
            "batch": batch,
            "options": options,
            "data": self._files,
        }

    @cached_property
    def _files(self) -> list[list[Any]]:
        """What changes if the input has other files, or files of other rows."""
        return file_facts(self._source)


class _LoadedSlices:
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
        self._slices = [one for one in self._slices if one[0] >= begin]
        while self._window < int(order.window[end - 1]):
            self._window, more = next(self._ready)
            new = [(int(self._use[data.numbers].max()), data) for data in more]
            self._slices = sorted(self._slices + new, key=lambda one: int(one[1].numbers[0]))
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


def _shared(numbers: list[int]) -> torch.Tensor:
    """Return integers in memory that worker processes share."""
    tensor = torch.tensor(numbers)
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


load = TrainingData
"""The same class by a name like those of the other functions."""
