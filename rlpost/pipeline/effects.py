"""The fields of a recipe that change numbers of some input, and what others need for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_origin

from rlpost.errors import ErrorPart, UsageError
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.stages import stages_of
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES, ColumnMap

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST = 4
"""Estimators that an error names."""


def fields_with_effect(recipe: Recipe) -> frozenset[str]:
    """Return the fields that change a number of an input with every role, if all are written.

    The fields of a KL penalty are among them, even if the numerics subtract it nowhere: its
    coefficients are in the summary, which warns of it.

    Raises:
        UsageError: the estimator does not support an option.
    """
    return frozenset(fields_by_stage(recipe))


def fields_by_stage(recipe: Recipe) -> list[str]:
    """Return the fields of `fields_with_effect`, in the order of the stages that read them."""
    columns = ColumnMap({role: role for role in ROLES}, dict.fromkeys(ROLES, "map"))
    numerics = recipe.numerics
    if numerics.kl_credit == "none":
        numerics = numerics.model_copy(update={"kl_credit": "return"})
    every = recipe.model_copy(update={"emit": (*WRITTEN, *EXTRA), "numerics": numerics})
    stages = stages_of(resolve_recipe(every, columns), RunState())
    return list(dict.fromkeys(name for stage in stages for name in sorted(stage.fields)))


def check_effects(recipe: Recipe, fields: Collection[str], *, any_estimator: bool = False) -> None:
    """Raise UsageError for the first of these fields that changes no number.

    Args:
        recipe: the recipe.
        fields: of the recipe, which flags set to other values than the default.
        any_estimator: the estimator may be any one of rlpost's.
    """
    if not fields:
        return
    read = _fields_of_all(recipe) if any_estimator else fields_with_effect(recipe)
    unread = next((name for name in fields if name not in read), None)
    if unread is not None:
        raise UsageError(_without_effect(recipe, unread))


def _fields_of_all(recipe: Recipe) -> frozenset[str]:
    return frozenset(name for other in NAMES for name in _with(recipe, estimator=other))


def _with(recipe: Recipe, **values: Any) -> frozenset[str]:
    """Return the fields with effect of a recipe with other values; none if it is not valid."""
    try:
        return fields_with_effect(recipe.model_copy(update=values))
    except UsageError:
        return frozenset()


def _without_effect(recipe: Recipe, name: str) -> ErrorPart:
    """Return the error for a field without effect: the estimators or options that read it."""
    text = f"{flag_of(name)} has no effect"
    estimators = [other for other in NAMES if name in _with(recipe, estimator=other)]
    if estimators:
        only = (
            f"only {estimators[0]} reads"
            if len(estimators) == 1
            else f"{', '.join(estimators[:-1])} and {estimators[-1]} read"
        )
        if len(estimators) > _MOST:
            only = f"{len(estimators)} other estimators read"
        return ErrorPart(f"{text} with estimator {recipe.estimator}: {only} it", tip="leave it out")
    switches = {other: _on(other) for other, x in recipe if x in (None, False)}
    needs = [
        flag_of(other)
        for other, value in switches.items()
        if value is not None and name in _with(recipe, **{other: value})
    ]
    if needs:
        options = " or ".join(needs)
        tip = f"add {options}, or leave {flag_of(name)} out"
        return ErrorPart(f"{text} without {options}", tip=tip)
    return ErrorPart(f"{text} with the other options", tip="leave it out")


def _on(name: str) -> Any:
    """Return a value of a field that is off; None if it has more than one part."""
    kinds = _kinds(Recipe.model_fields[name].annotation)
    values = {bool: True, str: name, float: 1.0, int: 1}
    return next((value for kind, value in values.items() if kind in kinds), None)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types of an annotation, without those in tuples and tables."""
    if get_origin(annotation) in (tuple, dict):
        return set()
    parts = get_args(annotation)
    return {kind for part in parts for kind in _kinds(part)} if parts else {annotation}
