"""Listings of each level: steps, groups of a step, responses of a group, tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.text import Text

from rlpost.analysis.browse.listing import Listing, ListingColumn, number_column, share, whole
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, style_of, visible_text
from rlpost.display.charts import spark
from rlpost.kernels.codes import joint_codes, keyed_extremes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.io.keys import KeyColumn

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


_MOST_BARS = 16


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
        rank = self.index.step_rank[self.rows]
        ids, own = np.unique(rank, return_inverse=True)
        reward = self.index.reward[self.rows]
        group_step, constant = self._groups(rank)
        equal = np.bincount(group_step[constant], minlength=len(ids))
        columns = [
            ListingColumn("step", ids.astype(np.float64), self._step_name()),
            ListingColumn("responses", np.bincount(own), whole),
            ListingColumn("groups", np.bincount(group_step, minlength=len(ids)), whole),
            ListingColumn("no signal", equal, whole),
            number_column("reward", _means(reward, own)),
            number_column("std", _deviations(reward, own)),
            *self._lengths(own),
            *self._means_of_measures(own),
        ]
        return Listing.of("steps", ids, columns)

    def _groups(self, rank: Codes) -> tuple[Codes, NDArray[np.bool_]]:
        """Return the position of the step of each group, and whether its rewards are equal.

        A group of one row does not count as equal.
        """
        codes = joint_codes(self.index.group[self.rows])
        sizes = np.bincount(codes)
        low, high = keyed_extremes(self.index.reward[self.rows], codes, len(sizes))
        rank_of = np.empty_like(sizes)
        rank_of[codes] = rank
        return joint_codes(rank_of), (sizes > 1) & (low == high)

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
        ids, first, own = np.unique(self.index.group[rows], return_index=True, return_inverse=True)
        reward = self.index.reward[rows]
        columns = [*self._names(rows[first], with_step=step is None)]
        columns += [
            ListingColumn("n", np.bincount(own, minlength=len(ids)), whole),
            number_column("reward", _means(reward, own)),
            number_column("std", _deviations(reward, own)),
            ListingColumn("rewards", np.arange(len(ids)), self._bars(rows, own), right=False),
            *self._lengths(own, rows),
            *self._means_of_measures(own, rows),
        ]
        low, high = keyed_extremes(reward, own, len(ids))
        equal = (np.bincount(own, minlength=len(ids)) > 1) & (low == high)
        return Listing.of("groups", ids, columns, equal)

    def _bars(self, rows: Codes, own: Codes) -> Callable[[float], Text]:
        """Return the rewards of a group as bars, highest first, scaled to all rewards.

        Rewards above the middle of all are green, those below it red.
        """
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(int(own.max(initial=-1)) + 2))

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
        if index.turn_reward is not None:
            columns.append(number_column("turn reward", index.turn_reward[rows]))
        if index.columns_for("length"):
            columns.append(ListingColumn("tokens", index.length[rows], whole))
        observed = (index.tokens - index.length)[rows]
        if index.sized_by and observed.any():
            columns.append(ListingColumn("observed", observed, whole))
        columns += [number_column(NAMES[n], index.measures[n][rows]) for n in self._measured]
        if index.truncated is not None and index.truncated.any():
            cut = index.truncated[rows].astype(np.float64)
            columns.append(
                ListingColumn("truncated", cut, lambda cut: "yes" if cut else "", right=False)
            )
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
            columns.append(_label_column("rollout", index.rollout, rows))
        if index.turn is not None:
            columns.append(ListingColumn("turn", index.turn[rows], whole))
        if index.branch is not None and len(index.branch.labels) > 1:
            columns.append(_label_column("branch", index.branch, rows))
        return columns

    def _lengths(self, own: Codes, rows: Codes | None = None) -> list[ListingColumn]:
        """Return the columns of mean tokens and of the share of truncated responses."""
        rows, columns = self.rows if rows is None else rows, []
        if self.index.columns_for("length"):
            columns.append(number_column("tokens", _means(self.index.length[rows], own)))
        if self.index.truncated is not None and self.index.truncated.any():
            cut = self.index.truncated[rows].astype(np.float64)
            columns.append(ListingColumn("truncated", _means(cut, own), share))
        return columns

    def _means_of_measures(self, own: Codes, rows: Codes | None = None) -> list[ListingColumn]:
        rows = self.rows if rows is None else rows
        return [
            number_column(NAMES[name], _means(self.index.measures[name][rows], own))
            for name in self._measured
        ]


def _label_column(name: str, keys: KeyColumn, rows: Codes) -> ListingColumn:
    """Return a column of labels, sorted as numbers or as text."""
    codes = np.unique(keys.codes[rows])
    labels = keys.labels.take(pa.array(codes))
    order = pc.sort_indices(labels).to_numpy(zero_copy_only=False).astype(np.int64)
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes))
    values = rank[np.searchsorted(codes, keys.codes[rows])]
    return ListingColumn(
        name,
        values.astype(np.float64),
        lambda value: " ".join(str(labels[int(order[int(value)])].as_py()).split()),
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


def _means(values: Numbers, own: Codes) -> Numbers:
    """Return the mean of each code's numbers, without NaN; NaN if there are none."""
    valid = ~np.isnan(values)
    count = int(own.max(initial=-1)) + 1
    number = np.bincount(own[valid], minlength=count)
    total = np.bincount(own[valid], values[valid], minlength=count)
    means = np.full(count, np.nan)
    np.divide(total, number, out=means, where=number > 0)
    return means


def _deviations(values: Numbers, own: Codes) -> Numbers:
    """Return the standard deviation (Bessel) of each code's numbers; 0 for a single one."""
    valid = ~np.isnan(values)
    own, values = own[valid], values[valid]
    means = _means(values, own)
    count = len(means)
    number = np.bincount(own, minlength=count)
    squares = np.bincount(own, np.square(values - means[own]), minlength=count)
    return np.sqrt(squares / np.maximum(number - 1, 1))
