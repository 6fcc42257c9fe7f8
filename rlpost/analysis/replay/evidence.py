"""The differing numbers of a stage, with the response, prompt group and step of each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.compute import TOLERANCE, Replayer
from rlpost.errors import DataError, UsageError
from rlpost.pipeline.needs import coupling_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.difference import Difference
    from rlpost.analysis.replay.compute import Replayed
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
"""A relation needs so many distinct numbers."""


class Evidence:
    """Recorded and computed numbers of a stage, with the response, group and step of each."""

    def __init__(self, stage: Replayed, recipe: Recipe, replayer: Replayer) -> None:
        self.stage, self.recipe, self.replayer = stage, recipe, replayer
        self.rollouts, self.difference = replayer.rollouts, stage.difference
        self.recorded, self.computed = self.difference.recorded, self.difference.computed
        self.chosen, self.wrong = self.difference.chosen, self.difference.wrong

    @cached_property
    def resolved(self) -> ResolvedRecipe:
        """The recipe, resolved for the input."""
        return self.replayer.resolved(self.recipe)

    @cached_property
    def by_token(self) -> bool:
        """Whether the elements are tokens."""
        return self.stage.by_token(self.rollouts)

    def on_elements(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a value of each response for each element."""
        return np.repeat(values, self.rollouts.lengths) if self.by_token else values

    @cached_property
    def rows(self) -> Codes:
        """The response of each element."""
        return self.on_elements(np.arange(len(self.rollouts)))

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles of tokens that the stage is computed from."""
        return self.replayer.roles_behind(self.recipe, self.stage.name)

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields of the recipe that can change the stage."""
        return self.replayer.fields_behind(self.recipe, self.stage.name)

    @cached_property
    def tolerance(self) -> Numbers:
        """Absolute tolerance of each element."""
        return self.difference.slack + self.difference.relative * np.abs(self.computed)

    @cached_property
    def last(self) -> Mask:
        """The last policy token of each response; of tokens alone."""
        last = np.zeros(len(self.rows), np.bool_)
        tokens = np.flatnonzero(self.rollouts.mask)
        last[tokens[np.diff(self.rows[tokens], append=-1) != 0]] = True
        return last

    def explains(self, predicted: Numbers) -> float:
        """Return the share of the differing elements that predicted numbers make equal.

        Elements that were equal and then differ count against it. If these are not most of the
        differing last tokens, it is the share of last tokens: what is left there is no outlier, but
        a reward.
        """
        predicted = np.where(np.isfinite(predicted), predicted, np.inf)
        share = _explained(self.difference, predicted)
        if not self.by_token:
            return share
        last = replace(self.difference, chosen=self.chosen & self.last)
        ends = _explained(last, predicted) if last.wrong.sum() >= DISTINCT else 1.0
        return share if ends >= _MOST else min(share, ends)

    def distinct(self, elements: Mask) -> int:
        """Return how many distinct computed numbers, other than 0, some elements have.

        Numbers within the tolerance count once.
        """
        values = self.computed[elements]
        values = values[np.abs(values) > self.tolerance[elements]]
        size = np.round(np.log(np.abs(values)) / (10 * TOLERANCE)) * 2 + (values < 0)
        return len(np.unique(size))

    def enough(self, elements: Mask) -> bool:
        """Return whether elements have the numbers that a relation with a constant needs.

        These are three distinct numbers; or two, in six responses.
        """
        distinct = self.distinct(elements) - 1
        responses = len(np.unique(self.rows[elements]))
        return distinct >= DISTINCT - 1 or (distinct >= 1 and responses >= 2 * DISTINCT)

    def sample(self) -> Evidence:
        """Return the evidence of whole steps, or groups, of a large input.

        Half of them have differences and half have none, as far as there are such.
        """
        rollouts = self.rollouts
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
        replayer = Replayer(self.rollouts.take(rows, "a part"), self.replayer.tolerance)
        with suppress(UsageError, DataError):
            stage = replayer.stage(self.recipe, self.stage.name)
            if stage is not None and not stage.difference.equal:
                return Evidence(stage, self.recipe, replayer)
        return None

    def numbers(self, recipe: Recipe, inputs: pa.Table | None = None) -> Numbers | None:
        """Return the stage by another recipe, or from other inputs; None if it does not fit."""
        replayer = self.replayer if inputs is None else self.replayer.reading(inputs)
        with suppress(UsageError, DataError, pa.ArrowException):
            stage = replayer.stage(recipe, self.stage.name)
            if stage is not None and len(stage.difference.computed) == len(self.computed):
                return stage.difference.computed
        return None


def _explained(difference: Difference, computed: Numbers) -> float:
    """Return the share of the differing elements that other numbers bring within the tolerance."""
    wrong = int(difference.wrong.sum())
    left = replace(difference, computed=computed).wrong
    return 1.0 - float(left.sum()) / wrong if wrong else 0.0
