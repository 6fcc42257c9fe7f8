"""`rlpost compare`: the advantages of files, or of recipes, side by side."""

from __future__ import annotations

from itertools import product
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated

import typer

from rlpost.cli.options import FORMAT, Format, name_values, recipe_of
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


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Enriched inputs; or with recipes one input."),
    ],
    recipe: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.toml", help="A side: this recipe, run on the input."),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A side: the numbers of a framework.")
    ] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A side; given once beside others, it holds for all."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to compare (default advantages).")
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="ROLE=COLUMN", help="Which column serves a role."),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="How many of the rows that differ most.")
    ] = 5,
    how: Annotated[Format, FORMAT] = Format.table,
) -> None:
    """Compare advantages: of two or more files, or of one input under several recipes.

    Shows how much each two sides agree (correlations and signs, over responses and tokens), where
    they differ most, and what each clipped and masked. Rows of files are matched by their keys.
    """
    asked = variants(recipe or [], preset or [], estimator or [], roles or [])
    columns_map = name_values(roles or [], "--map")
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.compare import render as render_compare  # noqa: PLC0415
    from rlpost.analysis.compare import run  # noqa: PLC0415

    if not asked:
        found = run.files(paths, columns_map, column=column, count=count)
    else:
        found = run.recipes(paths, asked, columns_map, column=column, count=count)
    render_compare.show(found, how.value)


def variants(
    recipes: Sequence[Path], presets: Sequence[str], estimators: Sequence[str], roles: list[str]
) -> list[tuple[str, Recipe]]:
    """The recipes to run, named by what varies: each recipe with each preset and estimator.

    Raises:
        UsageError: too many; or as the recipes.
    """
    kinds: tuple[list[Path | None], list[str | None], list[str | None]] = (
        [*recipes] or [None],
        [*presets] or [None],
        [*estimators] or [None],
    )
    if not any((recipes, presets, estimators)):
        return []
    found: dict[str, Recipe] = {}
    for config, preset, estimator in product(*kinds):
        chosen = (config and config.stem, preset, estimator)
        vary = [len(kind) > 1 for kind in kinds]
        words = [
            str(w) for w, more in zip(chosen, vary, strict=True) if w and (more or not any(vary))
        ]
        name = " ".join(words)
        name = name if name not in found else f"{name} ({config})"
        found[name] = recipe_of({"estimator": estimator, "columns": roles}, config, preset)
    if len(found) > MOST_SIDES:
        raise UsageError(f"{len(found)} recipes: at most {MOST_SIDES} can be compared at once")
    return list(found.items())
