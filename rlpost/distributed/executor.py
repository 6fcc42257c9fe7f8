"""Executors: they run the tasks that a driver calls, and store the blocks that tasks return.

`FolderExecutor` runs tasks in this process and stores blocks as files in a folder, from which
other processes read them. `rlpost.distributed.ray` has the executor of a Ray cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rlpost.distributed.blocks import ArrowBlock
from rlpost.distributed.partition import LoadedBatch
from rlpost.io.publish import write_file
from rlpost.io.ranges import mapped_file
from rlpost.io.staged import file_errors
from rlpost.pipeline.device_choice import ON_CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rlpost.display.reporter import Reporter
    from rlpost.distributed.partition import Json, TaskContext
    from rlpost.distributed.tasks import TaskOutput


_SUFFIX, _SHARED = ".arrow", ".shared.arrow"


class BatchRef(NamedTuple):
    """A reference to a batch of a block, for a task that will read it."""

    block: Any
    """The executor's reference to the block."""
    batch: int
    table: int = 0
    """As in `LoadedBatch`."""
    shift: int = 0
    """As in `LoadedBatch`."""


class Call(NamedTuple):
    """The call of one task: `task(context, *arguments, batches)`."""

    task: Callable[..., TaskOutput]
    arguments: tuple[Any, ...]
    batches: tuple[BatchRef, ...]
    rows: int
    """For progress."""
    tokens: bool
    """Whether it computes on tokens, on the device."""


class TaskResult(NamedTuple):
    """What a task returned: its note, and a reference to its block."""

    note: Json
    block: Any


class Executor(Protocol):
    """Runs tasks, stores their blocks and reports progress."""

    def run(self, purpose: str, context: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all calls, in any order, and repeat those that fail; return results in call order.

        Raises:
            RlpostError: what one of the tasks raised.
        """


class FolderExecutor:
    """Runs tasks one after another in this process; stores blocks as files in a folder.

    Args:
        folder: of the blocks; it exists.
        reporter: shows progress.

    Raises:
        ReadWriteError: from `run`: a block cannot be written.
    """

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        self._folder = folder
        self._reporter = reporter
        self._rounds = 0

    def run(self, purpose: str, context: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all calls; see `Executor`."""
        total = sum(call.rows for call in calls)
        if total:
            self._reporter.start(purpose, total)
        results = []
        for number, call in enumerate(calls):
            own = context if call.tokens else replace(context, device=ON_CPU)
            output = call.task(own, *call.arguments, read_batches(self._folder, call.batches))
            name = f"{self._rounds}-{number:06d}"
            if isinstance(output.rows, ArrowBlock):
                write_block(self._folder, name, output.rows)
            results.append(TaskResult(output.note, name))
            if total:
                self._reporter.advance(call.rows)
        self._rounds += 1
        return results

    def delete_all_but(self, names: Iterable[str]) -> None:
        """Delete the blocks that no later task reads."""
        kept = {name + suffix for name in names for suffix in (_SUFFIX, _SHARED)}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.name not in kept:
                path.unlink()


def write_block(folder: Path, name: str, block: ArrowBlock) -> None:
    """Write a block under a name; raises ReadWriteError."""
    for suffix, data in ((_SUFFIX, block.rows), (_SHARED, block.shared)):
        if data is not None:
            write_file(folder / (name + suffix), memoryview(data), lock=False)


def delete_block(folder: Path, name: str) -> None:
    """Delete a block if it exists; raises ReadWriteError."""
    with file_errors(folder, "cannot be written"):
        for suffix in (_SUFFIX, _SHARED):
            (folder / (name + suffix)).unlink(missing_ok=True)


def read_batches(folder: Path, batches: Iterable[BatchRef]) -> Iterator[LoadedBatch]:
    """Yield the batches that a task reads, without reading the rest of their files."""
    for name, *rest in batches:
        shared = folder / (name + _SHARED)
        rows = _mapped(folder / (name + _SUFFIX))
        yield LoadedBatch(ArrowBlock(rows, _mapped(shared) if shared.exists() else None), *rest)


def _mapped(path: Path) -> pa.Buffer:
    with file_errors(path, "cannot be read"), mapped_file(path) as file:
        return file.read_buffer()
