"""`rlpost replay`: an input against a recipe, or against all of them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlpost.analysis.replay.compute import TOLERANCE, Replayer
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.replay import (
    SAMPLE_TOKENS,
    check_recorded,
    replay_recipe,
)
from rlpost.analysis.replay.rollouts import rollouts_of
from rlpost.analysis.stored_recipe import recipe_of_files
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError
from rlpost.estimators import completed, estimator_named
from rlpost.io.parquet.inputs import FORMAT_KEY, find_inputs
from rlpost.io.parquet.source import Source
from rlpost.pipeline.needs import coupling_of
from rlpost.recipe.estimators import KNOWN
from rlpost.recipe.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.display.reporter import Reporter
    from rlpost.io.paths import PathText
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]


@dataclass(frozen=True)
class ReplayRequest:
    """What a replay compares, and how."""

    recipe: Recipe | None = None
    """None: search for the recipe."""
    named: str = ""
    """The recipe as the user typed it, such as `--preset verl --estimator grpo`."""
    given: Json = field(default_factory=dict)
    """Fields of a recipe that the user typed, which a search does not change."""
    columns_map: Mapping[str, str] = field(default_factory=dict)
    """The values of `--map`: roles, and stages with the recorded column."""
    tolerance: float = TOLERANCE
    """Relative tolerance."""
    sample_tokens: int = SAMPLE_TOKENS
    """Tokens in memory; of a larger input, its first whole steps or groups are compared."""
    reporter: Reporter = field(default_factory=SilentReporter)

    def __post_init__(self) -> None:
        """Raise UsageError for a tolerance or a sample that is out of range."""
        if not 0 <= self.tolerance < math.inf:
            raise UsageError(f"--tolerance {self.tolerance}: a number from 0 on is needed")
        if self.sample_tokens < 1:
            raise UsageError(f"--sample {self.sample_tokens}: at least 1 token is needed")


def replay(paths: Sequence[PathText], request: ReplayRequest) -> Json:
    """Compare the recorded columns of an input with a recipe; see `rlpost.replay`.

    Without a recipe, the best one of a search is compared. Of a larger input the first part is.

    Raises:
        DataError: the input has no recorded column, or lacks what the recipe needs.
        UsageError: an option is wrong.
    """
    source = Source(find_inputs(paths))
    sample = _sample(source, request)
    if request.recipe is not None:
        return _compared(source, sample, request, request.recipe, request.named)
    return _found(source, sample, request)


def _found(source: Source, sample: Rollouts, request: ReplayRequest) -> Json:
    """Compare with the recipe in the metadata, or else with the one that a search finds."""
    from rlpost.analysis.replay.candidates import candidate_of, flat  # noqa: PLC0415 - slow
    from rlpost.analysis.replay.search import search  # noqa: PLC0415

    stored, given = recipe_of_files(source), flat(request.given)
    known = candidate_of(stored.without_names(source.name))
    warnings = [stored.why_not] if stored.recipe is None and stored.why_not else []
    if known is not None:
        values = {**known.changes, "estimator": known.estimator}
        if all(values.get(name, value) == value for name, value in given.items()):
            with suppress(DataError, UsageError):
                result = _compared(source, sample, request, known.recipe, known.named)
                if result["reproduced"]:
                    best = {**known.facts, "by_metadata": True}
                    return {**result, "search": {"tried": 0, "best": best, "same_numbers": []}}
            warnings.append(f"the recipe in the metadata does not reproduce it: `{known.named}`")
    nearest = search(
        sample,
        tolerance=request.tolerance,
        given=given,
        framework=_framework(source),
        reporter=request.reporter,
    )
    recipe, named = nearest.candidate.recipe, nearest.candidate.named
    result = _compared(source, sample, request, recipe, named)
    return {**result, "warnings": [*result["warnings"], *warnings], "search": nearest.facts}


def _compared(
    source: Source, sample: Rollouts, request: ReplayRequest, recipe: Recipe, named: str
) -> Json:
    """Compare the sample with a recipe, or all that the recipe couples."""
    recipe = completed(recipe)
    if unit := coupled_beyond(sample, recipe):
        sample = _sample(source, request, unit)
    return replay_recipe(sample, recipe, named, request.tolerance)


def _sample(
    source: Source, request: ReplayRequest, whole: Literal["", "batch", "run"] = ""
) -> Rollouts:
    """Return the part of an input that is compared, with the columns that a request names."""
    of_recipe = {} if request.recipe is None else request.recipe.columns
    columns = NamedColumns.of({**of_recipe, **request.columns_map})
    fields = request.given if request.recipe is None else vars(request.recipe)
    named = [name for name in _columns_named(fields) if name in source.columns]
    sample = rollouts_of(source, columns, request.sample_tokens, named, whole)
    check_recorded(sample)
    return _without_zero_kl(sample, request)


def _without_zero_kl(sample: Rollouts, request: ReplayRequest) -> Rollouts:
    """Leave out a recorded KL of zeros, which trainers store if none is in the rewards.

    With a KL penalty of the user's it is compared, and if the log-probs are those of the reference.
    """
    fields = request.given if request.recipe is None else vars(request.recipe)
    if "kl" not in sample.recorded or len(sample.recorded) == 1 or fields.get("kl_coef"):
        return sample
    roles = ("old_log_probs", "log_probs", "ref_log_probs")
    names = [sample.columns.column(role) for role in roles if role in sample.columns]
    columns = [sample.table.column(name) for name in names]
    if sample.column("kl").values.any() or (len(columns) > 1 and columns[0] == columns[-1]):
        return sample
    name = sample.recorded["kl"]
    text = f"not compared: `{name}` is 0 in all rows; without a KL penalty trainers store zeros"
    return replace(sample.without(["kl"]), warnings=[*sample.warnings, text])


def _framework(source: Source) -> str:
    """Return the preset of the framework whose dump an input was; "" if it is unknown."""
    written = source.metadata.get(FORMAT_KEY, b"").decode(errors="replace")
    return next((name for name in PRESETS if f"{written}-".startswith(f"{name}-")), "")


def coupled_beyond(sample: Rollouts, recipe: Recipe) -> Literal["", "batch", "run"]:
    """Return what a recipe couples, if a sample may not have all responses of it; else nothing."""
    scope = coupling_of(Replayer(sample).resolved(recipe)).scope
    if sample.whole or scope in ("response", "group"):
        return ""
    if scope == "run" or recipe.numerics.batch == "all" or "batch" not in sample.columns:
        return "run"
    return "" if sample.scope == "whole steps" else "batch"


def _columns_named(fields: Mapping[str, Any]) -> list[str]:
    """Return columns that fields of a recipe name themselves, besides roles."""
    names = [*(fields.get("reward_components") or ()), *(fields.get("teachers") or ())]
    names += _named_by(fields.get("estimator"))
    return names


def _named_by(estimator: str | None) -> tuple[str, ...]:
    """Return the columns that a user's estimator reads by their names."""
    if estimator is None or (":" not in estimator and estimator not in KNOWN.installed()):
        return ()
    return estimator_named(estimator).named_columns
