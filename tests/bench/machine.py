"""The machine of a benchmark: its CPU, caches, cores, and the versions that matter."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def machine() -> dict[str, str | int]:
    """Return the CPU model, the caches of a core, the usable cores, and the libraries' versions."""
    return {
        "cpu": _cpu(),
        "caches": _caches(),
        "cores": len(os.sched_getaffinity(0)),
        **{name: version(name) for name in ("torch", "pyarrow")},
    }


def commit() -> str:
    """Return the commit that is checked out, with `+` if files differ; `unknown` without git."""
    git = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    """Return the model of the CPU; family and model number, too, since clouds hide the name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    facts = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    number = f"family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}"
    return f"{facts.get('model name', 'unknown')} ({number})"


def _caches() -> str:
    """Return level and size of the data caches of a core, such as `L1 48K, L2 1024K`."""
    caches = {}
    for folder in sorted(_CACHES.glob("index*")):
        level, kind, size = (
            (folder / name).read_text().strip() for name in ("level", "type", "size")
        )
        if kind != "Instruction":
            caches[level] = f"L{level} {size}"
    return ", ".join(caches.values())
