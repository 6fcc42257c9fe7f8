"""A recipe against the recorded columns of all parts of a large input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.analysis.difference import DifferenceTotals
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.stages import ordered

if TYPE_CHECKING:
    from rlpost.analysis.replay.rollouts import RolloutReader, Rollouts
    from rlpost.display.reporter import Reporter
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]


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
    totals: dict[str, DifferenceTotals] = {}
    reporter.start("compare", sample.total)
    for number in range(len(reader.parts)):
        part = sample
        if number:
            read = reader.rollouts(number)
            part = replace(sample, table=read.table, rows=read.rows)
        for stage in Replayer(part, tolerance).from_start(recipe, sample.recorded):
            totals.setdefault(stage.name, DifferenceTotals()).add(stage.totals(part))
        reporter.advance(len(part))
    return [
        {"stage": name, "equal": not totals[name].differing, **totals[name].facts()}
        for name in ordered(recipe, totals)
    ]
