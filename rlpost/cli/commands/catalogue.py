"""`rlpost estimators`, `losses` and `presets`: the methods and frameworks there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.help_screen import NAMES, Group, argument, command
from rlpost.cli.options import option
from rlpost.errors import UsageError
from rlpost.recipe import presets as frameworks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.recipe.recipe import Recipe

PRESETS_EPILOG = """Examples:

  rlpost presets show verl --estimator gae

  rlpost presets diff verl trl --estimator grpo --explain

  rlpost presets diff openrlhf default --format markdown

"""
ESTIMATORS_EPILOG = """Examples:

  rlpost estimators

  rlpost estimators gae grpo --format json
"""
LOSSES_EPILOG = """Examples:

  rlpost losses

  rlpost losses gspo kl_cov --format json
"""
ESTIMATOR = option("--estimator", "NAME", "Show the preset for this estimator.")
LOSS = option("--loss", "NAME", "Show the preset for this loss.")

estimators_app = typer.Typer(add_completion=False)
losses_app = typer.Typer(add_completion=False)
presets_app = typer.Typer(
    cls=Group,
    add_completion=False,
    context_settings={"help_option_names": NAMES},
    epilog=PRESETS_EPILOG,
)


@command(estimators_app, epilog=ESTIMATORS_EPILOG)
def estimators(
    names: Annotated[
        list[str] | None,
        argument("ESTIMATOR...", "Estimators to list (default: all).", completion.estimators),
    ] = None,
    how: declared.Output = "table",
) -> None:
    """List estimators: formula, required columns, options, source.

    Named ones are listed with the type, default and meaning of each option. Those of installed
    packages are listed without their formula: only a named one is imported.
    """
    from rlpost.cli.render.catalogue import show_estimators  # noqa: PLC0415
    from rlpost.estimators import ESTIMATORS, estimator_named  # noqa: PLC0415
    from rlpost.recipe.estimators import installed  # noqa: PLC0415

    named = [estimator_named(name) for name in names] if names else [*ESTIMATORS.values()]
    points = {} if names else {name: point.value for name, point in installed().items()}
    show_estimators(named, points, how, explain=bool(names))


@command(losses_app, epilog=LOSSES_EPILOG)
def losses(
    names: Annotated[
        list[str] | None,
        argument("LOSS...", "Policy losses to list (default: all).", completion.losses),
    ] = None,
    how: declared.Output = "table",
) -> None:
    """List policy losses: formula, required columns, options, source."""
    from rlpost.cli.render.catalogue import show_losses  # noqa: PLC0415
    from rlpost.losses import LOSSES, loss_named  # noqa: PLC0415

    listed = [loss_named(name) for name in names] if names else [*LOSSES.values()]
    show_losses(listed, how, detailed=bool(names))


@presets_app.callback(invoke_without_command=True)
def presets(
    context: typer.Context,
    how: declared.Output = "table",
) -> None:
    """List, show and compare the framework presets."""
    if context.invoked_subcommand is not None:
        return
    from rlpost.cli.render.catalogue import show_presets  # noqa: PLC0415

    show_presets(how)


@command(presets_app)
def show(
    name: Annotated[str, argument("PRESET", "Preset, or default.", completion.presets)],
    estimator: Annotated[str | None, ESTIMATOR] = None,
    loss: Annotated[str | None, LOSS] = None,
    how: declared.Output = "table",
) -> None:
    """Print the recipe and the policy loss of a preset, as a TOML file for --config.

    `default` lists all numerics.
    """
    from rlpost.cli.render.catalogue import show_recipe  # noqa: PLC0415

    recipe = frameworks.preset(name, **({"estimator": estimator} if estimator else {}))
    options = frameworks.loss_preset(name, **({"loss": loss} if loss else {}))
    whole = name == frameworks.DEFAULT
    lines = frameworks.toml_comment(frameworks.about(name))
    lines += frameworks.toml_lines(recipe, options, whole=whole)
    show_recipe(lines, frameworks.changed(recipe, options, whole=whole), how)


@command(presets_app)
def diff(
    left: Annotated[str, argument("PRESET", "Preset, or default.", completion.presets)],
    right: Annotated[
        str, argument("PRESET|default", "Preset to compare with, or default.", completion.presets)
    ],
    estimator: Annotated[
        str | None,
        option("--estimator", "NAME", "Only what this estimator reads (default: all, of grpo)."),
    ] = None,
    loss: Annotated[str | None, LOSS] = None,
    explain: Annotated[bool, option("--explain", "", "Describe each field.")] = False,
    how: declared.Output = "table",
) -> None:
    """Print where two frameworks differ: the recipe, and the policy loss.

    `default` is rlpost's own. Without --loss and --estimator, the usual loss of each framework is
    compared, too. Fields are in the order of the stages that read them.
    """
    from rlpost.cli.render.catalogue import show_differences  # noqa: PLC0415
    from rlpost.estimators import completed, estimator_named  # noqa: PLC0415
    from rlpost.losses.config import LossConfig  # noqa: PLC0415

    recipes = [frameworks.preset(name, estimator=estimator or "grpo") for name in (left, right)]
    estimators = [estimator_named(recipe.estimator) for recipe in recipes]
    effective = [
        completed(recipe, by).model_copy(
            update={key: x for key, x in by.defaults.items() if getattr(recipe, key) is None}
        )
        for recipe, by in zip(recipes, estimators, strict=True)
    ]
    meanings = {name: option.text for by in estimators for name, option in by.options.items()}
    order = _fields_read(recipes)
    fields = frameworks.differences(effective[0], effective[1], meanings)
    fields.sort(key=lambda x: order.index(x.path) if x.path in order else len(order))
    if estimator is not None and order:
        fields = [field for field in fields if field.path in order]
    if loss is not None or estimator is None:
        named = {"loss": loss} if loss else {}
        configs = [LossConfig(frameworks.loss_preset(x, **named)) for x in (left, right)]
        texts = {name: x.text for config in configs for name, x in config.loss.options.items()}
        ours, theirs = (config.resolved() for config in configs)
        fields += frameworks.loss_differences(ours, theirs, texts)
    show_differences((left, right), fields, how, explain=explain)


def _fields_read(recipes: Sequence[Recipe]) -> list[str]:
    """Return the fields that recipes read, by stage; none if one lacks a required option."""
    from rlpost.pipeline.effects import fields_by_stage  # noqa: PLC0415

    try:
        return list(dict.fromkeys(name for recipe in recipes for name in fields_by_stage(recipe)))
    except UsageError:  # such as gdpo, which needs components
        return []
