"""Where output goes: nothing appears under its own name before everything is complete."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.errors import ReadWriteError, UsageError
from rlpost.parquet.splice import copy_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.sink import Sink
    from rlpost.parquet.staged import Staged


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[str | Path], output: Path, *, overwrite: bool
) -> list[Path]:
    """Where each file goes: to OUT itself for one input file, else below OUT.

    Raises:
        UsageError: a target is an input, or exists and may not be overwritten.
        ReadWriteError: a target can't be looked at.
    """
    try:
        single = len(inputs) == 1 and Path(inputs[0]).is_file() and not output.is_dir()
        if not single and output.suffix == ".parquet" and not output.is_dir():
            raise UsageError(
                f"{output}: {len(files)} input files need a directory to go to, not a file"
            )
        targets = [output] if single else [output / file.relative for file in files]
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


class Outputs:
    """The files of a run: as a context manager it removes what `publish` has not published.

    Args:
        targets: where each input file's twin goes.
    """

    def __init__(self, targets: Sequence[Path]) -> None:
        self.targets = list(targets)
        self._sinks: list[Sink] = []
        self._begun: dict[int, Staged] = {}
        self._folders: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for unfinished in self._begun.values():
            unfinished.discard()
        for sink in self._sinks:
            sink.abort()
        for folder in reversed(self._folders):
            with suppress(OSError):  # it is not empty: something was published
                folder.rmdir()

    def copy_ahead(self, index: int, source: Path) -> None:
        """Begin to copy all of a file's columns; for outputs that leave none of them out.

        Raises:
            ReadWriteError: the output can't be made.
        """
        staged = copy_all(source, self._made(index))
        if staged is not None:
            self._begun[index] = staged

    def open(self, index: int, make: Callable[[Path, Staged | None], Sink]) -> Sink:
        """The sink of one file, from its target and the copy that was begun, if any was.

        Raises:
            ReadWriteError: it can't be made.
        """
        sink = make(self._made(index), self._begun.pop(index, None))
        self._sinks.append(sink)
        return sink

    def _made(self, index: int) -> Path:
        """A target, whose directory is made if need be."""
        target = self.targets[index]
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            for folder in reversed(missing):
                folder.mkdir()
                self._folders.append(folder)
        except OSError as error:
            raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
        return target

    def publish(self) -> list[str]:
        """Rename every file to its target; gives the reasons of those that were not spliced."""
        for sink in self._sinks:
            sink.publish()
        named = zip(self.targets, self._sinks, strict=True)
        return [f"{target.name}: {sink.reason}" for target, sink in named if sink.reason]
