"""`rlpost compare`: the advantages of files, or of recipes, side by side."""

from __future__ import annotations

from itertools import product
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings
from rlpost.cli.help_screen import ESTIMATOR, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import reporting, show
from rlpost.errors import UsageError
from rlpost.interface import functions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.recipe.recipe import Recipe


app = typer.Typer(add_completion=False)
MOST_SIDES = 6

EPILOG = """Examples:
  rlpost compare run-a.parquet run-b.parquet
  rlpost compare in.parquet --estimator grpo --estimator rloo
  rlpost compare in.parquet --preset verl --preset trl --set gamma=0.9
  rlpost compare 'dumps/*.parquet' --config a.toml --config b.toml
"""


@command(app, epilog=EPILOG)
@options_of(functions.compare)
def compare(
    chosen: dict[str, Any],
    paths: Annotated[list[str], argument("IN...", "Enriched inputs, or one input with recipes.")],
    how: declared.Output = "table",
    config: Annotated[
        list[Path] | None,
        option("--config", "PATH", "Recipe file of one side; repeatable.", panel=ESTIMATOR),
    ] = None,
    preset: Annotated[
        list[str] | None,
        option("--preset", "NAME", "Framework of one side; repeatable.", panel=ESTIMATOR),
    ] = None,
    estimator: Annotated[
        list[str] | None,
        option(
            "--estimator",
            "NAME",
            "Estimator of one side; a single one is for all sides.",
            panel=ESTIMATOR,
        ),
    ] = None,
    assigned: declared.Assigned = None,
) -> None:
    """Compare the advantages of files, or of one input under several recipes.

    Prints why they differ, correlations and sign agreement of each pair, over responses and tokens,
    and the largest differences. Responses of files are matched by their keys.
    """
    columns = chosen["columns_map"]
    recipes = variants(config, preset, estimator, {"columns": columns, "assigned": assigned})
    with reporting(bars=how == "table") as reporter:
        comparison = functions.compare(paths, recipes, **chosen, progress=reporter)
    show(comparison, how)


def variants(
    configs: Sequence[Path] | None,
    presets: Sequence[str] | None,
    estimators: Sequence[str] | None,
    options: dict[str, Any],
) -> dict[str, Recipe]:
    """Return the recipes to run: each recipe file with each preset and estimator, and their names.

    Args:
        configs: recipe files.
        presets: presets.
        estimators: estimators.
        options: of all recipes, as of `Settings`.

    Raises:
        UsageError: too many; or as the recipes.
    """
    kinds: list[Sequence[Any]] = [configs or [None], presets or [None], estimators or [None]]
    if kinds == [[None]] * 3 and not options.get("assigned"):
        return {}
    vary = [len(kind) > 1 for kind in kinds]
    recipes: dict[str, Recipe] = {}
    for config, preset, estimator in product(*kinds):
        chosen = zip((config and config.stem, preset, estimator), vary, strict=True)
        name = " ".join(str(word) for word, more in chosen if word and (more or not any(vary)))
        name = name or "recipe"
        name = name if name not in recipes else f"{name} ({config})"
        recipes[name] = Settings({**options, "estimator": estimator}, config, preset).recipe
    if len(recipes) > MOST_SIDES:
        raise UsageError(f"{len(recipes)} recipes: at most {MOST_SIDES} can be compared at once")
    return recipes
