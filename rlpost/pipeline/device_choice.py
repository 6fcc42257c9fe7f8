"""Where a run computes: by numpy on the CPU, without torch, or by torch on a device."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlpost.display.text import size
from rlpost.pipeline.device import CPU, Devices

if TYPE_CHECKING:
    from collections.abc import Callable


AUTO = "auto"

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


class DeviceChoice(NamedTuple):
    """The device of a run, decided once, and why."""

    name: str
    """As of `--device`: `cpu`, `torch:cpu`, `cuda`, ..."""
    reason: str
    automatic: bool = False
    """`auto` chose it, so that cards which fail are left out."""

    def facts(self) -> dict[str, str | int]:
        """Return the part of the summary."""
        facts: dict[str, str | int] = {"name": self.name, "reason": self.reason}
        return facts | {"accelerator_from_bytes": LEAST_BYTES}


ON_CPU = DeviceChoice(CPU, "no pass computes on tokens")


def choose_device(
    name: str, token_bytes: int, accelerator: Callable[[], str | None] | None = None
) -> DeviceChoice:
    """Return the device of a run, and why.

    Args:
        name: of `--device`.
        token_bytes: bytes of the token columns of the run's input, by which `auto` chooses.
        accelerator: returns the kind of accelerator that the run can use, or None; by default the
            one that torch finds on this machine.

    Raises:
        UsageError: another name.
    """
    if name != AUTO:
        check_name(name)
        return DeviceChoice(name, f"--device {name}")
    columns = f"token columns of {size(token_bytes)}"
    rule = f"--device auto takes an accelerator from {size(LEAST_BYTES)} of token columns on"
    if token_bytes < LEAST_BYTES:
        return DeviceChoice(CPU, f"little data: {rule}", automatic=True)
    found = (accelerator or _accelerator_here)()
    if found is None:
        text = f"no accelerator was found for {columns}; {rule}"
        return DeviceChoice(CPU, text, automatic=True)
    return DeviceChoice(found, f"{columns}; {rule}", automatic=True)


def _accelerator_here() -> str | None:
    """Return the kind of accelerator that torch finds on this machine; None without one."""
    if not has_accelerator():
        return None
    from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

    return accelerators.usable_kind()


def devices_of(choice: DeviceChoice) -> Devices:
    """Return the devices of a run.

    Raises:
        UnavailableError: this machine has no such device, or it does not compute in float64.
    """
    if choice.name == CPU:
        return Devices()
    from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

    devices = accelerators.devices_named(AUTO) if choice.automatic else ()
    if not devices or devices[0].type != choice.name:
        devices = accelerators.devices_named(choice.name)
    return accelerators.TorchDevices(devices)


def check_name(name: str) -> None:
    """Check a name of which another machine may have the devices.

    Raises:
        UsageError: torch has no such kind.
        UnavailableError: the kind computes no float64.
    """
    if name not in (AUTO, CPU):
        from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

        accelerators.device_kind(name)


def check_device(name: str) -> None:
    """Check that this machine has the devices of a name; raises as `devices_of`."""
    if name not in (AUTO, CPU):
        from rlpost.pipeline import accelerators  # noqa: PLC0415 - torch

        accelerators.devices_named(name)
