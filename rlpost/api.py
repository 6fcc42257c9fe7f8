"""Runs of a recipe: files to files, a table to a table.

Torch takes a second to import, so it is imported last: meanwhile threads copy the input and read
its first columns.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError
from rlpost.io.memory import arrow_table, is_table, like
from rlpost.io.outputs import OutputFiles
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, parse_path
from rlpost.io.shutdown import installed
from rlpost.optional import need
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.files import targets_of
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState


Json = dict[str, Any]
__all__ = ["Options", "advantages", "enrich", "plan"]


def plan(
    inputs: Sequence[PathText],
    recipe: Recipe,
    state: RunState | None = None,
) -> Plan:
    """Bind a recipe to an input: its columns, and the passes over it.

    Raises:
        ReadWriteError: an input cannot be read.
        DataError: it is not Parquet, has no rows, or lacks a column that the recipe needs.
    """
    source = Source(find_inputs(inputs))
    from rlpost.pipeline import run  # noqa: PLC0415

    return run.bind(source, recipe, state)


def check_steps(
    inputs: Sequence[PathText], recipe: Recipe, options: Options, condition: str
) -> None:
    """Raise UsageError if a recipe needs earlier steps than those of an input.

    Args:
        inputs: with the rows of some steps.
        recipe: what is computed.
        options: a state file has what earlier steps pass on.
        condition: which steps, as typed.
    """
    from rlpost.pipeline.needs import coupling_of  # noqa: PLC0415 - torch

    coupling = coupling_of(plan(inputs, recipe).resolved)
    if coupling.scope == "run" and not (coupling.carried and options.state is not None):
        raise UsageError(
            f"{condition}: {coupling.why} depends on all steps before",
            tip="--state FILE.json  # has what they pass on"
            if coupling.carried
            else "leave --steps out",
        )


def advantages(
    inputs: PathText | Sequence[PathText],
    output: str | Path,
    recipe: Recipe | None = None,
    options: Options | None = None,
) -> Json:
    """Run `rlpost.advantages` on Parquet files; return the summary as a plain mapping."""
    recipe, options = recipe or Recipe(), (options or Options()).at_start()
    if options.ray_address is not None and options.engine == "local":
        raise UsageError(
            f"--ray-address {options.ray_address}: needs --engine ray, and the engine is local"
        )
    paths = [inputs] if isinstance(inputs, PathText) else list(inputs)
    if options.skip_existing:
        from rlpost.pipeline import existing  # noqa: PLC0415

        return existing.advantages(paths, parse_path(output), recipe, options)
    files = find_inputs(paths)
    if options.engine != "local":
        return _on_other_engine(files, paths, parse_path(output), recipe, options)
    source = Source(files)
    targets = targets_of(source.files, paths, parse_path(output), overwrite=options.overwrite)
    if options.overwrite:
        check_overwritable(targets)
    with OutputFiles(targets) as outputs:
        from rlpost.pipeline import run  # noqa: PLC0415
        from rlpost.pipeline.running_state import load_state  # noqa: PLC0415

        bound = run.bind(source, recipe, load_state(options.state))
        return run.write(bound, outputs, options)[0]


def _on_other_engine(
    files: Sequence[InputFile],
    paths: Sequence[PathText],
    output: AnyPath,
    recipe: Recipe,
    options: Options,
) -> Json:
    """Run `advantages` on another engine."""
    if options.engine != "ray":
        raise UsageError(f"--engine {options.engine}: local or ray is needed")
    need("--engine ray", "ray", "ray")
    targets = targets_of(files, paths, output, overwrite=options.overwrite)
    if options.overwrite:
        check_overwritable(targets)
    with _without_ray_signal_handlers():
        from rlpost.distributed import ray as on_ray  # noqa: PLC0415 - it takes a second to import

    return on_ray.advantages(files, targets, recipe, options)


@contextmanager
def _without_ray_signal_handlers() -> Iterator[None]:
    """Let Ray, imported in the block, install no handlers in C if this process has its own.

    They would end the process at SIGTERM, with its files as they are. Only this process is
    affected: the variable is removed before any other starts.
    """
    name = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER"
    own = installed() and name not in os.environ
    if own:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if own:
            del os.environ[name]


def enrich(
    table: Any, recipe: Recipe | None = None, options: Options | None = None
) -> tuple[Any, Json]:
    """Run `rlpost.enrich`; return the table, and the summary as a plain mapping."""
    if not is_table(table):
        raise UsageError(
            f"enrich: {type(table).__name__} came; a table with Arrow's interface (polars, pandas, "
            "duckdb, pyarrow, datasets) is needed",
            tip="write a stream of record batches to a file, for rlpost.advantages",
        )
    from rlpost.pipeline import run  # noqa: PLC0415

    enriched, summary = run.enrich(arrow_table(table), recipe or Recipe(), options or Options())
    return like(enriched, table), summary
