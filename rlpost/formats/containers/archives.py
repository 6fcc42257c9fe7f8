"""Zip archives whose members are files of JSON text."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from fnmatch import fnmatch
from io import BufferedReader, BytesIO
from lzma import LZMAError
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.formats.containers.json_text import first_fields_of, records_of
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlpost.formats.records import Record


TEXTS = (".jsonl", ".ndjson", ".json")
"""Suffixes of JSON text."""
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, LZMAError)
_ZSTD, _LENGTHS = 93, 26  # its method, and where a member's header has the lengths of two fields


def zip_records(path: Path, pattern: str = "") -> Iterator[Record]:
    """Yield the objects of the members of an archive, in its order.

    Args:
        path: the archive.
        pattern: of the names of members; empty: all with a suffix of JSON text.

    Raises:
        DataError: the archive is damaged or encrypted, or a member's record is bad.
        NotEnoughMemoryError: a member does not fit into memory.
        ReadWriteError: it cannot be read.
    """
    with _opened(path) as archive:
        for entry in members_of(archive, pattern):
            name = entry.filename
            where = f"{path}, member {name}"
            with (
                _errors(f"{where}: damaged or encrypted"),
                _member(archive, entry) as member,
                BufferedReader(cast("Any", member)) as text,
            ):
                yield from records_of(text, path / name, where)


def zip_fields(path: Path, pattern: str = "") -> Mapping[str, Any]:
    """Return the fields of the first record of an archive; empty without one. Never raises."""
    try:
        with _opened(path) as archive:
            for entry in members_of(archive, pattern):
                with _member(archive, entry) as member:
                    return first_fields_of(member, path / entry.filename)
    except (DataError, NotEnoughMemoryError, ReadWriteError):
        pass
    return {}


def members_of(archive: zipfile.ZipFile, pattern: str) -> Iterator[zipfile.ZipInfo]:
    """Yield the entries of members with JSON text that match a pattern; empty: all.

    Entries, since several members can have the same name. An archive with a folder `samples`, such
    as the log of an evaluation, has its records there.
    """
    entries = archive.infolist()
    samples = any(entry.filename.startswith("samples/") for entry in entries)
    pattern = pattern or ("samples/*" if samples else "")
    for entry in entries:
        name = entry.filename
        if fnmatch(name, pattern) if pattern else name.endswith(TEXTS):
            yield entry


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    """Open a member; Python 3.14 is the first that reads those that zstd compressed."""
    name, file = entry.filename, archive.fp
    if entry.compress_type != _ZSTD or file is None:
        return archive.open(entry)
    memory_limit().check(entry.compress_size + entry.file_size, f"{archive.filename}: {name}")
    file.seek(entry.header_offset + _LENGTHS)
    lengths = [int.from_bytes(file.read(2), "little") for _ in ("name", "extra")]
    file.seek(sum(lengths), 1)
    packed = file.read(entry.compress_size)
    try:
        return BytesIO(pa.decompress(packed, entry.file_size, "zstd", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise zipfile.BadZipFile(f"{name}: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    what = f"{path}: a zip archive that is damaged or encrypted"
    with _errors(what), zipfile.ZipFile(path) as archive:
        yield archive


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Raise the errors of reading an archive as DataError (its bytes) or ReadWriteError.

    Args:
        what: the archive, or the member of it, and that it is damaged.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of bz2
            raise DataError(f"{what}: {error}") from None
        raise ReadWriteError(
            f"{what.partition(': ')[0]}: cannot be read: {error.strerror}"
        ) from None
    except _DAMAGE as error:
        raise DataError(f"{what}: {error}") from None
