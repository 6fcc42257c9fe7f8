"""`torch.save` files: written, and read without executing code from them.

A .pt file is one pickled object. Its tensors are memory-mapped, so they need no memory until they
are used; lists of Python numbers are read into memory. Only tensors, numbers, text, lists, dicts
and numpy values are accepted: rebuilding other objects would run code that the file names.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import struct
import warnings
import zipfile
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.memory_limit import is_out_of_memory, memory_limit

if TYPE_CHECKING:
    from pathlib import Path


_SNIFFED = 1 << 16
_PICKLED_BYTES = 8  # memory for a byte of a pickle of small objects
# Errors of torch's unpickler and of zipfile for damaged bytes.
_DAMAGE = (
    RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError,
    AssertionError, struct.error, zipfile.BadZipFile, RecursionError,
)  # fmt: skip
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"}


def load(path: Path) -> Any:
    """Return the object of a `torch.save` file.

    Raises:
        DataError: the object cannot be rebuilt safely, or the file is damaged.
        NotEnoughMemoryError: its lists do not fit into the memory of the run.
        ReadWriteError: the file cannot be read.
    """
    import torch  # noqa: PLC0415 - takes a second, and few formats need it

    requested: list[int] = []

    def record_size(storage: Any, _: str) -> Any:
        requested.append(storage.nbytes())
        return storage

    try:
        members = _members(path)
        pickled = sum(x.file_size for x in members or () if x.filename.endswith("data.pkl"))
        size = pickled if members else path.stat().st_size
        memory_limit().check(_PICKLED_BYTES * size, f"{path}: its objects")
        with torch.serialization.safe_globals(_numpy_values()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rejected objects are an error below
            loaded = torch.load(
                path, map_location=record_size, weights_only=True, mmap=members is not None
            )
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: {_rejection(str(error))}") from None
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        if is_out_of_memory(error):
            raise NotEnoughMemoryError(f"{path}: there is not enough memory to read it") from None
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a torch.save file, or damaged: {first[:120]}") from None
    stored = Counter(member.file_size for member in members or ())
    if members is not None and Counter(requested) - stored:  # a tensor would read foreign bytes
        raise DataError(f"{path}: damaged: the size of a tensor is wrong")
    return loaded


def save(dump: Any, path: Path) -> None:
    """Write an object as a `torch.save` file; raises OSError.

    The bytes depend on the object alone: of a path, torch would store the name in the file.
    """
    import torch  # noqa: PLC0415 - as in `load`

    try:
        with path.open("wb") as file:
            torch.save(dump, file)
    except RuntimeError as error:  # what torch raises if the disk is full
        raise OSError(str(error).splitlines()[0]) from None


def _members(path: Path) -> list[zipfile.ZipInfo] | None:
    """Return the members of an archive; None of a bare pickle, which cannot be mapped.

    torch writes archives since 1.6, and never compresses their members.

    Raises:
        ValueError: the file is neither archive nor pickle, or its members are compressed.
    """
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(b"\x80"):
        return None
    if not head.startswith(b"PK"):
        raise ValueError(f"it begins with {head!r}")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed")
    return members


def _numpy_values() -> list[Any]:
    """Return the types of numpy scalars and arrays, by their names in numpy 1 and numpy 2."""
    import numpy as np  # noqa: PLC0415

    kinds = {type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"}
    functions = (
        (np.float64().__reduce__()[0], "scalar"),
        (np.empty(0).__reduce__()[0], "_reconstruct"),
    )
    return [
        np.ndarray,
        np.dtype,
        *kinds,
        *((function, f"numpy.{core}.multiarray.{name}")
          for function, name in functions for core in ("core", "_core")),
    ]  # fmt: skip


def _rejection(text: str) -> str:
    match = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"([\w]+\.[\w.]+) was not", text)
    what = f"an object of {match[1]}" if match else "an object that is not plain data"
    return (
        f"contains {what}; rebuilding it would run code that the file names, and rlpost never "
        "executes code from a dump. Save plain values (numbers, text, lists, tensors) instead"
    )


def is_cut_archive(path: Path) -> bool:
    """Return whether a file begins as a zip archive, such as of `torch.save`, and has no end."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04" and not zipfile.is_zipfile(path)


def first_texts(path: Path) -> list[str]:
    """Return the texts at the beginning of a file's pickle: its first keys."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        with archive.open(name) as file:
            head = file.read(_SNIFFED)
    texts: list[str] = []
    with suppress(ValueError):  # the head ends in the middle of an operation
        for operation, argument, _ in pickletools.genops(head):
            if operation.name in _TEXTS and isinstance(argument, str):
                texts.append(argument)
    return texts
