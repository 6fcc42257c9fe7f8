"""`rlpost config`: the resolved recipe and where it came from; and the schema of recipe files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlpost._version import __version__
from rlpost.cli.arguments import UNSET, Setting, Settings
from rlpost.cli.help_screen import NAMES, Group, command
from rlpost.cli.options import option, with_recipe_options
from rlpost.recipe.base import KL_SYNONYMS
from rlpost.recipe.loss import NAMES as LOSSES
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import DEFAULT, PRESETS, corrections, loss_variants, variants
from rlpost.recipe.recipe import EXTRA, TABLES, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Mapping


Json = dict[str, Any]
EPILOG = """Examples:

  rlpost config --preset verl --estimator gae

  rlpost config --config recipe.toml --all

  RLPOST_KL_COEF=0.1 rlpost config --format toml > recipe.toml

  rlpost config schema > rlpost.schema.json
"""
SCHEMA_EPILOG = """Example:

  rlpost schema > rlpost.schema.json

With `#:schema ./rlpost.schema.json` as the first line of recipe.toml, editors with taplo check and
complete it (VS Code with Even Better TOML, Neovim, Helix, Zed).
"""


class ConfigGroup(Group):
    """Runs `show` if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; those of `show` without its name are for it."""
        if not ctx.resilient_parsing and (
            not args or (args[0][:1] == "-" and args[0] not in NAMES)
        ):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ConfigGroup, add_completion=False, context_settings={"help_option_names": NAMES}
)
schema_app = typer.Typer(add_completion=False)


@app.callback(epilog=EPILOG)
def config() -> None:
    """Show the resolved recipe and the source of each value."""


@command(app, epilog=EPILOG)
@with_recipe_options()
def show(
    settings: Settings,
    with_defaults: Annotated[bool, option("--all", "", "Print defaults, too.")] = False,
    how: Annotated[
        Literal["table", "json", "markdown", "toml"],
        option("--format", "", "Output format on stdout."),
    ] = "table",
) -> None:
    """Show the recipe of these options and the source of each value.

    Flags override RLPOST_* variables, which override the recipe file, which overrides the preset,
    which overrides defaults. Defaults of the estimator are filled in.
    """
    recipe, sources = settings.recipe, settings.sources
    # Torch takes a second to import; a wrong command line is answered before that.
    from rlpost.cli.render.catalogue import show_settings  # noqa: PLC0415
    from rlpost.estimators import completed  # noqa: PLC0415
    from rlpost.pipeline.resolved import estimator_of, process_rewards  # noqa: PLC0415

    estimator = estimator_of(recipe)
    process = process_rewards(recipe, estimator)
    left = {name: x for name, x in estimator.defaults.items() if getattr(recipe, name) is None}
    values: dict[str, Any] = dict(left)
    if process and recipe.numerics.process_rewards == "auto":
        values["numerics"] = recipe.numerics.model_copy(update={"process_rewards": process})
    filled = [*left, *(["numerics.process_rewards"] if "numerics" in values else [])]
    values["options"] = completed(recipe, estimator).options
    filled += [f"options.{name}" for name in values["options"]]
    sources = dict.fromkeys(filled, f"{UNSET} of {estimator.name}") | sources
    fields = fields_of(recipe.model_copy(update=values), sources)
    listed = [setting for setting in fields if setting.is_set or with_defaults]
    of_preset = f"preset {settings.preset}, " if settings.preset else ""
    show_settings(listed, f"{of_preset}estimator {recipe.estimator}", how)


def fields_of(recipe: Recipe, sources: Mapping[str, str]) -> list[Setting]:
    """Every field with its value as plain data, those of tables last, and its source."""
    values = recipe.model_dump(mode="json")
    tables = {title: values.pop(title) for title in TABLES}
    flat = {f"{title}.{key}": x for title, table in tables.items() for key, x in table.items()}
    return [Setting(key, x, sources.get(key, UNSET)) for key, x in (values | flat).items()]


@command(app, epilog=SCHEMA_EPILOG)
@command(schema_app, epilog=SCHEMA_EPILOG)
def schema() -> None:
    """Print the JSON Schema of recipe files, with the description of each field."""
    typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))


def json_schema() -> Json:
    """Return the JSON Schema (draft 2020-12) of the TOML files that --config reads.

    It is that of Recipe, with the preset that a file may name and its table of the loss. A field
    whose values are names lists them; an estimator may be a user's own, so any string is valid.
    """
    recipe = Recipe.model_json_schema()
    loss = LossOptions.model_json_schema()
    definitions = recipe.pop("$defs", {}) | loss.pop("$defs", {}) | {"LossOptions": loss}
    for definition in definitions.values():  # without the line of each field
        definition["description"] = definition["description"].partition("\n\n")[0]
    fields: Json = {
        "$schema": {"type": "string", "description": "Path of this schema, for editors."},
        "preset": {
            "type": "string",
            "enum": [*PRESETS, DEFAULT],
            "description": "Framework to compute as; fields of the file override it.",
        },
        "correction": {
            "type": "string",
            "enum": [*corrections()],
            "description": "Named correction of a framework; fields of the file override it.",
        },
        **recipe.pop("properties"),
        "loss": {
            "$ref": "#/$defs/LossOptions",
            "description": "The policy loss, for rlpost loss.",
        },
    }
    _add_names(fields, loss["properties"])
    for table in (fields, *(part.get("properties", {}) for part in definitions.values())):
        for field in table.values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:rlpost:recipe:{__version__}",
        "x-semantics": SEMANTICS,
        **recipe,
        "title": "rlpost recipe",
        "description": "The files that `rlpost advantages --config` reads: every option that "
        "changes a number. A missing field has its default, or the estimator's; x-semantics is "
        "the number of these defaults, which the metadata of outputs have as rlpost.semantics.",
        "properties": fields,
        "$defs": definitions,
    }


def _add_names(fields: Json, loss: Json) -> None:
    """Add the names that editors can offer to fields whose type is only `string`."""
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415 - slow to import

    of_presets = [name for preset in PRESETS for name in variants(preset)]
    own_losses = [name for preset in PRESETS for name in loss_variants(preset)]
    fields["estimator"] |= _open([*ESTIMATORS, *of_presets])
    loss["loss"] |= _open([*LOSSES, *own_losses])
    fields["columns"] |= {"propertyNames": _open(list(ROLES))}
    for kinds in (fields["kl_estimator"]["anyOf"][0], loss["kl_loss_estimator"]):
        kinds["enum"] = [*kinds["enum"], *KL_SYNONYMS]
    for kind in fields["emit"]["anyOf"]:
        if kind.get("type") == "array":
            kind["items"] = {"enum": [*WRITTEN, *EXTRA]}


def _open(names: list[str]) -> Json:
    """Return the schema of these names, or of another string: those of users' estimators."""
    return {"anyOf": [{"enum": list(dict.fromkeys(names))}, {"type": "string"}]}
