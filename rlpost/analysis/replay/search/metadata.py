"""The recipe in the metadata of enriched files as a candidate of a search: how one types it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.replay.search.candidates import ORDER, Candidate, flat, value_of
from rlpost.analysis.replay.search.fields import FIELDS
from rlpost.errors import UsageError
from rlpost.recipe.presets import DEFAULT

if TYPE_CHECKING:
    from rlpost.analysis.replay.stored_recipe import StoredRecipe

_LEFT_OUT = {"estimator", "estimator_name", "columns", "emit", "emit_only", "replace"}
"""Fields that a candidate has otherwise, or that change no number."""


def candidate_of(stored: StoredRecipe) -> Candidate | None:
    """Return the preset, its estimator and the changes of a stored recipe.

    None without a recipe, or if its preset or its estimator is not known here.
    """
    recipe, preset = stored.recipe, stored.preset or DEFAULT
    if recipe is None or preset not in ORDER:
        return None
    plain = Candidate(preset, stored.estimator or recipe.estimator)
    names = dict.fromkeys([*FIELDS, *flat(recipe.model_dump())])
    try:
        return plain.changed({n: value_of(recipe, n) for n in names if n not in _LEFT_OUT})
    except UsageError:
        return None
