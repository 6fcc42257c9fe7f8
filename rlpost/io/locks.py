"""What a killed run leaves behind is found and removed; what a running one writes is locked.

Every folder that is written to has a lock file, `.rlpost-lock`, while a run is at work there: each
output is a byte of it, by the hash of its name, and the run holds a lock on that byte. The kernel
lets go of a lock when its process ends, however it ends, so a lock says more than a process id:
that may be another process's by now, or one of another machine or container. Whoever gets the
lock of an output knows that nobody else writes it, and may remove what lies about under its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import struct
import tempfile
import time
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rlpost.errors import ReadWriteError
from rlpost.io.shutdown import register_cleanup, unregister_cleanup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


LOCK_NAME = ".rlpost-lock"
SCRATCH_PREFIX = ".rlpost-dump-"
STAGING_PREFIX = ".rlpost-run-"  # of folders in which files wait for the others of a run in tasks
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_TRIES, _PAUSE = 10, 0.02  # whoever cleans up holds a lock on all names, for a moment


class BusyError(ReadWriteError):
    """Another run is writing an output."""


class FileLock:
    """Locks on outputs; as a context manager it removes what killed runs left of them, too.

    Where a file system has no locks, nothing is locked and nothing removed. Nor where another
    user's run made the lock file: two runs on one output are still safe then, as each writes under
    a name of its own, and the last one to rename wins.

    Args:
        targets: the outputs; their folders exist.

    Raises:
        BusyError: another run is writing one of them.
        ReadWriteError: a folder is not writable.
    """

    def __init__(self, targets: Sequence[Path]) -> None:
        self._folders: list[_Folder] = []
        names: dict[Path, list[str]] = {}
        for target in targets:
            names.setdefault(target.parent, []).append(target.name)
        try:
            for folder, own in names.items():
                self._folders.append(_Folder(folder, own))
        except BaseException:
            self.release()
            raise

    def clean(self, keep: Collection[Path] = ()) -> None:
        """Remove what killed runs left of these outputs, but for these files; never raises."""
        for folder in self._folders:
            if folder.held:
                folder.clean({path.name for path in keep})

    def __enter__(self) -> Self:
        self.clean()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go of the locks; never raises."""
        while self._folders:
            self._folders.pop().release()


class _Folder:
    """The locks of some names in one folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.path = folder / LOCK_NAME
        self._names = {*names}
        self._file: int | None = None
        register_cleanup(self, self.release)
        try:
            for attempt in range(_TRIES):
                if self._locked(names, last=attempt == _TRIES - 1):
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
    def held(self) -> bool:
        """Whether there are locks."""
        return self._file is not None

    def clean(self, keep: Collection[str]) -> None:
        """Remove what lies about under the names that are locked."""
        with suppress(OSError):
            for entry in os.scandir(self.path.parent):
                if entry.name.startswith(STAGING_PREFIX) and entry.is_dir(follow_symlinks=False):
                    self._clean_run(Path(entry.path))
                elif self._is_temporary(entry.name) and entry.name not in keep:
                    with suppress(OSError):
                        Path(entry.path).unlink()

    def _clean_run(self, folder: Path) -> None:
        """Remove what a run in tasks has waiting under the names, and its folder with the last."""
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.name in self._names or self._is_temporary(entry.name):
                    with suppress(OSError):
                        Path(entry.path).unlink()
            folder.rmdir()

    def _is_temporary(self, name: str) -> bool:
        found = _TEMPORARY.fullmatch(name)
        return found is not None and found["name"] in self._names

    def _locked(self, names: Sequence[str], *, last: bool) -> bool:
        """Try once; False where the lock file was removed meanwhile, or was locked as a whole."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.path, flags, 0o666)
        # The kernel keeps locks in order and searches from the front: this is quickest for many.
        for name in sorted(names, key=_place, reverse=True):
            if not _lock(self._file, fcntl.F_WRLCK, _place(name), 1):
                self._close()
                if last:
                    raise BusyError(
                        f"{self.path.parent / name}: another rlpost is writing it; wait until that "
                        "ends, or name another output"
                    )
                return False
        if _is(self.path, self._file):
            return True
        self._close()
        return False

    def release(self) -> None:
        """Unlock, and remove the lock file where nobody else has a lock; never raises."""
        unregister_cleanup(self)
        if self._file is None:
            return
        with suppress(OSError):
            _lock(self._file, fcntl.F_UNLCK, 0, 0)
            if _lock(self._file, fcntl.F_WRLCK, 0, 0) and _is(self.path, self._file):
                self.path.unlink()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)


def _place(name: str) -> int:
    """The byte of a lock file that stands for a name."""
    return int.from_bytes(blake2b(os.fsencode(name), digest_size=7).digest(), "little")


def _lock(file: int, kind: int, begin: int, size: int) -> bool:
    """Lock or unlock bytes of an open file; False where another has them.

    The locks belong to the open file, not to the process: two runs in one process exclude each
    other, too, and closing another descriptor of the file does no harm.
    """
    try:
        # struct flock: type, whence, start, length, pid
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, 0, begin, size, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is(path: Path, file: int) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def temporary_name(name: str, token: str) -> str:
    """What a file is called while it is written, beside the one whose name it will take."""
    return f".{name}.rlpost-{os.getpid()}-{token}.tmp"


_TEMPORARY = re.compile(r"\.(?P<name>.+)\.rlpost-\d+-[0-9a-f]{8}\.tmp", re.DOTALL)


@contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path]:
    """A new folder that goes when the block ends; those of killed runs beside it go now.

    The folder itself is locked while it is in use.

    Args:
        parent: where it lies; None: in the system's temporary folder.

    Raises:
        ReadWriteError: it can't be made.
    """
    top = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_scratch(top)
    try:
        folder, file = _new_scratch(top)
    except OSError as error:
        raise ReadWriteError(f"{top}: cannot be written: {error.strerror}") from None
    register_cleanup(folder, lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        unregister_cleanup(folder)
        os.close(file)


def _new_scratch(top: Path) -> tuple[Path, int]:
    """A new folder and its lock: again, where another run took it for a leftover before that."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=top))
        with suppress(FileNotFoundError):
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            locked = _flocked(file)
            if locked is not False and _is(folder, file):
                return folder, file
            os.close(file)


def _flocked(file: int) -> bool | None:
    """Lock a folder; False where another has it, None where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_scratch(top: Path) -> None:
    """Remove the folders of runs that were killed: those that nobody has a lock on."""
    with suppress(OSError):
        for entry in os.scandir(top):
            if not entry.name.startswith(SCRATCH_PREFIX):
                continue
            with suppress(OSError):
                file = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    if _flocked(file):
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(file)
