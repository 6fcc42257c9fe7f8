"""Where a run computes: by numpy on the CPU, without torch, or by torch on a device."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from rlpost.pipeline.device import CPU, Devices

LEAST_BYTES = 1 << 30
"""Bytes of token columns from which `auto` computes on an accelerator: below, importing torch and
starting a card take longer than the CPU computes."""


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
