"""The passes of a plan as tasks: each runs the pass of a local engine on a part of the input.

The driver has the table of responses. Tasks get the rows of their part, and return some; those of
the last pass write files.
"""

from __future__ import annotations

import glob
import secrets
import shutil
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.io.clock import Clock
from rlpost.io.keys import encode_keys
from rlpost.io.locks import STAGING_PREFIX
from rlpost.io.memory_limit import limited_memory, memory_limit
from rlpost.io.outputs import OutputFile, file_errors, publish_files
from rlpost.io.parquet.source import Source, TableSource
from rlpost.io.paths import RemotePath, remote_errors
from rlpost.pipeline import run as local
from rlpost.pipeline.device import AUTO, CPU, Device, single_threaded
from rlpost.pipeline.engine import Passes
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.plan import plan_of
from rlpost.pipeline.resolved import resolve_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.io.stores import ObjectInfo
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.run import FileTotals
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


PART_BYTES = 256 << 20  # of a part of several files, decompressed
Rows = tuple[dict[str, Any], dict[str, "Column"]]


class InputPart(NamedTuple):
    """Consecutive rows of the input: some files, or a table."""

    first: int
    """The first row's number in the input."""
    rows: int
    table: Any = None
    """The table, or what stands for it where it is not."""
    number: int = 0
    """Of the first file in the input."""
    files: tuple[InputFile, ...] = ()
    fingerprints: tuple[ObjectInfo | None, ...] = ()
    """The state of each file when the run began."""
    targets: tuple[AnyPath, ...] = ()
    """Where the output of each is written."""

    def source(self) -> Source | TableSource:
        """Open the part; raises ReadWriteError if a file was changed since the run began."""
        if self.table is not None:
            return TableSource(self.table)
        source = Source(self.files)
        source.fingerprints = [*self.fingerprints]
        source.check_unchanged()
        return source


def parts_of(source: Source, targets: Sequence[AnyPath], slots: int) -> list[InputPart]:
    """Return the files in parts of about equal size, several for each slot if possible.

    Args:
        source: the input.
        targets: the output of each file.
        slots: how many tasks may run at once.
    """
    sizes = [
        sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        for footer in source.footers
    ]
    most = min(PART_BYTES, sum(sizes) // (4 * slots) + 1)
    begins, parts = [*accumulate(sizes, initial=0)], []
    for _, group in groupby(range(len(sizes)), lambda number: begins[number] // most):
        numbers = [*group]
        span = slice(numbers[0], numbers[-1] + 1)
        first, end = source.first_rows[span.start], source.first_rows[span.stop]
        lists = (*source.files[span],), (*source.fingerprints[span],), (*targets[span],)
        parts.append(InputPart(first, end - first, None, span.start, *lists))
    return parts


@dataclass(frozen=True)
class Job:
    """What all tasks of a run have in common."""

    recipe: Recipe
    columns: ColumnMap
    state: RunState
    row_roles: tuple[str, ...]
    """Those of the whole input: a part may have others."""
    names: tuple[str, ...]
    """The columns to write."""
    options: Options
    max_memory: str | None
    """The memory that the process of a task may use."""

    @contextmanager
    def engine(self, part: InputPart) -> Iterator[Engine]:
        """Yield an engine on a part of the input, which must not change meanwhile."""
        source, resolved = part.source(), resolve_recipe(self.recipe, self.columns)
        plan = plan_of(source, self.columns, resolved, self.state)
        plan = replace(plan, row_roles=self.row_roles)
        with limited_memory(self.max_memory), single_threaded():
            engine = local.engine_for(plan, self.options)
            engine.passes = plan.passes(self.names)
            yield engine
        source.check_unchanged()


def read(
    job: Job, part: InputPart, responses: Responses | None, *, number: int = 0
) -> tuple[list[Any], None]:
    """Run the first pass, or a later one of this number; return its chunks.

    Keys have each text once.
    """
    with job.engine(part) as engine:
        if responses is not None:
            return [*engine.map_pass(number, responses)], None
        chunks = [*engine.first_pass()]
    return [
        ({name: encode_keys(x) if isinstance(x, pa.Array) else x for name, x in rows.items()}, x)
        for rows, x in chunks
    ], None


class Note(NamedTuple):
    """What the driver has to know of a task that wrote files."""

    totals: Any
    bytes: dict[str, int]
    """Of the task's clock."""


def write(
    job: Job, part: InputPart, responses: Responses, *, totals_of: Callable[..., FileTotals]
) -> tuple[Note, None]:
    """Run the last pass; each output is complete at its target afterwards."""
    with job.engine(part) as engine, ExitStack() as opened:
        totals = totals_of(engine.plan, responses, first=part.number)

        def sink(index: int) -> Sink:
            output = opened.enter_context(OutputFile(part.targets[index]))
            return local.sink_of(engine.plan, index, output, names=job.names)

        for file in local.filled_files(engine, responses, job.names, totals, sink):
            local.complete_file(engine.clock, file)
            publish_files([file.sink.output])
    return Note(totals.total, engine.clock.bytes), None


def enrich(job: Job, part: InputPart, responses: Responses) -> tuple[None, pa.Table]:
    """Run the last pass over a table; return it with the new columns."""
    with job.engine(part) as engine:
        return None, local.enrich_table(engine, part.table, responses)[0]


class TaskPasses(Passes):
    """The passes of a plan, each as one task for every part of the input.

    Args:
        plan: of the input.
        options: of the run.
        clock: measures it; None: from now on.
        run: runs a task on parts; see `rlpost.distributed.ray.run_tasks`.
        parts: of the input, in order.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        clock: Clock | None = None,
        *,
        run: Callable[..., Iterator[tuple[Any, Any]]],
        parts: Sequence[InputPart],
    ) -> None:
        clock = clock or Clock(options.started)
        device = Device(CPU if options.device == AUTO else options.device, clock)
        super().__init__(plan, options.reporter, clock, device)
        plain = Options(device.name, options.chunk_tokens, options.workers or 1)
        recipe, names = plan.resolved.recipe, emitted(plan.resolved)
        limit = memory_limit().text or None
        self._job = Job(recipe, plan.columns, plan.state, plan.row_roles, names, plain, limit)
        self._run, self._parts = run, parts

    def first_pass(self) -> Iterator[Rows]:
        """Yield keys and numbers of responses, and what stages map in the first pass, by chunk."""
        return chain.from_iterable(rows for rows, _ in self.results(0, read))

    def map_pass(self, number: int, responses: Responses) -> Iterator[dict[str, Column]]:
        """Yield what the stage of a later pass maps, by chunk."""
        task = partial(read, number=number)
        return chain.from_iterable(rows for rows, _ in self.results(number, task, responses))

    def results(
        self,
        number: int,
        task: Callable[..., tuple[Any, Any]],
        responses: Responses | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Run the tasks of a pass; yield their results, and what stands for their tables.

        Args:
            number: of the pass; -1 for the last.
            task: gets the job, a part, and the rows of the table of responses of the part.
            responses: the table.
        """
        step, parts, job = self.passes[number], self._parts, self._job
        if number == 0 and not step.mapped:  # no tokens
            job = replace(job, options=replace(job.options, device=CPU))
        items: list[tuple[InputPart, Any]] = [(part, None) for part in parts]
        if responses is not None:
            items = [(x, responses.rows(x.first, x.first + x.rows)) for x in parts]
        self.reporter.start(step.purpose, self.plan.source.rows)
        with self.clock.wall(step.purpose):
            yield from self._run(
                step.purpose,
                partial(task, job),
                items,
                job.options,
                lambda index: self.reporter.advance(parts[index].rows),
            )


class StagedOutputs:
    """Complete files of tasks, each in a hidden folder beside its target, until all are published.

    Tasks run in any process, on any machine that sees the output. So they write a file under its
    target's name, in a folder named after the run. A context manager that removes the folders.

    Args:
        targets: the final paths, which are locked; the folders of local ones exist.

    Raises:
        ReadWriteError: on entering: a folder cannot be created.
    """

    def __init__(self, targets: Sequence[AnyPath]) -> None:
        self.targets, self._name = targets, STAGING_PREFIX + secrets.token_hex(8)
        self.paths = [_parent(target) / self._name / target.name for target in targets]

    def __enter__(self) -> Self:
        register_cleanup(self, self._discard)
        self._clean_stores(STAGING_PREFIX)  # what killed runs left; locks do so for local files
        for folder in self._folders():
            with file_errors(folder, "cannot be written"):
                folder.mkdir(exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._discard()
        unregister_cleanup(self)

    def write(
        self,
        passes: TaskPasses,
        responses: Responses,
        outputs: object,  # noqa: ARG002 - locks of the targets
        names: tuple[str, ...],  # noqa: ARG002 - of the job
        totals_of: Callable[..., FileTotals],
    ) -> local.WrittenFiles:
        """Run the last pass, as `rlpost.pipeline.run.write_files`."""
        totals = passes.plan.no_totals
        for note, _ in passes.results(-1, partial(write, totals_of=totals_of), responses):
            totals += note.totals
            passes.clock.count_bytes(**note.bytes)
        return local.WrittenFiles(totals, self._publish)

    def _publish(self) -> None:
        """Rename every file to its target."""
        pairs = [*zip(self.paths, self.targets, strict=True)]
        for path, target in pairs:
            if isinstance(target, RemotePath):
                with remote_errors(target, "cannot be written"):
                    path.store.move(path.path, target.path)
        renamed = [(path, target) for path, target in pairs if isinstance(target, Path)]
        publish_files([], partial(_rename, renamed), [target.parent for _, target in renamed])

    def _discard(self) -> None:
        """Remove the folders, with incomplete files of killed workers; never raises."""
        for folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)
        self._clean_stores(self._name)

    def _folders(self) -> list[Path]:
        return [*dict.fromkeys(path.parent for path in self.paths if isinstance(path, Path))]

    def _clean_stores(self, start: str) -> None:
        """Remove objects and uploads of the targets' names, in folders that begin so."""
        names: dict[RemotePath, set[str]] = {}
        for target in self.targets:
            if isinstance(target, RemotePath):
                names.setdefault(_parent(target) / start, set()).add(target.name)
        for prefix, of_files in names.items():
            prefix.store.abort_uploads(prefix.path, of_files)
            with suppress(Exception):
                prefix.forget()
                for path in prefix.store.glob(f"{glob.escape(prefix.path)}*/*"):
                    if path.rpartition("/")[2] in of_files:
                        prefix.store.remove(path)
                prefix.forget()


def _rename(pairs: Sequence[tuple[Path, Path]]) -> None:
    for path, target in pairs:
        with file_errors(target, "cannot be written"):
            path.replace(target)


def _parent(target: AnyPath) -> Any:
    if isinstance(target, Path):
        return target.parent
    return target.sibling(target.path.rpartition("/")[0])
