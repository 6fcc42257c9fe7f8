"""`torch.save` files, read without executing anything from them.

A .pt file is one pickled object. Its tensors are memory-mapped, so they need no memory until they
are used; lists of Python numbers are held whole. What is no tensor, number, text, list, dict or
numpy value is refused: rebuilding it would run code that the file names.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, ReadWriteError

if TYPE_CHECKING:
    from pathlib import Path

_SNIFFED = 1 << 16


def load(path: Path) -> Any:
    """The object of a `torch.save` file.

    Raises:
        DataError: it holds what can't be rebuilt safely, or it is damaged.
        ReadWriteError: it can't be read.
    """
    import torch  # noqa: PLC0415 - takes a second, and few formats need it

    try:
        mapped = _is_archive(path)
        with torch.serialization.safe_globals(_numpy_values()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: {_refusal(str(error))}") from None
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: no torch.save file, or damaged: {first[:120]}") from None


def _is_archive(path: Path) -> bool:
    """Whether a file is in the zip format, which can be mapped; torch writes it since 1.6.

    Raises:
        DataError: it is neither that nor a bare pickle.
    """
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise DataError(f"{path}: no torch.save file, or damaged: its end is missing")
    if not head.startswith((b"PK", b"\x80")):
        raise DataError(f"{path}: no torch.save file, or damaged: it begins with {head!r}")
    return head.startswith(b"PK")


def _numpy_values() -> list[Any]:
    """Numpy scalars and arrays: plain data, under the names of numpy 1 and of numpy 2."""
    import numpy as np  # noqa: PLC0415
    from numpy._core import multiarray  # noqa: PLC0415

    kinds = {type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"}
    functions = ((multiarray.scalar, "scalar"), (multiarray._reconstruct, "_reconstruct"))  # noqa: SLF001
    return [
        np.ndarray,
        np.dtype,
        *kinds,
        *((function, f"numpy.{core}.multiarray.{name}")
          for function, name in functions for core in ("core", "_core")),
    ]  # fmt: skip


def _refusal(text: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"([\w]+\.[\w.]+) was not", text)
    what = f"an object of {found[1]}" if found else "an object that is no plain data"
    return (
        f"it holds {what}, which only code named by the file could rebuild; rlpost executes "
        "nothing from a dump. Save it with plain values (numbers, text, lists, tensors) instead"
    )


def first_texts(path: Path) -> list[str]:
    """The texts at the beginning of a file's pickle, in order: its first keys. Never raises."""
    texts: list[str] = []
    with suppress(OSError, zipfile.BadZipFile, StopIteration, KeyError, RuntimeError):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as file:
                head = file.read(_SNIFFED)
        with suppress(ValueError):  # the head ends in the middle of an operation
            texts.extend(
                argument
                for operation, argument, _ in pickletools.genops(head)
                if operation.name in _TEXTS and isinstance(argument, str)
            )
    return texts


_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"}
