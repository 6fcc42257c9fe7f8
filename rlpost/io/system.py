"""Calls of the operating system that Linux has and others do not, each with its replacement."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows changes line ends
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_COPY_BYTES = 1 << 20  # fit a core's cache
_position = threading.Lock()


def cores() -> int:
    """Return how many cores this process may use, or how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_at(file: int, size: int, at: int) -> bytes:
    """Return bytes at an offset of an open file; raises OSError."""
    if hasattr(os, "pread"):
        return bytes(os.pread(file, size, at))
    with _position:
        os.lseek(file, at, os.SEEK_SET)
        return os.read(file, size)


def write_at(file: int, data: memoryview, at: int) -> int:
    """Write bytes at an offset of an open file; return how many. Raises OSError."""
    if hasattr(os, "pwrite"):
        return int(os.pwrite(file, data, at))
    with _position:
        os.lseek(file, at, os.SEEK_SET)
        return os.write(file, data)


def write_all(file: int, data: bytes | memoryview, at: int) -> int:
    """Write all bytes at an offset of an open file; return how many they are. Raises OSError."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += write_at(file, view[done:], at + done)
    return done


_NOT_IN_KERNEL = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)


def copy_range(source: int, target: int, size: int, begin: int, at: int) -> int:
    """Copy at most `size` bytes between open files; return how many, 0 at the end of the source.

    The kernel copies them if its file systems can, without their way through this process.

    Args:
        source: file that is read.
        target: file that is written.
        size: bytes.
        begin: offset in the source.
        at: offset in the target.
    """
    if hasattr(os, "copy_file_range"):
        try:
            if copied := os.copy_file_range(source, target, size, begin, at):
                return copied
        except OSError as error:
            if error.errno not in _NOT_IN_KERNEL:
                raise
    return write_all(target, read_at(source, min(size, _COPY_BYTES), begin), at)


def sync_data(file: int) -> None:
    """Sync a file's bytes to the disk; its times may follow later. Raises OSError."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk if its system supports it; raises OSError."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # the folder is writable but not readable
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(file)


# Locks of single bytes. They belong to the open file, not to the process: two runs in one process
# exclude each other, too, and closing another descriptor of the file releases nothing.

if sys.platform == "win32":
    LOCK_OFFSETS = (1 << 31) - 1  # the C library has 32 bits for them
    """Offsets of `lock_byte` are below this."""

    def lock_byte(file: int, offset: int) -> bool:
        """Lock a byte of an open file that has no lock of its own on it; False if it is locked.

        Raises:
            OSError: the system or the file system has no such locks.
        """
        os.lseek(file, offset, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK, 0):  # 0 under Wine
                raise
            return False
        return True

    def close_locked(file: int, path: Path, offsets: Iterable[int]) -> None:
        """Unlock and close a file, and remove it if no process has it open; raises OSError."""
        try:
            for offset in offsets:
                os.lseek(file, offset, os.SEEK_SET)
                msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
        finally:
            os.close(file)
        with suppress(PermissionError):
            path.unlink(missing_ok=True)

else:
    LOCK_OFFSETS = 1 << 63

    def lock_byte(file: int, offset: int) -> bool:
        """Lock a byte of an open file; False if it is locked elsewhere. Raises OSError."""
        return _lock(file, fcntl.F_WRLCK, offset, 1)

    def close_locked(file: int, path: Path, offsets: Iterable[int]) -> None:  # noqa: ARG001
        """Unlock and close a file, and remove it if no process has a lock; raises OSError."""
        try:
            _lock(file, fcntl.F_UNLCK, 0, 0)
            if _lock(file, fcntl.F_WRLCK, 0, 0) and is_same_file(path, file):
                path.unlink()
        finally:
            os.close(file)

    def _lock(file: int, kind: int, begin: int, size: int) -> bool:
        """Lock or unlock bytes of an open file; False if they are locked elsewhere."""
        if sys.platform == "darwin":  # start, length, pid, type, whence of struct flock
            number, lock = 90, struct.pack("qqihh", begin, size, 0, kind, 0)
        elif hasattr(fcntl, "F_OFD_SETLK"):  # type, whence, start, length, pid
            number, lock = fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, 0, begin, size, 0)
        else:  # BSD
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        try:
            fcntl.fcntl(file, number, lock)
        except (BlockingIOError, PermissionError):
            return False
        return True


def is_same_file(path: Path, file: int) -> bool:
    """Return whether an open file is still the file at a path."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Make glibc, if it is the C library, keep freed memory for the next chunk.

    By default it returns large blocks to the system, which clears each page before it is used
    again. That costs a fifth of the time of a run.
    """
    with suppress(AttributeError, OSError, TypeError):  # Windows has no CDLL(None)
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def release_freed_memory() -> None:
    """Return freed memory to the system, now and from now on, if glibc is the C library."""
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 17)
        library.mallopt(_TRIM_THRESHOLD, 1 << 17)
        library.malloc_trim(0)
