"""What a pass keeps for the passes after it, so that they need not compute it again."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.io.scratch import Scratch
from rlpost.kernels.arrays import Array, like, on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rlpost.pipeline.data import Batch, Column, Responses
    from rlpost.pipeline.device import Devices

_SHARE_OF_ROOM = 0.5
"""Share of a device's free memory that kept columns may use; chunks use the rest."""
IN_MEMORY = 128 << 20
"""Bytes of tokens that stay in memory; more are stored in a file."""


class _StoredColumn(NamedTuple):
    """Where a column is stored: all tokens of the input in order."""

    dtype: np.dtype[np.generic]
    begin: int
    same: str
    """The column with the same numbers, which is stored; usually this one."""


class _OnHost:
    """Columns in memory of the host, or in a file."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self.empty, self.close = scratch.empty, scratch.close

    def write(self, values: Array, at: int) -> None:
        """Store numbers from a byte on; raises OSError."""
        self._scratch.write(on_host(values), at)

    def read(self, count: int, dtype: np.dtype[np.generic], at: int, other: Array) -> Array:
        """Return the numbers that were stored from a byte on, in the library of another array."""
        return like(self._scratch.read(count, dtype, at), other)


class Kept:
    """Token columns and numbers of responses that a pass keeps, bit for bit.

    A column is stored as one array of all tokens of the input, so that passes may differ in their
    chunks. If it cannot be stored, `problem` is the reason, and later passes compute it again.

    Args:
        names: the token columns, as far as batches have them.
        responses: of the whole input.
        devices: that compute, whose memory keeps the columns that they compute.
        folder: for a scratch file if there is more than `IN_MEMORY`; None: there is none.
        reserved: returns the bytes that the disk needs for the output.
    """

    def __init__(
        self,
        names: Sequence[str],
        responses: Responses,
        devices: Devices,
        folder: Path | None,
        reserved: Callable[[], int],
    ) -> None:
        self.names = tuple(names)
        self.numbers: dict[str, Column] = {}
        """[N] each: what metrics need of columns that no later pass reads."""
        self.problem: str | None = None
        self.folder = folder
        self.bytes = 0
        lengths = responses["length"]
        self._offsets = np.concatenate([[0], lengths.cumsum(dtype=np.int64)])
        self._reserved, self._devices = reserved, devices
        self._lock = threading.Lock()
        self._columns: dict[str, _StoredColumn] | None = None
        self._storage: Any = None
        self._device: Any = None

    def add(self, row: int, batch: Batch) -> None:
        """Keep the columns of a batch, which begins at a row of the input; thread-safe."""
        with self._lock:
            self._prepare(batch)
        if self.problem is not None or self._storage is None:
            return
        assert self._columns is not None
        for name, column in self._columns.items():
            if column.same == name:
                at = column.begin + int(self._offsets[row]) * column.dtype.itemsize
                try:
                    self._storage.write(batch[name], at)
                except OSError as error:
                    self._fail(error)
                    self._storage.empty()
                    return

    def add_numbers(self, row: int, numbers: Mapping[str, Column]) -> None:
        """Keep numbers of responses, which begin at a row of the input; thread-safe."""
        with self._lock:
            for name, values in numbers.items():
                if name not in self.numbers:
                    self.numbers[name] = np.zeros(len(self._offsets) - 1, values.dtype)
                self.numbers[name][row : row + len(values)] = values

    def onto(self, batch: Batch, row: int) -> Batch:
        """Return the batch with the columns that were kept of its tokens; thread-safe."""
        if self._storage is None or not self._columns:
            return batch
        begin, end = self._offsets[[row, row + len(batch.offsets) - 1]].tolist()
        tokens: dict[str, Array] = {}
        for name, (dtype, start, same) in self._columns.items():
            if same == name:
                at = start + begin * dtype.itemsize
                tokens[name] = self._storage.read(end - begin, dtype, at, batch.offsets)
            else:
                tokens[name] = tokens[same]
        return batch.with_(**tokens)

    def facts(self) -> dict[str, Any]:
        """Return what the summary prints: the columns, their bytes, where they are, or why not."""
        kept = [*(self._columns or {})] if self.problem is None else []
        return {
            "columns": kept,
            "bytes": self.bytes if kept else 0,
            "directory": None if self.folder is None else str(self.folder),
            "device": None if self._device is None else str(self._device),
            "problem": self.problem,
        }

    def close(self) -> None:
        """Free the memory or the file."""
        if self._storage is not None:
            self._storage.close()

    def _prepare(self, batch: Batch) -> None:
        """Reserve the space at the first batch; later ones need columns of the same kinds."""
        columns, size = self._layout(batch)
        if self._columns is None:
            self._columns, self.bytes = columns, size
            if columns and not self._devices.on_host:
                self._reserve_on_device(size)
            else:
                self._reserve_on_host(size if columns else 0)
        elif self._columns != columns:
            self.problem = "an estimator returns different columns for different responses"

    def _reserve_on_device(self, size: int) -> None:
        """Reserve memory of the device: columns that leave it cost more than computing them."""
        self.folder, self._device = None, self._devices.here
        self._storage = self._devices.reserve(size, _SHARE_OF_ROOM)
        if self._storage is None:
            self.problem = f"{self._device} has too little free memory"

    def _reserve_on_host(self, size: int) -> None:
        in_memory = size <= IN_MEMORY
        if not in_memory and self.folder is None:
            self.problem = "there is no directory for them"
        else:
            try:
                folder = None if in_memory else self.folder
                reserved = 0 if in_memory else self._reserved()
                self._storage = _OnHost(Scratch(size, folder, reserved))
            except OSError as error:
                self._fail(error)
        self.folder = None if in_memory else self.folder

    def _layout(self, batch: Batch) -> tuple[dict[str, _StoredColumn], int]:
        """Return where the columns of a batch are stored, and the bytes of all of them."""
        columns: dict[str, _StoredColumn] = {}
        first: dict[int, str] = {}
        size, tokens = 0, int(self._offsets[-1])
        for name in self.names:
            if name not in batch:
                continue
            same = first.setdefault(id(batch[name]), name)
            if same == name:
                dtype = np.dtype(str(batch[name].dtype).rpartition(".")[2])
                columns[name] = _StoredColumn(dtype, size, name)
                size += (tokens * dtype.itemsize + 7) // 8 * 8
            else:
                columns[name] = columns[same]
        return columns, size

    def _fail(self, error: OSError) -> None:
        self.problem = f"{self.folder}: {os.strerror(error.errno or 0)}"
