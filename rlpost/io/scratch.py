"""Scratch space of a run: bytes in memory, or in a temporary file without a name."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import ReadWriteError
from rlpost.io.system import allocate, read_into, write_at

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_BLOCK = 1 << 20  # bytes to write at a time; Linux puts more into huge pages, see io/staged.py


class Scratch:
    """A block of bytes that several threads may write and read, each at other places.

    Nothing is left of the file if the process ends, however it does: the file has no name, or
    Windows deletes it with its last handle.

    Args:
        size: bytes.
        folder: the directory of the file; None for memory.
        reserved: bytes that have to stay free on the disk of the file.

    Raises:
        OSError: the file cannot be created, or the disk has too little space.
    """

    def __init__(self, size: int, folder: Path | None = None, reserved: int = 0) -> None:
        self.folder = folder
        self._memory: NDArray[np.uint8] | None = None
        if folder is None:
            self._memory = np.empty(size, np.uint8)
            return
        if shutil.disk_usage(folder).free < size + reserved:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        allocate(self._file.fileno(), size)

    def write(self, values: NDArray[np.generic], at: int) -> None:
        """Store an array from a byte on; raises OSError."""
        data = np.ascontiguousarray(values).view(np.uint8)
        if self._memory is not None:
            self._memory[at : at + len(data)] = data
            return
        rest = data.data
        while rest:
            written = write_at(self._file.fileno(), rest[:_BLOCK], at)
            rest, at = rest[written:], at + written

    def read(self, count: int, dtype: np.dtype[np.generic], at: int) -> NDArray[np.generic]:
        """Return `count` numbers from a byte on; in memory, they are not a copy.

        Raises:
            ReadWriteError: the file cannot be read.
        """
        if self._memory is not None:
            return self._memory[at : at + count * dtype.itemsize].view(dtype)
        values = np.empty(count, dtype)
        try:
            self._fill(values.view(np.uint8).data, at)
        except OSError as error:
            raise ReadWriteError(
                f"{self.folder}: the scratch file cannot be read: {error.strerror}; "
                "--scratch-dir stores it on another disk"
            ) from None
        return values

    def _fill(self, rest: memoryview, at: int) -> None:
        while rest:
            size = read_into(self._file.fileno(), rest, at)
            if not size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rest, at = rest[size:], at + size

    def empty(self) -> None:
        """Free the space of the file, which stays open for threads that write to it."""
        if self._memory is None:
            os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        """Free the memory or the file; no thread may use it any more."""
        if self._memory is None:
            self._file.close()
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
