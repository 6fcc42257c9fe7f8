"""Locks on output files, and removal of files that killed runs left.

While a run writes in a folder, the folder has a lock file, `.rlpost-lock`. Each output is one byte
of it, by the hash of the output's name, and the run locks that byte. The kernel releases a lock
when its process ends, however it ends. A process id would prove less: another process may have it
by then, or a process on another machine or in another container. Whoever locks an output is its
only writer, so temporary files under its name are left over from killed runs and can be removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.system import LOCK_OFFSETS, NO_FOLLOW, close_locked, is_same_file, lock_byte

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LOCK_NAME = ".rlpost-lock"
SCRATCH_PREFIX = ".rlpost-dump-"
STAGING_PREFIX = ".rlpost-run-"  # folders of completed files that a run has not published yet
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_ATTEMPTS, _PAUSE = 10, 0.02  # seconds; a process that releases its locks briefly locks all bytes


class BusyError(ReadWriteError):
    """Another run writes the same output."""


class FileLock:
    """An exclusive lock on some output files; `with` also removes what killed runs left of them.

    Nothing is locked or removed if the file system has no locks, or if another user owns the lock
    file. Two runs on one output are still safe then: each writes its own temporary file, and the
    last one to rename it wins.

    Args:
        targets: the outputs, in existing folders.

    Raises:
        BusyError: another run writes one of them.
        ReadWriteError: a folder is not writable.
    """

    def __init__(self, targets: Sequence[Path]) -> None:
        self._locks: list[_FolderLock] = []
        names: dict[Path, list[str]] = {}
        for target in targets:
            names.setdefault(target.parent, []).append(target.name)
        try:
            for folder, own in names.items():
                self._locks.append(_FolderLock(folder, own))
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> Self:
        """Remove what killed runs left of these outputs."""
        for lock in self._locks:
            if lock.locked:
                lock.clean()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the locks; never raises."""
        while self._locks:
            self._locks.pop().release()


class _FolderLock:
    """Locks on some file names in one folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.path = folder / LOCK_NAME
        self._names = {*names}
        self._bytes = {_byte_of(name): name for name in names}
        self._file: int | None = None
        register_cleanup(self, self.release)
        try:
            for attempt in range(_ATTEMPTS):
                if self._try_lock(last=attempt == _ATTEMPTS - 1):
                    return
                time.sleep(_PAUSE)
        except OSError as error:
            self.release()
            if error.errno in _NO_LOCKS:
                return
            if isinstance(error, PermissionError) and self.path.exists():
                return
            raise ReadWriteError(
                f"{folder / names[0]}: cannot be written: {error.strerror}"
            ) from None
        except BaseException:
            self.release()
            raise

    @property
    def locked(self) -> bool:
        """Whether the names are locked."""
        return self._file is not None

    def clean(self) -> None:
        """Remove temporary files of the locked names."""
        with suppress(OSError):
            for entry in os.scandir(self.path.parent):
                if entry.name.startswith(STAGING_PREFIX) and entry.is_dir(follow_symlinks=False):
                    self._clean_staging(Path(entry.path))
                elif self._is_temporary(entry.name):
                    with suppress(OSError):
                        Path(entry.path).unlink()

    def _clean_staging(self, folder: Path) -> None:
        """Remove unpublished files of the locked names, and their folder if it is empty then."""
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.name in self._names or self._is_temporary(entry.name):
                    with suppress(OSError):
                        Path(entry.path).unlink()
            folder.rmdir()

    def _is_temporary(self, name: str) -> bool:
        match = _TEMPORARY.fullmatch(name)
        return match is not None and match["name"] in self._names

    def _try_lock(self, *, last: bool) -> bool:
        """Try to lock; False if the lock file was removed meanwhile, or has other locks."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        # The kernel searches its ordered list of locks from the front: descending order is fastest.
        for offset in sorted(self._bytes, reverse=True):
            if not lock_byte(self._file, offset):
                self._close()
                if last:
                    raise BusyError(
                        f"{self.path.parent / self._bytes[offset]}: another rlpost process writes "
                        "this file; wait until it ends, or choose another output path"
                    )
                return False
        if is_same_file(self.path, self._file):
            return True
        self._close()
        return False

    def release(self) -> None:
        """Unlock, and remove the lock file if no other process has a lock; never raises.

        A signal may end it, or the locking, at any step: it is a cleanup until it is done, and does
        what is left.
        """
        with suppress(OSError):
            if self._file is None:  # perhaps created, by a call that did not return
                self._file = os.open(self.path, os.O_RDWR | NO_FOLLOW)
            try:
                close_locked(self._file, self.path, self._bytes)
            finally:
                self._file = None
        unregister_cleanup(self)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _byte_of(name: str) -> int:
    """Return the byte of the lock file that represents a name."""
    digest = blake2b(os.fsencode(name), digest_size=7).digest()
    return int.from_bytes(digest, "little") % LOCK_OFFSETS


def temporary_name(name: str, token: str) -> str:
    """Return the name that a file has until it is complete."""
    return f".{name}.rlpost-{os.getpid()}-{token}.tmp"


_TEMPORARY = re.compile(r"\.(?P<name>.+)\.rlpost-\d+-[0-9a-f]{8}\.tmp", re.DOTALL)


@contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path]:
    """Create a temporary folder for the block; remove the folders of killed runs beside it.

    The folder is locked while it is in use.

    Args:
        parent: where to create it; None for the system's temporary folder.

    Raises:
        ReadWriteError: it cannot be created.
    """
    top = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_scratch(top)
    try:
        folder, file = _new_scratch(top)
    except OSError as error:
        raise ReadWriteError(f"{top}: cannot be written: {error.strerror}") from None
    register_cleanup(folder, lambda: _delete_scratch(folder))
    try:
        yield folder
    finally:
        os.close(file)  # Windows removes no open file
        _delete_scratch(folder)
        unregister_cleanup(folder)


def _new_scratch(top: Path) -> tuple[Path, int]:
    """Create and lock a folder; try again if another run removed it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=top))
        with suppress(FileNotFoundError):
            file, locked = _lock_scratch(folder, os.O_CREAT)
            if locked is not False and is_same_file(folder / LOCK_NAME, file):
                return folder, file
            os.close(file)


def _lock_scratch(folder: Path, create: int = 0) -> tuple[int, bool | None]:
    """Open and lock a folder's lock file; False if it is locked, None if there are no locks."""
    file = os.open(folder / LOCK_NAME, os.O_RDWR | create | NO_FOLLOW, 0o600)
    try:
        return file, lock_byte(file, 0)
    except OSError:
        return file, None


def _remove_scratch(top: Path) -> None:
    """Remove the folders of killed runs: those with a lock file that no process has locked.

    Another user's folder, a link, and a folder without a lock file and with other files are no
    scratch folders.
    """
    for folder in top.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError):
            if not _is_own_folder(folder):
                continue
            if not (folder / LOCK_NAME).is_file():
                folder.rmdir()  # if it is empty: the run was killed before it locked it
                continue
            file, locked = _lock_scratch(folder)
            if locked:
                _delete_scratch(folder)
            os.close(file)
            if locked:  # Windows removes no open file
                _delete_scratch(folder)


def _delete_scratch(folder: Path) -> None:
    """Delete a folder, its lock file last: without it a later run would not delete the rest."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK_NAME:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder of this user, and no link."""
    facts = path.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == getattr(os, "geteuid", int)()
