"""Which column of an input serves each role of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.schema import resolve

if TYPE_CHECKING:
    from rlpost.parquet.memory import TableSource
    from rlpost.parquet.source import Source
    from rlpost.recipe import Recipe
    from rlpost.schema import ColumnMap

# Read by every recipe, where they are there.
ROW_ROLES = ("group", "reward", "batch", "domain")


def columns_of(source: Source | TableSource, recipe: Recipe) -> ColumnMap:
    """Find a column for every role, those that the recipe names itself included.

    Raises:
        UsageError, DataError: as `rlpost.schema.resolve`.
    """
    columns = resolve(source.columns, recipe.columns, source.name)
    named = {f"component:{name}": name for name in recipe.reward_components or ()}
    named |= {f"teacher:{name}": name for name in recipe.teachers}
    if recipe.rollout_id is not None:
        named["rollout"] = recipe.rollout_id
    for role, column in named.items():
        columns = columns.with_column(role, column, source.columns, source.name)
    return columns
