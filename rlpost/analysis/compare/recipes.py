"""Why sides differ: the fields of their recipes that have other values and can change a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.recipe.presets import differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.compare.sides import EffectiveRecipe, Side


Json = dict[str, Any]


def recipe_differences(sides: Sequence[Side], column: str) -> list[Json] | None:
    """Return the fields in which recipes differ, of those that can change the compared column.

    Args:
        sides: at least two.
        column: the written column that is compared.

    Returns:
        `field` (of the recipe, of its numerics, or `options.NAME`) and `values`, of each side, in
        the order of fields; None if the recipe of a side is unknown.
    """
    recipes = [side.effective_recipe(column) for side in sides]
    known = [one for one in recipes if one is not None]
    if len(known) < len(recipes):
        return None
    fields = frozenset(name for one in known for name in one.fields)
    first = known[0].recipe
    names = {
        name: None
        for other in known[1:]
        for name in [one.field for one in differences(first, other.recipe)]
        if name in fields or f"numerics.{name}" in fields
    }
    return [{"field": name, "values": [_value(one, name) for one in known]} for name in names]


def _value(one: EffectiveRecipe, name: str) -> Any:
    """Return the value of a field, as plain data."""
    plain = one.recipe.model_dump(mode="json")
    table, dot, key = name.partition(".")
    if dot:
        return plain[table].get(key)
    return plain[name] if name in plain else plain["numerics"][name]
