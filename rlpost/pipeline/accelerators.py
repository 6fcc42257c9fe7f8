"""The devices of torch: their names, their memory, and a stream for each worker."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

from rlpost.display.text import counted
from rlpost.errors import UnavailableError, UsageError, closest
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.pipeline.device import TORCH_CPU, Devices
from rlpost.pipeline.device_transfers import DeviceTransfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.clock import Clock


# float64 columns, masks and intermediate results of the largest recipe, with a margin
_BYTES_PER_TOKEN = 512
_MOST_TOKENS, _FEWEST_TOKENS = 1 << 21, 1 << 16
"""More would leave too few chunks for the workers, and need memory of the host."""
_UNREPORTED = 2 << 30
"""Bytes that are taken to be free on a device that cannot report them."""
_CPU = torch.device("cpu")
_COMMON = ("auto", "cpu", "cuda", "xpu")
_CARDS = ("gpu", "nvidia", "amd", "rocm", "hip")
_REMEDY = "--device cpu needs no GPU"
NO_FLOAT64 = "computes no float64, which rlpost needs"
_LOG = logging.getLogger("rlpost")


def devices_named(name: str) -> tuple[torch.device, ...]:
    """Return the devices for `auto`, `cpu`, `cuda`, `cuda:N`, `xpu`, ...: any kind that torch has.

    `auto` is all devices of the accelerator that torch has, as far as they compute in float64; the
    CPU without any. A kind without a number is all devices of this kind.

    Raises:
        UsageError: another name.
        UnavailableError: this machine has no such device, or it does not compute in float64.
    """
    if name == "auto":
        return _automatic() or (_CPU,)
    kind, number = device_kind(name)
    if kind == "cpu":
        return (_CPU,)
    count, reason = _count(torch.get_device_module(kind))
    if (number or 0) >= count:
        raise UnavailableError(f"--device {name}: {_missing(kind, count, reason)}; {_REMEDY}")
    devices = _all(kind, count) if number is None else (torch.device(kind, number),)
    for device in devices:
        if problem := _problem(device):
            raise UnavailableError(f"--device {name}: {device} {problem}; {_REMEDY}")
    return devices


def device_kind(name: str) -> tuple[str, int | None]:
    """Return the kind and the number of a device that another machine may have; not of `auto`.

    Raises:
        UsageError: torch has no such kind.
        UnavailableError: the kind computes no float64.
    """
    if name == TORCH_CPU:
        return "cpu", None
    kind, colon, number = name.partition(":")
    numbered = kind != "cpu" and re.fullmatch(r"0|[1-9][0-9]{0,2}", number)
    if not _counts_devices(kind) or (colon and not numbered):
        typed = name if re.fullmatch(r"\S*\w", name) else repr(name)
        raise UsageError(
            f"--device {typed}: auto, cpu, cuda, cuda:N or another device of torch is needed, such "
            "as xpu",
            candidates=_similar(kind),
            tip=_tip(kind, number),
        )
    if kind == "mps":
        raise UnavailableError(f"--device {name}: {kind} {NO_FLOAT64}; {_REMEDY}")
    return kind, int(number) if number else None


def _similar(kind: str) -> tuple[str, ...]:
    """Return the kinds that a wrong one could mean."""
    lower = kind.lower()
    if kind in _COMMON or lower in _CARDS:
        return ()
    return closest(lower, [lower] if lower in _COMMON else ["auto", "cuda"])


def _tip(kind: str, number: str) -> str:
    """Return what to do about a wrong name, if that is more than a kind; or nothing."""
    if kind == "cpu":
        return "the CPU has no number: write cpu"
    if "," in number and kind in ("cuda", "xpu"):
        variable = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}[kind]
        numbers = re.sub(r"[^0-9,]", "", number)
        return f"for several cards write --device {kind} and set {variable}={numbers}"
    return "torch calls cards of NVIDIA and AMD cuda" if kind.lower() in _CARDS else ""


def accelerators() -> tuple[dict[torch.device, str | None], str]:
    """Return the devices of the accelerator that torch has, each with why it cannot be used.

    The reason is None if it can. The second result is torch's warning if it finds no device.
    """
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 without a device
        accelerator = None
    if accelerator is None:
        return {}, ""
    count, reason = _count(torch.get_device_module(accelerator))
    return {device: _problem(device) for device in _all(accelerator.type, count)}, reason


def usable_kind() -> str | None:
    """Return the kind of the accelerator that `auto` computes on; None without one."""
    devices = _automatic()
    return devices[0].type if devices else None


def _automatic() -> tuple[torch.device, ...]:
    devices, reason = accelerators()
    if reason:
        _LOG.warning("rlpost: --device auto: %s; computing on the CPU", reason)
    for device, problem in devices.items():
        if problem not in (None, NO_FLOAT64):
            _LOG.warning("rlpost: --device auto leaves out %s: it %s", device, problem)
    return tuple(device for device, problem in devices.items() if problem is None)


def _all(kind: str, count: int) -> tuple[torch.device, ...]:
    return tuple(torch.device(kind, index) for index in range(count))


def _counts_devices(kind: str) -> bool:
    """Return whether torch has a module that counts the devices of a kind."""
    try:
        return hasattr(torch.get_device_module(kind), "device_count")
    except RuntimeError:
        return False


def _count(module: Any) -> tuple[int, str]:
    """Return how many devices a module of torch finds, and its warning if it finds none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = max(0, int(module.device_count()))  # torch 2.6 counts -1 MTIA devices
    text = " ".join(str(warning.message) for warning in caught).partition("(Triggered")[0]
    return count, "" if count else " ".join(text.split()).rstrip(".")


def _problem(device: torch.device) -> str | None:
    """Return why a device cannot be used; None if it can."""
    try:
        torch.ones(1, device=device).add(1).cpu()
    except RuntimeError as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        return f"fails ({line.rstrip('.')})"
    try:
        torch.ones(1, dtype=torch.float64, device=device).add(1).cpu()
    except (RuntimeError, TypeError):
        return NO_FLOAT64
    return None


def _missing(kind: str, count: int, reason: str) -> str:
    """Return why torch finds too few devices of a kind, and what to do about it."""
    build = f"torch {torch.__version__}"
    if count:
        numbers = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        return f"{build} finds {counted(count, f'{kind} device')}, {numbers}"
    if kind in ("cuda", "xpu") and not _built_with(kind):
        return f"{build} is built without {kind.upper()}{_how_to_install(kind)}"
    found = f"{build} finds no {kind} device" + (f" ({reason})" if reason else "")
    if kind != "cuda":
        return f"{found}; check its driver"
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    chosen = [f"{name}={os.environ[name]!r}, which is set" for name in names if name in os.environ]
    driver = "rocm-smi" if torch.version.hip else "nvidia-smi"
    return f"{found}; check {', '.join([*chosen, f'the driver with `{driver}`'])}"


def _built_with(kind: str) -> bool:
    """Return whether torch is built for CUDA (or ROCm, whose devices it calls cuda) or XPU."""
    versions = {"cuda": ("cuda", "hip"), "xpu": ("xpu",)}[kind]
    return any(getattr(torch.version, name, None) is not None for name in versions)


def _how_to_install(kind: str) -> str:
    if sys.platform == "darwin":
        return ", as every build for macOS"
    wheels, more = "xpu", ""
    if kind == "cuda":
        wheels, more = "cu130", " (cu126 for older drivers; ROCm: pytorch.org/get-started)"
    return (
        ". Install a build with it: `pip install --force-reinstall torch --index-url "
        f"https://download.pytorch.org/whl/{wheels}`{more}"
    )


class TorchDevices(Devices):
    """The devices of torch that a run uses, which its worker threads share.

    Args:
        devices: from `devices_named`; at least one, all of one kind.
    """

    out_of_memory = (torch.OutOfMemoryError,)

    def __init__(self, devices: tuple[torch.device, ...]) -> None:
        super().__init__(devices)
        self._module: Any = torch.get_device_module(devices[0])
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._busy: Counter[torch.device] = Counter()
        self._free: dict[torch.device, list[torch.Stream]] = {device: [] for device in devices}
        self._on_cpu = devices[0].type == "cpu"

    @property
    def library(self) -> str:
        """The library that computes, and its version, by which the last bit may differ."""
        return f"torch {torch.__version__}"

    @property
    def names(self) -> list[str]:
        """The name of each, as of `--device`."""
        return [TORCH_CPU] if self._on_cpu else super().names

    def transfers(self, clock: Clock) -> DeviceTransfers:
        """Return what sends arrays to these devices, and counts bytes on a clock."""
        return DeviceTransfers(clock)

    @property
    def here(self) -> torch.device:
        """The device of this thread: that of its last `stream`, or the first."""
        device: torch.device = getattr(self._thread, "device", self.all[0])
        return device

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Let this thread compute on the device with the fewest threads, in a stream of its own.

        Copies of one stream overlap with the work of others. Later threads use the same streams,
        and with them the memory that torch's allocator keeps for each.
        """
        with super().stream(), nullcontext() if self._on_cpu else self._own_stream():
            yield

    @contextmanager
    def _own_stream(self) -> Iterator[None]:
        with self._lock:
            device = min(self.all, key=self._busy.__getitem__)
            self._busy[device] += 1
            free = self._free[device]
            stream = free.pop() if free else torch.Stream(device=device)
        self._thread.device = device
        guard = getattr(self._module, "device", nullcontext)  # needs no memory of another device
        try:
            with guard(device):
                before = torch.accelerator.current_stream(device)
                torch.accelerator.set_stream(stream)
                try:
                    yield
                finally:
                    torch.accelerator.set_stream(before)
        finally:
            with self._lock:
                self._busy[device] -= 1
                free.append(stream)

    def room(self) -> int:
        """Return the free bytes of this thread's device."""
        return _free_bytes(self.here)

    def chunk_tokens(self, workers: int) -> int:
        """Return tokens per chunk: few enough for the CPU's caches, or for the smallest memory.

        Args:
            workers: chunks in memory at once, on all devices together.
        """
        if self._on_cpu:
            return CHUNK_TOKENS
        free, on_one = min(map(_free_bytes, self.all)), -(-workers // len(self.all))
        return max(_FEWEST_TOKENS, min(_MOST_TOKENS, free // (2 * on_one * _BYTES_PER_TOKEN)))

    def empty_cache(self) -> None:
        """Free the memory that torch's allocator keeps for later."""
        if empty := getattr(self._module, "empty_cache", None):
            empty()


def _free_bytes(device: torch.device) -> int:
    memory = memory_of(device)
    return memory[0] if memory else _UNREPORTED


def memory_of(device: torch.device) -> tuple[int, int] | None:
    """Return the free and all bytes of a device's memory; None if it cannot report them."""
    report = getattr(torch.get_device_module(device), "mem_get_info", None)
    with suppress(RuntimeError):  # some XPUs
        free, total = report(device) if report else (0, 0)
        return (int(free), int(total)) if total else None
    return None
