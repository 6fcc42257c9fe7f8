"""Where output goes: nothing appears under its own name before everything is complete."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.errors import ReadWriteError, UsageError
from rlpost.leftovers import Locks, settled, undo_at_exit
from rlpost.parquet.places import place_of
from rlpost.parquet.splice import copy_all
from rlpost.parquet.staged import Staged, naming, sync_folder
from rlpost.signals import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.places import Place
    from rlpost.parquet.sink import Sink
    from rlpost.parquet.upload import Upload
    from rlpost.resume import Finished, Journal
    from rlpost.tally import Tally


JOURNAL = ".rlpost-run.jsonl"


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[str | Path], output: Place, *, overwrite: bool
) -> list[Place]:
    """Where each file goes: to OUT itself for one input file, else below OUT.

    Raises:
        UsageError: a target is an input, or exists and may not be overwritten.
        ReadWriteError: a target can't be looked at.
    """
    try:
        single = len(inputs) == 1 and place_of(inputs[0]).is_file() and not output.is_dir()
        if not single and output.suffix == ".parquet" and not output.is_dir():
            raise UsageError(
                f"{output}: {len(files)} input files need a directory to go to, not a file"
            )
        targets: list[Place] = [output] if single else [output / file.relative for file in files]
        own = {file.path.resolve() for file in files}
        for target in targets:
            if target.resolve() in own:
                raise UsageError(f"{target}: output and input are the same file; name another")
            if target.exists() and not overwrite:
                raise UsageError(f"{target}: exists already; --overwrite replaces it")
    except OSError as error:
        raise ReadWriteError(f"{output}: cannot be written: {error.strerror}") from None
    return targets


def check_writable(path: str | Path | None) -> None:
    """Find out before the work whether a side file can be written after it.

    Raises:
        ReadWriteError: its directory is missing or forbidden, or it is a directory itself.
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


def journal_of(output: Place, *, resume: bool, overwrite: bool, verify: bool) -> Journal | None:
    """The journal of a run over several files, where it keeps one, whether new or gone on with.

    Args:
        output: where the run's files go.
        resume: whether the run keeps a journal.
        overwrite: whether one that does not may throw away what a stopped run has complete.
        verify: whether what a stopped run has complete is read again.

    Raises:
        UsageError: a stopped run has files complete there; or the output is remote.
        ReadWriteError: the journal can't be read.
    """
    if not isinstance(output, Path):
        if resume:
            raise UsageError(f"{output}: --resume needs a local OUT: complete files wait there")
        return None
    path = output / JOURNAL
    if not (resume and output.suffix != ".parquet") and not path.is_file():
        return None
    from rlpost.resume import Journal  # noqa: PLC0415 - it needs torch

    journal = Journal.read(path)
    journal.verify = verify
    if resume:
        return journal
    if journal.finished and not overwrite:
        raise UsageError(
            f"{output}: a stopped run has {len(journal.finished)} files complete there; --resume "
            "goes on with it, --overwrite starts over"
        )
    journal.stale = True
    return journal


class Outputs:
    """The files of a run: as a context manager it removes what `publish` has not published.

    While it is open, no other run writes any of them; what killed runs left of them goes.

    Args:
        targets: where each input file's twin goes; all local, where there is a journal.
        journal: keeps files that are complete, where the run stops, for one that goes on with it.

    Raises:
        ReadWriteError: on entering: another run is writing one, or it can't be written.
    """

    def __init__(self, targets: Sequence[Place], journal: Journal | None = None) -> None:
        self.targets = list(targets)
        self.journal = journal
        self.finished: dict[int, Finished] = {}
        """Files that an earlier run completed, by their number."""
        self._sinks: dict[int, Sink] = {}
        self._begun: dict[int, Staged | Upload] = {}
        self._folders: list[Path] = []
        self._claim: Locks | None = None

    def __enter__(self) -> Self:
        try:
            for index in range(len(self.targets)):
                self._made(index)
            local = [target for target in self.targets if isinstance(target, Path)]
            self._claim = Locks([*local, *([self.journal.path] if self.journal else [])])
            if self.journal is not None and self.journal.stale:
                self.journal.remove()
                self.journal = None
            if self.journal is not None:
                self.finished = self.journal.found([Path(str(target)) for target in local])
            self._claim.clean([self._beside(index) for index in self.finished])
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _beside(self, index: int) -> Path:
        """Where a finished file lies."""
        return Path(str(self.targets[index])).with_name(self.finished[index].staged)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for unfinished in self._begun.values():
            unfinished.discard()
        for sink in self._sinks.values():
            sink.abort()
        if self.journal is not None and (kind is None or not self.journal.finished):
            self.journal.remove()
        if self._claim is not None:
            self._claim.release()
        for folder in reversed(self._folders):
            settled(folder)
            with suppress(OSError):  # it is not empty: something was published, or is kept
                folder.rmdir()

    def copy_ahead(self, index: int, source: Place) -> None:
        """Begin to copy all of a file's columns; for outputs that leave none of them out.

        Raises:
            ReadWriteError: the output can't be made.
        """
        staged = copy_all(source, self._made(index))
        if staged is not None:
            self._begun[index] = staged

    def open(self, index: int, make: Callable[[Place, Staged | Upload | None], Sink]) -> Sink:
        """The sink of one file, from its target and the copy that was begun, if any was.

        Raises:
            ReadWriteError: it can't be made.
        """
        sink = make(self._made(index), self._begun.pop(index, None))
        self._sinks[index] = sink
        return sink

    def complete(self, index: int, tally: Tally) -> None:
        """Note that a file is whole, where there is a journal: it stays, if the run stops here.

        Raises:
            ReadWriteError: the journal can't be written.
        """
        sink = self._sinks[index]
        if self.journal is not None and isinstance(sink.output, Staged):
            with held_back():
                self.journal.add(index, sink.output.path, sink.reason, tally)
                sink.output.keep()

    def _made(self, index: int) -> Place:
        """A target, whose directory is made if need be."""
        target = self.targets[index]
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            for folder in reversed(missing):
                undo_at_exit(folder, folder.rmdir)
                folder.mkdir()
                self._folders.append(folder)
        except OSError as error:
            raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
        return target

    def publish(self) -> list[str]:
        """Rename every file to its target; gives the reasons of those that were not spliced.

        Raises:
            ReadWriteError: one can't be renamed; those before it are published then.
        """
        with held_back():
            if self.journal is not None:
                self.journal.publishing()
            for index, target in enumerate(self.targets):
                output = self._sinks[index].output if index in self._sinks else None
                if output is None:
                    _rename(self._beside(index), Path(str(target)))
                elif isinstance(output, Staged):
                    output.rename()
                else:
                    output.publish()
            local = {target.parent for target in self.targets if isinstance(target, Path)}
            for folder in local | {made.parent for made in self._folders}:
                with naming(folder, "cannot be written"):
                    sync_folder(folder)
        reasons = {index: sink.reason for index, sink in self._sinks.items()}
        reasons |= {index: one.reason for index, one in self.finished.items()}
        return [
            f"{target.name}: {reasons[index]}"
            for index, target in enumerate(self.targets)
            if reasons[index]
        ]


def _rename(staged: Path, target: Path) -> None:
    """Give a finished file its name, unless it has it already."""
    with naming(target, "cannot be written"):
        if staged.exists():
            staged.replace(target)
