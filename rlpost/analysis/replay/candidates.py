"""Candidates of a search: a preset, its estimator and a few changes, and how one types them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError
from rlpost.estimators import completed
from rlpost.pipeline.effects import fields_of
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.presets import (
    DEFAULT,
    PRESETS,
    merged,
    usual_estimator,
    values_of,
    variants,
)
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlpost.analysis.stored_recipe import StoredRecipe
    from rlpost.pipeline.resolved import ResolvedRecipe

Values = dict[str, Any]
_TABLES = ("numerics", "options")
"""Tables of a recipe whose entries are changes of their own."""
# Of equally small recipes the first is named: rlpost's own, then presets.
ORDER = (DEFAULT, *PRESETS)


@cache
def _base_values(preset: str, estimator: str) -> Values:
    return values_of(preset, {"estimator": estimator})


@cache
def _own(preset: str) -> tuple[str, ...]:
    return () if preset == DEFAULT else variants(preset)


@cache
def base_recipe(preset: str, estimator: str) -> Recipe:
    """Return the recipe of a preset's estimator, without changes."""
    return completed(Recipe.of(_base_values(preset, estimator)))


def nested(flat: Mapping[str, Any]) -> Values:
    """Return changes as fields of a recipe: `numerics.NAME` and `options.NAME` in their tables."""
    out: Values = {}
    for name, value in flat.items():
        table, _, key = name.partition(".")
        if table in _TABLES and key:
            out[table] = {**out.get(table, {}), key: value}
        else:
            out[name] = value
    return out


def flat(values: Mapping[str, Any]) -> Values:
    """Return fields of a recipe as changes."""
    tables = {f"{t}.{key}": x for t in _TABLES for key, x in values.get(t, {}).items()}
    return {name: value for name, value in values.items() if name not in _TABLES} | tables


def value_of(recipe: Recipe, name: str) -> Any:
    """Return the value of a field, of `numerics.NAME`, or of `options.NAME`; None if not set."""
    table, _, key = name.partition(".")
    if not key:
        return recipe.kl_kind if name == "kl_estimator" else getattr(recipe, name)
    return getattr(recipe.numerics, key) if table == "numerics" else recipe.options.get(key)


@dataclass(frozen=True)
class Candidate:
    """A preset, one of its estimators, and changes."""

    preset: str
    estimator: str
    """As the framework calls it."""
    changes: Values = field(default_factory=dict)
    """By field, or `TABLE.NAME`."""
    given: Values = field(default_factory=dict)
    """Fields that the user typed, in the same form; they stay."""

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe; raises UsageError if options exclude each other."""
        base = _base_values(self.preset, self.estimator)
        return completed(Recipe.of(merged(base, nested(self.changes), nested(self.given))))

    def changed(self, changes: Mapping[str, Any]) -> Candidate:
        """Return the candidate with other changes too; those equal to the preset are left out."""
        base = base_recipe(self.preset, self.estimator)
        both = {**self.changes, **changes}
        kept = {n: v for n, v in both.items() if n not in self.given and value_of(base, n) != v}
        return Candidate(self.preset, self.estimator, kept, self.given)

    def without(self, names: Iterable[str]) -> Candidate:
        """Return the candidate without some changes."""
        left = {*names}
        kept = {name: value for name, value in self.changes.items() if name not in left}
        return Candidate(self.preset, self.estimator, kept, self.given)

    @property
    def order(self) -> tuple[int, int, int, int, bool, int]:
        """The plainest first: the fewest changes, then rlpost's options, then presets."""
        running = sum(value == "running" for value in self.changes.values())
        usual = usual_estimator(self.preset)
        of_preset = self.estimator in (*_own(self.preset), usual)
        kind = 0 if self.preset == DEFAULT else 3 if not of_preset else 1
        place, other = ORDER.index(self.preset), self.estimator != usual
        number = NAMES.index(self.estimator) if self.estimator in NAMES else len(NAMES)
        return len(self.changes), running, kind, place, other, number

    @property
    def typed(self) -> list[str]:
        """The options that name the recipe, as one types them."""
        parts = [] if self.preset == DEFAULT else ["--preset", self.preset]
        parts += ["--estimator", self.estimator]
        for name, value in {**self.given, **self.changes}.items():
            if name != "estimator":
                parts += Recipe.words_of(name, value)
        return parts

    @property
    def named(self) -> str:
        """The options in one line."""
        return shlex.join(self.typed)

    @property
    def facts(self) -> Values:
        """The recipe as plain data: as typed, and by preset, estimator and changes."""
        return {
            "named": self.named,
            "preset": self.preset,
            "estimator": self.estimator,
            "changes": nested(self.changes),
        }


def bases(given: Mapping[str, Any]) -> list[Candidate]:
    """Return presets with their own estimators, and rlpost's estimators, each recipe once.

    Args:
        given: changes that the user typed; `estimator` restricts the estimators.
    """
    pairs = [(preset, name) for preset in ORDER for name in _own(preset)]
    pairs += [(DEFAULT, name) for name in NAMES]
    return _distinct(pairs, given)


def presets_of(estimator: str, given: Mapping[str, Any]) -> list[Candidate]:
    """Return an estimator of rlpost with every preset, by each name that the preset has for it."""
    pairs = [
        (preset, name)
        for preset in ORDER
        for name in dict.fromkeys((*_own(preset), estimator))
        if base_recipe(preset, name).estimator == estimator
    ]
    return _distinct(pairs, given)


def _distinct(pairs: Iterable[tuple[str, str]], given: Mapping[str, Any]) -> list[Candidate]:
    """Return a candidate for each different recipe, the plainest."""
    fields = {name: value for name, value in given.items() if name != "estimator"}
    typed = given.get("estimator")
    if typed is not None and typed not in NAMES:
        pairs = [*pairs, *((preset, typed) for preset in ORDER if ":" in typed)]
    candidates: dict[str, Candidate] = {}
    for preset, name in pairs:
        recipe = base_recipe(preset, name)
        if typed in (None, name, recipe.estimator):
            candidate, key = Candidate(preset, name, {}, fields), key_of(recipe)
            candidates[key] = min(
                candidates.get(key, candidate), candidate, key=lambda each: each.order
            )
    return list(candidates.values())


def key_of(recipe: Recipe) -> str:
    """Return a text that is equal for recipes that compute the same."""
    values = recipe.model_dump(mode="json", exclude={"estimator_name", "emit"})
    return json.dumps({**values, "kl_estimator": recipe.kl_kind}, sort_keys=True)


def values_read(resolved: ResolvedRecipe) -> Values:
    """Return the values of the fields that the stages of a recipe read, as its input resolves them.

    Recipes with the same values compute the same.
    """
    fields = fields_of(resolved)
    resolved_values: Values = {"whiten_advantages": resolved.whiten, "unit": resolved.unit}
    if not resolved.estimator.normalises:
        resolved_values |= dict(zip(("norm_mean", "norm_std"), resolved.norm, strict=True))
    values = {name: value_of(resolved.recipe, name) for name in sorted(fields)}
    return values | {name: value for name, value in resolved_values.items() if name in fields}


_LEFT_OUT = {"estimator", "estimator_name", "columns", "emit", "emit_only", "replace"}
"""Fields that a candidate has otherwise, or that change no number."""


def candidate_of(stored: StoredRecipe) -> Candidate | None:
    """Return the preset, its estimator and the changes of the recipe in the metadata of files.

    None without a recipe, or if its preset or its estimator is not known here.
    """
    recipe, preset = stored.recipe, stored.preset or DEFAULT
    if recipe is None or preset not in ORDER:
        return None
    plain = Candidate(preset, stored.estimator or recipe.estimator)
    names = [name for name in flat(recipe.model_dump()) if name not in _LEFT_OUT]
    try:
        return plain.changed({name: value_of(recipe, name) for name in names})
    except UsageError:
        return None
