"""Clipped tokens: those of the column `clip_state`, or those that PPO would clip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from rlpost.analysis.report.charts import line
from rlpost.analysis.report.page import Section
from rlpost.analysis.responses import columns as lists
from rlpost.display.page import Page
from rlpost.display.tables import TextTable
from rlpost.display.text import percent
from rlpost.io.arrow import is_number

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Label
    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.recipe.roles import ColumnMap

CLIP = 0.2  # arXiv 1707.06347, and the default of `rlpost loss`
CLIP_STATE, SAMPLE_MASK = "clip_state", "sample_mask"
CLIPS = ("not clipped", "low", "high", "dual", "selected")
"""Meanings of the values 0 to 4 of `clip_state`, which `rlpost loss` writes."""


class ClipCounter:
    """Counts policy tokens of responses whose `sample_mask` is not 0 by their clip state.

    With PPO's clip, r = exp(new - old): low is r < 0.8 with a negative advantage, high is r > 1.2
    with a positive one. Tokens count whose numbers are finite, of rows whose lists have one length.
    """

    def __init__(self, source: Source, columns: ColumnMap) -> None:
        self.states = np.zeros(len(CLIPS), np.int64)
        self.steps: dict[Label, NDArray[np.int64]] = {}
        """[5] tokens by state, of each step."""
        self.left_out: int | None = None
        """Responses with sample mask 0; None without a sample mask."""
        new, old, self._mask, self._steps = (
            columns.columns.get(role) for role in ("log_probs", "old_log_probs", "mask", "batch")
        )
        ppo = new, old, lists.named(source.columns).get("advantage")
        self.read_states = CLIP_STATE in source.columns
        self._columns: list[str] = []
        if self.read_states:
            self._columns = [CLIP_STATE]
        elif new != old and None not in ppo:
            self._columns = [*map(str, ppo)]
        self._sample_mask = SAMPLE_MASK if SAMPLE_MASK in source.columns else None
        beside = {self._mask, self._sample_mask, self._steps} - {None} if self._columns else set()
        self.read = sorted({*self._columns, *map(str, beside)})
        """The columns that chunks need; none if there is nothing to count."""

    def add(self, chunk: RowChunk) -> None:
        """Count the tokens of a chunk."""
        table = chunk.table
        columns = [table.column(name) for name in self._columns]
        states = (_stored if self.read_states else _of_ppo)(*columns) if columns else None
        if not columns:
            return
        kept = np.ones(table.num_rows, np.bool_)
        if self._sample_mask and is_number(table.column(self._sample_mask).type):
            kept = lists.numbers(table.column(self._sample_mask)) != 0
            self.left_out = (self.left_out or 0) + int(np.count_nonzero(~kept))
        if states is None:
            return
        offsets, state = states
        mask = None if self._mask is None else table.column(self._mask)
        flat = lists.flat(mask) if mask is not None and lists.holds_numbers(mask.type) else None
        rows = np.repeat(np.arange(table.num_rows), np.diff(offsets))
        counts = lists.mask_beside(flat, offsets) & kept[rows] & (state >= 0)
        rows, state = rows[counts], state[counts]
        self.states += np.bincount(state, minlength=len(CLIPS))
        if self._steps is not None:
            labels = pc.dictionary_encode(table.column(self._steps), null_encoding="encode")
            codes = labels.indices.to_numpy(zero_copy_only=False)[rows]
            cells = np.bincount(codes * len(CLIPS) + state, minlength=len(labels.dictionary) * 5)
            for name, row in zip(labels.dictionary.to_pylist(), cells.reshape(-1, 5), strict=True):
                if name is not None:
                    self.steps[name] = self.steps.get(name, np.zeros(5, np.int64)) + row

    def section(self) -> Section | None:
        """Return shares of clipped tokens, of all and by step; None without any token."""
        total = int(self.states.sum())
        if not total:
            return None
        of = "policy tokens" if self.left_out is None else "policy tokens of kept responses"
        said = (
            f"Tokens that PPO with its default clip range of {CLIP:g} would clip, from the "
            "log-probs and advantages of the files. rlpost loss computes other losses and ranges, "
            "by step and position."
        )
        rows = [
            (name, f"{count:,}", percent(count / total))
            for name, count in zip(CLIPS, self.states.tolist(), strict=True)
            if count or name in ("low", "high")
        ]
        table = TextTable(("clipped", "tokens", "share"), rows, lines=[f"of {total:,} {of}"])
        steps = {label: counts for label, counts in self.steps.items() if counts.sum()}
        charts = [
            line(f"Clipped: {CLIPS[side]}", [*steps],
                 [float(counts[side] / counts.sum()) for counts in steps.values()],
                 str(self._steps), share=True, from_zero=True)
            for side in (1, 2) if len(steps) > 1
        ]  # fmt: skip
        return Section(
            "clipping", Page("Clipping", [] if self.read_states else [said], [table]), charts
        )


States = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""Offsets [n+1] and the clip state of each token [T]; -1 for tokens that do not count."""


def _stored(column: pa.Array) -> States | None:
    if not lists.holds_numbers(column.type):
        return None
    offsets, values = lists.flat(column)
    return offsets, np.where(np.isin(values, range(len(CLIPS))), values, -1).astype(np.int64)


def _of_ppo(new: pa.Array, old: pa.Array, advantage: pa.Array) -> States | None:
    if not (lists.holds_numbers(new.type) and lists.holds_numbers(old.type)):
        return None
    (offsets, after), (old_offsets, before) = lists.flat(new), lists.flat(old)
    lengths, old_lengths = np.diff(offsets), np.diff(old_offsets)
    fits = lengths == old_lengths
    if lists.holds_numbers(advantage.type):
        advantage_offsets, weight = lists.flat(advantage)
        fits &= lengths == np.diff(advantage_offsets)
        weight = weight[np.repeat(fits, np.diff(advantage_offsets))]
    elif is_number(advantage.type):
        weight = np.repeat(lists.numbers(advantage), np.where(fits, lengths, 0))
    else:
        return None
    beside = np.repeat(fits, lengths)
    with np.errstate(over="ignore", invalid="ignore"):  # only finite numbers count
        nats = after[beside] - before[np.repeat(fits, old_lengths)]
        ratio = np.exp(nats)
    low, high = (ratio < 1 - CLIP) & (weight < 0), (ratio > 1 + CLIP) & (weight > 0)
    states = np.full(len(after), -1)
    states[beside] = np.where(np.isfinite(nats) & np.isfinite(weight), low + 2 * high, -1)
    return offsets, states
