"""The journal of a run over many files, so that a stopped run goes on where it was.

Files of a run are published together, when the last is complete. With a journal, those that are
complete stay beside their targets, under their temporary names, and the journal says which these
are: one line of JSON each, appended and synced when its file is whole. A line that was cut short
by a crash counts for nothing. The first line says what the run is: of what inputs, by which
recipe, version and device. A run that differs in any of it can't go on with these files.

Where output goes: nothing appears under its own name before everything is complete.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlpost._version import __version__
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.locks import FileLock
from rlpost.io.parquet.fingerprint import fingerprint_of, footer_digest
from rlpost.io.parquet.splice import start_copy
from rlpost.io.paths import parse_path
from rlpost.io.shutdown import register_cleanup, signals_deferred, unregister_cleanup
from rlpost.io.staged import StagedFile, file_errors, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.io.uploads import Upload
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.totals import ExactTotals


Json = dict[str, Any]
FORMAT = 1


def run_identity(engine: Engine, names: tuple[str, ...], state: Path | None) -> Json:
    """What has to be the same for a run to go on: the recipe, the versions, the inputs.

    Args:
        engine: of the job.
        names: the columns that are written.
        state: the running moments, as they were before the run.

    Raises:
        ReadWriteError: an input can't be read.
    """
    import torch  # noqa: PLC0415 - it takes a second; copying begins before

    plan = engine.plan
    recipe = plan.resolved.recipe
    own = Path(recipe.estimator.rpartition(":")[0])
    try:
        return {
            "rlpost": __version__,
            "torch": torch.__version__,
            "device": engine.decoder.device.type,
            "chunk_tokens": engine.chunk_tokens,
            "columns": [*names],
            "recipe": recipe.model_dump(mode="json"),
            "estimator_file": _digest(own) if own.is_file() else None,
            "state": _digest(state) if state is not None and state.exists() else None,
            "inputs": [
                [str(file.relative), *(fingerprint_of(file.path) or ()), footer_digest(file.path)]
                for file in plan.source.files
            ],
        }
    except OSError as error:
        raise ReadWriteError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class FinishedFile:
    """A file that was complete when the run stopped."""

    staged: str
    """Its temporary name, beside its target."""
    size: int
    footer: str
    reason: str | None
    """Why it was not spliced, if it was not."""
    totals: ExactTotals
    whole: str | None = None
    """Digest of all its bytes, of a run with --verify."""

    def is_at(self, path: Path, *, verify: bool) -> bool:
        """Whether the file at a path is this one, by its size and its footer, or every byte."""
        try:
            same = path.stat().st_size == self.size and footer_digest(path) == self.footer
            return same and (not verify or _digest(path) == self.whole)
        except OSError:
            return False


@dataclass
class Journal:
    """What is written of a run, and what of it is complete.

    Raises:
        ReadWriteError: from `start`, `add` and `publishing`: it can't be written.
    """

    path: Path
    identity: Json | None = None
    finished: dict[int, FinishedFile] = field(default_factory=dict)
    published: bool = False
    """Whether publishing had begun: then all files are complete, and some have their names."""
    verify: bool = False
    """Whether files that wait are read again before they count as complete."""
    stale: bool = False
    """Whether it is of a run that nobody wants to go on with."""
    _whole: int = 0
    """Bytes of the lines that are whole."""

    @classmethod
    def read(cls, path: Path) -> Journal:
        """The journal at a path, as far as it is whole; an empty one where there is none.

        Raises:
            ReadWriteError: it can't be read.
        """
        journal = cls(path)
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return journal
        except OSError as error:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        for line in lines:
            try:
                entry = json.loads(line)
                assert line.endswith(b"\n")
                journal._take(entry)
                journal._whole += len(line)
            except (ValueError, KeyError, TypeError, AssertionError):
                break  # it was being written when the run was killed
        return journal

    def found(self, targets: Sequence[Path]) -> dict[int, FinishedFile]:
        """The files that are complete and still there, by number; the journal is read again.

        Args:
            targets: of all files of the run.
        """
        self.__dict__.update(vars(Journal.read(self.path)) | {"verify": self.verify})
        return {
            index: one
            for index, one in self.finished.items()
            if index < len(targets)
            and (
                one.is_at(targets[index].with_name(one.staged), verify=self.verify)
                or (self.published and one.is_at(targets[index], verify=self.verify))
            )
        }

    def _take(self, entry: Json) -> None:
        if self.identity is None:
            if entry["journal"] != FORMAT:
                raise ValueError
            self.identity = entry["identity"]
        elif "publishing" in entry:
            self.published = True
        else:
            from rlpost.pipeline.totals import ExactTotals  # noqa: PLC0415 - it imports torch

            index, totals = entry.pop("file"), ExactTotals.from_text(entry.pop("totals"))
            self.finished[index] = FinishedFile(**entry, totals=totals)

    def start(self, identity: Json) -> None:
        """Begin a journal, or go on with this one.

        Raises:
            UsageError: this one is of another run.
        """
        identity = json.loads(json.dumps(identity))
        if not self.finished:
            self._append({"journal": FORMAT, "identity": identity}, "wb")
            self.identity = identity
            return
        assert self.identity is not None
        changed = next(_changes(self.identity, identity), None)
        if changed is not None:
            raise UsageError(
                f"{self.path}: is of a run with {len(self.finished)} files complete, and cannot go "
                f"on: {changed}. Undo that, or start over: --overwrite without --resume"
            )
        os.truncate(self.path, self._whole)  # a crash left half a line behind them

    def add(
        self, index: int, staged: Path, reason: str | None, totals: ExactTotals
    ) -> FinishedFile:
        """Note that a file is complete, and synced."""
        size, footer = staged.stat().st_size, footer_digest(staged)
        whole = _digest(staged) if self.verify else None
        one = FinishedFile(staged.name, size, footer, reason, totals, whole)
        entry = {
            "file": index,
            "staged": one.staged,
            "size": one.size,
            "footer": one.footer,
            "reason": reason,
            "whole": whole,
            "totals": totals.to_text(),
        }
        self._append(entry, "ab")
        self.finished[index] = one
        return one

    def publishing(self) -> None:
        """Note that all files are complete, before the first gets its name."""
        if not self.published:
            self._append({"publishing": True}, "ab")
            self.published = True

    def remove(self) -> None:
        """The run is over, or none of its files is complete."""
        self.path.unlink(missing_ok=True)

    def _append(self, entry: Json, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ReadWriteError(f"{self.path}: cannot be written: {error.strerror}") from None


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """What differs, in words, the first thing first."""
    for name in ("rlpost", "torch", "device"):
        if before.get(name) != now[name]:
            yield f"{name} was {before.get(name)} and is {now[name]}"
    if before.get("chunk_tokens") != now["chunk_tokens"]:
        yield (
            f"pieces had {before.get('chunk_tokens')} tokens and have {now['chunk_tokens']}; "
            f"--chunk-tokens {before.get('chunk_tokens')} makes them so again"
        )
    old, new = before.get("recipe", {}), now["recipe"]
    for name in [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        yield f"{name} was {old.get(name)} and is {new.get(name)}"
    for name, what in (
        ("columns", "other columns are written"),
        ("estimator_file", "the estimator's file was changed"),
        ("state", "the state file was changed"),
    ):
        if before.get(name) != now[name]:
            yield what
    yield from _input_changes(before.get("inputs", []), now["inputs"])


def _input_changes(before: list[Any], now: list[Any]) -> Any:
    old, new = [name for name, *_ in before], [name for name, *_ in now]
    for one in old:
        if one not in new:
            yield f"{one} was among the inputs and is not"
    for one in new:
        if one not in old:
            yield f"{one} is among the inputs and was not"
    if old != new:
        yield "the inputs come in another order"
    for one, other in zip(before, now, strict=False):
        if one != other:
            yield f"{one[0]} was changed (size, time of change or footer)"


JOURNAL = ".rlpost-run.jsonl"


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[str | Path], output: AnyPath, *, overwrite: bool
) -> list[AnyPath]:
    """Where each file goes: to OUT itself for one input file, else below OUT.

    Raises:
        UsageError: a target is an input, or exists and may not be overwritten.
        ReadWriteError: a target can't be looked at.
    """
    try:
        single = len(inputs) == 1 and parse_path(inputs[0]).is_file() and not output.is_dir()
        if not single and output.suffix == ".parquet" and not output.is_dir():
            raise UsageError(
                f"{output}: {len(files)} input files need a directory to go to, not a file"
            )
        targets: list[AnyPath] = [output] if single else [output / file.relative for file in files]
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


def journal_of(output: AnyPath, *, resume: bool, overwrite: bool, verify: bool) -> Journal | None:
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

    def __init__(self, targets: Sequence[AnyPath], journal: Journal | None = None) -> None:
        self.targets = list(targets)
        self.journal = journal
        self.finished: dict[int, FinishedFile] = {}
        """Files that an earlier run completed, by their number."""
        self._sinks: dict[int, Sink] = {}
        self._begun: dict[int, StagedFile | Upload] = {}
        self._folders: list[Path] = []
        self._claim: FileLock | None = None

    def __enter__(self) -> Self:
        try:
            for index in range(len(self.targets)):
                self._made(index)
            local = [target for target in self.targets if isinstance(target, Path)]
            self._claim = FileLock([*local, *([self.journal.path] if self.journal else [])])
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
            unregister_cleanup(folder)
            with suppress(OSError):  # it is not empty: something was published, or is kept
                folder.rmdir()

    def copy_ahead(self, index: int, source: AnyPath) -> None:
        """Begin to copy all of a file's columns; for outputs that leave none of them out.

        Raises:
            ReadWriteError: the output can't be made.
        """
        staged = start_copy(source, self._made(index))
        if staged is not None:
            self._begun[index] = staged

    def open(self, index: int, make: Callable[[AnyPath, StagedFile | Upload | None], Sink]) -> Sink:
        """The sink of one file, from its target and the copy that was begun, if any was.

        Raises:
            ReadWriteError: it can't be made.
        """
        sink = make(self._made(index), self._begun.pop(index, None))
        self._sinks[index] = sink
        return sink

    def complete(self, index: int, totals: ExactTotals) -> None:
        """Note that a file is whole, where there is a journal: it stays, if the run stops here.

        Raises:
            ReadWriteError: the journal can't be written.
        """
        sink = self._sinks[index]
        if self.journal is not None and isinstance(sink.output, StagedFile):
            with signals_deferred():
                self.journal.add(index, sink.output.path, sink.reason, totals)
                sink.output.keep()

    def _made(self, index: int) -> AnyPath:
        """A target, whose directory is made if need be."""
        target = self.targets[index]
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            for folder in reversed(missing):
                register_cleanup(folder, folder.rmdir)
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
        with signals_deferred():
            if self.journal is not None:
                self.journal.publishing()
            for index, target in enumerate(self.targets):
                output = self._sinks[index].output if index in self._sinks else None
                if output is None:
                    _rename(self._beside(index), Path(str(target)))
                elif isinstance(output, StagedFile):
                    output.rename()
                else:
                    output.publish()
            local = {target.parent for target in self.targets if isinstance(target, Path)}
            for folder in local | {made.parent for made in self._folders}:
                with file_errors(folder, "cannot be written"):
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
    with file_errors(target, "cannot be written"):
        if staged.exists():
            staged.replace(target)
