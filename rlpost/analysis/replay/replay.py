"""Replay of a recipe: every recorded stage against the computed one, and the first that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost._version import __version__
from rlpost.analysis.difference import finite
from rlpost.analysis.replay.compute import TOLERANCE, Replayer
from rlpost.analysis.replay.findings import findings
from rlpost.analysis.replay.stages import STAGES
from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.kernels.segments import segment_max
from rlpost.pipeline.words import recipe_words
from rlpost.recipe.presets import toml_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
SCHEMA_VERSION = 1
SAMPLE_TOKENS = 4_000_000
"""Tokens of a replay in memory, unless the user sets another number."""
_EXAMPLES = 3


def replay_recipe(
    rollouts: Rollouts, recipe: Recipe, named: str, tolerance: float = TOLERANCE
) -> Json:
    """Compare what was recorded with what a recipe computes, stage by stage.

    Args:
        rollouts: the input.
        recipe: as the user sets it.
        named: the recipe as the user typed it.
        tolerance: relative tolerance.

    Returns:
        A plain mapping: `reproduced`, `stages`, `first` (the first stage that differs), `examples`.

    Raises:
        DataError: the input has no recorded column that the recipe computes, or lacks a role.
    """
    check_recorded(rollouts)
    replayer = Replayer(rollouts, tolerance)
    stages = replayer.from_start(recipe, rollouts.recorded)
    if not stages:
        names = ", ".join(f"`{name}`" for name in rollouts.recorded.values())
        raise DataError(
            f"{rollouts.name}: {named} computes none of the recorded columns ({names}); choose "
            "another preset or estimator, or leave both out to search for the recipe"
        )
    warnings = [*rollouts.warnings, *_unrecorded(rollouts, stages)]
    others = not_computed(rollouts, {stage.name for stage in stages})
    if others:
        names = ", ".join(f"`{name}`" for name in others)
        warnings.append(f"not compared, since the recipe computes none: {names}")
    first = next((stage for stage in stages if not stage.difference.equal), None)
    explanations = findings(stages, recipe, replayer)
    return {
        **facts_of(rollouts, tolerance),
        "recipe": recipe_facts(recipe, named, replayer),
        "reproduced": not explanations and first is None,
        "stages": [stage_facts(stage, first, rollouts) for stage in stages],
        "not_computed": others,
        "first": None if first is None else first.name,
        "findings": [finding.as_json() for finding in explanations],
        "examples": [] if first is None else examples(first, rollouts),
        "warnings": warnings,
    }


def _unit(stage: Replayed, rollouts: Rollouts) -> str:
    """Return what the elements of a stage are."""
    return "tokens" if stage.by_token(rollouts) else "responses"


_NEUTRAL = ("sample_mask", "sample_weight", "is_weight")
"""Stages that are 1 for a recipe without them."""


def not_computed(rollouts: Rollouts, computed: set[str]) -> list[str]:
    """Return the recorded stages that a recipe does not compute, without those that are 1."""
    missing = {*rollouts.recorded} - computed
    ones = {n for n in missing & {*_NEUTRAL} if (rollouts.column(n).values == 1).all()}
    return sorted(missing - ones)


def check_recorded(rollouts: Rollouts) -> None:
    """Raise DataError if an input has no recorded column, or one with lists of other lengths."""
    if not rollouts.recorded:
        raise DataError(
            f"{rollouts.name}: no recorded column ({', '.join(STAGES)}), so there is nothing to "
            "compare with; choose one with --map advantages=COLUMN"
        )
    for stage in rollouts.recorded:
        rollouts.column(stage)


def _unrecorded(rollouts: Rollouts, stages: Sequence[Replayed]) -> list[str]:
    """Return warnings of responses without recorded numbers.

    Raises:
        DataError: no response has one.
    """
    warnings = []
    for stage in stages:
        count = int(rollouts.unrecorded(stage.name).sum())
        if count:
            warnings.append(
                f"`{stage.column}` is null or empty in {counted(count, 'response')}, which "
                f"{'is' if count == 1 else 'are'} not compared"
            )
    if not any(stage.difference.chosen.any() or stage.difference.wrong.any() for stage in stages):
        columns = ", ".join(f"`{stage.column}`" for stage in stages)
        raise DataError(
            f"{rollouts.name}: {columns}: no recorded number is finite, so there is nothing to "
            "compare with; choose another column with --map advantages=COLUMN"
        )
    return warnings


def facts_of(rollouts: Rollouts, tolerance: float) -> Json:
    """Return what a replay compares: the input, its sample, and the recorded columns."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rlpost_version": __version__,
        "input": rollouts.name,
        "responses": len(rollouts),
        "tokens": int(rollouts.offsets[-1]) if not rollouts.columns.rows_only else None,
        "of_responses": rollouts.total,
        "scope": rollouts.scope,
        "tolerance": tolerance,
        "roles": {
            role: {"column": column, "found_by": rollouts.columns.how[role]}
            for role, column in rollouts.columns.columns.items()
        },
        "recorded": rollouts.recorded,
    }


def recipe_facts(recipe: Recipe, named: str, replayer: Replayer) -> Json:
    """Return a recipe as the user named it, as the TOML that `--config` takes, and in words."""
    return {
        "named": named,
        "estimator": recipe.estimator,
        "toml": "\n".join(toml_lines(recipe)),
        "words": recipe_words(replayer.resolved(recipe)),
    }


def stage_facts(stage: Replayed, first: Replayed | None, rollouts: Rollouts) -> Json:
    """Return the comparison of a stage; its `verdict` is `equal` or `differs`."""
    return {
        "stage": stage.name,
        "title": STAGES[stage.name].title,
        "column": stage.column,
        "unit": _unit(stage, rollouts),
        "verdict": "equal" if stage.difference.equal else "differs",
        "first": stage is first,
        **stage.totals(rollouts).facts(),
        "outside_differing": stage.outside,
        "rounding": stage.rounding,
    }


def examples(stage: Replayed, rollouts: Rollouts) -> list[Json]:
    """Return the responses that differ the most, of different prompt groups if there are several.

    Of tokens, each has the one that differs the most.
    """
    difference, tokens = stage.difference, stage.by_token(rollouts)
    wrong = np.where(difference.wrong, np.nan_to_num(difference.distance, nan=np.inf), 0.0)
    starts = rollouts.offsets if tokens else np.arange(len(rollouts) + 1)
    worst = segment_max(wrong, starts).clip(0)
    order = np.argsort(-worst, kind="stable")
    order = order[worst[order] > 0]
    first = np.zeros(len(order), np.bool_)
    first[np.unique(rollouts.groups[order], return_index=True)[1]] = True
    results = []
    for row in map(int, np.concatenate([order[first], order[~first]])[:_EXAMPLES]):
        token = int(np.argmax(wrong[starts[row] : starts[row + 1]]))
        at = starts[row] + token
        results.append(
            {
                "row": int(rollouts.rows[row]),
                "step": rollouts.label("batch", row),
                "prompt_id": rollouts.label("group", row),
                "reward": finite(rollouts.reward[row]),
                "token": token if tokens else None,
                "recorded": finite(difference.recorded[at]),
                "computed": finite(difference.computed[at]),
                "difference": finite(difference.recorded[at] - difference.computed[at]),
            }
        )
    return results
