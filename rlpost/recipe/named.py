"""What data may not choose: the code and the files that the recipe of a file names."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.recipe.recipe import Recipe


@dataclass(frozen=True)
class NamedByUser:
    """The estimator and the tokenizer that the user names, for recipes in data.

    A recipe in metadata may name an estimator of a file or of an installed package,
    which is code, and a tokenizer, which is a path or a repository of a server. None of them is
    imported, opened or fetched, except by the names here, which replace those in the recipe.
    """

    estimator: str | None = None
    tokenizer: str | None = None

    def completed(self, recipe: Recipe, where: str) -> Recipe:
        """Return a recipe of data with the user's names in place of its own.

        Args:
            recipe: of data.
            where: it is, for errors.

        Raises:
            UsageError: it names code or a tokenizer, and the user does not.
        """
        replaced = {
            name: value for name, value in vars(self).items() if value and name in named_in(recipe)
        }
        missing = {name: x for name, x in named_in(recipe).items() if name not in replaced}
        if missing:
            what = " and ".join(f"the {name} {value}" for name, value in missing.items())
            flags = shlex.join(word for name, x in missing.items() for word in (f"--{name}", x))
            raise UsageError(
                f"{where}: its recipe names {what}; code and tokenizers are used only if the "
                "command line names them",
                tip=f"add {flags}, if you trust it",
            )
        return recipe.model_copy(update=replaced) if replaced else recipe

    def check_effect(self, recipes: Iterable[Recipe]) -> None:
        """Raise UsageError for a name in whose place no recipe has one."""
        names = {name for recipe in recipes for name in named_in(recipe)}
        for name, value in vars(self).items():
            if value and name not in names:
                what = "such code" if name == "estimator" else "a tokenizer"
                raise UsageError(
                    f"--{name} {value}: has no effect: no recipe in the input names {what}",
                    tip="leave it out",
                )


def named_in(recipe: Recipe) -> dict[str, str]:
    """Return the code and the tokenizer that a recipe names, by field; rlpost's own is neither."""
    names = {"estimator": recipe.estimator} if recipe.estimator not in NAMES else {}
    return names | ({"tokenizer": recipe.tokenizer} if recipe.tokenizer is not None else {})
