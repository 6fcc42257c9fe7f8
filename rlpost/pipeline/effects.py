"""The fields of a recipe that change numbers of some input, and what others need for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_origin

from rlpost.errors import UsageError
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.stages import fields_of, stages_of
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES, ColumnMap

if TYPE_CHECKING:
    from collections.abc import Collection


def fields_with_effect(recipe: Recipe) -> frozenset[str]:
    """Return the fields that change a number of an input with every role, if all are written.

    The fields of a KL penalty are among them, even if the numerics subtract it nowhere: its
    coefficients are in the summary, which warns of it.

    Raises:
        UsageError: the estimator does not support an option.
    """
    columns = ColumnMap({role: role for role in ROLES}, dict.fromkeys(ROLES, "name"))
    numerics = recipe.numerics
    if numerics.kl_credit == "none":
        numerics = numerics.model_copy(update={"kl_credit": "return"})
    every = recipe.model_copy(update={"emit": (*WRITTEN, *EXTRA), "numerics": numerics})
    return fields_of(stages_of(resolve_recipe(every, columns), RunState()))


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
        raise UsageError(f"{flag_of(unread)}: {_reason(recipe, unread)}")


def _fields_of_all(recipe: Recipe) -> frozenset[str]:
    return frozenset(name for other in NAMES for name in _with(recipe, estimator=other))


def _with(recipe: Recipe, **values: Any) -> frozenset[str]:
    """Return the fields with effect of a recipe with other values; none if it is not valid."""
    try:
        return fields_with_effect(recipe.model_copy(update=values))
    except UsageError:
        return frozenset()


def _reason(recipe: Recipe, name: str) -> str:
    """Return why a field has no effect, and the estimators or options with which it has one."""
    estimators = [other for other in NAMES if name in _with(recipe, estimator=other)]
    if estimators:
        return (
            f"estimator {recipe.estimator} does not read it; leave it out, or choose an "
            f"--estimator that does: {', '.join(estimators)}"
        )
    switches = {other: _on(other) for other, x in recipe if x in (None, False)}
    needs = [
        flag_of(other)
        for other, value in switches.items()
        if value is not None and name in _with(recipe, **{other: value})
    ]
    if needs:
        options = " or ".join(needs)
        return f"no effect without {options}; add {options}, or leave {flag_of(name)} out"
    return "no effect with the other options; leave it out"


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
