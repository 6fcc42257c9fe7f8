"""Listings of each level: steps, groups of a step, responses of a group, tokens."""

from __future__ import annotations

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
from rlpost.analysis.responses.index import moments_by
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, style_of, visible_text
from rlpost.display.charts import spark
from rlpost.display.text import shortened_middle
from rlpost.kernels.codes import keyed_extremes
from rlpost.kernels.moments import ROUNDING, equal_to_rounding

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

    Statistics are of the responses that count, and of these with a matching row. KL and advantages
    are means over their matching rows.

    Args:
        index: of the input.
        kept: [N] bool, the matching rows.
    """

    def __init__(self, index: Index, kept: NDArray[np.bool_]) -> None:
        self.index = index
        self.kept = kept
        self.rows = np.flatnonzero(kept)
        known = index.rewards[~np.isnan(index.rewards)]
        self._ends: tuple[float, float] = (known.min(), known.max()) if len(known) else (0.0, 0.0)

    def _measured(self) -> list[str]:
        return [name for name in ("kl", "advantage") if name in self.index.rows]

    def steps(self) -> Listing:
        """Return the steps of the kept rows."""
        index, groups = self.index, self.groups(None)
        ids, first = np.unique(index.step_rank[self.rows]), self._first(self.rows)
        steps = np.searchsorted(ids, index.step_rank[first])  # of the groups
        equal = np.bincount(steps[groups.without_signal], minlength=len(ids))
        number, *others = self._statistics(self.rows, "step", ids)
        columns = [
            ListingColumn("step", ids.astype(np.float64), index.step_name),
            number,
            ListingColumn("groups", np.bincount(steps, minlength=len(ids)), whole),
            ListingColumn("no signal", equal, whole),
            *others,
        ]
        return Listing.of("steps", ids, columns)

    def _first(self, rows: Codes) -> Codes:
        """Return the first row of each group of some rows."""
        return rows[np.unique(self.index.group[rows], return_index=True)[1]]

    def groups(self, step: int | None) -> Listing:
        """Return the groups of a step, by its rank; None: of all steps."""
        index, rows = self.index, self.rows
        rows = rows if step is None else rows[index.step_rank[rows] == step]
        first = self._first(rows)
        ids, units = index.group[first], index.counted(rows)
        number, mean, std, *others = self._statistics(rows, "group", ids)
        keys = np.searchsorted(ids, index.table.units["group"][units])
        bars = self._bars(index.rewards[units], keys, len(ids))
        columns = [
            *self._names(first, with_step=step is None),
            number,
            mean,
            std,
            ListingColumn("rewards", np.arange(len(ids)), bars, right=False),
            *others,
        ]
        known = ~np.isnan(index.rewards[units])
        low, high = keyed_extremes(index.rewards[units][known], keys[known], len(ids))
        equal = np.bincount(keys[known], minlength=len(ids)) > 1
        equal &= equal_to_rounding(low, high)
        return Listing.of("groups", ids, columns, equal)

    def _bars(self, rewards: Numbers, keys: Codes, count: int) -> Callable[[float], Text]:
        """Return the rewards of a group as bars, highest first, scaled to all rewards.

        Rewards above the middle of all are green, those below it red.
        """
        order = np.lexsort((-rewards, keys))
        order = order[~np.isnan(rewards[order])]
        starts = np.searchsorted(keys[order], np.arange(count + 1))
        middle = sum(self._ends) / 2

        def bars(place: float) -> Text:
            reward = rewards[order[starts[int(place)] : starts[int(place) + 1]]]
            if len(reward) > _MOST_BARS:
                reward = reward[np.linspace(0, len(reward) - 1, _MOST_BARS).astype(np.int64)]
            blocks = spark(reward.tolist(), self._ends)
            above = int(np.count_nonzero(reward > middle))
            return Text.assemble((blocks[:above], "green"), (blocks[above:], "red"))

        return bars

    def responses(self, group: int | None, step: int | None = None) -> Listing:
        """Return the responses of a group, by its code; None: all, or all of a step."""
        index, rows = self.index, self.rows
        if group is not None:
            rows = rows[index.group[rows] == group]
        elif step is not None:
            rows = rows[index.step_rank[rows] == step]
        if index.order is not None:
            rows = rows[np.argsort(index.order.places()[rows])]
        columns = [ListingColumn("row", rows.astype(np.float64), index.row_name)]
        columns += self._names(rows, with_step=step is None) if group is None else []
        if "rollout" in index.keys:
            columns.append(_label_column("rollout", index.keys["rollout"], rows, _MOST_ID))
        if "turn" in index.rows:
            columns.append(ListingColumn("turn", index.rows["turn"][rows], whole))
        columns += self._labels("branch", rows)
        columns.append(number_column("reward", index.reward[rows]))
        columns += [number_column(NAMES[n], index.rows[n][rows]) for n in self._measured()]
        truncated = index.table.rows.columns.get("truncated")
        if truncated is not None and truncated.any():
            cut = truncated[rows].astype(np.float64)
            columns.append(
                ListingColumn("truncated", cut, lambda cut: "yes" if cut else "", right=False)
            )
        columns += self._labels("failure", rows, _MOST_REASON)
        if index.columns_of("length"):
            columns.append(ListingColumn("tokens", index.length[rows], whole))
        if "length" in index.rows:
            observed = index.rows["length"][rows] - index.length[rows]
            columns += [ListingColumn("observed", observed, whole)] if observed.any() else []
        if not np.isnan(index.rows.get("turn_reward", np.nan)).all():
            columns.append(number_column("turn reward", index.rows["turn_reward"][rows]))
        columns += self._labels("domain", rows) if group is None else []
        return Listing.of("responses", rows, columns)

    def _names(self, rows: Codes, *, with_step: bool) -> list[ListingColumn]:
        """Return the columns of step and prompt."""
        index = self.index
        columns = []
        if with_step and "batch" in index.keys:
            rank = index.step_rank[rows].astype(np.float64)
            columns.append(ListingColumn("step", rank, index.step_name))
        if "group" in index.keys:
            columns.append(_label_column("prompt", index.keys["group"], rows))
        return columns

    def _labels(self, name: str, rows: Codes, most: int = MOST_WIDE) -> list[ListingColumn]:
        """Return a column of labels if the input has several."""
        keys = self.index.keys.get(name)
        several = keys is not None and len(keys.labels) > 1
        return [_label_column(name, keys, rows, most)] if keys is not None and several else []

    def _statistics(self, rows: Codes, by: str, ids: Codes) -> list[ListingColumn]:
        """Return number, mean reward and std, and means of measures, truncation, tokens by key."""
        index, count, table = self.index, len(ids), self.index.table
        units, rows = index.counted(rows), rows[index.counts[rows]]
        keys, row_keys = (
            np.searchsorted(ids, x) for x in (table.units[by][units], table.rows[by][rows])
        )
        rewards = moments_by(index.rewards[units], keys, count)
        columns = [
            ListingColumn("n", np.bincount(keys, minlength=count), whole),
            number_column("reward", rewards.mean),
            number_column("std", rewards.std),
        ]
        for name in self._measured():
            values = index.rows[name]
            means = moments_by(values[rows], row_keys, count).mean
            columns.append(number_column(NAMES[name], _without_rounding(means, values)))

        def mean_of(name: str) -> Numbers:
            values = table.units[name][units].astype(np.float64)
            return moments_by(values, keys, count).mean

        if "truncated" in table.units and table.units["truncated"].any():
            columns.append(ListingColumn("truncated", mean_of("truncated"), share))
        if index.columns_of("length"):
            of = "/rollout" if table.resolved.unit == "rollout" else ""
            columns.append(number_column(f"tokens{of}", mean_of("tokens")))
        return columns


def _without_rounding(means: Numbers, values: Numbers) -> Numbers:
    """Return means of some numbers with 0 where they are only the rounding of these."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return np.where(np.abs(means) <= ROUNDING * largest, 0.0, means)


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


_MASKS = {True: "", False: "obs"}


def tokens(response: Response, colour: str | None) -> Listing:
    """Return the tokens of a response with all their numbers in the file."""
    count = len(response.token_texts)
    positions = np.arange(count)

    def token_text(position: float) -> Text:
        i = int(position)
        value = response.token_measures[colour][i] if colour in response.token_measures else np.nan
        style = style_of(str(colour), float(value)) if response.mask[i] else "dim italic"
        return Text(visible_text(response.token_texts[i]), style=style)

    columns = [
        ListingColumn("token", positions.astype(np.float64), lambda position: str(int(position))),
        ListingColumn("text", positions, token_text, right=False),
        ListingColumn("mask", response.mask, lambda policy: _MASKS[bool(policy)], right=False),
    ]
    columns += [number_column(NAMES[n], response.token_measures[n]) for n in COLOURS
                if n in response.token_measures]  # fmt: skip
    listed = [id(values) for values in response.token_measures.values()]
    columns += [
        ListingColumn(name, values, whole)
        if (values == values.round()).all()
        else number_column(name, values)
        for name, values in response.tokens.items()
        if id(values) not in listed
    ]
    return Listing.of("tokens", positions, columns)
