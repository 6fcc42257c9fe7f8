"""`rlpost config`: the recipe that options, variables, file and preset come to, and its schema."""

from __future__ import annotations

from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlpost.cli.commands.schema import schema
from rlpost.cli.environment import flag_of, variable_of
from rlpost.cli.options import OFF, recipe_of, with_recipe_options
from rlpost.recipe.presets import values_of
from rlpost.recipe.recipe import Recipe, load_toml, without_loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


EPILOG = """Examples:

  rlpost config show --preset verl --estimator gae

  rlpost config show --config recipe.toml --changed

  RLPOST_KL_COEF=0.1 rlpost config show --format toml > recipe.toml

  rlpost config schema > rlpost.schema.json
"""
SETTINGS = {"help_option_names": ["-h", "--help"]}
TABLES = ("columns", "teachers", "numerics")
UNSET = "default"

app = typer.Typer(add_completion=False, context_settings=SETTINGS, no_args_is_help=True)


class Style(Enum):
    """How the recipe is printed."""

    table = "table"
    json = "json"
    markdown = "markdown"
    toml = "toml"


class Setting(NamedTuple):
    """One field of the recipe; those of tables are written TABLE.NAME."""

    field: str
    value: Any
    source: str

    @property
    def is_set(self) -> bool:
        """Whether it is neither at the default of all recipes nor at that of the estimator."""
        return self.source != UNSET and not self.source.startswith(f"{UNSET} of ")


@app.callback(epilog=EPILOG)
def config() -> None:
    """Show the recipe that options come to, or the schema of recipe files."""


@app.command(epilog=EPILOG, context_settings=SETTINGS)
@with_recipe_options
def show(
    context: typer.Context,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar="RLPOST_PRESET", help="The numbers of a framework."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", envvar="RLPOST_CONFIG", help="Recipe to start from."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what is not at its default.")
    ] = False,
    style: Annotated[Style, typer.Option("--format", help="What to print.")] = Style.table,
    **options: Any,
) -> None:
    """Show the recipe of these options, and where each value came from.

    Flags beat RLPOST_* variables, which beat the file, which beats the preset, which beats
    defaults. What the estimator decides, where nothing else does, is filled in.
    """
    recipe = recipe_of(options, config, preset)
    sources = _sources(context, options, recipe, config, preset)
    # Torch takes a second to import; a wrong command line is answered before that.
    from rlpost.cli.render import config as render_config  # noqa: PLC0415
    from rlpost.estimators import estimator_named  # noqa: PLC0415

    estimator = estimator_named(recipe.estimator)
    left = {name: x for name, x in estimator.defaults.items() if getattr(recipe, name) is None}
    sources = dict.fromkeys(left, f"{UNSET} of {estimator.name}") | sources
    found = settings_of(recipe.model_copy(update=left), sources)
    if changed:
        found = [one for one in found if one.is_set]
    render_config.show(found, style.value)


app.command(name="schema")(schema)


def settings_of(recipe: Recipe, sources: Mapping[str, str]) -> list[Setting]:
    """Every field with its value as plain data, those of tables last, and its source."""
    values = recipe.model_dump(mode="json")
    tables = {title: values.pop(title) for title in TABLES}
    flat = {f"{title}.{key}": x for title, table in tables.items() for key, x in table.items()}
    return [Setting(key, x, sources.get(key, UNSET)) for key, x in (values | flat).items()]


def _sources(
    context: typer.Context,
    options: Mapping[str, Any],
    recipe: Recipe,
    config: Path | None,
    preset: str | None,
) -> dict[str, str]:
    """Where each field that is no default came from, by name; tables' by TABLE.NAME."""
    file = without_loss(load_toml(config)) if config is not None else {}
    of_file = file.pop("preset", None)
    preset = of_file if preset is None else preset
    asked = options.get("estimator") or file.get("estimator")
    found: dict[str, str] = {}
    if preset is not None:
        table = values_of(preset, {"estimator": asked} if asked else {})
        table.pop("estimator")  # it is told below, for a preset may put another in its place
        found |= dict.fromkeys(_keys(table), f"preset {preset}")
    found |= dict.fromkeys(_keys(file), str(config))
    for name, value in options.items():
        if value not in (None, [], ()) and name != "estimator":
            field = name.removeprefix(OFF)
            found |= dict.fromkeys(_words(field, value), _given_by(context, name))
    if recipe.estimator != (asked or Recipe().estimator):
        found["estimator"] = f"preset {preset}" + (f", for {asked}" if asked else "")
    elif options.get("estimator"):
        found["estimator"] = _given_by(context, "estimator")
    return found


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    """The names of fields, those of tables as TABLE.NAME."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in value)
        else:
            yield name


def _words(field: str, value: Any) -> list[str]:
    """The names of fields that the words of an option set."""
    if field not in TABLES:
        return [field]
    return [f"{field}.{word.partition('=')[0]}" for word in value]


def _given_by(context: typer.Context, name: str) -> str:
    """The option or the variable that a value came by."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "ENVIRONMENT":
        return variable_of(name)
    flag = flag_of(name.removeprefix(OFF))
    return f"--no-{flag[2:]}" if name.startswith(OFF) else flag
