"""The differing numbers of a stage, with the response, group and step of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.compute import computed
from rlpost.analysis.replay.differences import TOLERANCE
from rlpost.analysis.replay.rollouts import Column
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed, Replayer
    from rlpost.analysis.replay.differences import Difference
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Json = dict[str, Any]
ENOUGH = 0.95
"""Share of the differing elements that a finding must explain; the others are outliers."""
_MOST = 0.5
"""Share of the differing last tokens that a finding must explain."""
DISTINCT = 3
"""A relation needs so many distinct numbers more than it has constants."""


def finding(name: str, text: str, explains: float, *options: str) -> Json:
    """Return a finding as plain data; `reproduces`: other stages that a change makes equal."""
    return {
        "finding": name,
        "text": text,
        "options": list(options),
        "reproduces": [],
        "explains": float(min(1.0, max(0.0, explains))),
    }


def explained(difference: Difference, computed: Numbers) -> float:
    """Return the share of the differing elements that other numbers bring within the tolerance.

    Elements that were equal and then differ count against it.
    """
    wrong = int(difference.wrong.sum())
    left = replace(difference, computed=computed).wrong
    return 1.0 - float(left.sum()) / wrong if wrong else 0.0


@dataclass
class Evidence:
    """Recorded and computed numbers of a stage, with the response, group and step of each."""

    first: Replayed
    recipe: Recipe
    replayer: Replayer

    @cached_property
    def resolved(self) -> ResolvedRecipe:
        """The recipe, resolved for the input."""
        return self.replayer.resolved(self.recipe)

    @property
    def difference(self) -> Difference:
        """Of the stage."""
        return self.first.difference

    @property
    def recorded(self) -> Numbers:
        """Recorded numbers."""
        return self.difference.recorded

    @property
    def computed(self) -> Numbers:
        """Computed numbers."""
        return self.difference.computed

    @property
    def chosen(self) -> Mask:
        """Elements that count."""
        return self.difference.chosen

    @cached_property
    def wrong(self) -> Mask:
        """Elements that differ."""
        return self.difference.wrong

    @cached_property
    def by_token(self) -> bool:
        """Whether the elements are tokens."""
        count = len(self.replayer.rollouts)
        tokens = int(self.replayer.rollouts.offsets[-1])
        return self.first.tokens and len(self.recorded) == tokens and tokens != count

    def on_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a value of each response for each element."""
        return np.repeat(values, self.replayer.rollouts.lengths) if self.by_token else values

    @cached_property
    def rows(self) -> Codes:
        """The response of each element."""
        return self.on_elements(np.arange(len(self.replayer.rollouts)))

    @cached_property
    def groups(self) -> Codes:
        """The prompt group of each element; all are one without prompt groups."""
        return self.on_elements(self.replayer.rollouts.groups)

    @cached_property
    def steps(self) -> Codes:
        """The step of each element."""
        return self.on_elements(self.replayer.rollouts.codes("batch"))

    @cached_property
    def group_size(self) -> Codes:
        """Responses of each element's group."""
        groups = self.replayer.rollouts.groups
        return self.on_elements(np.bincount(groups)[groups])

    def spread(self, codes: Codes) -> tuple[Numbers, Numbers]:
        """Return the standard deviation (by n - ddof) and mean of raw rewards, of each element.

        Args:
            codes: [N] the set of each response.
        """
        reward = np.nan_to_num(self.replayer.rollouts.reward)
        count = np.bincount(codes)
        mean = np.bincount(codes, reward) / count
        squares = np.bincount(codes, (reward - mean[codes]) ** 2)
        ddof = self.recipe.numerics.norm_ddof
        std = np.sqrt(squares / np.maximum(count - ddof, 1))
        low = np.full(len(count), np.inf)
        high = np.full(len(count), -np.inf)
        np.minimum.at(low, codes, reward)
        np.maximum.at(high, codes, reward)
        std[low == high] = 0.0
        return self.on_elements(std[codes]), self.on_elements(mean[codes])

    def columns(self) -> dict[str, Numbers]:
        """Return the columns of numbers of the input, and KL, for each element."""
        replayer, found = self.replayer, {}
        for role, name in replayer.rollouts.columns.columns.items():
            if ROLES[role].kind in ("tokens", "number") and role != "mask":
                column = Column.of(replayer.inputs.column(name))
                found[name] = column
        if self.by_token and self.resolved.kl and self.first.name != "kl":
            found["kl"] = computed(replayer.inputs, replayer.bound(self.recipe), ["kl"])[0]["kl"]
        out = {}
        for name, column in found.items():
            by_row = column.offsets is None
            values = self.on_elements(column.values) if by_row else column.values
            if len(values) == len(self.recorded):
                out[name] = np.nan_to_num(values)
        return out

    @cached_property
    def tolerance(self) -> Numbers:
        """Absolute tolerance of each element."""
        return self.difference.slack + self.difference.relative * np.abs(self.computed)

    def explains(self, predicted: Numbers) -> float:
        """Return the share of the differing elements that predicted numbers explain.

        If these are not most of the differing last tokens, it is the share of last tokens: what
        is left there is no outlier, but a reward.
        """
        predicted = np.where(np.isfinite(predicted), predicted, np.inf)
        share = explained(self.difference, predicted)
        if not self.by_token:
            return share
        last = replace(self.difference, chosen=self.chosen & self.last)
        ends = explained(last, predicted) if last.wrong.sum() >= DISTINCT else 1.0
        return share if ends >= _MOST else min(share, ends)

    @cached_property
    def last(self) -> Mask:
        """The last policy token of each response; of tokens alone."""
        last = np.zeros(len(self.rows), np.bool_)
        tokens = np.flatnonzero(self.replayer.rollouts.mask)
        last[tokens[np.diff(self.rows[tokens], append=-1) != 0]] = True
        return last

    def distinct(self, elements: Mask) -> int:
        """Return how many distinct computed numbers, other than 0, some elements have.

        Numbers of the same response count once if they are equal; so do all that are within the
        tolerance.
        """
        values = self.computed[elements]
        return len(_rounded(values[np.abs(values) > self.tolerance[elements]]))

    def enough(self, elements: Mask, constants: int = 1) -> bool:
        """Return whether elements have the numbers that a relation with constants needs.

        These are three distinct numbers more than constants; or two, in six responses.
        """
        distinct = self.distinct(elements) - constants
        responses = len(np.unique(self.rows[elements]))
        return distinct >= DISTINCT - 1 or (distinct >= 1 and responses >= 2 * DISTINCT)

    def spare(self, codes: Codes, elements: Mask) -> int:
        """Return how many distinct numbers are left if each set has a constant of its own."""
        values = self.computed
        use = elements & (np.abs(values) > self.tolerance)
        order = np.lexsort((_codes_of(values[use]), codes[use]))
        own, number = codes[use][order], _codes_of(values[use])[order]
        return int(((np.diff(own) == 0) & (np.diff(number) != 0)).sum())


def _codes_of(values: Numbers) -> Codes:
    """Return whole numbers that are equal for numbers within about four digits."""
    with np.errstate(divide="ignore"):
        size = np.where(values == 0, 0.0, np.log(np.abs(values)))
    return (np.round(size / (10 * TOLERANCE)) * 2 + (values < 0)).astype(np.int64)


def _rounded(values: Numbers) -> Codes:
    return np.unique(_codes_of(values))
