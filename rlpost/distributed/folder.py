"""Sheets in a folder: for tasks that meet in no other place than a file system."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.distributed.exchange import ArrowBlock
from rlpost.distributed.executor import TaskResult
from rlpost.distributed.partition import Part
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rlpost.distributed.executor import BatchRef, Call
    from rlpost.distributed.partition import TaskContext
    from rlpost.io.progress import Reporter


_SUFFIX, _SHARED = ".arrow", ".shared.arrow"


class FolderExecutor:
    """Runs tasks one after another, in this process; keeps sheets in a folder, by file name.

    Args:
        folder: of the sheets; it exists.
        reporter: who is told of progress.

    Raises:
        ReadWriteError: from `run`: the folder does not take a sheet.
    """

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        self._folder = folder
        self._reporter = reporter
        self._rounds = 0

    def run(self, purpose: str, work: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all of these; see `rlpost.distributed.executor.Executor`."""
        total = sum(call.rows for call in calls)
        if total:
            self._reporter.start(purpose, total)
        found = []
        for place, call in enumerate(calls):
            own = work if call.tokens else replace(work, device="cpu")
            outcome = call.task(own, *call.given, read(self._folder, call.parts))
            name = f"{self._rounds}-{place:06d}"
            if isinstance(outcome.rows, ArrowBlock):
                keep(self._folder, name, outcome.rows)
            found.append(TaskResult(outcome.note, name))
            if total:
                self._reporter.advance(call.rows)
        self._rounds += 1
        return found

    def drop_all_but(self, names: Iterable[str]) -> None:
        """Remove the sheets that nobody will read."""
        kept = {name + suffix for name in names for suffix in (_SUFFIX, _SHARED)}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.name not in kept:
                path.unlink()


def keep(folder: Path, name: str, block: ArrowBlock) -> None:
    """Keep a sheet under a name; raises ReadWriteError."""
    for suffix, data in ((_SUFFIX, block.rows), (_SHARED, block.shared)):
        if data is not None:
            write_whole(folder / (name + suffix), data)


def drop(folder: Path, name: str) -> None:
    """Remove a sheet, if it is there; raises ReadWriteError."""
    with file_errors(folder, "cannot be written"):
        for suffix in (_SUFFIX, _SHARED):
            (folder / (name + suffix)).unlink(missing_ok=True)


def read(folder: Path, parts: Iterable[BatchRef]) -> Iterator[Part]:
    """The batches that a task reads, one after another; of each file only what they take up."""
    for name, *rest in parts:
        shared = folder / (name + _SHARED)
        rows = _mapped(folder / (name + _SUFFIX))
        yield Part(ArrowBlock(rows, _mapped(shared) if shared.exists() else None), *rest)


def _mapped(path: Path) -> pa.Buffer:
    with file_errors(path, "cannot be read"), pa.memory_map(str(path)) as file:
        return file.read_buffer()


def write_whole(path: Path, data: bytes | pa.Buffer) -> None:
    """Write a file that is there as a whole or not at all; raises ReadWriteError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with file_errors(path, "cannot be written"):
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
