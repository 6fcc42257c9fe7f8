"""`rlpost bundle`: a few prompt groups and a recipe in a zip file, for a bug report."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import command
from rlpost.cli.options import OutputFormat, option, reads_data, with_recipe_options
from rlpost.cli.output import reporting

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost bundle dump.parquet -o case.zip --rows 3,17,40-45 --preset verl

  rlpost bundle dump.parquet -o case.zip --prompt-id gsm8k-7 --with-texts
"""


@command(app, epilog=EPILOG)
@reads_data
@with_recipe_options
def bundle(
    settings: Settings,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Parquet files, dumps, directories or globs."),
    ],
    output: Annotated[
        str, option("--output", "-o", metavar="PATH", help="File to write, such as case.zip.")
    ],
    rows: Annotated[
        str | None,
        option("--rows", metavar="N,N-N,...", help="Rows, from 0; with their prompt groups."),
    ] = None,
    groups: Annotated[
        int | None,
        option("--groups", metavar="INT", help="The first prompt groups (default: 4)."),
    ] = None,
    prompt_id: Annotated[
        list[str] | None,
        option("--prompt-id", metavar="ID", help="The prompt groups of this id; repeatable."),
    ] = None,
    groups_only: Annotated[
        bool,
        option("--groups-only", help="Leave out what the recipe couples to them."),
    ] = False,
    with_texts: Annotated[
        bool, option("--with-texts", help="Keep texts, ids and token ids.")
    ] = False,
    overwrite: declared.Overwrite = False,
    how: declared.Output = OutputFormat.table,
    quiet: declared.Quiet = False,
) -> None:
    """Write a few prompt groups, their recorded numbers and a recipe to a zip file.

    It is for bug reports: rlpost replay reads it. Texts and ids are left out.
    """
    recipe = settings.recipe
    losses = settings.losses([])
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.replay.bundle import writer as work  # noqa: PLC0415
    from rlpost.analysis.replay.bundle.recipes import BundledRecipe  # noqa: PLC0415
    from rlpost.analysis.replay.bundle.rows import RowChoice  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415
    from rlpost.render.bundle import show_bundle  # noqa: PLC0415

    computation = BundledRecipe()
    if settings.sets_recipe:
        requested = settings.requested
        computation = BundledRecipe(
            recipe, losses[0][0], requested["preset"], requested["requested_estimator"]
        )
    with (
        reporting(quiet=quiet) as reporter,
        open_inputs(paths, reporter=reporter) as own,
    ):
        found = work.bundle(
            own.paths,
            output,
            RowChoice(rows, groups, prompt_id or ()),
            computation,
            recipe.columns,
            groups_only=groups_only,
            with_texts=with_texts,
            overwrite=overwrite,
        )
        summary = own.result(found)
    show_bundle(summary, how.value, quiet=quiet)
