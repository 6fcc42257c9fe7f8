"""The columns of an input by role: the choices of the user and of the run that wrote it, names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from rlpost.errors import UsageError
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe
from rlpost.recipe.roles import RECORDED_ADVANTAGES, ROLES, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rlpost.recipe.roles import ColumnMap


RESULTS = ("advantages", "final_response_mask", "is_weight", "sample_mask", "sample_weight")
"""Roles of columns that rlpost writes under their own names."""
_OWN = frozenset({*WRITTEN, *EXTRA})


class InputNames(Protocol):
    """The names of an input's columns, and the recipes with which rlpost wrote its files."""

    @property
    def name(self) -> str:
        """The input's name in errors."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that every file has."""

    @property
    def lacking(self) -> Mapping[str, str]:
        """The columns that only some files have, with the first file without each."""

    @property
    def recipes(self) -> Mapping[bytes, str]:
        """Recipes as JSON, empty for files that no run wrote, with the first such file."""


def resolve_input(
    source: InputNames,
    chosen: Mapping[str, str],
    more: Mapping[str, str] | None = None,
    *,
    results: bool = True,
    hidden: Collection[str] = (),
) -> ColumnMap:
    """Return the column of every role that has one.

    The columns that the user chooses come first, then those that the user chose for the run that
    wrote the input, then names and aliases. A choice of that run does not count if its column is
    absent, or is one that rlpost writes.

    Args:
        source: the input.
        chosen: as of `rlpost.recipe.roles.resolve`.
        more: as of `rlpost.recipe.roles.resolve`.
        results: what that run wrote is read under its own names, not what it was computed from.
        hidden: columns that serve no role.

    Raises:
        UsageError: as `rlpost.recipe.roles.resolve`; or the files were written with different
            columns for one role.
        DataError: as `rlpost.recipe.roles.resolve`.
    """
    available = [name for name in source.columns if name not in hidden]
    lacking = {name: file for name, file in source.lacking.items() if name not in hidden}

    def with_choices(stored: Mapping[str, str]) -> ColumnMap:
        return resolve(available, chosen, source.name, more, stored=stored, lacking=lacking)

    maps: dict[str, tuple[dict[str, str], str]] = {}
    for text, file in source.recipes.items():
        stored = {
            role: column
            for role, column in _columns_of(text).items()
            if role in ROLES
            and not (results and role in RESULTS)
            and column not in _OWN
            and (column in available or column == "none")
        }
        maps.setdefault(json.dumps(stored, sort_keys=True), (stored, file))
    (first, first_file), *others = maps.values() or [({}, "")]
    columns = with_choices(first)
    for stored, file in others:
        _check_equal(columns, first_file, with_choices(stored), file)
    return columns


class StoredComponents(NamedTuple):
    """The reward components of the run that wrote an input."""

    names: tuple[str, ...]
    weights: tuple[float, ...] | None
    missing: Literal["error", "skip"]
    """What a null component is."""


def stored_components(source: InputNames) -> StoredComponents | None:
    """Return the reward components of the run that wrote an input.

    None if no run wrote it, if it had none, if the input lacks one, or if files differ.
    """
    components = {_components(parsed(text), source.columns) for text in source.recipes}
    return components.pop() if len(components) == 1 else None


COUNTING = ("unit", "rollout_reward", "failures", "attempts", "pass_threshold")
"""Fields that say what statistics of responses count."""


def stored_counting(source: InputNames) -> dict[str, Any]:
    """Return the fields of COUNTING of the run that wrote an input, where they are not default.

    Empty if no run wrote it, or if files differ.
    """
    parts = [_counting(parsed(text)) for text in source.recipes]
    return parts[0] if parts and all(part == parts[0] for part in parts) else {}


def _counting(recipe: dict[str, Any]) -> dict[str, Any]:
    fields = {name: recipe[name] for name in COUNTING if name in recipe}
    try:
        return Recipe(estimator="raw", **fields).model_dump(
            include={*COUNTING}, exclude_defaults=True
        )
    except UsageError:  # of another version, or damaged
        return {}


def recorded_advantages(
    source: InputNames, columns: ColumnMap, chosen: Mapping[str, str]
) -> str | None:
    """Return the column of a trainer's advantages; None if there is none but rlpost's.

    Args:
        source: the input.
        columns: of its roles.
        chosen: the user's columns by role; `none` for no column.
    """
    if (name := chosen.get("advantages")) is not None:
        return name if name in source.columns else None
    used = {column for role, column in columns.columns.items() if role != "advantages"}
    used |= _OWN if is_enriched(source) else set()
    names = (name for name in RECORDED_ADVANTAGES if name in source.columns)
    return next((name for name in names if name not in used), None)


def _components(recipe: dict[str, Any], available: Collection[str]) -> StoredComponents | None:
    names, weights = recipe.get("reward_components"), recipe.get("component_weights")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    if not names or not {*names}.issubset(available):
        return None
    numerics = recipe.get("numerics")
    skips = isinstance(numerics, dict) and numerics.get("missing_components") == "skip"
    numbers = None
    if isinstance(weights, list) and len(weights) == len(names):
        numbers = tuple(float(weight) for weight in weights if isinstance(weight, int | float))
    if numbers is not None and len(numbers) < len(names):
        return None
    return StoredComponents(tuple(names), numbers, "skip" if skips else "error")


def is_enriched(source: InputNames) -> bool:
    """Return whether rlpost wrote a file of the input."""
    return any(source.recipes)


def _columns_of(text: bytes) -> dict[str, str]:
    """Return the columns that a stored recipe chooses, by role."""
    columns = parsed(text).get("columns")
    if not isinstance(columns, dict):
        return {}
    return {role: column for role, column in columns.items() if isinstance(column, str)}


def parsed(text: bytes) -> dict[str, Any]:
    """Return a stored recipe as a dict; an empty one if it is none."""
    try:
        recipe = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}  # `rlpost verify` reports metadata that is damaged
    return recipe if isinstance(recipe, dict) else {}


def _check_equal(columns_map: ColumnMap, file: str, other: ColumnMap, other_file: str) -> None:
    """Raise UsageError for the first role whose column differs by the run that wrote the files."""
    for role in dict.fromkeys([*columns_map.stored, *other.stored]):
        column, another = (map_.columns.get(role, "none") for map_ in (columns_map, other))
        if column != another:
            raise UsageError(
                f"{file}: was written with {column} as {role}, and {other_file} with {another}; "
                f"one column for all files is needed: --map {role}={column} or --map "
                f"{role}={another}"
            )
