"""The recipe in the metadata of enriched files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.inputs import stored_object
from rlpost.pipeline.output.metadata import PRESET_KEY, FileMetadata
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.named import with_named
from rlpost.recipe.presets import DEFAULT, PRESETS, variants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.io.parquet.source import Source
    from rlpost.recipe.recipe import Recipe


@dataclass(frozen=True)
class StoredRecipe:
    """A recipe, and what the metadata say about its run."""

    recipe: Recipe | None = None
    preset: str | None = None
    estimator: str | None = None
    """By the name that was requested, which may be the framework's."""
    why_not: str = ""
    """Why there is none that can be used."""

    def without_names(self, where: str) -> StoredRecipe:
        """Return itself; no recipe if it names code."""
        if self.recipe is None:
            return self
        try:
            with_named(self.recipe, None, where)
        except UsageError:
            return StoredRecipe()
        return self


def recipe_of_files(source: Source) -> StoredRecipe:
    """Return the recipe in the metadata of enriched files, if all have the same."""
    recipes: dict[str, StoredRecipe] = {}
    for file, footer in zip(source.files, source.footers, strict=True):
        stored = footer.metadata or {}
        if b"rlpost.recipe" not in stored:
            return StoredRecipe()
        try:
            metadata = FileMetadata.read(str(file.path), stored)
        except DataError:  # its text may name files of this machine
            version = stored.get(b"rlpost.version", b"another version").decode(errors="replace")
            text = f"no recipe: that in the metadata, of rlpost {version}, cannot be used; "
            text += "choose one with --config"
            return StoredRecipe(why_not=text)
        preset, estimator = _requested(stored)
        recipe = metadata.recipe
        recipes[recipe.model_dump_json()] = StoredRecipe(recipe, preset, estimator)
    if len(recipes) > 1:
        text = "no recipe: those in the metadata of the files differ; choose one with --config"
        return StoredRecipe(why_not=text)
    return next(iter(recipes.values()))


def _requested(stored: Mapping[bytes, bytes]) -> tuple[str | None, str | None]:
    """Return the preset and the estimator that a run requested, by names of presets and rlpost.

    Other names in the metadata are left out: they would be code, or a line of a file for --config.
    """
    requested = stored_object(stored, PRESET_KEY.encode())
    preset = next((name for name in PRESETS if name == requested.get("preset")), None)
    names = (*NAMES, *variants(preset or DEFAULT))
    estimator = requested.get("requested_estimator")
    return preset, next((name for name in names if name == estimator), None)
