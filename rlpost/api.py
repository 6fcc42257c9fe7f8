"""Runs of a recipe: files to files, a table to a table, a stream of batches to a stream.

Torch takes a second to import, so it is imported last: meanwhile threads copy the input and read
its first columns.

`enrich` writes a stream of record batches to a temporary Parquet file, since group means and
whitening need all responses before the first is written. The file is processed like any other and
streamed back. It needs the disk space of input and output in TMPDIR, until the last batch is read
or the reader is freed.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import (
    DataError,
    ReadWriteError,
    RlpostError,
    UsageError,
)
from rlpost.io.memory import arrow_table, is_table, like
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, parse_path
from rlpost.io.ranges import arrow_file
from rlpost.io.shutdown import installed
from rlpost.optional import need
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.files import Outputs, targets_of
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
            tip="--state has what they pass on" if coupling.carried else "leave --steps out",
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
    with Outputs(targets) as outputs:
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
    """Run `rlpost.enrich`; return the table or stream, and the summary as a plain mapping."""
    recipe, options = recipe or Recipe(), options or Options()
    if is_table(table):
        from rlpost.pipeline import run  # noqa: PLC0415

        enriched, summary = run.enrich(arrow_table(table), recipe, options)
        return like(enriched, table), summary
    if isinstance(table, (list, tuple, pa.RecordBatchReader)) or hasattr(table, "__next__"):
        return enrich_batches(table, recipe, options)
    raise UsageError(
        f"enrich: {type(table).__name__} came; a table with Arrow's interface (polars, pandas, "
        "duckdb, pyarrow, datasets) or an iterator of record batches is needed"
    )


NAME = "batches"
_GROUP_BYTES = 64 << 20  # bytes in memory, a row group of the temporary file
_BATCH_BYTES = 16 << 20
_MOST_ROWS = 1 << 16
_FILE_KEYS = ("inputs", "outputs", "rewritten")


def enrich_batches(
    batches: Iterable[pa.RecordBatch], recipe: Recipe, options: Options
) -> tuple[pa.RecordBatchReader, Json]:
    """Return the enriched batches, and the summary; raises as `rlpost.enrich`."""
    with tempfile.TemporaryDirectory(prefix="rlpost-") as folder:
        spilled, enriched = Path(folder, f"{NAME}.parquet"), Path(folder, "enriched.parquet")
        try:
            _spill(batches, spilled)
            summary = advantages(spilled, enriched, recipe, replace(options, overwrite=True))
        except RlpostError as error:
            raise error.reworded(lambda text: text.replace(str(spilled), NAME)) from None
        except OSError as error:
            raise ReadWriteError(f"{folder}: {error.strerror or error}") from None
        # The directory is deleted, and the open file stays readable until it is closed.
        reader = _reader(arrow_file(enriched))
    return reader, {name: x for name, x in summary.items() if name not in _FILE_KEYS}


def _spill(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write all batches to a file, in row groups of 64 MB.

    Raises:
        DataError: there is no row, or a batch has other columns than the first.
        UsageError: these are not record batches.
    """
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise DataError(f"{NAME}: there are no rows, so there is nothing to process")
    if not isinstance(first, pa.RecordBatch):
        raise UsageError(f"{NAME}: {type(first).__name__} came; record batches are needed")
    pending: list[pa.RecordBatch] = []
    # The file is temporary, so compressing it well would only cost time.
    with (
        arrow_file(path, "wb") as file,
        pq.ParquetWriter(file, first.schema, compression="lz4", use_dictionary=False) as writer,
    ):
        for number, batch in enumerate(chain([first], remaining)):
            if not batch.schema.equals(first.schema):
                raise DataError(
                    f"{NAME}: batch {number} (from 0) has columns {_names(batch)}; the first has "
                    f"{_names(first)}, and all need the same, of the same types"
                )
            pending.append(batch)
            if sum(one.nbytes for one in pending) >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(pending))
                pending.clear()
        if pending:
            writer.write_table(pa.Table.from_batches(pending))


def _names(batch: pa.RecordBatch) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in batch.schema)


def _reader(file: pa.NativeFile) -> pa.RecordBatchReader:
    """Return the batches of the file, of a few megabytes each."""
    stored = pq.ParquetFile(file)
    groups = (stored.metadata.row_group(i) for i in range(stored.metadata.num_row_groups))
    per_row = sum(group.total_byte_size for group in groups) / max(stored.metadata.num_rows, 1)
    rows = max(1, min(_MOST_ROWS, int(_BATCH_BYTES / max(per_row, 1.0))))
    batches = stored.iter_batches(batch_size=rows)
    return pa.RecordBatchReader.from_batches(stored.schema_arrow, batches)
