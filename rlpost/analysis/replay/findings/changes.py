"""Single changes of a recipe: other values of its options and numerics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.candidates import nested, value_of
from rlpost.analysis.replay.search.fields import FIELDS
from rlpost.analysis.replay.search.sample_facts import SampleFacts
from rlpost.errors import UsageError
from rlpost.recipe.base import words_of
from rlpost.recipe.presets import merged
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.analysis.replay.findings.evidence import Evidence


@dataclass(frozen=True)
class Change:
    """Other values of fields of a recipe."""

    fields: tuple[tuple[str, Any], ...]
    """Field, or `numerics.FIELD`, and its value."""

    @property
    def finding(self) -> str:
        """The ID of the finding."""
        return f"option:{self.fields[0][0]}"

    @property
    def options(self) -> list[str]:
        """The options as typed, one text each."""
        typed = (words_of(name, value) for name, value in self.fields)
        return [" ".join(parts) for parts in typed if parts]

    def before(self, recipe: Recipe) -> list[str]:
        """Return the options as typed that set the values of a recipe."""
        typed = (words_of(name, value_of(recipe, name)) for name, _ in self.fields)
        return [" ".join(parts) for parts in typed if parts]

    def recipe(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe with the change; None if its options exclude each other."""
        values = recipe.model_dump(exclude_unset=True)
        try:
            return Recipe.of(merged(values, nested(dict(self.fields))))
        except UsageError:
            return None


def fields_behind(seen: Evidence) -> frozenset[str]:
    """Return the fields that can change a stage, computed from what was recorded before it."""
    return seen.replayer.fields_behind(seen.recipe, seen.first.name)


def solvable(seen: Evidence) -> list[str]:
    """Return the fields with one number that can change a stage, and that can be solved."""
    fields = fields_behind(seen)
    numbers = (name for name, one in FIELDS.items() if one.bounds and name in fields)
    return [n for n in numbers if isinstance(value_of(seen.recipe, n), float | None)]


def single_changes(seen: Evidence) -> Iterator[Change]:
    """Yield single changes of a recipe that can change a stage of an input."""
    resolved, recipe = seen.resolved, seen.recipe
    sample, fields, distinct = SampleFacts(seen.replayer.rollouts), fields_behind(seen), set()
    own: dict[str, Any] = dict(zip(("norm_mean", "norm_std"), resolved.norm, strict=True))
    own["whiten_advantages"] = resolved.whiten
    for name, field in FIELDS.items():
        if name not in fields and name != "columns":
            continue
        for changes in field.changes(name, resolved, sample):
            changed = tuple(
                (name, value)
                for name, value in changes.items()
                if own.get(name, value_of(recipe, name)) != value
            )
            if changed and str(changed) not in distinct:
                distinct.add(str(changed))
                yield Change(changed)
