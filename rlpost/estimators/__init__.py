"""The estimators by family, all in the table ESTIMATORS."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from rlpost.estimators import groups, returns, turns
from rlpost.estimators.base import FIELDS, Credit, Estimator, as_estimator
from rlpost.recipe.estimators import KNOWN, NAMES
from rlpost.recipe.flags import flag_of
from rlpost.recipe.functions import owners, typed_options, with_defaults
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENTRIES = {entry.name: entry for family in (returns, groups, turns) for entry in family.ESTIMATORS}
ESTIMATORS: dict[str, Estimator] = {name: _ENTRIES[name] for name in NAMES}


def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name, of `path/to/file.py:function` or of an entry point.

    Raises:
        UsageError: there is no such estimator (with the closest names), or it is not valid.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    function, source = KNOWN.imported(name)
    return as_estimator(function, name, source)


def typed(
    recipe: Recipe, estimator: Estimator | None = None, origins: Mapping[str, str] | None = None
) -> Recipe:
    """Return a recipe whose `options` are options of its estimator, with their types.

    Args:
        recipe: the recipe.
        estimator: that of the recipe, if it is known.
        origins: the source of `options.NAME` if it is no flag, for errors.

    Raises:
        UsageError: the estimator has no such option, or a value has another type.
    """
    if not recipe.options:
        return recipe
    estimator = estimator or estimator_named(recipe.estimator)
    options = typed_options(
        f"estimator {estimator.name}",
        estimator.options,
        recipe.options,
        origins=origins,
        elsewhere=_elsewhere,
    )
    return recipe.model_copy(update={"options": options})


def completed(recipe: Recipe, estimator: Estimator | None = None) -> Recipe:
    """Return a recipe with all options of its estimator, typed; defaults where none is set.

    Raises:
        UsageError: as `typed`; or an option without a default is not set.
    """
    estimator = estimator or estimator_named(recipe.estimator)
    options = with_defaults(
        f"estimator {estimator.name}",
        estimator.options,
        typed(recipe, estimator).options,
        fields=FIELDS,
    )
    if estimator.of_user:
        recipe = _of_signature(recipe, estimator)
    return recipe.model_copy(update={"options": options}) if options else recipe


def _of_signature(recipe: Recipe, estimator: Estimator) -> Recipe:
    """Return a recipe with a user's defaults of parameters that are fields, where none is set."""
    none = (None, inspect.Parameter.empty)
    mine = {x: y for x, y in estimator.keywords.items() if not any(y is z for z in none)}
    unset = [
        {*type(model).model_fields} - model.model_fields_set for model in (recipe, recipe.numerics)
    ]
    fields, states = ({x: y for x, y in mine.items() if x in names} for names in unset)
    if states:
        fields["numerics"] = recipe.numerics.model_copy(update=states)
    return recipe.model_copy(update=fields) if fields else recipe


def _elsewhere(name: str) -> str:
    """Return what to do about a name that is a field, or an option of other estimators."""
    if name in FIELDS:
        flag = flag_of(name) if name in Recipe.model_fields else f"--numerics {name}=VALUE"
        return f"it is a field of the recipe: use {flag}"
    return owners(name, ESTIMATORS)


__all__ = ["ESTIMATORS", "Credit", "Estimator", "completed", "estimator_named", "typed"]
