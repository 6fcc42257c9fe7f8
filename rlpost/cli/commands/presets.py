"""`rlpost presets`: the frameworks whose numbers rlpost gives, and how these differ."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli.options import FORMAT, Format
from rlpost.recipe import presets as kept

EPILOG = """Examples:

  rlpost presets show verl --estimator gae

  rlpost presets diff verl trl

  rlpost presets diff openrlhf default --estimator reinforce --format markdown
"""
SETTINGS = {"help_option_names": ["-h", "--help"]}
ESTIMATOR = typer.Option(metavar="NAME", help="What the preset says of this estimator.")
LOSS = typer.Option(metavar="NAME", help="What the preset says of this policy loss.")

app = typer.Typer(add_completion=False, context_settings=SETTINGS, epilog=EPILOG)


@app.callback(invoke_without_command=True)
def presets(context: typer.Context, how: Annotated[Format, FORMAT] = Format.table) -> None:
    """List the frameworks that `--preset` knows, show one, or compare two."""
    if context.invoked_subcommand is not None:
        return
    from rlpost.display.tables import show_list  # noqa: PLC0415

    rows = [(name, kept.about(name), _own(name)) for name in kept.PRESETS]
    headings = ("preset", "framework", "estimators and losses of its own")
    show_list(headings, rows, how.value)


def _own(name: str) -> str:
    """For which estimators and losses a preset says something of its own."""
    estimators, losses = ", ".join(kept.variants(name)), ", ".join(kept.loss_variants(name))
    return "; ".join(part for part in (estimators, f"losses {losses}" if losses else "") if part)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="PRESET")],
    estimator: Annotated[str | None, ESTIMATOR] = None,
    loss: Annotated[str | None, LOSS] = None,
    how: Annotated[Format, FORMAT] = Format.table,
) -> None:
    """Print the recipe of a preset, and its policy loss: TOML that --config takes.

    `default` lists every one of the numerics.
    """
    from rlpost.cli.render.catalogue import show_recipe  # noqa: PLC0415

    recipe = kept.preset(name, **({"estimator": estimator} if estimator else {}))
    options = kept.loss_preset(name, **({"loss": loss} if loss else {}))
    every = name == kept.DEFAULT
    lines = [f"# {kept.about(name)}", *kept.toml_lines(recipe, options, every=every)]
    show_recipe(lines, kept.changed(recipe, options, every=every), how.value)


@app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="PRESET")],
    right: Annotated[str, typer.Argument(metavar="PRESET|default")],
    estimator: Annotated[str, ESTIMATOR] = "grpo",
    how: Annotated[Format, FORMAT] = Format.table,
) -> None:
    """Show in which numerics two frameworks differ; `default` is rlpost's own."""
    from rlpost.cli.render.catalogue import show_differences  # noqa: PLC0415
    from rlpost.estimators import estimator_named  # noqa: PLC0415

    recipes = [kept.preset(name, estimator=estimator) for name in (left, right)]
    usual = [estimator_named(recipe.estimator).defaults for recipe in recipes]
    effective = [
        recipe.model_copy(update={key: x for key, x in own.items() if getattr(recipe, key) is None})
        for recipe, own in zip(recipes, usual, strict=True)
    ]
    show_differences((left, right), kept.differences(*effective), how.value)
