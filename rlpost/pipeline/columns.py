"""Which column of an input serves each role of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import DataError
from rlpost.io.arrow import content_kind
from rlpost.recipe.roles import LOG_PROBS, missing, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


# Read by every recipe, where they are there.
ROW_ROLES = ("group", "reward", "batch", "domain")


def columns_of(source: Source | TableSource, recipe: Recipe) -> ColumnMap:
    """Find a column for every role, those that the recipe names itself included.

    Raises:
        UsageError, DataError: as `rlpost.recipe.roles.resolve`.
    """
    named = {f"component:{name}": name for name in recipe.reward_components or ()}
    named |= {f"teacher:{name}": name for name in recipe.teachers}
    if recipe.rollout_id is not None:
        named["rollout"] = recipe.rollout_id
    return resolve(source.columns, recipe.columns, source.name, named)


def absent(
    source: Source | TableSource, needs: Mapping[str, str], lacks: Mapping[str, str]
) -> DataError:
    """The error for roles that no column serves, with columns that could.

    Args:
        source: the input.
        needs: what is missing, and what needs it.
        lacks: why the dump that the input was converted from lacks a role, where it is known.
    """
    return missing(needs, source.columns, source.name, lacks, _held(source))


def check_log_probs(source: Source | TableSource, columns: ColumnMap, roles: Iterable[str]) -> None:
    """Raise DataError where a column of whole numbers, like token ids, is to serve as log-probs."""
    held = _held(source)
    for role in roles:
        if role in LOG_PROBS and role in columns and held.get(columns.column(role)) == "integers":
            column = columns.column(role)
            raise DataError(
                f"{source.name}: `{column}` is to serve as {role} (by {columns.how[role]}), but is "
                f"a list of integers, as token ids are; log-probabilities, lists of floats, are "
                f"needed: --map {role}=COLUMN names them"
            )


def _held(source: Source | TableSource) -> dict[str, str]:
    """What each column of the first file holds."""
    return {field.name: content_kind(field.type) for field in source.schemas[0]}
