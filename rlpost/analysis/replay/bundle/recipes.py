"""The recipe of a bundle: that of the options, or that in the metadata of enriched files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError
from rlpost.io.own_files import stored_object
from rlpost.pipeline.output.metadata import PRESET_KEY, FileMetadata
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.named import NamedByUser
from rlpost.recipe.presets import ALL_PRESETS, DEFAULT, toml_lines, variants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.io.parquet.source import Source
    from rlpost.recipe.loss import LossOptions
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]


@dataclass(frozen=True)
class BundledRecipe:
    """The recipe of a bundle, and its origin."""

    recipe: Recipe | None = None
    loss: LossOptions | None = None
    preset: str | None = None
    estimator: str | None = None
    """By the name that was requested, which may be the framework's."""
    of_file: bool = False
    """It is the recipe in the metadata of the input."""
    rows: int = -1
    """Rows of the run, according to the metadata; -1 if unknown."""
    warnings: tuple[str, ...] = ()

    def without_names(self, where: str) -> BundledRecipe:
        """Return itself; a warning in place of a recipe that names code or a tokenizer.

        Args:
            where: the recipe is, for the warning.
        """
        if self.recipe is None or not self.of_file:
            return self
        try:
            NamedByUser().completed(self.recipe, where)
        except UsageError as error:
            text = f"no recipe: {error}, with --preset or --config"
            return BundledRecipe(warnings=(text,))
        return self

    def text(self, recipe: Recipe) -> str:
        """Return the recipe of the bundle's columns as a file for `--config`."""
        flags = {"--preset": self.preset, "--estimator": self.estimator}
        named = " ".join(f"{flag} {value}" for flag, value in flags.items() if value)
        origin = "the metadata of the input" if self.of_file else "the options of rlpost bundle"
        head = f"# The recipe of {origin}{f' ({named})' if named else ''}."
        return "\n".join([head, *toml_lines(recipe, self.loss)]) + "\n"


def recipe_of_files(source: Source) -> BundledRecipe:
    """Return the recipe in the metadata of enriched files, if all have the same."""
    recipes: dict[str, BundledRecipe] = {}
    for file, footer in zip(source.files, source.footers, strict=True):
        stored = footer.metadata or {}
        if b"rlpost.recipe" not in stored:
            return BundledRecipe()
        try:
            metadata = FileMetadata.read(str(file.path), stored)
        except DataError:  # its text may name files of this machine
            text = "no recipe: that in the metadata cannot be used; choose one with --config"
            return BundledRecipe(warnings=(text,))
        preset, estimator = _requested(stored)
        carried = bool(metadata.running) or metadata.kl_coef is not None
        why = "the run began with the statistics of a --state file, which the input has not"
        recipes[metadata.recipe.model_dump_json()] = BundledRecipe(
            metadata.recipe,
            preset=preset,
            estimator=estimator,
            of_file=True,
            rows=metadata.rows,
            warnings=(why,) if carried else (),
        )
    if len(recipes) > 1:
        text = "no recipe: those in the metadata of the files differ; choose one with --config"
        return BundledRecipe(warnings=(text,))
    return next(iter(recipes.values()))


def _requested(stored: Mapping[bytes, bytes]) -> tuple[str | None, str | None]:
    """Return the preset and the estimator that a run requested, by names of presets and rlpost.

    Other names in the metadata are left out: they would be code, or a line of a file for --config.
    """
    requested = stored_object(stored, PRESET_KEY.encode())
    preset = next((name for name in ALL_PRESETS if name == requested.get("preset")), None)
    names = (*NAMES, *variants(preset or DEFAULT))
    estimator = requested.get("requested_estimator")
    return preset, next((name for name in names if name == estimator), None)
