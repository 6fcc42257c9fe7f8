"""Facts about this machine: its CPU, its memory, and the limits of containers and jobs."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")


class Memory(NamedTuple):
    """Bytes of main memory; None if the system does not report them."""

    total: int | None
    available: int | None
    """Of the machine, or what is left of the limit, if that is less."""
    limit: int | None
    """Of this process's control groups (containers, Slurm jobs); None without a limit."""


def cpu_model() -> str:
    """Return the name of the CPU; family and model number, too, since clouds hide the name."""
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
    if total is None and hasattr(os, "sysconf"):
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
            yield from (group, *(one for one in group.parents if one.is_relative_to(base)))


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
