"""Files that are complete and wait for the others of their run, each beside its target.

Tasks run in any process, on any machine that sees the output. So what is complete lies under a
name that everyone can tell: the target's own, in a hidden folder beside it that is called after
the run. Who drives the run gives all of them their names at the end.

Of two runs over one output the later wins: its claim on the targets, or on a store without locks
its beginning, removes what the earlier one has waiting there. The earlier one finds that out before
it publishes anything, so files of two runs are never mixed.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError
from rlpost.io.locks import STAGING_PREFIX, FileLock
from rlpost.io.parquet.fingerprint import footer_digest
from rlpost.io.paths import RemotePath, remote_errors
from rlpost.io.shutdown import register_cleanup, unregister_cleanup
from rlpost.io.staged import file_errors, sync_folder
from rlpost.io.uploads import abort_leftover_uploads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.io.paths import AnyPath


class StagedOutputs:
    """Where the files of a run wait.

    Args:
        targets: the names that they will get; the folders exist, where they are local.
        run: what the folders are called after; None for a new run.
    """

    def __init__(self, targets: Sequence[AnyPath], run: str | None = None) -> None:
        self.targets = list(targets)
        self.run = run or secrets.token_hex(8)

    @property
    def places(self) -> list[AnyPath]:
        """Where each file is written."""
        return [self._folder(target) / target.name for target in self.targets]

    def _folder(self, target: AnyPath) -> AnyPath:
        return _parent(target) / (STAGING_PREFIX + self.run)

    def begin(self) -> None:
        """Make the folders; on stores without locks, remove what other runs left of these files.

        Raises:
            ReadWriteError: a folder can't be made.
        """
        register_cleanup(self, self.discard)
        for prefix, names in self._remote(STAGING_PREFIX).items():
            _clean(prefix, names)
        for folder in self._local():
            with file_errors(folder, "cannot be written"):
                folder.mkdir(exist_ok=True)

    def stay(self) -> None:
        """Let the folders outlive this process: others go on with the run."""
        unregister_cleanup(self)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Nobody else writes these files; what killed tasks of this run had begun is removed.

        Raises:
            ReadWriteError: another process is writing one.
        """
        targets = [target for target in self.targets if isinstance(target, Path)]
        claim = FileLock(targets)
        try:
            for folder in self._local():  # a run that came between may have removed it
                with file_errors(folder, "cannot be written"):
                    folder.mkdir(exist_ok=True)
            for prefix, names in self._remote(STAGING_PREFIX + self.run).items():
                abort_leftover_uploads(prefix, names)
            with FileLock([place for place in self.places if isinstance(place, Path)]):
                yield
        finally:
            claim.release()

    def publish(self, marks: Sequence[str], *, overwrite: bool) -> None:
        """Give every file its name. What has it already keeps it, so this may be done again.

        Args:
            marks: what `mark_of` gave for each file when it was complete.
            overwrite: whether other files may have the names; if not, none had when the run began.

        Raises:
            ReadWriteError: another run removed one, or has made one, and none is published; or one
                can't be renamed, and those before it are.
        """
        self._check_complete(marks)
        if not overwrite:
            self._check_free(marks)
        for place, target in zip(self.places, self.targets, strict=True):
            if isinstance(place, RemotePath):
                with remote_errors(place, "cannot be renamed"):
                    if place.exists():
                        place.client.mv(place.path, target.path)  # type: ignore[union-attr]
                continue
            with file_errors(target, "cannot be written"), suppress(FileNotFoundError):
                place.replace(Path(str(target)))
        for folder in self._local():
            with file_errors(folder, "cannot be written"):
                sync_folder(folder.parent)
        self.discard()

    def _check_complete(self, marks: Sequence[str]) -> None:
        """Raise ReadWriteError where a file neither waits nor has its name."""
        for place, target, mark in zip(self.places, self.targets, marks, strict=True):
            if not place.exists() and not (target.exists() and mark_of(target) == mark):
                self.discard()
                raise ReadWriteError(
                    f"{target}: what was written for it is gone: another run over the same output "
                    "removed it; nothing was published. Run again, or plan again, from the start"
                )

    def _check_free(self, marks: Sequence[str]) -> None:
        """Raise ReadWriteError where a name is taken by a file that is not of this run."""
        for prefix in self._remote(""):
            prefix.forget()
        for target, mark in zip(self.targets, marks, strict=True):
            with file_errors(target, "cannot be looked at"):
                taken = target.exists() and not _has(target, mark)
            if taken:
                raise ReadWriteError(
                    f"{target}: exists now, and did not when the run began; nothing was published. "
                    "Move it away and start again; or plan, or run, with --overwrite"
                )

    def discard(self) -> None:
        """Remove what waits, and what killed workers had begun; never raises."""
        for folder in self._local():
            shutil.rmtree(folder, ignore_errors=True)
        for prefix, names in self._remote(STAGING_PREFIX + self.run).items():
            _clean(prefix, names)
        unregister_cleanup(self)

    def _local(self) -> list[Path]:
        folders = {self._folder(target): None for target in self.targets}
        return [folder for folder in folders if isinstance(folder, Path)]

    def _remote(self, start: str) -> dict[RemotePath, set[str]]:
        """The names of remote targets, by what the hidden folders beside them begin with."""
        found: dict[RemotePath, set[str]] = {}
        for target in self.targets:
            prefix = _parent(target) / start
            if isinstance(prefix, RemotePath):
                found.setdefault(prefix, set()).add(target.name)
        return found


def mark_of(place: AnyPath) -> str:
    """What tells a complete file from that of another run: a digest of its footer.

    Raises:
        ReadWriteError: it can't be read.
    """
    with file_errors(place, "cannot be read"):
        return footer_digest(place)


def _has(place: AnyPath, mark: str) -> bool:
    """Whether a file has this mark; one that can't be read, or is none, has not."""
    try:
        return mark_of(place) == mark
    except ReadWriteError:
        return False


def _parent(target: AnyPath) -> AnyPath:
    if isinstance(target, Path):
        return target.parent
    return target.sibling(target.path.rpartition("/")[0])


def _clean(prefix: RemotePath, names: set[str]) -> None:
    """Remove objects of these names in folders that begin so, and uploads to such; never raises."""
    abort_leftover_uploads(prefix, names)
    with suppress(Exception):
        prefix.forget()
        for folder in prefix.client.glob(f"{prefix.path}*"):
            for path in prefix.client.find(folder):
                if path.rpartition("/")[2] in names:
                    prefix.client.rm_file(path)
        prefix.forget()
