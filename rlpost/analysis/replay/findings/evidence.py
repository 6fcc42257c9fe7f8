"""The differing numbers of a stage, with the response, group and step of each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.compute import Replayer, computed
from rlpost.analysis.replay.differences import TOLERANCE
from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.errors import DataError, UsageError
from rlpost.kernels.codes import keyed_extremes
from rlpost.pipeline.coupling import coupling_of
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.differences import Difference
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_SAMPLE_TOKENS = 150_000
"""Changes and relations are tested on whole steps, or groups, of so many tokens."""
_MOST = 0.5
"""Share of the differing last tokens that a finding must explain."""
DISTINCT = 3
"""A relation needs so many distinct numbers more than it has constants."""
BEYOND_CONSTANTS = 4
"""Distinct numbers that a relation with a constant for each group must leave over."""


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

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles of tokens that the stage is computed from."""
        return self.replayer.roles_behind(self.recipe, self.first.name)

    def deviation(self, codes: Codes) -> Numbers:
        """Return the standard deviation of raw rewards (by n - ddof) in the set of each element.

        Args:
            codes: [N] the set of each response.
        """
        reward = np.nan_to_num(self.replayer.rollouts.reward)
        count = np.bincount(codes)
        mean = np.bincount(codes, reward) / count
        squares = np.bincount(codes, (reward - mean[codes]) ** 2)
        std = np.sqrt(squares / np.maximum(count - self.recipe.numerics.norm_ddof, 1))
        low, high = keyed_extremes(reward, codes, len(count))
        return self.on_elements(np.where(low == high, 0.0, std)[codes])

    def groups_and_steps(self) -> list[tuple[str, Codes, Codes]]:
        """Return the sets that statistics are over: name, and codes by element and by response."""
        rollouts, sets = self.replayer.rollouts, []
        if "group" in rollouts.columns:
            sets.append(("group", self.groups, rollouts.groups))
        steps = rollouts.codes("batch")
        if len(np.unique(steps)) > 1:
            sets.append(("step", self.steps, steps))
        return sets

    def columns(self) -> dict[str, Numbers]:
        """Return the columns of numbers of the input, and KL, for each element."""
        replayer, found = self.replayer, {}
        for role, name in replayer.rollouts.columns.columns.items():
            if ROLES[role].kind in ("tokens", "number") and role != "mask":
                column = NumberColumn.of(replayer.inputs.column(name))
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

    def distinct_beyond_one_per_set(self, codes: Codes, elements: Mask) -> int:
        """Return how many distinct numbers are left if each set has a constant of its own."""
        values = self.computed
        use = elements & (np.abs(values) > self.tolerance)
        order = np.lexsort((_codes_of(values[use]), codes[use]))
        own, number = codes[use][order], _codes_of(values[use])[order]
        return int(((np.diff(own) == 0) & (np.diff(number) != 0)).sum())

    # ---- parts of the rows ----

    def sample(self) -> Evidence:
        """Return the evidence of whole steps, or groups, of a large input.

        Half of them have differences and half have none, as far as there are such.
        """
        rollouts = self.replayer.rollouts
        if rollouts.offsets[-1] <= _SAMPLE_TOKENS:
            return self
        alone = coupling_of(self.resolved).scope in ("response", "group")
        by_group = alone and "group" in rollouts.columns
        codes = rollouts.groups if by_group else rollouts.codes("batch")
        differ = np.zeros(int(codes.max()) + 1, np.bool_)
        differ[codes[self.rows[self.wrong]]] = True
        place = np.where(differ, 2 * np.cumsum(differ) - 2, 2 * np.cumsum(~differ) - 1)
        order = np.argsort(place, kind="stable")
        tokens = np.bincount(codes, rollouts.lengths)[order]
        count = max(1, int(np.searchsorted(tokens.cumsum(), _SAMPLE_TOKENS, "right")))
        taken = np.zeros(len(differ), np.bool_)
        taken[order[:count]] = True
        return self.of_rows(np.flatnonzero(taken[codes])) or self

    def of_rows(self, rows: Codes) -> Evidence | None:
        """Return the evidence of some rows, computed alone; None if nothing differs in them."""
        part = self.replayer.rollouts.take(rows, "a part")
        replayer = Replayer(part, self.replayer.tolerance)
        try:
            first = replayer.stage(self.recipe, self.first.name)
        except (UsageError, DataError):
            return None
        if first is None or first.difference.equal:
            return None
        return Evidence(first, self.recipe, replayer)

    def among(self, rows: Codes) -> Evidence | None:
        """Return the evidence of some rows, computed with the others; None of a large input."""
        if len(self.recorded) > _SAMPLE_TOKENS:
            return None
        chosen = self.chosen & np.isin(self.rows, rows)
        first = replace(self.first, difference=replace(self.difference, chosen=chosen))
        return Evidence(first, self.recipe, self.replayer)


def numbers_of(replayer: Replayer, recipe: Recipe, name: str) -> Numbers | None:
    """Return a recorded stage by a recipe, [T] or [N]; None if the recipe does not fit."""
    with suppress(UsageError, DataError, pa.ArrowException):
        stage = replayer.stage(recipe, name)
        return None if stage is None else stage.difference.computed
    return None


def column_of(replayer: Replayer, recipe: Recipe, name: str) -> Numbers | None:
    """Return a stage by a recipe, recorded or not; None if the recipe does not fit."""
    with suppress(UsageError, DataError, pa.ArrowException):
        stage = replayer.column_of(recipe, name)
        return None if stage is None else stage[0].values
    return None


def neighbours(rows: Codes, by: int, among: Codes) -> tuple[Codes, Codes]:
    """Return elements and their neighbours in the same response, among some elements."""
    own, other = (among[:-1], among[1:]) if by > 0 else (among[1:], among[:-1])
    same = rows[own] == rows[other]
    return own[same], other[same]


def _codes_of(values: Numbers) -> Codes:
    """Return whole numbers that are equal for numbers within about four digits."""
    with np.errstate(divide="ignore"):
        size = np.where(values == 0, 0.0, np.log(np.abs(values)))
    return (np.round(size / (10 * TOLERANCE)) * 2 + (values < 0)).astype(np.int64)


def _rounded(values: Numbers) -> Codes:
    return np.unique(_codes_of(values))
