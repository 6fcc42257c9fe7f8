"""Where a run computes: by numpy on the CPU, without torch, or by torch on a device."""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.pipeline.transfer import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.clock import Clock


CPU = "cpu"
TORCH_CPU = "torch:cpu"
"""Names of the CPU: computed by numpy, and by what devices run."""
LEAST_BYTES = 1 << 30
"""Bytes of token columns from which `auto` computes on an accelerator: below, importing torch and
starting a card take longer than the CPU computes."""


class Devices:
    """The CPU, which computes by numpy; or the devices of torch in `accelerators`."""

    out_of_memory: tuple[type[BaseException], ...] = ()
    """What is raised if the memory of a device is full."""

    def __init__(self, devices: tuple[Any, ...] = (CPU,)) -> None:
        self.all = devices

    @property
    def library(self) -> str:
        """The library that computes, and its version, by which the last bit may differ."""
        return f"numpy {np.__version__}"

    @property
    def kind(self) -> str:
        """What the devices are: `cpu`, `cuda`, ..."""
        return str(self.all[0]).partition(":")[0]

    @property
    def here(self) -> Any:
        """The device of this thread."""
        return self.all[0]

    def transfers(self, clock: Clock) -> Transfers:
        """Return what sends arrays to these devices, and counts bytes on a clock."""
        return Transfers(clock)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Let this thread compute; infinity and NaN are results, of which numpy does not warn."""
        with np.errstate(all="ignore"):
            yield

    def reserve(self, size: int, share: float) -> Any:
        """Return memory of a device; None on the CPU."""
        del size, share

    @property
    def on_host(self) -> bool:
        """Whether columns in the memory of the host are as fast as those of the devices."""
        return True

    def chunk_tokens(self, workers: int) -> int:
        """Return tokens per chunk: few enough for the CPU's caches."""
        del workers
        return CHUNK_TOKENS

    def empty_cache(self) -> None:
        """Free memory of devices that is kept for later."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let the workers alone compute: without threads of torch, which would compete with them.

    Infinity and NaN are results, of which numpy does not warn.
    """
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


def has_accelerator() -> bool:
    """Return whether this machine seems to have an accelerator that torch could use.

    Signs are the device files of NVIDIA's and AMD's drivers, or the library of one.
    """
    if any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return True
    if sys.platform == "win32":
        names = ["nvcuda.dll", "ze_loader.dll"]
    else:
        names = ["libze_loader.so.1"] if Path("/dev/dri").is_dir() else []
    return any(map(_loads, names))


def _loads(library: str) -> bool:
    """Return whether a library of a driver can be loaded."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def devices_for(name: str, token_bytes: int) -> Devices:
    """Return the devices of a run.

    Args:
        name: `auto`, `cpu`, `torch:cpu`, `cuda`, `cuda:N`, `xpu`, ...
        token_bytes: bytes of the token columns of the run's input, by which `auto` chooses.

    Raises:
        UsageError: another name.
        UnavailableError: this machine has no such device, or it does not compute in float64.
    """
    if name == CPU or (name == "auto" and not chooses_accelerator(token_bytes)):
        return Devices()
    from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

    devices = accelerators.devices_named(name)
    if name == "auto" and devices[0].type == "cpu":
        return Devices()
    return accelerators.TorchDevices(devices)


def chooses_accelerator(token_bytes: int) -> bool:
    """Return whether `auto` computes on an accelerator, if torch finds one.

    Args:
        token_bytes: bytes of the token columns of the run's input.
    """
    return token_bytes >= LEAST_BYTES and has_accelerator()


def check_name(name: str) -> None:
    """Check a name of which another machine may have the devices; raises as `devices_for`."""
    if name not in ("auto", CPU):
        from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

        accelerators.device_kind(name)


def check_device(name: str) -> None:
    """Check that this machine has the devices of a name; raises as `devices_for`."""
    if name not in ("auto", CPU):
        devices_for(name, 0)
