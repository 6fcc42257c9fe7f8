"""The output files of a run, and the journal with which a stopped run continues.

Files of a run are published together, when the last one is complete. With a journal, complete files
stay beside their targets under temporary names. The journal has one line of JSON for each of them,
appended and synced when the file is complete; a line that a crash cut short is ignored. The first
line identifies the run: inputs, recipe, version and device. A run that differs in any of these
cannot continue with these files.
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
from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.display.text import counted
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.locks import FileLock
from rlpost.io.parquet.checksums import footer_extents
from rlpost.io.parquet.fingerprint import fingerprint_of, footer_digest
from rlpost.io.parquet.splice import start_copy
from rlpost.io.paths import RemotePath, check_target, list_files, parse_path
from rlpost.io.shutdown import signals_deferred
from rlpost.io.staged import StagedFile, file_errors
from rlpost.io.system import sync_folder
from rlpost.io.threads import map_ordered
from rlpost.recipe import semantics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import pyarrow.parquet as pq

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.io.uploads import Upload
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.totals import ExactTotals


Json = dict[str, Any]
FORMAT = 1


def run_identity(engine: Engine, names: tuple[str, ...], state: Path | None) -> Json:
    """Return what must be equal to continue a run: the recipe, the versions, the inputs.

    Args:
        engine: of the run.
        names: the columns that are written.
        state: the file of running reward statistics before the run.

    Raises:
        ReadWriteError: an input cannot be read.
    """
    import torch  # noqa: PLC0415 - it takes a second; copying begins before

    plan = engine.plan
    recipe = plan.resolved.recipe
    own = Path(recipe.estimator.rpartition(":")[0])
    try:
        return {
            "rlpost": __version__,
            "semantics": SEMANTICS,
            "torch": torch.__version__,
            "device": engine.devices.here.type,
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
    """The reason if it was not spliced."""
    totals: ExactTotals
    whole: str | None = None
    """Digest of all bytes, in a run with --verify."""

    def is_at(self, path: Path, *, verify: bool) -> bool:
        """Return whether a file is this one: by size and footer, or by all bytes with `verify`."""
        try:
            same = path.stat().st_size == self.size and footer_digest(path) == self.footer
            return same and (not verify or _digest(path) == self.whole)
        except OSError:
            return False


@dataclass
class Journal:
    """The journal of a run: its identity and its complete files.

    Raises:
        ReadWriteError: from `start`, `add` and `publishing`: it cannot be written.
    """

    path: Path
    identity: Json | None = None
    finished: dict[int, FinishedFile] = field(default_factory=dict)
    published: bool = False
    """Whether publishing began: then all files are complete, and some are published."""
    verify: bool = False
    """Whether complete files are read again before they are used."""
    stale: bool = False
    """Whether the run starts over, so that this journal is removed."""
    warnings: list[str] = field(default_factory=list)
    """Why complete files are not used."""
    _whole: int = 0
    """Bytes of complete lines."""

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Return the journal at a path, up to its last complete line; an empty one without a file.

        Raises:
            ReadWriteError: it cannot be read.
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
                break  # the run was killed while it wrote this line
        return journal

    @property
    def semantics(self) -> int:
        """The semantics of the complete files; the present ones without any."""
        if not self.finished or self.identity is None:
            return SEMANTICS
        return semantics.parse(self.identity.get("semantics"))

    def usable(self, targets: Sequence[Path]) -> dict[int, FinishedFile]:
        """Read the journal again; return the complete files that still exist, by number.

        Files of other semantics are not usable: the run starts over.

        Args:
            targets: of all files of the run.
        """
        self.__dict__.update(vars(Journal.read(self.path)) | {"verify": self.verify})
        if (number := self.semantics) != SEMANTICS:
            self.warnings.append(
                f"--resume: {counted(len(self.finished), 'complete file')} of the stopped run "
                f"had {_changed_semantics(self.identity or {}, number)}; all files were computed "
                "anew"
            )
            self.finished = {}
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
            _ = semantics.parse(entry["identity"].get("semantics"))
            self.identity = entry["identity"]
        elif "publishing" in entry:
            self.published = True
        else:
            from rlpost.pipeline.totals import ExactTotals  # noqa: PLC0415 - it imports torch

            index, totals = entry.pop("file"), ExactTotals.from_text(entry.pop("totals"))
            self.finished[index] = FinishedFile(**entry, totals=totals)

    def start(self, identity: Json) -> None:
        """Begin a journal, or continue this one.

        Raises:
            UsageError: it belongs to another run.
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
                f"{self.path}: its run has {counted(len(self.finished), 'complete file')} and "
                f"cannot continue: {changed}. Undo that, or start over: --overwrite without "
                "--resume"
            )
        os.truncate(self.path, self._whole)  # a crash may have left half a line

    def add(
        self, index: int, staged: Path, reason: str | None, totals: ExactTotals
    ) -> FinishedFile:
        """Record that a file is complete and synced."""
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
        """Record that all files are complete, before the first is published."""
        if not self.published:
            self._append({"publishing": True}, "ab")
            self.published = True

    def remove(self) -> None:
        """Delete the journal: the run is over, or has no complete file."""
        self.path.unlink(missing_ok=True)

    def _append(self, entry: Json, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ReadWriteError(f"{self.path}: cannot be written: {error.strerror}") from None


def _changed_semantics(identity: Json, number: int) -> str:
    """Return what changed since a run of other semantics; its input may have any role."""
    try:
        recipe = Recipe.of(identity["recipe"])
    except (UsageError, KeyError, TypeError, ValueError):
        return semantics.describe(number)
    return semantics.describe(number, semantics.applying(number, recipe, ROLES))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """Yield what differs, in words."""
    for name in ("rlpost", "torch", "device"):
        if before.get(name) != now[name]:
            yield f"{name} was {before.get(name)} and is {now[name]}"
    if before.get("chunk_tokens") != now["chunk_tokens"]:
        yield (
            f"chunks had {before.get('chunk_tokens')} tokens and have {now['chunk_tokens']}; use "
            f"--chunk-tokens {before.get('chunk_tokens')}"
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
        yield "the inputs have another order"
    for one, other in zip(before, now, strict=False):
        if one != other:
            yield f"{one[0]} was changed (size, time of change or footer)"


JOURNAL = ".rlpost-run.jsonl"
_REQUESTS = 8  # objects that are published at a time


def targets_of(
    files: Sequence[InputFile], inputs: Sequence[str | Path], output: AnyPath, *, overwrite: bool
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


def journal_of(output: AnyPath, *, resume: bool, overwrite: bool, verify: bool) -> Journal | None:
    """Return the journal of a run over several files, new or existing; None if it has none.

    Args:
        output: OUT.
        resume: whether the run has a journal.
        overwrite: whether a run without one may discard complete files of a stopped run.
        verify: whether complete files of a stopped run are read again.

    Raises:
        UsageError: OUT has complete files of a stopped run, or is remote.
        ReadWriteError: the journal cannot be read.
    """
    if not isinstance(output, Path):
        if resume:
            raise UsageError(
                f"{output}: --resume needs a local OUT, for complete files and the journal"
            )
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
            f"{output}: has {counted(len(journal.finished), 'complete file')} of a stopped run; "
            "--resume continues it, --overwrite starts over"
        )
    journal.stale = True
    return journal


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
        self._begun: dict[int, StagedFile | Upload] = {}
        self._folders: list[Path] = []
        self._locks: FileLock | None = None

    def __enter__(self) -> Self:
        try:
            for index in range(len(self.targets)):
                self._with_folder(index)
            local = [target for target in self.targets if isinstance(target, Path)]
            self._locks = FileLock([*local, *([self.journal.path] if self.journal else [])])
            if self.journal is not None and self.journal.stale:
                self.journal.remove()
                self.journal = None
            if self.journal is not None:
                self.finished = self.journal.usable([Path(str(target)) for target in local])
            self._locks.clean([self._beside(index) for index in self.finished])
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    @property
    def folder(self) -> Path | None:
        """The directory of the first file; None if it is remote, or if nothing is written."""
        local = [target for target in self.targets[:1] if isinstance(target, Path)]
        return local[0].parent if local else None

    @property
    def warnings(self) -> list[str]:
        """Warnings of a run that continues a stopped one."""
        return [] if self.journal is None else self.journal.warnings

    def _beside(self, index: int) -> Path:
        """Return the temporary path of a finished file."""
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
        if self._locks is not None:
            self._locks.release()
        for folder in reversed(self._folders):
            unregister_cleanup(folder)
            with suppress(OSError):  # it is not empty
                folder.rmdir()

    def copy_ahead(self, index: int, source: AnyPath, footer: pq.FileMetaData) -> None:
        """Begin to copy a file, for an output that keeps all of its columns.

        Args:
            index: the number of the output.
            source: the file.
            footer: of the source.

        Raises:
            ReadWriteError: the output cannot be created.
        """
        staged = start_copy(source, self._with_folder(index), footer_extents(footer))
        if staged is not None:
            self._begun[index] = staged

    def open(self, index: int, make: Callable[[AnyPath, StagedFile | Upload | None], Sink]) -> Sink:
        """Return the sink of one file, made of its target and the copy if one was begun.

        Raises:
            ReadWriteError: it cannot be created.
        """
        sink = make(self._with_folder(index), self._begun.pop(index, None))
        self._sinks[index] = sink
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

    def _with_folder(self, index: int) -> AnyPath:
        """Return a target, and create its directory if it is missing."""
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
        """Rename every file to its target; return the reasons of files that were not spliced.

        Raises:
            ReadWriteError: a file cannot be renamed; those before it are published, and perhaps
                some objects after it.
        """
        with signals_deferred():
            if self.journal is not None:
                self.journal.publishing()
            if self.before_publishing is not None:
                staged = [self._sinks[index].output for index in range(len(self.targets))]
                self.before_publishing([one.path for one in staged if isinstance(one, StagedFile)])
            remote: list[Upload] = []
            for index, target in enumerate(self.targets):
                output = self._sinks[index].output if index in self._sinks else None
                if output is None:
                    _rename(self._beside(index), Path(str(target)))
                elif isinstance(output, StagedFile):
                    output.rename()
                else:
                    remote.append(output)
            for _ in map_ordered(lambda upload: upload.publish(), iter(remote), _REQUESTS):
                pass
            local = {target.parent for target in self.targets if isinstance(target, Path)}
            for folder in local | {folder.parent for folder in self._folders}:
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
    """Rename a finished file to its target, unless it was renamed before."""
    with file_errors(target, "cannot be written"):
        if staged.exists():
            staged.replace(target)
