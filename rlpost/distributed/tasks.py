"""Tasks: passes of an engine over some files of an input, or over a block of a data set."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rlpost.io.keys import encode_keys
from rlpost.io.memory_limit import limited_memory, memory_limit
from rlpost.io.parquet.source import Source, TableSource
from rlpost.pipeline.device import AUTO, CPU, single_threaded
from rlpost.pipeline.options import Options
from rlpost.pipeline.plan import plan_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import (
    complete_file,
    engine_for,
    enrich_table,
    enriched_metadata,
    fill_file,
    sink_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.parquet.fingerprint import FileFingerprint
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.output.metadata import FileMetadata
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


class FilePart(NamedTuple):
    """Consecutive files of the input."""

    files: tuple[InputFile, ...]
    fingerprints: tuple[FileFingerprint | None, ...]
    """The state of each file when the run began."""
    targets: tuple[AnyPath, ...]
    """Where the output of each is written."""
    number: int
    """Of the first file in the input."""

    def source(self) -> Source:
        """Open the files; raises ReadWriteError if one was changed since the run began."""
        source = Source(self.files)
        source.fingerprints = [*self.fingerprints]
        source.check_unchanged()
        return source


@dataclass(frozen=True)
class Job:
    """What all tasks of a run have in common."""

    recipe: Recipe
    columns: ColumnMap
    state: RunState
    row_roles: tuple[str, ...]
    names: tuple[str, ...]
    """The columns to write."""
    options: Options
    max_memory: str | None
    """The memory that the process of a task may use."""
    metadata: FileMetadata | None = None
    """That of the run; None if it writes no files."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        state: RunState,
        names: tuple[str, ...],
        options: Options,
        metadata: FileMetadata | None = None,
    ) -> Job:
        """Return the job of a plan."""
        recipe, roles, limit = plan.resolved.recipe, plan.row_roles, memory_limit().text or None
        device = CPU if options.device == AUTO else options.device
        plain = Options(device, options.chunk_tokens, options.workers or 1)
        return cls(recipe, plan.columns, state, roles, names, plain, limit, metadata)

    @property
    def on_cpu(self) -> Job:
        """The same job for tasks that read no tokens."""
        return replace(self, options=replace(self.options, device=CPU))

    @contextmanager
    def engine(self, part: FilePart | pa.Table) -> Iterator[Engine]:
        """Yield an engine on a part of the input, which must not change meanwhile."""
        source = part.source() if isinstance(part, FilePart) else TableSource(part)
        resolved = resolve_recipe(self.recipe, self.columns)
        plan = plan_of(source, self.columns, resolved, self.state)
        plan = replace(plan, row_roles=self.row_roles)  # other files may have other types
        with limited_memory(self.max_memory), single_threaded():
            engine = engine_for(plan, self.options)
            engine.passes = plan.passes(self.names)
            yield engine
        source.check_unchanged()


class Note(NamedTuple):
    """What the driver has to know of a task of the last pass."""

    totals: Any
    reasons: list[str | None]
    """Why a file was not spliced; of each file."""
    bytes: dict[str, int]
    seconds: dict[str, Any]
    """The `busy` and `cpu` of its clock."""


def rows_of(job: Job, part: FilePart | pa.Table, number: int, responses: Responses | None) -> Any:
    """Run a pass that reads; return its chunks.

    Args:
        job: of the run.
        part: of the input.
        number: of the pass.
        responses: of the part, as the passes before reduced them; None in the first pass.
    """
    with job.engine(part) as engine:
        if responses is not None:
            return [*engine.map_pass(number, responses)], None
        chunks = [*engine.first_pass()]
    return [(_encoded(rows), mapped) for rows, mapped in chunks], None


def _encoded(rows: dict[str, Any]) -> dict[str, Any]:
    """Return columns of which keys have each text once."""
    return {name: encode_keys(x) if isinstance(x, pa.Array) else x for name, x in rows.items()}


def write(job: Job, part: FilePart, _: int, responses: Responses) -> tuple[Note, None]:
    """Run the last pass; each output is complete at its target afterwards."""
    assert job.metadata is not None
    metadata = partial(enriched_metadata, run=job.metadata, first=part.number)
    with job.engine(part) as engine:
        totals, reasons = engine.plan.no_totals, []
        for index, target in enumerate(part.targets):
            sink = sink_of(engine.plan, index, target, names=job.names)
            try:
                file = fill_file(engine, index, responses, job.names, metadata, sink)
                totals += complete_file(engine.clock, file).totals
                sink.publish()
            except BaseException:
                sink.abort()
                raise
            reasons.append(sink.reason)
    return _note(engine, totals, reasons), None


def enrich(job: Job, table: pa.Table, _: int, responses: Responses) -> tuple[Note, pa.Table]:
    """Run the last pass over a table; return it with the new columns."""
    with job.engine(table) as engine:
        enriched, totals = enrich_table(engine, table, responses)
    return _note(engine, totals, []), enriched


def _note(engine: Engine, totals: Any, reasons: list[str | None]) -> Note:
    return Note(totals, reasons, engine.clock.bytes, engine.clock.seconds)
