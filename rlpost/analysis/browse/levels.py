"""Listings of each level: steps, groups of a step, responses of a group, tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.text import Text

from rlpost.analysis.browse.listing import (
    MOST_WIDE,
    Listing,
    ListingColumn,
    number_column,
    share,
    whole,
)
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, style_of, visible_text
from rlpost.display.charts import spark
from rlpost.display.text import shortened_middle
from rlpost.kernels.codes import keyed_extremes
from rlpost.kernels.moments import keyed_moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.io.keys import KeyColumn

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


_MOST_BARS = 16
_MOST_ID = 11  # characters of a rollout's id
_MOST_REASON = 14  # of a failure


class Listings:
    """The listings of an index, for the rows that match filter and search.

    Args:
        index: of the input.
        kept: [N] bool, the matching rows.
    """

    def __init__(self, index: Index, kept: NDArray[np.bool_]) -> None:
        self.index = index
        self.kept = kept
        self.rows = np.flatnonzero(kept)
        known = index.reward[~np.isnan(index.reward)]
        self._low = float(known.min()) if len(known) else 0.0
        self._high = float(known.max()) if len(known) else 0.0

    @cached_property
    def _measured(self) -> list[str]:
        return [name for name in ("kl", "advantage") if name in self.index.measures]

    def steps(self) -> Listing:
        """Return the steps of the kept rows."""
        index, rows, groups = self.index, self.index.counted(self.rows), self.groups(None)
        ids = np.unique(index.step_rank[self.rows])
        first = np.unique(index.group[self.rows], return_index=True)[1]
        steps = np.searchsorted(ids, index.step_rank[self.rows[first]])  # of the groups
        equal = np.bincount(steps[groups.without_signal], minlength=len(ids))
        number, *others = self._statistics(np.searchsorted(ids, index.step_rank[rows]), rows, ids)
        columns = [
            ListingColumn("step", ids.astype(np.float64), self._step_name()),
            number,
            ListingColumn("groups", np.bincount(steps, minlength=len(ids)), whole),
            ListingColumn("no signal", equal, whole),
            *others,
        ]
        return Listing.of("steps", ids, columns)

    def _step_name(self) -> Callable[[float], str]:
        index = self.index
        if index.step is None:
            return lambda _: "all"
        first = np.unique(index.step_rank, return_index=True)[1]
        step = index.step
        return lambda rank: str(step.label(int(step.codes[first[int(rank)]])))

    def groups(self, step: int | None) -> Listing:
        """Return the groups of a step, by its rank; None: of all steps."""
        rows = self.rows if step is None else self.rows[self.index.step_rank[self.rows] == step]
        ids, first = np.unique(self.index.group[rows], return_index=True)
        columns = [*self._names(rows[first], with_step=step is None)]
        rows = self.index.counted(rows)
        keys = np.searchsorted(ids, self.index.group[rows])
        statistics = self._statistics(keys, rows, ids)
        bars = self._bars(rows, keys, len(ids))
        rewards = ListingColumn("rewards", np.arange(len(ids)), bars, right=False)
        low, high = keyed_extremes(self.index.reward[rows], keys, len(ids))
        equal = (np.bincount(keys, minlength=len(ids)) > 1) & (low == high)
        columns += [*statistics[:3], rewards, *statistics[3:]]
        return Listing.of("groups", ids, columns, equal)

    def _bars(self, rows: Codes, keys: Codes, count: int) -> Callable[[float], Text]:
        """Return the rewards of a group as bars, highest first, scaled to all rewards.

        Rewards above the middle of all are green, those below it red.
        """
        order = np.argsort(keys, kind="stable")
        starts = np.searchsorted(keys[order], np.arange(count + 1))
        middle = (self._low + self._high) / 2

        def bars(place: float) -> Text:
            reward = self.index.reward[rows[order[starts[int(place)] : starts[int(place) + 1]]]]
            reward = np.sort(reward[~np.isnan(reward)])[::-1]
            if len(reward) > _MOST_BARS:
                reward = reward[np.linspace(0, len(reward) - 1, _MOST_BARS).astype(np.int64)]
            blocks = spark(reward.tolist(), (self._low, self._high))
            above = int(np.count_nonzero(reward > middle))
            return Text.assemble((blocks[:above], "green"), (blocks[above:], "red"))

        return bars

    def responses(self, group: int | None, step: int | None = None) -> Listing:
        """Return the responses of a group, by its code; None: all, or all of a step."""
        rows = self.rows
        if group is not None:
            rows = rows[self.index.group[rows] == group]
        elif step is not None:
            rows = rows[self.index.step_rank[rows] == step]
        index = self.index
        if index.order is not None:
            rows = rows[np.argsort(index.order.places()[rows])]
        columns = [ListingColumn("row", rows.astype(np.float64), lambda row: str(int(row)))]
        columns += self._names(rows, with_step=step is None) if group is None else []
        columns += self._turns(rows)
        columns.append(number_column("reward", index.reward[rows]))
        columns += [number_column(NAMES[n], index.measures[n][rows]) for n in self._measured]
        if index.truncated is not None and index.truncated.any():
            cut = index.truncated[rows].astype(np.float64)
            columns.append(
                ListingColumn("truncated", cut, lambda cut: "yes" if cut else "", right=False)
            )
        if index.failure is not None and index.failed.any():
            columns.append(_label_column("failure", index.failure, rows, _MOST_REASON))
        if index.columns_for("length"):
            columns.append(ListingColumn("tokens", index.length[rows], whole))
        observed = (index.tokens - index.length)[rows]
        if index.sized_by and observed.any():
            columns.append(ListingColumn("observed", observed, whole))
        if index.turn_reward is not None and not np.isnan(index.turn_reward).all():
            columns.append(number_column("turn reward", index.turn_reward[rows]))
        if index.domain is not None and len(index.domain.labels) > 1 and group is None:
            columns.append(_label_column("domain", index.domain, rows))
        return Listing.of("responses", rows, columns)

    def _names(self, rows: Codes, *, with_step: bool) -> list[ListingColumn]:
        """Return the columns of step and prompt."""
        index = self.index
        columns = []
        if with_step and index.step is not None:
            rank = index.step_rank[rows]
            columns.append(ListingColumn("step", rank.astype(np.float64), self._step_name()))
        if index.prompt is not None:
            columns.append(_label_column("prompt", index.prompt, rows))
        return columns

    def _turns(self, rows: Codes) -> list[ListingColumn]:
        """Return the columns of rollout, turn and branch."""
        index, columns = self.index, []
        if index.rollout is not None:
            columns.append(_label_column("rollout", index.rollout, rows, _MOST_ID))
        if index.turn is not None:
            columns.append(ListingColumn("turn", index.turn[rows], whole))
        if index.branch is not None and len(index.branch.labels) > 1:
            columns.append(_label_column("branch", index.branch, rows))
        return columns

    def _statistics(self, keys: Codes, rows: Codes, ids: Codes) -> list[ListingColumn]:
        """Return number, mean reward and std, and means of measures, truncation, tokens by key."""
        index, count = self.index, len(ids)
        means, deviations = _moments(index.reward[rows], keys, count)
        columns = [
            ListingColumn("n", np.bincount(keys, minlength=count), whole),
            number_column("reward", means),
            number_column("std", deviations),
        ]
        for name in self._measured:
            means = _moments(index.measures[name][rows], keys, count)[0]
            columns.append(number_column(NAMES[name], means))
        if index.truncated is not None and index.truncated.any():
            means = _moments(index.truncated[rows].astype(np.float64), keys, count)[0]
            columns.append(ListingColumn("truncated", means, share))
        if index.columns_for("length"):
            means = _moments(index.total_length[rows], keys, count)[0]
            columns.append(number_column("tokens", means))
        return columns


def _moments(values: Numbers, keys: Codes, count: int) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation (Bessel) by key, without NaN; no number: NaN and 0."""
    known = ~np.isnan(values)
    number, mean, std = keyed_moments(values[known], keys[known], count)
    return np.where(number > 0, mean, np.nan), std


def _label_column(name: str, keys: KeyColumn, rows: Codes, most: int = MOST_WIDE) -> ListingColumn:
    """Return a column of labels, sorted as numbers or as text; long ones lack their middle."""
    codes = np.unique(keys.codes[rows])
    labels = keys.labels.take(pa.array(codes))
    order = pc.sort_indices(labels).to_numpy(zero_copy_only=False).astype(np.int64)
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes))
    values = rank[np.searchsorted(codes, keys.codes[rows])]
    return ListingColumn(
        name,
        values.astype(np.float64),
        lambda value: shortened_middle(str(labels[int(order[int(value)])].as_py()), most),
        right=False,
    )


_MASKS = {1.0: "", 0.0: "obs", -1.0: "shared"}
"""By mask, what the list of tokens prints; -1: policy tokens that an earlier row has, too."""


def tokens(response: Response, colour: str | None) -> Listing:
    """Return the tokens of a response with all their numbers in the file."""
    count = len(response.token_texts)
    positions = np.arange(count)
    shared = np.zeros(count) if response.shared is None else response.shared

    def token_text(position: float) -> Text:
        i = int(position)
        value = response.token_measures[colour][i] if colour in response.token_measures else np.nan
        style = style_of(str(colour), float(value)) if response.mask[i] else "dim italic"
        return Text(visible_text(response.token_texts[i]), style=style)

    columns = [
        ListingColumn("token", positions.astype(np.float64), lambda position: str(int(position))),
        ListingColumn("text", positions, token_text, right=False),
        ListingColumn("mask", response.mask - 2.0 * shared, _MASKS.__getitem__, right=False),
    ]
    columns += [number_column(NAMES[n], response.token_measures[n]) for n in COLOURS
                if n in response.token_measures]  # fmt: skip
    listed = [id(values) for values in response.token_measures.values()]
    columns += [
        ListingColumn(name, values, whole)
        if (values == values.round()).all()
        else number_column(name, values)
        for name, values in response.tokens.items()
        if id(values) not in listed and (response.has_texts or values is not response.ids)
    ]
    return Listing.of("tokens", positions, columns)
