"""`rlpost config`: a recipe and where it comes from, what two differ in, the schema of files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlpost._version import __version__
from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import UNSET, Settings
from rlpost.cli.help_screen import APPS, NAMES, SETTINGS, Group, argument, command
from rlpost.cli.options import option, options_of
from rlpost.display.text import counted, number, percent
from rlpost.errors import UsageError
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import (
    DEFAULT,
    PRESETS,
    corrections,
    differences,
    loss_differences,
    merged,
    toml_lines,
)
from rlpost.recipe.recipe import TABLES, Recipe
from rlpost.recipe.semantics import SEMANTICS
from rlpost.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.estimators import Estimator
    from rlpost.recipe.presets import FieldDifference


Json = dict[str, Any]
SIDE = "Preset, default (rlpost's own), or recipe file."


class ConfigGroup(Group):
    """Runs `show` if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; those of `show` without its name are for it."""
        if not ctx.resilient_parsing and (
            not args or (args[0][:1] == "-" and args[0] not in NAMES)
        ):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = APPS["config"] = typer.Typer(cls=ConfigGroup, add_completion=False, context_settings=SETTINGS)


@app.callback(help="Show the resolved recipe and the source of each value.")
def config() -> None:
    """Show the resolved recipe and the source of each value."""


@command(app)
@options_of(recipe=True)
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

    Examples:
      rlpost config --preset verl --estimator gae
      rlpost config --config recipe.toml --all
      RLPOST_KL_COEF=0.1 rlpost config --format toml > recipe.toml
      rlpost config diff verl trl --estimator grpo
      rlpost config schema > rlpost.schema.json
    """
    recipe = settings.recipe
    if how == "toml":
        lines = toml_lines(recipe, whole=with_defaults) or ["# all fields have their defaults"]
        typer.echo("\n".join(lines))
        return
    # Torch takes a second to import; a wrong command line is answered before that.
    from rlpost.cli.render.catalogue import show_records  # noqa: PLC0415
    from rlpost.estimators import estimator_named  # noqa: PLC0415

    fields = _fields(
        recipe, _completed(recipe, estimator_named(recipe.estimator)), settings.sources
    )
    chosen = [field for field in fields if not field["from"].startswith(UNSET)]
    of_preset = f"preset {settings.preset}, " if settings.preset else ""
    verb = "is" if len(chosen) == 1 else "are"
    line = f"{counted(len(chosen), 'field')} {verb} set; the others are defaults"
    show_records(
        f"rlpost config · {of_preset}estimator {recipe.estimator}",
        fields if with_defaults else chosen,
        how,
        lines=[line if chosen else "Every field has its default."],
        steps=[] if with_defaults else [shlex.join(["rlpost", "config", *settings.words, "--all"])],
    )


def _fields(recipe: Recipe, whole: Recipe, sources: Mapping[str, str]) -> list[Json]:
    """Return every field as a record, those of tables last, with the source of its value.

    Args:
        recipe: of the settings.
        whole: with the defaults of its estimator.
        sources: of the fields that are set.
    """
    before = _flat(recipe)
    of_estimator = f"{UNSET} of {recipe.estimator}"
    return [
        {"field": name, "value": value, "from": sources.get(
            name, UNSET if before.get(name, ...) == value else of_estimator)}
        for name, value in _flat(whole).items()
    ]  # fmt: skip


def _flat(recipe: Recipe) -> Json:
    """Return the fields of a recipe as plain data, those of tables last, as TABLE.NAME."""
    values = recipe.model_dump(mode="json")
    tables = {title: values.pop(title) for title in TABLES}
    values |= {f"{title}.{key}": x for title, table in tables.items() for key, x in table.items()}
    return {name: without_secrets(x) if isinstance(x, str) else x for name, x in values.items()}


def _completed(recipe: Recipe, estimator: Estimator) -> Recipe:
    """Return a recipe with the defaults of its estimator."""
    from rlpost.estimators import completed  # noqa: PLC0415 - slow to import

    unset = {name: x for name, x in estimator.defaults.items() if getattr(recipe, name) is None}
    return completed(recipe, estimator).model_copy(update=unset)


@command(app)
def diff(
    left: Annotated[str, argument("A", SIDE, completion.of_kind("presets"))],
    right: Annotated[str, argument("B", SIDE, completion.of_kind("presets"))],
    path: Annotated[
        str | None, argument("IN", "Order the fields by what they change in this input.")
    ] = None,
    estimator: Annotated[
        str | None,
        option("--estimator", "NAME", "Only what this estimator reads (default: all, of grpo)."),
    ] = None,
    loss: Annotated[
        str | None, option("--loss", "NAME", "Compare the presets for this loss.")
    ] = None,
    how: declared.Output = "table",
) -> None:
    """Print where two recipes differ.

    A and B are presets or files, of which the recipe and the policy loss are compared.
    Fields are in the order of the stages that read them; with IN in that of their effect: how many
    responses change, and by how much, if A has the value of B in this field alone. Without --loss
    and --estimator, the usual loss of each framework is compared, too.

    Examples:
      rlpost config diff verl trl --estimator grpo
      rlpost config diff verl trl in.parquet
      rlpost config diff recipe.toml default --format markdown
    """
    from rlpost.cli.render.catalogue import show_records  # noqa: PLC0415 - rich
    from rlpost.estimators import estimator_named  # noqa: PLC0415

    names = left, right
    settings = [_side(name, {"estimator": estimator, "loss": loss}) for name in names]
    estimators = [estimator_named(side.recipe.estimator) for side in settings]
    meanings = {name: x.text for by in estimators for name, x in by.options.items()}
    recipes = [_completed(side.recipe, by) for side, by in zip(settings, estimators, strict=True)]
    order = _fields_read(recipes)
    fields = differences(recipes[0], recipes[1], meanings)
    fields.sort(key=lambda x: order.index(x.path) if x.path in order else len(order))
    if estimator is not None and order:
        fields = [field for field in fields if field.path in order]
    effects = None if path is None else _effects(path, recipes, fields)
    if effects is not None:
        fields.sort(key=lambda x: _rank(effects.get(x.path)), reverse=True)
    if loss is not None or estimator is None:
        configs = [config for side in settings for config in side.losses([])]
        texts = {name: x.text for config in configs for name, x in config.loss.options.items()}
        ours, theirs = (config.resolved() for config in configs)
        fields += loss_differences(ours, theirs, texts)
    lines = ["They have equal options."]
    if fields:
        verb = "differs" if len(fields) == 1 else "differ"
        lines = [f"{counted(len(fields), 'field')} {verb}; equal fields are omitted"]
    if effects is not None:
        lines.append(f"changes: advantages of responses that change if {left} has the value of "
                     f"{right} alone; – is no field of advantages")  # fmt: skip
    show_records(
        f"rlpost config diff · {left}, {right}",
        [_record(names, field, effects, how) for field in fields],
        how, lines=lines, steps=[f"rlpost help {field.field}" for field in fields[:1]],
    )  # fmt: skip


def _record(
    names: Sequence[str],
    field: FieldDifference,
    effects: Mapping[str, Json | None] | None,
    how: str,
) -> Json:
    """Return a difference; in JSON with the meaning of the field, and its effect as numbers."""
    values = {names[0]: field.left, names[1]: field.right}
    effect = (effects or {}).get(field.path)
    if how == "json":
        shown = {} if effects is None else {"effect": effect}
        return {"field": field.field, **values, "meaning": field.meaning, **shown}
    numbers = effect or {"share": None, "largest": None}
    texts = {"changes": percent(numbers["share"]), "by at most": number(numbers["largest"])}
    return {"field": field.field, **values, **(texts if effects is not None else {})}


def _side(name: str, options: Mapping[str, Any]) -> Settings:
    """Return the settings of a preset, or of a recipe file."""
    if name.endswith(".toml"):
        return Settings(options, Path(name))
    return Settings(options, None, name)


def _fields_read(recipes: Sequence[Recipe]) -> list[str]:
    """Return the fields that recipes read, by stage; none if one lacks a required option."""
    from rlpost.pipeline.effects import fields_with_effect  # noqa: PLC0415

    try:
        return list(
            dict.fromkeys(name for recipe in recipes for name in fields_with_effect(recipe))
        )
    except UsageError:  # such as gdpo, which needs components
        return []


def _effects(
    path: str, recipes: Sequence[Recipe], fields: Sequence[FieldDifference]
) -> dict[str, Json | None]:
    """Return what each field changes alone: the share of responses, and the largest difference.

    None for a value that does not fit the first recipe alone.
    """
    from rlpost.interface import functions  # noqa: PLC0415 - slow to import

    base, other = (recipe.model_dump(mode="json") for recipe in recipes)
    effects: dict[str, Json | None] = {}
    for field in fields:
        table, _, name = field.path.rpartition(".")
        part = {table: {name: other[table].get(name)}} if table else {name: other[name]}
        try:
            changed = Recipe.of(merged(base, part))
            compared = functions.compare(path, {"a": recipes[0], "b": changed}, count=0)
        except UsageError:
            effects[field.path] = None
            continue
        whole = compared.facts["response_difference:a:b"]["all"]
        equal = compared.facts["response_equal:a:b"]["all"]["mean"]
        share = None if equal is None else 1 - equal
        effects[field.path] = {"share": share, "largest": whole["max"]}
    return effects


def _rank(effect: Json | None) -> tuple[float, float]:
    return (-1.0, 0.0) if effect is None else (effect["share"] or 0.0, effect["largest"] or 0.0)


@command(app)
def schema() -> None:
    """Print the JSON Schema of recipe files.

    Examples:
      rlpost config schema > rlpost.schema.json

    With `#:schema ./rlpost.schema.json` as the first line of recipe.toml, editors with taplo check
    and complete it (VS Code with Even Better TOML, Neovim, Helix, Zed).
    """
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
