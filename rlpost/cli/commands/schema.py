"""`rlpost schema`: what a recipe file may hold, for editors and other programs."""

from __future__ import annotations

import json
from typing import Any

import typer

from rlpost._version import __version__
from rlpost.cli.completion import declared
from rlpost.recipe.base import KL_SYNONYMS
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import DEFAULT, PRESETS, loss_variants, variants
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES

Json = dict[str, Any]
SETTINGS = {"help_option_names": ["-h", "--help"]}
EPILOG = """Example:

  rlpost schema > rlpost.schema.json

With `#:schema ./rlpost.schema.json` as the first line of recipe.toml, editors that speak taplo
(VS Code with Even Better TOML, Neovim, Helix, Zed) check and complete it.
"""

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG, context_settings=SETTINGS)
def schema() -> None:
    """Print the JSON Schema of recipe files, with what each field means."""
    typer.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))


def json_schema() -> Json:
    """The JSON Schema (draft 2020-12) of the TOML files that --config takes.

    It is that of Recipe, with the preset that a file may name and its table of the loss. A field
    whose values are names lists them; an estimator may be a user's own, so any string will do.
    """
    recipe = Recipe.model_json_schema()
    loss = LossOptions.model_json_schema()
    definitions = recipe.pop("$defs", {}) | loss.pop("$defs", {}) | {"LossOptions": loss}
    fields: Json = {
        "$schema": {"type": "string", "description": "Where this schema is, for editors."},
        "preset": {
            "type": "string",
            "enum": [*PRESETS, DEFAULT],
            "description": "The framework whose numbers the recipe gives; fields here beat it.",
        },
        **recipe.pop("properties"),
        "loss": {
            "$ref": "#/$defs/LossOptions",
            "description": "The policy loss, for rlpost loss.",
        },
    }
    _name_values(fields, loss["properties"])
    for table in (fields, *(one.get("properties", {}) for one in definitions.values())):
        for field in table.values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:rlpost:recipe:{__version__}",
        **recipe,
        "title": "rlpost recipe",
        "description": "What `rlpost advantages --config` takes: every option that changes a "
        "number. A field that is not there has its default, or the estimator's.",
        "properties": fields,
        "$defs": definitions,
    }


def _name_values(fields: Json, loss: Json) -> None:
    """Put the names that editors can offer where the types only say `string`."""
    framed = [name for preset in PRESETS for name in variants(preset)]
    losses = [name for preset in PRESETS for name in loss_variants(preset)]
    fields["estimator"] |= _open([*declared("estimators"), *framed])
    loss["loss"] |= _open([*declared("losses"), *losses])
    fields["columns"] |= {"propertyNames": {"enum": list(ROLES)}}
    fields["kl_estimator"]["enum"] = [*fields["kl_estimator"]["enum"], *KL_SYNONYMS]
    loss["kl_loss_estimator"]["enum"] = [*loss["kl_loss_estimator"]["enum"], *KL_SYNONYMS]
    for one in fields["emit"]["anyOf"]:
        if one.get("type") == "array":
            one["items"] = {"enum": [*WRITTEN, *EXTRA]}


def _open(names: list[str]) -> Json:
    """These names, or another string: estimators may be users' own."""
    return {"anyOf": [{"enum": list(dict.fromkeys(names))}, {"type": "string"}]}
