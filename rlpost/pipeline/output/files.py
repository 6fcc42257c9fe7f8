"""The output files of a run: their names, and their publication, all together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.parquet.checksums import footer_extents
from rlpost.io.parquet.splice import start_copy
from rlpost.io.paths import RemotePath, check_target, list_files, parse_path
from rlpost.io.publish import CompleteFile, StagedFiles
from rlpost.io.shutdown import signals_deferred
from rlpost.io.staged import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow.parquet as pq

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath, PathText
    from rlpost.io.uploads import OutputFile
    from rlpost.pipeline.output.journal import FinishedFile, Journal
    from rlpost.pipeline.totals import ExactTotals


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[PathText], output: AnyPath, *, overwrite: bool
) -> list[AnyPath]:
    """Return the output of each file: OUT itself for one input file, else a file in OUT.

    Raises:
        UsageError: a target is an input, or exists and may not be overwritten.
        ReadWriteError: a target cannot be checked.
    """
    try:
        single = len(inputs) == 1 and parse_path(inputs[0]).is_file() and not output.is_dir()
        if not single and output.suffix == ".parquet" and not output.is_dir():
            raise UsageError(
                f"{output}: {len(files)} input files need a directory as OUT, not a file"
            )
        targets: list[AnyPath] = [output] if single else [output / file.relative for file in files]
        own = {file.path.resolve() for file in files}
        existing = _listed(output) if isinstance(output, RemotePath) and not single else None
        for target in targets:
            check_target(target, own, overwrite=overwrite, existing=existing)
    except OSError as error:
        raise ReadWriteError(f"{output}: cannot be written: {error.strerror}") from None
    return targets


def _listed(folder: RemotePath) -> set[str]:
    """Return the URLs of all objects and folders below a URL, in one request per thousand."""
    paths = [relative for _, relative in list_files(folder)]
    parts = {part for path in paths for part in (path, *path.parents)}
    return {str(folder / part) for part in parts}


def check_writable(path: str | Path | None) -> None:
    """Check before the run that a file can be written at its end.

    Raises:
        ReadWriteError: its directory is missing or not writable, or the path is a directory.
    """
    if path is None:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise ReadWriteError(f"{path}: cannot be written: there is no directory {folder}")
    if Path(path).is_dir():
        raise ReadWriteError(f"{path}: cannot be written: it is a directory")
    if not os.access(folder, os.W_OK):
        raise ReadWriteError(f"{path}: cannot be written: {folder} is not writable")


class Outputs:
    """The output files of a run: a context manager that removes files that were not published.

    While it is open, no other run can write these files. It removes what killed runs left of them.

    Args:
        targets: the output of each input file; all local if there is a journal.
        journal: keeps complete files if the run stops, so that another run can continue.

    Raises:
        ReadWriteError: on entering: another run writes a file, or it cannot be written.
    """

    def __init__(self, targets: Sequence[AnyPath], journal: Journal | None = None) -> None:
        self.targets = list(targets)
        self.journal = journal
        self.finished: dict[int, FinishedFile] = {}
        """Files that an earlier run completed, by number."""
        self.before_publishing: Callable[[list[Path]], None] | None = None
        """Is called with the complete files, in the order of the targets, before the first is
        renamed; for local outputs without a journal."""
        self._sinks: dict[int, Sink] = {}
        self._begun: dict[int, OutputFile] = {}
        locked = [] if journal is None else [journal.path]
        self._files = StagedFiles(self.targets, locked, self._continued)

    def __enter__(self) -> Self:
        self._files.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            for sink in self._sinks.values():
                sink.abort()
            if self.journal is not None and (kind is None or not self.journal.has_files):
                self.journal.remove()
        finally:
            self._files.__exit__(kind, *error)

    def _continued(self) -> list[CompleteFile]:
        """Return the complete files of a stopped run that this one continues."""
        if self.journal is not None and self.journal.stale:
            self.journal.remove()
            self.journal = None
        if self.journal is not None:
            self.finished = self.journal.usable(self.targets)
        paths = {index: Path(str(self.targets[index])) for index in self.finished}
        return [
            CompleteFile(path.with_name(self.finished[index].staged), path)
            for index, path in paths.items()
        ]

    @property
    def folder(self) -> Path | None:
        """The directory of the first file; None if it is remote, or if nothing is written."""
        local = [target for target in self.targets[:1] if isinstance(target, Path)]
        return local[0].parent if local else None

    def copy_ahead(self, index: int, source: AnyPath, footer: pq.FileMetaData) -> None:
        """Begin to copy a file, for an output that keeps all of its columns.

        Args:
            index: the number of the output.
            source: the file.
            footer: of the source.

        Raises:
            ReadWriteError: the output cannot be created.
        """
        staged = start_copy(source, self.targets[index], footer_extents(footer))
        if staged is not None:
            self._begun[index] = self._files.add(staged)

    def open(self, index: int, make: Callable[[AnyPath, OutputFile | None], Sink]) -> Sink:
        """Return the sink of one file, made of its target and the copy if one was begun.

        Raises:
            ReadWriteError: it cannot be created.
        """
        sink = make(self.targets[index], self._begun.pop(index, None))
        self._sinks[index] = sink
        self._files.add(sink.output)
        return sink

    def complete(self, index: int, totals: ExactTotals) -> None:
        """Record a complete file in the journal, if there is one, and keep it if the run stops.

        Raises:
            ReadWriteError: the journal cannot be written.
        """
        sink = self._sinks[index]
        if self.journal is not None and isinstance(sink.output, StagedFile):
            with signals_deferred():
                self.journal.add(index, sink.output.path, sink.reason, totals)
                sink.output.keep()

    def publish(self) -> list[str]:
        """Publish all files; return the reasons of files that were not spliced.

        Raises:
            ReadWriteError: a file cannot be renamed; those before it are published, and perhaps
                some objects after it.
        """
        self._files.publish(self._before_publishing)
        reasons = {index: sink.reason for index, sink in self._sinks.items()}
        reasons |= {index: one.reason for index, one in self.finished.items()}
        return [
            f"{target.name}: {reasons[index]}"
            for index, target in enumerate(self.targets)
            if reasons[index]
        ]

    def _before_publishing(self) -> None:
        if self.journal is not None:
            self.journal.publishing()
        if self.before_publishing is not None:
            staged = [self._sinks[index].output for index in range(len(self.targets))]
            self.before_publishing([one.path for one in staged if isinstance(one, StagedFile)])
