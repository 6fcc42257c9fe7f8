"""Settings: the recipe and the losses of options, a recipe file and a preset, with sources."""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from rlpost.cli.errors import print_warning
from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import (
    DEFAULT,
    PRESETS,
    NamedCorrection,
    correction_named,
    file_of,
    loss_values_of,
    merged,
    usual_estimator,
    values_of,
    variants,
)
from rlpost.recipe.recipe import TABLES, Recipe, load_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.losses.config import LossConfig
    from rlpost.recipe.base import OptionModel


MOST_SETTINGS = 1000
UNSET = "default"
Values = dict[str, Any]


NOT_IN_NUMBERS = ("emit", "emit_only", "replace")
"""Options that choose columns, or are checked with the input."""


_NOT_OF_RECIPE = ("preset", "correction", "loss")
"""Keys of a recipe file that are no fields of a recipe."""


class Settings:
    """The values of a command's options, of its recipe file and of its preset, and their sources.

    Options, as typed or as variables set them, override the file, which overrides the preset, which
    overrides the defaults. Tables are merged. The file is read when a value of it is needed.

    Raises (all members):
        UsageError: a name or a value is wrong; the first words name its source.
        ReadWriteError: the file cannot be read.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        config: Path | None = None,
        preset: str | None = None,
        variables: Mapping[str, str] | None = None,
        correction: str | None = None,
    ) -> None:
        """Store what was set, without any check.

        Args:
            options: by field of Recipe or LossOptions; None if unset. Further ones are ignored.
            config: the recipe file.
            preset: the framework; None: the file's.
            variables: the RLPOST_* variables of the options that they, and no flags, set.
            correction: a framework's named correction; None: the file's.
        """
        self._correction = correction
        self._options = {name: x for name, x in options.items() if x not in (None, [], ())}
        self._config = config
        self._preset = preset
        self.variables = variables or {}

    @cached_property
    def _file(self) -> Values:
        """The recipe file's table."""
        file = {} if self._config is None else load_toml(self._config)
        for name in (*TABLES, "loss"):
            if not isinstance(file.get(name, {}), dict):
                text = f"{name} is {file[name]!r}: a table [{name}] is needed"
                raise UsageError(f"{self._config}: {text}")
        return file

    @cached_property
    def _recipe_file(self) -> Values:
        """The file's fields of the recipe."""
        return {name: x for name, x in self._file.items() if name not in _NOT_OF_RECIPE}

    @cached_property
    def typed(self) -> Values:
        """The fields of the recipe that options set, without preset and recipe file."""
        return merged(*(values for _, values in self._typed_layers))

    @cached_property
    def _typed_layers(self) -> list[tuple[str, Values]]:
        """The flag or variable of each option that is set, and its field."""
        layers = []
        for name, value in self._set(Recipe).items():
            if name in TABLES and not isinstance(value, dict):
                value = name_values(value, flag_of(name))  # noqa: PLW2901
            flag = f"--no-{flag_of(name)[2:]}" if value is False else flag_of(name)
            layers.append((self.variables.get(name, flag), {name: value}))
        return layers

    @property
    def _layers(self) -> list[tuple[str, Values]]:
        """What sets fields of the recipe over the preset, and these fields; the last wins.

        A file may change the correction that it names; --correction overrides the file.
        """
        named = f"--correction {self.correction_name}", self.correction.recipe
        file = str(self._config), self._recipe_file
        below = [file, named] if self._correction else [named, file]
        return [*below, *self._typed_layers]

    def _set(self, model: type[OptionModel]) -> Values:
        """Return the options of a model's fields that are set."""
        return {name: x for name, x in self._options.items() if name in model.model_fields}

    @cached_property
    def preset(self) -> str | None:
        """The name of the preset that --preset, else the file names; None without one."""
        name, source = self._preset, "--preset"
        if name is None:
            name, source = self._file.get("preset"), str(self._config)
        if name in (None, DEFAULT):
            return name
        if not isinstance(name, str):
            text = f"preset is {name!r}: a name is needed, see `rlpost list presets`"
            raise UsageError(f"{source}: {text}")
        try:
            file_of(name)
        except UsageError as error:
            raise error.after(f"{source}: ") from None
        return name

    @property
    def correction_name(self) -> str | None:
        """The named correction that --correction, else the file names; None without one."""
        name = self._correction or self._file.get("correction")
        if name is not None and not isinstance(name, str):
            raise UsageError(f"{self._config}: correction is {name!r}: a name is needed")
        return name

    @property
    def correction(self) -> NamedCorrection:
        """The named correction."""
        return correction_named(self.correction_name)

    @property
    def _own(self) -> Values:
        """The fields of the recipe that options, the correction and the file set."""
        return merged(*(values for _, values in self._layers))

    @property
    def requested(self) -> dict[str, Any]:
        """The preset, None without one, and the estimator that were requested, by these names.

        A preset may replace the requested estimator by another one with other norms.
        """
        name = self._requested_estimator or usual_estimator(self.preset or DEFAULT)
        return {"preset": self.preset, "requested_estimator": name}

    @property
    def _requested_estimator(self) -> str | None:
        return self.typed.get("estimator") or self._file.get("estimator")

    def check_rollouts(self, summary: Mapping[str, Any]) -> None:
        """Warn of a reward of rollouts that is set, if each row counts, by the summary of a run."""
        rule = self.typed.get("rollout_reward")
        if rule is not None and summary.get("rollouts") is None and summary.get("estimator"):
            print_warning(f"{flag_of('rollout_reward')} {rule} has no effect, since each row "
                          f"counts: {flag_of('columns')} rollout=COLUMN names ids")  # fmt: skip

    @property
    def has_base(self) -> bool:
        """Whether a preset or a recipe file is set."""
        return self._preset is not None or self._config is not None

    @property
    def words(self) -> list[str]:
        """The preset, the recipe file and the fields that are set, as one types them."""
        words = [] if self._preset is None else ["--preset", self._preset]
        words += [] if self._config is None else ["--config", str(self._config)]
        return words + [word for name, x in self.typed.items() for word in Recipe.words_of(name, x)]

    @property
    def fields_set(self) -> tuple[set[str], set[str]]:
        """The fields of Recipe, and those of LossOptions, that options or the file set.

        `correction` is among the former if a correction is named.
        """
        of_recipe = {*self.typed, *self._recipe_file}
        of_loss = {*self._set(LossOptions), *self._file.get("loss", {})}
        named = {"correction"} if self.correction_name else set()
        return of_recipe & {*Recipe.model_fields} | named, of_loss & {*LossOptions.model_fields}

    @cached_property
    def sources(self) -> dict[str, str]:
        """The flag, variable, file or preset of each field that is set; TABLE.NAME in tables."""
        requested = self._requested_estimator
        named = {"estimator": requested} if requested else {}
        values = values_of(self.preset or DEFAULT, named)
        estimator = values.pop("estimator")  # see below: a preset may replace it
        layers = [(f"preset {self.preset}", values), *self._layers]
        sources = {key: source for source, fields in layers for key in _keys(fields)}
        if estimator != (requested or Recipe().estimator):
            why = f", for {requested}" if requested else ""
            sources["estimator"] = f"preset {self.preset}{why}"
        return sources

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe."""
        values = self._own
        if "estimator" in self.typed:
            values.pop("estimator_name", None)
        recipe = self._typed(Recipe.of(values_of(self.preset or DEFAULT, values), "", self.sources))
        self._check_effects(recipe)
        return recipe

    def _typed(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the types of its estimator's options."""
        if not recipe.options:
            return recipe
        from rlpost.estimators import typed  # noqa: PLC0415 - slow to import

        variables = {*self.variables.values()}
        files = {name: source for name, source in self.sources.items() if source not in variables}
        return typed(recipe, origins=files)

    def given(self) -> Values:
        """Return the fields that options set of a recipe whose preset is searched for.

        Raises:
            UsageError: a value is wrong, or changes no number.
        """
        typed, name = self.typed, self._requested_estimator
        of_preset = name not in NAMES and any(name in variants(preset) for preset in PRESETS)
        if name is None or of_preset:
            others = {key: x for key, x in typed.items() if key != "estimator"}
            others |= _with_options(typed.get("options", {}))
            recipe = self._typed(Recipe.of(values_of(DEFAULT, others), "", self.sources))
            self._check_effects(recipe, any_estimator=True)
        else:
            recipe = self.recipe
        values = {key: getattr(recipe, key) for key in typed}
        for key in typed.keys() & {*TABLES}:
            values[key] = {part: dict(values[key])[part] for part in typed[key]}
        return values | ({"estimator": name} if name else {})

    def _check_effects(self, recipe: Recipe, *, any_estimator: bool = False) -> None:
        """Raise UsageError if a flag sets an option that changes no number.

        The estimator always changes some. Variables, presets and recipe files may have such a field
        for every input.
        """
        names = {*self.typed} - {*self.variables, *TABLES, *NOT_IN_NUMBERS, "estimator"}
        fields = Recipe.model_fields
        typed = [name for name in sorted(names) if getattr(recipe, name) != fields[name].default]
        if typed:
            from rlpost.pipeline.effects import check_effects  # noqa: PLC0415 - slow to import

            check_effects(recipe, typed, any_estimator=any_estimator)

    def losses(self, sweep: Sequence[str]) -> list[LossConfig]:
        """Return the losses, each with the values that distinguish it from the others.

        A sweep overrides all, and gives the product of all its values; the values of the last name
        vary fastest. Of several losses, an option applies to those that have it.
        """
        from rlpost.losses.config import settings_of  # noqa: PLC0415 - slow to import

        table, options = self._file.get("loss", {}), self._set(LossOptions)
        if "loss_options" in options:
            options["loss_options"] = name_values(options["loss_options"], flag_of("loss_options"))
        axes = _axes(sweep)
        points = [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]
        if len(points) > MOST_SETTINGS:
            text = f"{len(points)} settings; at most {MOST_SETTINGS} are possible"
            raise UsageError(f"--sweep: {text}")
        sources = dict.fromkeys(_keys(table), f"{self._config}, [loss]")
        sources |= {name: flag_of(name) for name in options}
        typed = merged(table, options)
        return settings_of([self._trial(point, typed, sources) for point in points], sources)

    def _trial(
        self, point: Mapping[str, str], values: Values, sources: Mapping[str, str]
    ) -> LossConfig:
        """Return the loss of a point."""
        from rlpost.losses.config import LossConfig  # noqa: PLC0415 - slow to import

        words = " ".join(["--sweep", *(f"{name}={text}" for name, text in point.items())])
        swept = {name: None if text == "none" else text for name, text in point.items()}
        fields = {name: x for name, x in swept.items() if name in LossOptions.model_fields}
        options = LossOptions.of(
            loss_values_of(self.preset or DEFAULT, merged(self.correction.loss, values, fields)),
            words if point else "",
            {name: source for name, source in sources.items() if name not in point},
        )
        return LossConfig(options, swept)


def components_of(names: str | None, weights: str | None) -> dict[str, float]:
    """Return the weight of each reward component that options name, by its column."""
    typed = Settings({"reward_components": names, "component_weights": weights})
    return Recipe.of(typed.typed, "", typed.sources).component_weight


def name_values(words: Sequence[str], flag: str) -> dict[str, str]:
    """Return words of the form NAME=VALUE as a dictionary; raises UsageError for others."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{flag} {word}: write it NAME=VALUE")
        pairs[name] = value
    return pairs


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of fields; of tables also the names in them, as TABLE.NAME."""
    for name, value in values.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in value)


def _with_options(options: Values) -> Values:
    """Return an estimator that has all of these options; none if none has."""
    if not options:
        return {}
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415 - slow to import

    names = [name for name, x in ESTIMATORS.items() if {*options} <= {*x.options}]
    return {"estimator": names[0]} if names else {}


def _axes(sweep: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each swept option, as typed."""
    axes: dict[str, list[str]] = {}
    for text in sweep:
        name, equals, words = text.partition("=")
        name = name.strip().replace("-", "_")
        values = [word.strip() for word in words.split(",") if word.strip()]
        if not (equals and values):
            raise UsageError(f"--sweep {text}: write it NAME=VALUE,VALUE,...")
        if name in axes:
            raise UsageError(f"--sweep: {name} is named twice; join its values with commas")
        if len(set(values)) < len(values):
            raise UsageError(f"--sweep {text}: a value is repeated")
        axes[name] = values
    return axes
