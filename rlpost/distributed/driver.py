"""The driver of a run in tasks: it calls the tasks of each pass, and has the table of responses."""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.distributed import tasks
from rlpost.distributed.tasks import FilePart
from rlpost.io.locks import STAGING_PREFIX
from rlpost.io.paths import RemotePath, remote_errors
from rlpost.io.publish import CompleteFile, publish_files
from rlpost.io.staged import file_errors
from rlpost.io.transfers import abort_leftover_uploads
from rlpost.pipeline.engine import Passes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.distributed.tasks import Job, Note
    from rlpost.io.clock import Clock
    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan


Json = dict[str, Any]
PART_BYTES = 256 << 20  # of a part of several files, decompressed


class InputRows(NamedTuple):
    """A part of the input, whose rows are consecutive."""

    part: Any
    """A `FilePart`, or an executor's reference to a table."""
    first: int
    """The first row's number in the input."""
    rows: int


class Call(NamedTuple):
    """The call of a task: `task(job, part, *arguments)`."""

    task: Callable[..., tuple[Any, Any]]
    job: Job
    part: Any
    arguments: tuple[Any, ...]


class Executor(Protocol):
    """Runs tasks, and stores the tables that they return."""

    def run(
        self, purpose: str, calls: Sequence[Call], done: Callable[[int], None]
    ) -> list[tuple[Any, Any]]:
        """Run all calls, in any order; return results and references to tables, in call order.

        Tasks whose process was lost run again.

        Args:
            purpose: of the pass, in words.
            calls: the tasks.
            done: gets the number of each call that is done.

        Raises:
            RlpostError: what one of the tasks raised.
        """


class TaskPasses(Passes):
    """The passes of a plan, each as one task for every part of the input.

    Args:
        plan: of the input.
        job: of the plan.
        parts: of the input, in order.
        executor: runs the tasks.
        options: of the run.
        clock: measures it.
    """

    def __init__(
        self,
        plan: Plan,
        job: Job,
        parts: Sequence[InputRows],
        executor: Executor,
        options: Options,
        clock: Clock,
    ) -> None:
        super().__init__(plan, options.reporter, clock)
        self._job, self._parts, self._executor = job, parts, executor

    def first_pass(self) -> Iterator[tuple[dict[str, Any], dict[str, Column]]]:
        """Yield keys and numbers of responses, and what stages map in the first pass, by chunk."""
        return chain.from_iterable(chunks for chunks, _ in self._run(0, tasks.rows_of, None))

    def map_pass(self, number: int, responses: Responses) -> Iterator[dict[str, Column]]:
        """Yield what the stage of a later pass maps, by chunk."""
        results = self._run(number, tasks.rows_of, responses)
        return chain.from_iterable(chunks for chunks, _ in results)

    def last_pass(
        self, task: Callable[..., tuple[Note, Any]], responses: Responses
    ) -> tuple[list[Note], list[Any]]:
        """Run the tasks of the last pass; return what they note, and references to tables."""
        results = self._run(len(self.passes) - 1, task, responses)
        return [note for note, _ in results], [table for _, table in results]

    def _run(
        self, number: int, task: Callable[..., tuple[Any, Any]], responses: Responses | None
    ) -> list[tuple[Any, Any]]:
        step, parts = self.passes[number], self._parts
        job = self._job if number or step.mapped else self._job.on_cpu
        own = [responses and responses.rows(x.first, x.first + x.rows) for x in parts]
        calls = [
            Call(task, job, x.part, (number, rows)) for x, rows in zip(parts, own, strict=True)
        ]
        self.reporter.start(step.purpose, self.plan.source.rows)
        with self.clock.wall(step.purpose):
            return self._executor.run(
                step.purpose, calls, lambda place: self.reporter.advance(parts[place].rows)
            )


def parts_of(source: Source, targets: Sequence[AnyPath], slots: int) -> list[InputRows]:
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
    starts, filled = [0], 0
    for number, size in enumerate(sizes):
        if number and filled + size > most:
            starts.append(number)
            filled = 0
        filled += size
    parts = []
    for start, stop in zip(starts, [*starts[1:], len(sizes)], strict=True):
        files, prints = source.files[start:stop], source.fingerprints[start:stop]
        part = FilePart((*files,), (*prints,), (*targets[start:stop],), start)
        first = source.first_rows[start]
        parts.append(InputRows(part, first, source.first_rows[stop] - first))
    return parts


def with_tasks(seconds: Json, notes: Sequence[Note]) -> Json:
    """Return the times of a run with those of its tasks of the last pass, by kind of work.

    The CPU time of a task before its pass is in the total alone, as its wall time is in the pass.
    """
    kinds = {}
    for kind in ("busy", "cpu"):
        parts = [seconds, *(note.seconds for note in notes)]
        names = dict.fromkeys(name for part in parts for name in part[kind])
        kinds[kind] = {name: sum(part[kind].get(name, 0.0) for part in parts) for name in names}
    kinds["cpu"]["start_up"] = seconds["cpu"]["start_up"]
    return seconds | kinds | {"limits": {}}


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

    def publish(self) -> None:
        """Rename every file to its target.

        Raises:
            ReadWriteError: a file cannot be renamed; those before it are published.
        """
        local: list[CompleteFile] = []
        for path, target in zip(self.paths, self.targets, strict=True):
            if isinstance(path, Path) and isinstance(target, Path):
                local.append(CompleteFile(path, target))
            elif isinstance(path, RemotePath) and isinstance(target, RemotePath):
                with remote_errors(target, "cannot be written"):
                    path.store.move(path.path, target.path)
        publish_files(local)

    def _discard(self) -> None:
        """Remove the folders, with incomplete files of killed workers; never raises."""
        for folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)
        self._clean_stores(self._name)

    def _folders(self) -> list[Path]:
        folders = dict.fromkeys(path.parent for path in self.paths if isinstance(path, Path))
        return [*folders]

    def _clean_stores(self, start: str) -> None:
        """Remove objects and uploads of the targets' names, in folders that begin so."""
        names: dict[RemotePath, set[str]] = {}
        for target in self.targets:
            if isinstance(target, RemotePath):
                names.setdefault(_parent(target) / start, set()).add(target.name)
        for prefix, of_files in names.items():
            abort_leftover_uploads(prefix, of_files)
            with suppress(Exception):
                prefix.forget()
                for folder in prefix.store.folders(prefix.path.rpartition("/")[0]):
                    for path in prefix.store.find(folder) if folder.startswith(prefix.path) else ():
                        if path.rpartition("/")[2] in of_files:
                            prefix.store.remove(path)
                prefix.forget()


def _parent(target: AnyPath) -> Any:
    if isinstance(target, Path):
        return target.parent
    return target.sibling(target.path.rpartition("/")[0])
