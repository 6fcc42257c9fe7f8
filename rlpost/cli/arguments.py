"""The recipe and the losses that flags, RLPOST_* variables, a recipe file and a preset give."""

from __future__ import annotations

import os
import re
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.cli.environment import variable_of
from rlpost.cli.options import LISTS
from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES, READERS
from rlpost.recipe.flags import FLAGS, field_of, flag_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import DEFAULT, loss_values_of, usual_estimator, values_of
from rlpost.recipe.recipe import Recipe, load_toml, without_loss
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


MOST_SETTINGS = 1000
COMMAND_LINE = "command line"
UNSET = "default"
Values = dict[str, Any]


class Setting(NamedTuple):
    """One field of the recipe; a field of a table is called TABLE.NAME."""

    field: str
    value: Any
    source: str

    @property
    def is_set(self) -> bool:
        """Whether it has neither the default of all recipes nor that of the estimator."""
        return self.source != UNSET and not self.source.startswith(f"{UNSET} of ")


_BOUNDS = ("difficulty_mask", "no prompt group is dropped by its mean reward without a mask")
EFFECTS = {
    "rollout_reward": (
        "rollout_id",
        "rows are no rollouts without --rollout-id COLUMN, which names the column of rollout ids",
    ),
    "difficulty_low": _BOUNDS,
    "difficulty_high": _BOUNDS,
    "kl_horizon": ("kl_target", "the KL coefficient is constant without a target"),
}
"""Options without effect unless another one is set: that one, and why."""


def recipe_of(options: Mapping[str, Any], config: Path | None, preset: str | None = None) -> Recipe:
    """Return the recipe of a command: its options beat the file, which beats the preset.

    Args:
        options: by field, as typed or as RLPOST_* variables set them; None where nothing did.
            Others than those of a recipe are ignored.
        config: the recipe file.
        preset: the framework; None: the file's.

    Raises:
        UsageError: as `Recipe.of`; or a pair is not NAME=VALUE; or the preset is unknown.
    """
    table = without_loss(_load(config))
    preset = table.pop("preset", None) if preset is None else preset
    values = _set(options, Recipe.model_fields)
    for name in LISTS:
        if name in values:
            values[name] = [word.strip() for word in values[name].split(",") if word.strip()]
    for name in ("columns", "teachers"):
        if name in values:
            values[name] = _table(table, name, config) | name_values(values[name], FLAGS[name])
    if "numerics" in values:
        pairs = name_values(values["numerics"], "--numerics")
        for name in pairs:
            if name not in Numerics.model_fields:
                hint = closest(name, Numerics.model_fields)
                raise UsageError(f"--numerics {name}: no such field{hint}")
        values["numerics"] = _table(table, "numerics", config) | pairs
    origins = dict.fromkeys(table, str(config)) | {name: flag_of(name) for name in values}
    own = {**table, **values}
    if "estimator" in values:
        own.pop("estimator_name", None)
    resolved = own if preset is None else values_of(preset, own)
    try:
        recipe = Recipe.of(resolved, COMMAND_LINE, origins)
        _check_effects(values, recipe, origins)
    except UsageError as error:
        raise UsageError(_with_flags(str(error), origins)) from None
    return recipe


def _check_effects(values: Mapping[str, Any], recipe: Recipe, origins: Mapping[str, str]) -> None:
    """Raise UsageError if a flag sets an option without effect.

    Either another option is off, where variables are checked as well, or the estimator reads none
    of the kind. Presets and recipe files may have such a field for every input.
    """
    for name, (other, why) in EFFECTS.items():
        if name in values and getattr(recipe, other) in (None, False):
            raise UsageError(
                f"{origins[name]}: {why}; add {flag_of(other)}, or leave {flag_of(name)} out"
            )
    if recipe.estimator not in NAMES:  # the user's own may read every field
        return
    for name in values.keys() & READERS.keys():
        changed = getattr(recipe, name) != Recipe.model_fields[name].default
        if (
            changed
            and recipe.estimator not in READERS[name]
            and variable_of(name) not in os.environ
        ):
            raise UsageError(
                f"{origins[name]}: estimator {recipe.estimator} does not read it; leave it out, or "
                f"choose an --estimator that does: {', '.join(READERS[name])}"
            )


def _with_flags(text: str, origins: Mapping[str, str]) -> str:
    """Return errors about how options fit together, with the file that sets the first one."""

    def origin(found: re.Match[str]) -> str:
        source = origins.get(field_of(found[1]), found[1])
        return found[1] if source == found[1] else f"{source}: {found[1]}"

    return re.sub(rf"^{COMMAND_LINE}: (--[\w-]+)", origin, text, flags=re.MULTILINE)


def requested(
    options: Mapping[str, Any], config: Path | None, preset: str | None
) -> dict[str, Any]:
    """Return the preset and the estimator that were requested, by the names used for them.

    A preset may replace the requested estimator by another one with other norms.
    """
    table = _load(config)
    preset = table.get("preset") if preset is None else preset
    name = options["estimator"] or table.get("estimator") or usual_estimator(preset or DEFAULT)
    return {"preset": preset, "asked_estimator": name}


def loss_settings_of(
    options: Mapping[str, Any], sweep: Sequence[str], config: Path | None, preset: str | None
) -> list[tuple[LossOptions, Values]]:
    """Return the losses of a command, each with the values that distinguish it from the others.

    Options beat the file's [loss] table, which beats the preset's. A sweep beats all, and gives
    the product of all its values; the values of the last name vary fastest.

    Raises:
        UsageError: a name or a value is wrong, or there are too many settings.
    """
    file = _load(config)
    preset = file.get("preset") if preset is None else preset
    table = _table(file, "loss", config)
    values = _set(options, LossOptions.model_fields)
    axes = _axes(sweep)
    points = [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]
    if len(points) > MOST_SETTINGS:
        raise UsageError(f"--sweep: {len(points)} settings; at most {MOST_SETTINGS} are possible")
    settings = []
    for point in points:
        swept = {name: None if text == "none" else text for name, text in point.items()}
        own = {**table, **values, **swept}
        origins = dict.fromkeys(table, f"{config}, [loss]") | {x: flag_of(x) for x in values}
        where = COMMAND_LINE
        if point:
            where = f"--sweep {' '.join(f'{name}={x}' for name, x in point.items())}"
            origins = {name: x for name, x in origins.items() if name not in swept}
        try:
            loss = LossOptions.of(loss_values_of(preset or DEFAULT, own), where, origins)
        except UsageError as error:
            raise UsageError(_with_flags(str(error), origins)) from None
        settings.append((loss, _values_of_point(loss, point)))
    return settings


def fields_set(options: Mapping[str, Any], config: Path | None) -> tuple[set[str], set[str]]:
    """Return the fields of Recipe, and those of LossOptions, that options or the file set."""
    file = _load(config)
    of_recipe = {*_set(options, Recipe.model_fields), *file} & {*Recipe.model_fields}
    of_loss = {*_set(options, LossOptions.model_fields), *_table(file, "loss", config)}
    return of_recipe, of_loss & {*LossOptions.model_fields}


def name_values(words: Sequence[str], flag: str) -> dict[str, str]:
    """Return words of the form NAME=VALUE as a dictionary; raises UsageError for others."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag} {word}: write it NAME=VALUE")
        pairs[name] = value
    return pairs


def _load(config: Path | None) -> Values:
    return {} if config is None else load_toml(config)


def _set(options: Mapping[str, Any], fields: Iterable[str]) -> Values:
    """Return the options of these fields that are set."""
    return {name: options[name] for name in fields if options.get(name) not in (None, [], ())}


def _table(file: Mapping[str, Any], name: str, config: Path | None) -> Values:
    """Return a table of the recipe file; raises UsageError if it is something else."""
    table = file.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{config}: {name} is {table!r}: a table [{name}] is needed")
    return table


def _values_of_point(loss: LossOptions, point: Mapping[str, str]) -> Values:
    """Return the values that distinguish a setting; a loss by the name that was typed."""
    values = loss.model_dump(mode="json")
    return {name: text if name == "loss" else values[name] for name, text in point.items()}


def _axes(sweep: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each swept option."""
    axes: dict[str, list[str]] = {}
    for text in sweep:
        name, equals, words = text.partition("=")
        name = name.strip().replace("-", "_")
        values = [word.strip() for word in words.split(",") if word.strip()]
        if not (equals and values):
            raise UsageError(f"--sweep {text}: write it NAME=VALUE,VALUE,...")
        if name not in LossOptions.model_fields:
            hint = closest(name, LossOptions.model_fields)
            raise UsageError(f"--sweep {text}: losses have no option {name!r}{hint}")
        if name in axes:
            raise UsageError(f"--sweep: {name} is named twice; join its values with commas")
        if len(set(values)) < len(values):
            raise UsageError(f"--sweep {text}: a value is repeated")
        axes[name] = values
    return axes
