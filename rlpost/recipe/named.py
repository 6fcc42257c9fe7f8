"""Code that data names: it runs only if the user names it, too."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.recipe.recipe import Recipe


def with_named(recipe: Recipe, estimator: str | None, where: str) -> Recipe:
    """Return a recipe of data, in which the user's estimator replaces one that is not rlpost's.

    Args:
        recipe: of data: its estimator may be in a file or an installed package, which is code.
        estimator: that the user names.
        where: the recipe is, for errors.

    Raises:
        UsageError: the recipe names code, and the user does not.
    """
    if recipe.estimator in NAMES:
        return recipe
    if not estimator:
        raise UsageError(
            f"{where}: its recipe names the estimator {recipe.estimator}; code runs only if the "
            "command line names it",
            tip=f"add {shlex.join(('--estimator', recipe.estimator))}, if you trust it",
        )
    return recipe.model_copy(update={"estimator": estimator})


def check_effect(estimator: str | None, recipes: Iterable[Recipe]) -> None:
    """Raise UsageError for a user's estimator in whose place no recipe names code."""
    if estimator and all(recipe.estimator in NAMES for recipe in recipes):
        raise UsageError(
            f"--estimator {estimator}: has no effect: no recipe in the input names such code",
            tip="leave it out",
        )
