"""The journal with which a stopped run continues.

Files of a run are published together, when the last one is complete. With a journal, complete files
stay beside their targets under temporary names. The journal has one line of JSON for each of them,
appended and synced when the file is complete; the lines from a damaged one on are ignored, such as
one that a crash cut short. The first
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
from rlpost.display.text import counted
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.locks import is_temporary
from rlpost.io.own_files import read_bytes, seal, unseal
from rlpost.io.parquet.fingerprint import fingerprint_of, footer_digest
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.totals import ExactTotals


Json = dict[str, Any]
FORMAT = 1
JOURNAL = ".rlpost-run.jsonl"


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

    @classmethod
    def of(cls, entry: Json) -> Self:
        """Return the file of a line of the journal; KeyError, TypeError or ValueError without."""
        from rlpost.pipeline.totals import ExactTotals  # noqa: PLC0415 - slow to import

        try:
            totals = ExactTotals.from_text(entry["totals"])
        except Exception as error:  # noqa: BLE001 - numpy raises anything
            raise ValueError(str(error)) from None
        return cls(**{**entry, "totals": totals})

    def is_at(self, path: Path, *, verify: bool) -> bool:
        """Return whether a file is this one: by size and footer, or by all bytes with `verify`."""
        try:
            same = path.stat().st_size == self.size and footer_digest(path) == self.footer
            return same and (not verify or _digest(path) == self.whole)
        except OSError:
            return False


@dataclass(frozen=True)
class JournalEntries:
    """What a journal has, up to its last complete line."""

    identity: Json | None = None
    """The identity of the run; None without a file."""
    finished: Mapping[int, FinishedFile] = field(default_factory=dict)
    """The complete files, by number."""
    published: bool = False
    """Whether publishing began: then all files are complete, and some are published."""
    size: int = 0
    """Bytes of the complete lines."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the entries of the journal at a path; none without a file.

        Raises:
            ReadWriteError: it cannot be read.
        """
        lines = (read_bytes(path) or b"").splitlines(keepends=True)
        identity, finished, published, size = None, {}, False, 0
        with suppress(ValueError, KeyError, TypeError):  # the run was killed while it wrote a line
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                entry = unseal(line)
                if identity is None:
                    identity = _identity_of(entry)
                elif "publishing" in entry:
                    published = True
                else:
                    index = entry.pop("file")
                    finished[index] = FinishedFile.of(entry)
                size += len(line)
        return cls(identity, finished, published, size)


def _identity_of(entry: Json) -> Json:
    """Return the identity of the first line; ValueError or KeyError if it is of another format."""
    if entry["journal"] != FORMAT:
        raise ValueError
    identity: Json = entry["identity"]
    return identity


class Journal:
    """The journal of a run: its identity and its complete files.

    Args:
        path: of the journal.
        verify: whether complete files are read again before they are used.
        stale: whether the run starts over, so that the journal is removed.

    Raises:
        ReadWriteError: it cannot be read; from `start`, `add` and `publishing`: or not written.
    """

    def __init__(self, path: Path, *, verify: bool = False, stale: bool = False) -> None:
        self.path, self.verify, self.stale = path, verify, stale
        self.entries = JournalEntries.read(path)
        """What the journal had when it was read."""
        self.has_files = bool(self.entries.finished)
        """Whether it has complete files, with those that were added."""

    def usable(self, targets: Sequence[AnyPath]) -> dict[int, FinishedFile]:
        """Read the journal again; return the complete files that still exist, by number.

        Args:
            targets: of all files of the run, which are locked.
        """
        entries = JournalEntries.read(self.path)
        self.entries, self.has_files = entries, bool(entries.finished)
        paths = {index: Path(str(target)) for index, target in enumerate(targets)}
        return {
            index: one
            for index, one in entries.finished.items()
            if index in paths
            and is_temporary(one.staged, paths[index].name)
            and (
                one.is_at(paths[index].with_name(one.staged), verify=self.verify)
                or (entries.published and one.is_at(paths[index], verify=self.verify))
            )
        }

    def start(self, identity: Json) -> None:
        """Begin a journal, or continue this one.

        Raises:
            UsageError: it belongs to another run.
        """
        identity = json.loads(json.dumps(identity))
        before = self.entries
        if before.identity is None or not before.finished:
            self._append({"journal": FORMAT, "identity": identity}, "wb")
            self.entries = JournalEntries(identity)
            return
        changed = next(_changes(before.identity, identity), None)
        if changed is not None:
            raise UsageError(
                f"{self.path}: its run has {counted(len(before.finished), 'complete file')} and "
                f"cannot continue: {changed}. Undo that, or start over: --overwrite without "
                "--resume"
            )
        os.truncate(self.path, before.size)  # a crash may have left half a line

    def add(self, index: int, staged: Path, reason: str | None, totals: ExactTotals) -> None:
        """Record that a file is complete and synced."""
        entry = {
            "file": index,
            "staged": staged.name,
            "size": staged.stat().st_size,
            "footer": footer_digest(staged),
            "reason": reason,
            "whole": _digest(staged) if self.verify else None,
            "totals": totals.to_text(),
        }
        self._append(entry, "ab")
        self.has_files = True

    def publishing(self) -> None:
        """Record that all files are complete, before the first is published."""
        if not self.entries.published:
            self._append({"publishing": True}, "ab")

    def remove(self) -> None:
        """Delete the journal: the run is over, or has no complete file."""
        self.path.unlink(missing_ok=True)

    def _append(self, entry: Json, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(seal(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ReadWriteError(f"{self.path}: cannot be written: {error.strerror}") from None


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

    journal = Journal(path, verify=verify, stale=not resume)
    files = len(journal.entries.finished)
    if journal.stale and files and not overwrite:
        raise UsageError(
            f"{output}: has {counted(files, 'complete file')} of a stopped run; --resume continues "
            "it, --overwrite starts over"
        )
    return journal


def run_identity(engine: Engine, names: tuple[str, ...], state: Path | None) -> Json:
    """Return what must be equal to continue a run: the recipe, the versions, the inputs.

    Args:
        engine: of the run.
        names: the columns that are written.
        state: the file of running reward statistics before the run.

    Raises:
        ReadWriteError: an input cannot be read.
    """
    plan = engine.plan
    recipe = plan.resolved.recipe
    own = Path(recipe.estimator.rpartition(":")[0])
    try:
        return {
            "rlpost": __version__,
            "semantics": SEMANTICS,
            "library": engine.devices.library,
            "device": engine.devices.kind,
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


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """Yield what differs, in words."""
    for name in ("rlpost", "semantics", "library", "device"):
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
