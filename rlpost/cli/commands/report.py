"""`rlpost report`: an HTML report about rollout files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings, components_of, name_values
from rlpost.cli.help_screen import ESTIMATOR, argument, command
from rlpost.cli.options import option, reads_data
from rlpost.cli.output import reporting
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost report rollouts.parquet report.html

  rlpost report 'dumps/*.parquet' report.html --map reward=score --examples 12

  rlpost report dump.parquet report.html --preset verl --estimator grpo
"""


@command(app, epilog=EPILOG)
@reads_data
def report(
    paths: Annotated[list[str], argument("IN... [OUT]", "Parquet files, directories or globs.")],
    output: Annotated[
        str | None, option("--output -o", "PATH", "HTML file to write (default: OUT, *.html).")
    ] = None,
    roles: declared.Map = None,
    where: declared.Where = None,
    pass_threshold: declared.PassThreshold = 1.0,
    unit: declared.Unit = None,
    rollout_reward: declared.RolloutReward = "equal",
    failures: declared.Failures = "drop",
    attempts: declared.Attempts = "newest",
    reward_components: declared.Components = None,
    component_weights: declared.Weights = None,
    examples: Annotated[
        int,
        option(
            "--examples",
            "INT",
            "Best, worst and random responses to show, 1 to 20 each.",
            min=1,
            max=20,
        ),
    ] = 6,
    seed: Annotated[int, option("--seed", "INT", "Seed of the random examples.", min=0)] = 0,
    preset: Annotated[
        str | None,
        option(
            "--preset",
            "NAME",
            "Framework whose numbers recorded columns should be.",
            panel=ESTIMATOR,
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        option(
            "--estimator",
            "NAME",
            "Estimator of the recipe, or of metadata that names code.",
            panel=ESTIMATOR,
        ),
    ] = None,
    config: Annotated[
        Path | None, option("--config", "PATH", "Recipe of recorded columns.", panel=ESTIMATOR)
    ] = None,
    tokenizer: declared.NamedTokenizer = None,
    overwrite: Annotated[
        bool, option("--overwrite", "", "Replace the report if it exists.")
    ] = False,
    quiet: declared.Quiet = False,
) -> None:
    """Write an HTML report about rollout files, one file that needs no network.

    It has an overview, findings, trends over steps, distributions, groups, engine against trainer,
    and example responses with their tokens. Numbers that a trainer recorded are compared
    with the recipe of --preset or --config, or with that in the metadata of an enriched file.
    """
    paths, output = _output_of(paths, output)
    columns_map = name_values(roles or [], "--map")
    components = components_of(reward_components, component_weights)
    settings = Settings({"estimator": estimator, "tokenizer": tokenizer}, config, preset)
    recipe = settings.recipe if settings.has_base else None
    # Polars and pyarrow take a second to import; a wrong command line is reported before.
    from rlpost.analysis.report.run import written_page  # noqa: PLC0415
    from rlpost.display.console import console  # noqa: PLC0415
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.interface import functions  # noqa: PLC0415

    with reporting(quiet=quiet) as reporter:
        facts = functions.report(
            paths,
            output,
            columns_map=columns_map,
            where=where,
            pass_threshold=pass_threshold,
            unit=unit,
            rollout_reward=rollout_reward,
            failures=failures,
            attempts=attempts,
            reward_components=components,
            examples=examples,
            seed=seed,
            recipe=recipe,
            named=shlex.join(settings.words) if recipe is not None else "",
            estimator=None if recipe is not None else estimator,
            tokenizer=None if recipe is not None else tokenizer,
            overwrite=overwrite,
            progress=reporter,
        )
    if not quiet:
        show_page(written_page(facts, output), "table", console(sys.stderr))


def _output_of(paths: list[str], output: str | None) -> tuple[list[str], str]:
    """Return the inputs and the output, which is the last path if no option has it."""
    if output is not None:
        return paths, output
    *inputs, last = paths
    if not inputs or not last.endswith(".html"):
        raise UsageError(
            f"{' '.join(paths)}: OUT is missing, a file that ends with .html",
            tip=f"rlpost report {shlex.join(paths)} report.html",
        )
    return inputs, last
