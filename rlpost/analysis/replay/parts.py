"""A recipe against the recorded columns of all parts of a large input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.differences import finite
from rlpost.analysis.replay.stages import ordered

if TYPE_CHECKING:
    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import RolloutReader, Rollouts
    from rlpost.display.reporter import Reporter
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
_ROWS = 10
"""Numbers of differing rows that are listed."""


@dataclass
class _StageTotals:
    """The comparison of a stage, added up chunk by chunk."""

    name: str
    compared: int = 0
    differing: int = 0
    responses: int = 0
    responses_differing: int = 0
    largest: float = 0.0
    rows: list[int] = field(default_factory=list)
    """The first responses that differ."""

    def add(self, one: Replayed, part: Rollouts) -> None:
        wrong, chosen = one.difference.wrong, one.difference.chosen
        self.compared += int(chosen.sum())
        self.differing += int(wrong.sum())
        self.responses += len(part)
        self.largest = max(self.largest, float(one.difference.distance[chosen].max(initial=0.0)))
        if wrong.any():
            tokens = part.of_tokens
            rows = np.unique(tokens[wrong]) if len(wrong) == len(tokens) else np.flatnonzero(wrong)
            self.responses_differing += len(rows)
            self.rows += part.rows[rows[: _ROWS - len(self.rows)]].tolist()

    def facts(self) -> Json:
        share = 1.0 - self.differing / self.compared if self.compared else None
        return {
            "stage": self.name,
            "equal": not self.differing,
            "compared": self.compared,
            "differing": self.differing,
            "share_equal": share,
            "responses": self.responses,
            "responses_differing": self.responses_differing,
            "largest": finite(self.largest),
            "first_rows": self.rows,
        }


def compare_parts(
    reader: RolloutReader, sample: Rollouts, recipe: Recipe, tolerance: float, reporter: Reporter
) -> list[Json]:
    """Compare the recorded columns of all parts of an input with those of a recipe.

    Args:
        reader: of the input.
        sample: its first part.
        recipe: with all options.
        tolerance: relative tolerance.
        reporter: receives the rows.

    Returns:
        For each stage that the recipe computes from the start: counts of elements and responses,
        the share that is equal, the largest difference, and the first rows that differ.
    """
    totals: dict[str, _StageTotals] = {}
    reporter.start("compare", sample.total)
    for number in range(len(reader.parts)):
        part = sample
        if number:
            read = reader.rollouts(number)
            part = replace(sample, table=read.table, rows=read.rows)
        for stage in Replayer(part, tolerance).from_start(recipe, sample.recorded):
            totals.setdefault(stage.name, _StageTotals(stage.name)).add(stage, part)
        reporter.advance(len(part))
    return [totals[name].facts() for name in ordered(recipe, totals)]
