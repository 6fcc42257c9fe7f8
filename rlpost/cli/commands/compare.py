"""`rlpost compare`: the advantages of files, or of recipes, side by side."""

from __future__ import annotations

from itertools import product
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import Settings, name_values
from rlpost.cli.help_screen import ESTIMATOR, command
from rlpost.cli.options import OutputFormat, option, reads_data
from rlpost.cli.output import reporting
from rlpost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.recipe.recipe import Recipe


app = typer.Typer(add_completion=False)
MOST_SIDES = 6

EPILOG = """Examples:

  rlpost compare run-a.parquet run-b.parquet

  rlpost compare in.parquet --estimator grpo --estimator rloo --estimator dr_grpo

  rlpost compare in.parquet --preset verl --preset trl --estimator grpo

  rlpost compare 'dumps/*.parquet' --recipe a.toml --recipe b.toml --format markdown
"""


@command(app, epilog=EPILOG)
@reads_data
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Enriched inputs, or one input with recipes."),
    ],
    roles: declared.Map = None,
    column: Annotated[
        str | None,
        option(
            "--column",
            metavar="COLUMN",
            complete=completion.column,
            help="Column to compare (default: advantages).",
        ),
    ] = None,
    count: Annotated[
        int,
        option(
            "--count", "-n", metavar="INT", min=0, help="Responses to list that differ the most."
        ),
    ] = 5,
    how: declared.Output = OutputFormat.table,
    recipe: Annotated[
        list[Path] | None,
        option(
            "--recipe", metavar="PATH", panel=ESTIMATOR, help="Recipe file of one side; repeatable."
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        option(
            "--preset",
            metavar="NAME",
            panel=ESTIMATOR,
            complete=completion.presets,
            help="Framework of one side; repeatable.",
        ),
    ] = None,
    estimator: Annotated[
        list[str] | None,
        option(
            "--estimator",
            metavar="NAME",
            panel=ESTIMATOR,
            complete=completion.estimators,
            help="Estimator of one side; a single one is for all sides.",
        ),
    ] = None,
) -> None:
    """Compare the advantages of files, or of one input under several recipes.

    Prints correlations and sign agreement of each pair, over responses and tokens, the largest
    differences, and what each side clips and masks. Responses of files are matched by their keys.
    """
    recipes = variants(recipe or [], preset or [], estimator or [], roles or [])
    columns_map = name_values(roles or [], "--map")
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.compare import render as render_compare  # noqa: PLC0415
    from rlpost.interface import functions  # noqa: PLC0415

    with reporting(bars=how is OutputFormat.table) as reporter:
        comparison = functions.compare(
            paths, recipes, columns_map=columns_map, column=column, count=count, progress=reporter
        )
    render_compare.show(comparison, how.value)


def variants(
    recipes: Sequence[Path], presets: Sequence[str], estimators: Sequence[str], roles: list[str]
) -> dict[str, Recipe]:
    """Return the recipes to run, each recipe with each preset and estimator, and their names.

    Raises:
        UsageError: too many; or as the recipes.
    """
    kinds: tuple[list[Path | None], list[str | None], list[str | None]] = (
        [*recipes] or [None],
        [*presets] or [None],
        [*estimators] or [None],
    )
    if not any((recipes, presets, estimators)):
        return {}
    found: dict[str, Recipe] = {}
    for config, preset, estimator in product(*kinds):
        chosen = (config and config.stem, preset, estimator)
        vary = [len(kind) > 1 for kind in kinds]
        words = [
            str(w) for w, more in zip(chosen, vary, strict=True) if w and (more or not any(vary))
        ]
        name = " ".join(words)
        name = name if name not in found else f"{name} ({config})"
        options = {"estimator": estimator, "columns": roles}
        found[name] = Settings(options, config, preset).recipe
    if len(found) > MOST_SIDES:
        raise UsageError(f"{len(found)} recipes: at most {MOST_SIDES} can be compared at once")
    return found
