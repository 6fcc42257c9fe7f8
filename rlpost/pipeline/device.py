"""The device that computes, its streams, and its memory."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from rlpost.display.text import counted
from rlpost.errors import UnavailableError, UsageError
from rlpost.io.parquet.source import CHUNK_TOKENS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


# float64 columns, masks and intermediate results of the largest recipe, with a margin
_BYTES_PER_TOKEN = 512
_MOST_TOKENS = 1 << 24
_streams = threading.local()


def device_named(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: another name.
        UnavailableError: this machine has no such GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UsageError(f"--device {name}: auto, cpu, cuda or cuda:N is needed")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UnavailableError(
            f"--device {name}: torch finds {counted(torch.cuda.device_count(), 'CUDA device')} on "
            "this machine; --device cpu computes the same numbers"
        )
    return torch.device(name)


def chunk_tokens_for(device: torch.device, workers: int) -> int:
    """Return tokens per chunk: few enough for the CPU's caches, or for a GPU's memory.

    Args:
        device: that computes.
        workers: chunks in memory at once.
    """
    if device.type == "cpu":
        return CHUNK_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1 << 16, min(_MOST_TOKENS, free // (2 * workers * _BYTES_PER_TOKEN)))


class Devices:
    """The devices that compute.

    Args:
        devices: at least one.
    """

    def __init__(self, devices: tuple[torch.device, ...]) -> None:
        self.all = devices

    @property
    def here(self) -> torch.device:
        """The device of this thread."""
        return self.all[0]

    def stream(self) -> AbstractContextManager[object]:
        """Return a stream of this thread, so that copies overlap with other threads' work."""
        device = self.here
        if device.type == "cpu":
            return nullcontext()
        if not hasattr(_streams, "stream") or _streams.stream.device != device:
            _streams.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(_streams.stream)

    def empty_cache(self) -> None:
        """Return memory that no tensor uses to the device."""
        torch.cuda.empty_cache()

    def room(self) -> int:
        """Return the bytes of this thread's device that are free, which is not the CPU."""
        return int(torch.cuda.mem_get_info(self.here)[0])
