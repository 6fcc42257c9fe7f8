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
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.memory_limit import is_out_of_memory, memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO


_SNIFFED = 1 << 16
_BLOCK = 1 << 20
# Memory for a byte of a pickle, and for an operation that makes a list, a dict or a tuple, or that
# keeps an object for later. The bytes of numbers look like these now and then.
_PICKLED_BYTES, _OBJECT_BYTES = 6, 100
_OBJECTS = (b"]", b"}", b")", b"q", b"r", b"\x94")
# Errors of torch's unpickler and of zipfile for damaged bytes.
_DAMAGE = (
    RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError,
    AssertionError, struct.error, zipfile.BadZipFile, RecursionError,
)  # fmt: skip


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
        stored = _stored_sizes(path)
        _check_fits(path, mapped=stored is not None)
        with torch.serialization.safe_globals(_numpy_values()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rejected objects are an error below
            mapped = stored is not None
            loaded = torch.load(path, map_location=record_size, weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: {_rejection(str(error))}") from None
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        if is_out_of_memory(error):
            raise NotEnoughMemoryError(f"{path}: there is not enough memory to read it") from None
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a torch.save file, or damaged: {first[:120]}") from None
    if stored is not None and Counter(requested) - stored:  # a tensor would read foreign bytes
        raise DataError(f"{path}: damaged: the size of a tensor is wrong")
    return loaded


def _check_fits(path: Path, *, mapped: bool) -> None:
    """Raise NotEnoughMemoryError if the objects of a pickle, without tensors, do not fit."""
    limit, size, objects = memory_limit(), 0, 0
    with _pickle_of(path, mapped=mapped) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            objects += sum(map(block.count, _OBJECTS))
            limit.check(_PICKLED_BYTES * size + _OBJECT_BYTES * objects, f"{path}: its objects")


@contextmanager
def _pickle_of(path: Path, *, mapped: bool) -> Iterator[IO[bytes]]:
    """Open the pickle of a file: the member of an archive, or the file itself."""
    if not mapped:
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
        if name is None:
            raise RuntimeError("it has no data.pkl")
        with archive.open(name) as file:
            yield file


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


def _stored_sizes(path: Path) -> Counter[int] | None:
    """Count the members of an archive by size; None for a bare pickle, which cannot be mapped.

    torch writes archives since 1.6, and never compresses their members.

    Raises:
        DataError: the file is neither archive nor pickle, or its members are compressed.
    """
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not a torch.save file, or damaged: its end is missing")
    if not head.startswith((b"PK", b"\x80")):
        raise DataError(f"{path}: not a torch.save file, or damaged: it begins with {head!r}")
    if not head.startswith(b"PK"):
        return None
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(one.compress_type != zipfile.ZIP_STORED for one in members):
        raise DataError(f"{path}: not a torch.save file: its members are compressed")
    return Counter(one.file_size for one in members)


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
    """Return the texts at the beginning of a file's pickle: its first keys. Never raises."""
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
