"""Torch imported by a thread, while the rest of a command is imported and its first files are read.

It takes a second, of which a fifth loads the shared library: that part runs beside Python code.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread


def import_torch_ahead() -> None:
    """Start a thread that imports torch; whatever imports torch later waits for it.

    An error is raised by that later import alone.
    """
    import pyarrow as pa  # noqa: F401, PLC0415 - first, since one library is loaded at a time

    Thread(target=_import_torch, name="rlpost-torch", daemon=True).start()


def _import_torch() -> None:
    with suppress(Exception):
        _load_library()
        import torch  # noqa: F401, PLC0415


def _load_library() -> None:
    """Load torch's library as torch does, but without Python's global lock; only on Linux."""
    spec = find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        with suppress(OSError):  # other systems, or torch has another layout
            ctypes.CDLL(str(Path(folder, "lib", "libtorch_global_deps.so")), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(Path(folder, "lib", "libtorch.so")))
