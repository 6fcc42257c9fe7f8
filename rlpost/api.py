"""The Python interface: files to files, or a table to a table.

Torch takes a second to import, so it is imported last: by then the input's data is being copied,
and its first columns are being read.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from rlpost.columns import ROW_ROLES, columns_of
from rlpost.errors import RlpostError, UsageError
from rlpost.extras import need
from rlpost.parquet.inputs import find_inputs
from rlpost.parquet.ours import check_ours
from rlpost.parquet.places import place_of
from rlpost.parquet.source import CHUNK_TOKENS, Source
from rlpost.recipe import EXTRA, WRITTEN, Recipe
from rlpost.run_options import Options
from rlpost.targets import Outputs, journal_of, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from rlpost.kernels.rewards import RunningMoments
    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.places import Place
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
        inputs: Parquet files, directories or globs, local or as URLs (`s3://...`); of any size.
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
    if options.ray_address is not None and options.engine == "local":
        raise UsageError(
            f"--ray-address {options.ray_address}: the engine is local; add --engine ray"
        )
    paths = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    files = find_inputs([str(path) for path in paths])
    if options.engine != "local":
        return _elsewhere(files, paths, place_of(output), recipe, options)
    source = Source(files)
    journal = journal_of(
        place_of(output),
        resume=options.resume,
        overwrite=options.overwrite,
        verify=options.verify,
    )
    overwrite = options.overwrite or (journal is not None and journal.published)
    targets = targets_of(source.files, paths, place_of(output), overwrite=overwrite)
    check_ours(targets)
    several = targets != [place_of(output)]
    with closing(source), Outputs(targets, journal if several else None) as outputs:
        _begin(source, outputs, recipe)
        from rlpost import run  # noqa: PLC0415

        return run.advantages(source, outputs, recipe, options)


def _elsewhere(
    files: Sequence[InputFile],
    paths: Sequence[str | Path],
    output: Place,
    recipe: Recipe,
    options: Options,
) -> Json:
    """`advantages` on another engine than this process."""
    if options.engine != "ray":
        raise UsageError(f"--engine {options.engine}: local or ray is needed")
    if options.resume:
        raise UsageError(
            "--resume is for --engine local: Ray runs the tasks of lost workers again by itself, "
            "and a run in shards (rlpost plan) goes on where it was stopped"
        )
    need("--engine ray", "ray", "ray")
    targets = targets_of(files, paths, output, overwrite=options.overwrite)
    check_ours(targets)
    from rlpost.ray import files as on_ray  # noqa: PLC0415 - Ray takes a second to import

    return on_ray.advantages(files, targets, recipe, options)


@overload
def enrich(
    table: pa.Table | pl.DataFrame, recipe: Recipe | None = None, options: Options | None = None
) -> tuple[pa.Table, Json]: ...


@overload
def enrich(
    table: Iterable[pa.RecordBatch], recipe: Recipe | None = None, options: Options | None = None
) -> tuple[pa.RecordBatchReader, Json]: ...


def enrich(
    table: Any, recipe: Recipe | None = None, options: Options | None = None
) -> tuple[Any, Json]:
    """The same as `advantages` on a table in memory, or on a stream of record batches.

    Args:
        table: an Arrow table, a polars frame, or an iterator of record batches with one schema.
            An iterator may be longer than memory: its batches go to a temporary file, since a
            group's mean is known only when the last of them has come.
        recipe: what is done; the default is plain GRPO.
        options: how it is done.

    Returns:
        An Arrow table of the input's columns (without those that `replace` replaces, or only the
        keys with `emit_only`) and the new ones; and the summary. For an iterator, a
        RecordBatchReader, which is an iterator of record batches of its own sizes, in order.

    Raises:
        UsageError, DataError, UnavailableError: as `advantages`; UsageError, too, for what is
            none of these.
        ReadWriteError: there is no room for the temporary file.
    """
    recipe, options = recipe or Recipe(), options or Options()
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table) and hasattr(table, "to_arrow"):
        table = table.to_arrow()
    if isinstance(table, pa.Table):
        from rlpost import run  # noqa: PLC0415

        return run.enrich(table, recipe, options)
    if isinstance(table, (list, tuple, pa.RecordBatchReader)) or hasattr(table, "__next__"):
        from rlpost import streams  # noqa: PLC0415

        return streams.enrich_batches(table, recipe, options)
    raise UsageError(
        f"enrich: {type(table).__name__} came; an Arrow table (pa.Table.from_pandas makes one), a "
        "polars frame or an iterator of record batches is needed"
    )


def _begin(source: Source, outputs: Outputs, recipe: Recipe) -> None:
    """Begin what can begin without torch: copying what is kept, reading what all recipes need."""
    names = {*source.schemas[0].names}
    if not recipe.emit_only and not (recipe.replace and names & {*WRITTEN, *EXTRA}):
        first = next(i for i in range(len(source.files) + 1) if i not in outputs.finished)
        if first < len(source.files):
            outputs.copy_ahead(first, source.files[first].path)
    try:
        columns = columns_of(source, recipe)
    except RlpostError:
        return  # the run itself will say so
    if "mask" in columns:
        roles = {"mask", *(role for role in ROW_ROLES if role in columns)}
        mask = columns.column("mask")
        source.read_ahead(sorted(columns.column(role) for role in roles), CHUNK_TOKENS, mask)
