"""Staged outputs: complete files that are published together, each in a folder beside its target.

Tasks run in any process, on any machine that sees the output. So a complete file is stored under a
name that every process can derive: the target's name, in a hidden folder beside the target that is
named after the run. The driver publishes all files at the end.

If two runs have the same output, the later one wins: by its locks on the targets, or at its start
on a store without locks, it removes what the earlier run has staged. The earlier run checks that
its files exist before it publishes any, so that files of two runs are never mixed.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.locks import STAGING_PREFIX
from rlpost.io.parquet.fingerprint import footer_digest
from rlpost.io.paths import RemotePath, remote_errors
from rlpost.io.publish import CompleteFile, publish_files
from rlpost.io.staged import file_errors
from rlpost.io.transfers import abort_leftover_uploads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.paths import AnyPath


class StagedOutputs:
    """The staged files of a run.

    Args:
        targets: the final paths; the folders of local ones exist.
    """

    def __init__(self, targets: Sequence[AnyPath]) -> None:
        self.targets = list(targets)
        self._run = secrets.token_hex(8)

    @property
    def paths(self) -> list[AnyPath]:
        """The staged path of each file."""
        return [self._folder(target) / target.name for target in self.targets]

    def _folder(self, target: AnyPath) -> AnyPath:
        return _parent(target) / (STAGING_PREFIX + self._run)

    def create(self) -> None:
        """Create the folders; on stores without locks, remove staged files of other runs.

        Raises:
            ReadWriteError: a folder cannot be created.
        """
        register_cleanup(self, self.discard)
        for prefix, names in self._remote(STAGING_PREFIX).items():
            _clean(prefix, names)
        for folder in self._local():
            with file_errors(folder, "cannot be written"):
                folder.mkdir(exist_ok=True)

    def publish(self, digests: Sequence[str], *, overwrite: bool) -> None:
        """Rename every file to its target; a published file stays, so this can be repeated.

        Args:
            digests: `digest_of` each file when it was complete.
            overwrite: whether existing files are replaced; if not, none existed at the start.

        Raises:
            ReadWriteError: another run removed or created a file, and none is published; or a file
                cannot be renamed, and those before it are published.
        """
        self._check_complete(digests)
        if not overwrite:
            self._check_free(digests)
        for path, target in zip(self.paths, self.targets, strict=True):
            if isinstance(path, RemotePath):
                with remote_errors(path, "cannot be renamed"):
                    if path.exists():
                        path.store.move(path.path, target.path)  # type: ignore[union-attr]
        publish_files(
            CompleteFile(path, target)
            for path, target in zip(self.paths, self.targets, strict=True)
            if isinstance(path, Path) and isinstance(target, Path)
        )
        self.discard()

    def _check_complete(self, digests: Sequence[str]) -> None:
        """Raise ReadWriteError if a file is neither staged nor published."""
        for path, target, digest in zip(self.paths, self.targets, digests, strict=True):
            if not path.exists() and not (target.exists() and digest_of(target) == digest):
                self.discard()
                raise ReadWriteError(
                    f"{target}: another run with the same output removed the staged file; nothing "
                    "was published. Run again"
                )

    def _check_free(self, digests: Sequence[str]) -> None:
        """Raise ReadWriteError if a target is a file of another run."""
        for prefix in self._remote(""):
            prefix.forget()
        for target, digest in zip(self.targets, digests, strict=True):
            with file_errors(target, "cannot be looked at"):
                taken = target.exists() and not _has_digest(target, digest)
            if taken:
                raise ReadWriteError(
                    f"{target}: exists now, and did not when the run began; nothing was published. "
                    "Move it away and run again, or run with --overwrite"
                )

    def discard(self) -> None:
        """Remove staged files, and incomplete ones of killed workers; never raises."""
        for folder in self._local():
            shutil.rmtree(folder, ignore_errors=True)
        for prefix, names in self._remote(STAGING_PREFIX + self._run).items():
            _clean(prefix, names)
        unregister_cleanup(self)

    def _local(self) -> list[Path]:
        folders = {self._folder(target): None for target in self.targets}
        return [folder for folder in folders if isinstance(folder, Path)]

    def _remote(self, start: str) -> dict[RemotePath, set[str]]:
        """Return the names of remote targets by the prefix of the hidden folders beside them."""
        names: dict[RemotePath, set[str]] = {}
        for target in self.targets:
            prefix = _parent(target) / start
            if isinstance(prefix, RemotePath):
                names.setdefault(prefix, set()).add(target.name)
        return names


def digest_of(path: AnyPath) -> str:
    """Return a digest of a file's footer, which differs between runs.

    Raises:
        ReadWriteError: the file cannot be read.
    """
    with file_errors(path, "cannot be read"):
        return footer_digest(path)


def _has_digest(path: AnyPath, digest: str) -> bool:
    """Return whether a file has this digest; one that is unreadable or not Parquet has not."""
    try:
        return digest_of(path) == digest
    except ReadWriteError:
        return False


def _parent(target: AnyPath) -> AnyPath:
    if isinstance(target, Path):
        return target.parent
    return target.sibling(target.path.rpartition("/")[0])


def _clean(prefix: RemotePath, names: set[str]) -> None:
    """Remove objects and uploads of these names in folders with this prefix; never raises."""
    abort_leftover_uploads(prefix, names)
    with suppress(Exception):
        prefix.forget()
        for folder in prefix.store.folders(prefix.path.rpartition("/")[0]):
            for path in prefix.store.find(folder) if folder.startswith(prefix.path) else ():
                if path.rpartition("/")[2] in names:
                    prefix.store.remove(path)
        prefix.forget()
