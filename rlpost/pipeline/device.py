"""Which device computes."""

from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import torch

from rlpost.errors import UnavailableError, UsageError
from rlpost.io.parquet.source import CHUNK_TOKENS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


# float64 columns, masks and the temporaries of the widest recipe, with room to spare
_BYTES_PER_TOKEN = 512
_MOST_TOKENS = 1 << 24
_lanes = threading.local()


def device_named(name: str) -> torch.device:
    """The device of `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: another name.
        UnavailableError: that GPU is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UsageError(f"--device {name}: auto, cpu, cuda or cuda:N is needed")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UnavailableError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices that "
            "torch can use; --device cpu gives the same numbers"
        )
    return torch.device(name)


def chunk_tokens_for(device: torch.device, workers: int) -> int:
    """Tokens per piece: enough to keep the CPU's caches or a GPU's memory busy, not more.

    Args:
        device: where pieces are computed.
        workers: pieces that are there at once.
    """
    if device.type == "cpu":
        return CHUNK_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1 << 16, min(_MOST_TOKENS, free // (2 * workers * _BYTES_PER_TOKEN)))


def cuda_stream(device: torch.device) -> AbstractContextManager[object]:
    """A CUDA stream of the thread's own, so that its copies overlap with others' compute."""
    if device.type == "cpu":
        return nullcontext()
    if not hasattr(_lanes, "stream") or _lanes.stream.device != device:
        _lanes.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(_lanes.stream)


def moved(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; to a GPU by way of pinned memory, without waiting for the copy."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of any size for the next piece, where it is glibc.

    It would give them back to the system, which clears every page before it lends it again: a
    fifth of the time of a run.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
