"""Locks on temporary files, and removal of files that killed runs left.

A run locks the temporary file of each output as long as it is there. The kernel releases a lock
when its process ends, however it ends. A process id would prove less: another process may have it
by then, or a process on another machine or in another container. So a temporary file that nobody
has locked is left over from a killed run, and one that is locked says that another run writes this
output. Where the file system has no locks, nothing is removed, and two runs on one output are still
safe: each writes its own temporary file, and the last one to rename it wins.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.system import is_same_file, lock_file, remove_locked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


SCRATCH = "rlpost-dump"  # of a scratch folder, and the target's name of the file that is locked
STAGING_PREFIX = ".rlpost-run-"  # folders of completed files that a run has not published yet
UPLOAD = "upload"  # the target's name of a temporary file whose bytes go to a store
_ATTEMPTS, _PAUSE = 10, 0.02  # seconds; another run that starts now gives up


class BusyError(ReadWriteError):
    """Another run writes the same output."""


def temporary_name(name: str, token: str) -> str:
    """Return the name that a file has until it is complete."""
    return f".{name}.rlpost-{os.getpid()}-{token}.tmp"


_TEMPORARY = re.compile(r"\.(?P<name>.+)\.rlpost-\d+-[0-9a-f]{8}\.tmp", re.DOTALL)


def open_locked(target: Path, mode: int = 0o666) -> tuple[Path, int]:
    """Create and lock a temporary file beside a target; its path is a cleanup. Raises OSError."""
    while True:
        path = target.with_name(temporary_name(target.name, secrets.token_hex(4)))
        register_cleanup(path, path.unlink)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        if _try_lock(file) is not False and is_same_file(path, file):
            return path, file
        os.close(file)  # another run took it for a leftover before it was locked
        unregister_cleanup(path)


def _try_lock(file: int) -> bool | None:
    """Lock a file; False if it is locked elsewhere, None if there are no locks."""
    try:
        return lock_file(file)
    except OSError:
        return None


def claim(files: Mapping[Path, Path]) -> None:
    """Remove what killed runs left of some outputs.

    Args:
        files: target -> its temporary file, which this run has locked.

    Raises:
        BusyError: another run writes one of the outputs.
    """
    folders: dict[Path, dict[str, Path]] = {}
    for target, path in files.items():
        folders.setdefault(target.parent, {})[target.name] = path
    for folder, paths in folders.items():
        with suppress(OSError):
            for entry in [*os.scandir(folder)]:
                if entry.name.startswith(STAGING_PREFIX) and entry.is_dir(follow_symlinks=False):
                    _clean_staging(Path(entry.path), paths)
                name = _target_name(entry.name)
                if name in paths and entry.name != paths[name].name:
                    _settle(folder / entry.name, paths[name], folder / name)


@cache
def remove_uploads(folder: Path) -> None:
    """Remove what killed runs left of uploads in the system's temporary folder; once a process."""
    with suppress(OSError):
        for entry in [*os.scandir(folder)]:
            if _target_name(entry.name) == UPLOAD:
                _is_locked(Path(entry.path))


def _target_name(temporary: str) -> str:
    """Return the name of a temporary file's target, nothing if it has another form."""
    match = _TEMPORARY.fullmatch(temporary)
    return match["name"] if match else ""


def _settle(path: Path, mine: Path, target: Path) -> None:
    """Remove a temporary file that nobody has locked; of two runs that start now, one goes on."""
    for _ in range(_ATTEMPTS):
        if not _is_locked(path):
            return
        if path.name < mine.name:
            break
        time.sleep(_PAUSE)
    raise BusyError(
        f"{target}: another rlpost process writes this file; wait until it ends, or choose "
        "another output path"
    )


def _is_locked(path: Path, folder: Path | None = None) -> bool:
    """Return whether another process has a file locked; remove it, and a folder, if none has."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        locked = _try_lock(file)
        if locked:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            remove_locked(path, file)
            return False
        os.close(file)
        return locked is False
    return False


def _clean_staging(folder: Path, names: Iterable[str]) -> None:
    """Remove unpublished files of some names, and their folder if it is empty then."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name in names or _target_name(entry.name) in names:
                with suppress(OSError):
                    Path(entry.path).unlink()
        folder.rmdir()


@contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path]:
    """Create a temporary folder for the block; remove the folders of killed runs beside it.

    A locked file stands beside the folder while it is in use.

    Args:
        parent: where to create it; None for the system's temporary folder.

    Raises:
        ReadWriteError: it cannot be created.
    """
    top = Path(tempfile.gettempdir()) if parent is None else parent
    for entry in top.glob(f".{SCRATCH}.*"):
        if _target_name(entry.name) == SCRATCH:
            _is_locked(entry, _scratch_of(entry))
    try:
        lock, file = open_locked(top / SCRATCH, 0o600)
        folder = _scratch_of(lock)
        register_cleanup(folder, lambda: shutil.rmtree(folder))
        folder.mkdir(0o700)
    except OSError as error:
        raise ReadWriteError(f"{top}: cannot be written: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        unregister_cleanup(folder)
        with suppress(OSError):
            remove_locked(lock, file)
        unregister_cleanup(lock)


def _scratch_of(lock: Path) -> Path:
    """Return the folder beside a locked file."""
    return lock.with_name(f".{SCRATCH}-{lock.stem.rpartition('-')[2]}")
