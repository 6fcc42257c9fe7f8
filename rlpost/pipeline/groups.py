"""The prompt groups of a table, and how many there are of each kind, by step and domain."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.segments import count_true, offsets_of, segment_min
from rlpost.pipeline.stages.rewards import group_statistics
from rlpost.pipeline.totals import SPREADS, Totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.totals import SummaryCells
    from rlpost.recipe.recipe import Recipe


Cell = tuple[str, str]
"""The labels of a step and a domain."""


Counts = dict[Cell, Counter[str]]
"""By step and domain: how many groups there are of each kind and size, and other counts."""
_SIZE = "size "


def counts_by_cell(cells: SummaryCells, numbers: Iterable[tuple[str, Integers]]) -> Counts:
    """Return counts by step and domain.

    Args:
        cells: the steps and domains.
        numbers: what is counted, and the number of the cell of each of it.
    """
    names, counts = cells.names(range(len(cells.pairs))), Counts()
    for name, places in numbers:
        present, sizes = (x.tolist() for x in np.unique(places, return_counts=True))
        for cell, size in zip(present, sizes, strict=True):
            step, domain = names[cell]
            counts.setdefault((step, domain), Counter())[name] = size
    return counts


def totals_of(cells: Iterable[Counter[str]], names: Iterable[str], *, grouped: bool) -> Totals:
    """Return the totals of some cells.

    Args:
        cells: the counts of each.
        names: what is counted, besides sizes of groups.
        grouped: the input has groups.
    """
    counts: Counter[str] = sum(cells, Counter())
    sizes = {int(x.removeprefix(_SIZE)): n for x, n in counts.items() if x.startswith(_SIZE)}
    powers = [sum(n * size**power for size, n in sizes.items()) for power in range(3)]
    sums = {name: counts[name] for name in names}
    if grouped:
        sums |= dict(zip((f"group_size.{part}" for part in SPREADS), powers, strict=False))
        sums |= {"groups": powers[0], "several": powers[0] - sizes.get(1, 0)}
        sums |= {"single": sizes.get(1, 0)}
    ends = (min(sizes), max(sizes)) if sizes else (math.nan, math.nan)
    lows, highs = ({"group_size": float(end)} for end in ends)
    return Totals(sums, lows, highs)


class PromptGroups(NamedTuple):
    """The prompt groups of a table, of the responses that count; [G] each but `members`."""

    members: Integers
    """Rows, group by group."""
    offsets: Integers
    """[G+1] of the groups in `members`."""
    mean: Floats
    """Of the rewards."""
    equal: Mask
    """Several responses with equal rewards."""
    passing: Mask
    """Those of equal rewards pass."""
    cell: Integers
    """The cell of a group whose rows are of several is the first: in step order, then by the name
    of the domain."""

    @property
    def size(self) -> Integers:
        """The responses of each group."""
        return np.diff(self.offsets)


def prompt_groups(
    responses: Responses, rewards: Floats, rows: Mask, pass_threshold: float
) -> PromptGroups:
    """Return the prompt groups of a table with a row for each response or rollout.

    Args:
        responses: the table.
        rewards: [N] raw rewards.
        rows: [N] the rows that count.
        pass_threshold: a response passes with at least this reward.
    """
    moments, constant = group_statistics(responses, rewards, rows=rows)
    members, offsets = members_of(responses["group"], rows)
    first, cell = members[offsets[:-1]], np.zeros(len(offsets) - 1, np.int64)
    if len(responses.cells.pairs) > 1:
        order = _in_order(responses.cells)
        rank = np.argsort(order)[responses["cell"][members]].astype(np.float64)
        cell = order[segment_min(rank, offsets).astype(np.int64)]
    equal, passing = constant[first] & (np.diff(offsets) > 1), rewards[first] >= pass_threshold
    return PromptGroups(members, offsets, moments.mean[first], equal, passing, cell)


def members_of(codes: Integers, rows: Mask) -> tuple[Integers, Integers]:
    """Return the chosen rows, those of a code together, and the offsets of the codes."""
    chosen = np.flatnonzero(rows)
    members = chosen[np.argsort(codes[chosen], kind="stable")]
    counts = np.unique(codes[members], return_counts=True)[1]
    return members, offsets_of(counts)


def group_cells(
    responses: Responses, groups: PromptGroups, recipe: Recipe, least: float
) -> Iterator[tuple[str, Integers]]:
    """Yield each kind and size of group, and the cells of these groups.

    Args:
        responses: with a row for each response or rollout.
        groups: of the table.
        recipe: names the reward components.
        least: the size of an advantage that is not 0.
    """
    for size in np.unique(groups.size).tolist():
        yield f"{_SIZE}{size}", groups.cell[groups.size == size]
    yield "equal_rewards", groups.cell[groups.equal]
    yield "all_pass", groups.cell[groups.equal & groups.passing]
    if "credit" in responses:
        credited = abs(responses["credit"].astype(np.float32)) >= least
        credited &= responses["kept"] & (responses["tokens"] > 0)
        signal = count_true(credited[groups.members], groups.offsets) > 0
        yield "with_signal", groups.cell[signal]
    rows = np.zeros(len(responses), np.bool_)
    rows[groups.members] = True
    for name, of_component in component_groups(responses, recipe, rows).items():
        yield f"equal_component:{name}", of_component.cell[of_component.equal]


def component_groups(responses: Responses, recipe: Recipe, rows: Mask) -> dict[str, PromptGroups]:
    """Return the groups of scored responses, by reward component; `equal` is of its values.

    Args:
        responses: with a row for each response or rollout.
        recipe: names the components.
        rows: [N] the rows that count.
    """
    values = {name: responses[f"component:{name}"] for name in recipe.reward_components or ()}
    return {
        name: prompt_groups(responses, x, rows & np.isfinite(x), 0.0) for name, x in values.items()
    }


def equal_components(responses: Responses, recipe: Recipe, rows: Mask) -> Counter[str]:
    """Count the groups of several scored responses in which a reward component has one value.

    Arguments as of `component_groups`.
    """
    groups = component_groups(responses, recipe, rows)
    return Counter({name: int(of_component.equal.sum()) for name, of_component in groups.items()})


def _in_order(cells: SummaryCells) -> NDArray[np.int64]:
    """Return the cells in step order, and by the name of the domain."""
    places = [(step, str(cells.domains[domain])) for step, domain in cells.pairs]
    return np.array(sorted(range(len(places)), key=places.__getitem__), np.int64)
