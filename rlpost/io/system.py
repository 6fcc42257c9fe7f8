"""The operating system: calls that Linux has and others do not, and facts about the machine."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
_COPY_BYTES = 1 << 20  # fit a core's cache


def cores() -> int:
    """Return how many cores this process may use, or how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def write_all(file: int, data: bytes | memoryview, at: int) -> int:
    """Write all bytes at an offset of an open file; return how many they are. Raises OSError."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(file, view[done:], at + done)
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
    return write_all(target, os.pread(source, min(size, _COPY_BYTES), begin), at)


def sync_data(file: int) -> None:
    """Sync a file's bytes to the disk; its times may follow later. Raises OSError."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk if its system supports it; raises OSError."""
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


def lock_file(file: int) -> bool:
    """Lock an open file until it is closed; False if it is locked elsewhere. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def allow_open_files(count: int) -> None:
    """Raise the limit of open files to so many, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if resource.RLIM_INFINITY != soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def remove_locked(path: Path, file: int) -> None:
    """Remove and close a file that this process has locked; raises OSError."""
    try:
        path.unlink()
    finally:
        os.close(file)


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
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def release_freed_memory() -> None:
    """Return freed memory to the system, now and from now on, if glibc is the C library."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 17)
        library.mallopt(_TRIM_THRESHOLD, 1 << 17)
        library.malloc_trim(0)


class Memory(NamedTuple):
    """Bytes of main memory; None if the system does not report them."""

    total: int | None
    available: int | None
    """Of the machine, or what is left of the limit, if that is less."""
    limit: int | None
    """Of this process's control groups (containers, Slurm jobs); None without a limit."""


def cpu_model() -> str:
    """Return the name of the CPU; family and model number, too, since clouds hide the name."""
    import platform  # noqa: PLC0415 - completion reads files without it

    facts = _facts("proc/cpuinfo")
    number = ""
    if "cpu family" in facts:
        number = f" (family {facts['cpu family']}, model {facts.get('model', '?')})"
    name = facts.get("model name") or platform.processor() or platform.machine() or "unknown"
    return f"{name}{number}"


def memory() -> Memory:
    """Return the main memory, and how much of it this process may use."""
    facts = {name: int(value.split()[0]) << 10 for name, value in _facts("proc/meminfo").items()}
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    if total is None:
        with suppress(OSError, ValueError):
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = None
    for folder in _control_groups():
        most = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        if most.isdecimal() and (total is None or int(most) < total):
            limit = min(limit or int(most), int(most))
            if available is not None and used.isdecimal():
                available = min(available, max(0, int(most) - int(used)))
    return Memory(total, available, limit)


def _control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control group for memory and of those around it."""
    top = _ROOT / "sys/fs/cgroup"
    for line in _text(_ROOT / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" or "memory" in names.split(","):
            base = top if number == "0" else top / "memory"
            group = base / path.lstrip("/")
            yield from (group, *(folder for folder in group.parents if folder.is_relative_to(base)))


def _facts(path: str) -> dict[str, str]:
    """Return the lines `NAME: VALUE` of a file, up to the first empty line."""
    lines = _text(_ROOT / path).partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}


def _text(path: Path) -> str:
    """Return the text of a file of the system; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
