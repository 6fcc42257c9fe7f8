"""The Python interface: files to files, or a table to a table.

Torch takes a second to import, so it is imported last: by then the input's data is being copied,
and its first columns are being read.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.columns import ROW_ROLES, columns_of
from rlpost.errors import RlpostError
from rlpost.parquet.inputs import find_inputs
from rlpost.parquet.source import CHUNK_TOKENS, Source
from rlpost.recipe import EXTRA, WRITTEN, Recipe
from rlpost.run_options import Options
from rlpost.targets import Outputs, targets_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from rlpost.kernels.rewards import RunningMoments
    from rlpost.plan import Job

Json = dict[str, Any]
__all__ = ["Options", "advantages", "enrich", "plan"]


def plan(
    inputs: Sequence[str | Path],
    recipe: Recipe,
    running: Mapping[str, RunningMoments] | None = None,
) -> Job:
    """Bind a recipe to an input: which columns serve, and which passes read what.

    Raises:
        ReadWriteError: an input can't be read.
        DataError: it is not Parquet, has no rows, or lacks a column that the recipe needs.
    """
    source = Source(find_inputs([str(path) for path in inputs]))
    from rlpost import run  # noqa: PLC0415

    return run.bind(source, recipe, running or {})


def advantages(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    recipe: Recipe | None = None,
    options: Options | None = None,
) -> Json:
    """Post-process the rewards of rollout files and write them enriched with advantages.

    Args:
        inputs: Parquet files, directories or globs; of any size.
        output: the enriched file; with several input files, a directory.
        recipe: what is done; the default is plain GRPO.
        options: how it is done.

    Returns:
        The summary, as `rlpost advantages --summary-json` prints it.

    Raises:
        UsageError: recipe, input and output do not fit together.
        DataError: the data is bad: file, row and column are named.
        ReadWriteError: reading or writing failed; no output is left behind.
        UnavailableError: the device is not there.
    """
    recipe, options = recipe or Recipe(), options or Options()
    paths = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    source = Source(find_inputs([str(path) for path in paths]))
    targets = targets_of(source.files, paths, Path(output), overwrite=options.overwrite)
    with closing(source), Outputs(targets) as outputs:
        _begin(source, outputs, recipe)
        from rlpost import run  # noqa: PLC0415

        return run.advantages(source, outputs, recipe, options)


def enrich(
    table: pa.Table | pl.DataFrame, recipe: Recipe | None = None, options: Options | None = None
) -> tuple[pa.Table, Json]:
    """The same as `advantages` on a table in memory.

    Args:
        table: an Arrow table, or a polars frame.
        recipe: what is done; the default is plain GRPO.
        options: how it is done.

    Returns:
        An Arrow table of the input's columns (without those that `replace` replaces, or only the
        keys with `emit_only`) and the new ones; and the summary.

    Raises:
        UsageError, DataError, UnavailableError: as `advantages`.
    """
    from rlpost import run  # noqa: PLC0415

    arrow = table if isinstance(table, pa.Table) else table.to_arrow()
    return run.enrich(arrow, recipe or Recipe(), options or Options())


def _begin(source: Source, outputs: Outputs, recipe: Recipe) -> None:
    """Begin what can begin without torch: copying what is kept, reading what all recipes need."""
    names = {*source.schemas[0].names}
    if not recipe.emit_only and not (recipe.replace and names & {*WRITTEN, *EXTRA}):
        outputs.copy_ahead(0, source.files[0].path)
    try:
        columns = columns_of(source, recipe)
    except RlpostError:
        return  # the run itself will say so
    if "mask" in columns:
        roles = {"mask", *(role for role in ROW_ROLES if role in columns)}
        mask = columns.column("mask")
        source.read_ahead(sorted(columns.column(role) for role in roles), CHUNK_TOKENS, mask)
