"""Containers: what the records of a dump are in. A container knows nothing of their fields.

A container yields `Record`s: fields, the place for errors (file and line, row, member or element)
and the file. A layout (`rlpost.formats.base.Format`) declares the containers that it is found in,
and turns records into rows.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.containers import archives, json_text, streams, tables
from rlpost.formats.pickles import first_texts
from rlpost.io.compressed import COMPRESSED, MAGIC
from rlpost.io.parquet.column_names import column_names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlpost.formats.records import Record
    from rlpost.io.paths import AnyPath


_TRIED = 16  # files of a directory that show what all are


@dataclass(frozen=True)
class Container:
    """One way in which records are stored.

    Args:
        name: in errors, such as "a zip archive".
        suffixes: of its files, a hint where their first bytes say nothing.
        records: yields the records of a path; of a directory or archive, a second argument is a
            glob of the files that have records, which is empty for all.
        first: returns the fields of the first record, or their names with None, of the same
            arguments; cheap, never raises, and executes nothing of the file.
    """

    name: str
    suffixes: tuple[str, ...]
    records: Callable[..., Iterator[Record]]
    first: Callable[..., Mapping[str, Any]]


def _folder_files(folder: Path, members: str = "") -> Iterator[Path]:
    """Yield the files of a directory that have records: those of a pattern, or all of JSON."""
    for file in sorted(folder.rglob(members or "*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
        if members or (not hidden and file.is_file() and container_of(file) is JSON):
            yield file


def _folder_records(folder: Path, members: str = "") -> Iterator[Record]:
    for file in _folder_files(folder, members):
        yield from json_text.json_records(file)


def _folder_first(folder: Path, members: str = "") -> Mapping[str, Any]:
    if not members and not has_objects(folder):
        return {}
    first = next((file for file in _folder_files(folder, members) if file.is_file()), None)
    return {} if first is None else json_text.first_fields(first)


def has_objects(folder: Path) -> bool:
    """Return whether a directory has several files of JSON, of one object each."""
    files = [*islice(_folder_files(folder), _TRIED)]
    return len(files) > 1 and all(map(json_text.is_one_object, files))


JSON = Container(
    "JSON lines, a JSON array or JSON objects",
    tuple(text + packed for text in archives.TEXTS for packed in ("", *COMPRESSED)),
    lambda path, _="": json_text.json_records(path),
    lambda path, _="": json_text.first_fields(path),
)
PARQUET = Container(
    "Parquet",
    (".parquet",),
    lambda path, _="": tables.table_records(path),
    lambda path, _="": dict.fromkeys(column_names_of(path)),
)
PICKLE = Container(
    "a torch.save file",
    (".pt",),
    lambda path, _="": tables.pickle_records(path),
    lambda path, _="": dict.fromkeys(first_texts(path)),
)
ZIP = Container(
    "a zip archive of JSON files", (".zip", ".eval"), archives.zip_records, archives.zip_fields
)
STREAM = Container(
    "a directory of numbered files of JSON lines",
    (),
    lambda path, _="": streams.stream_records(path),
    lambda path, _="": streams.stream_fields(path),
)
FOLDER = Container("a directory of JSON files", (), _folder_records, _folder_first)

FILES = (JSON, PARQUET, PICKLE, ZIP)


def container_of(path: AnyPath) -> Container | None:
    """Return how the records of a path are stored, by its first bytes; None of other files.

    The name decides if they say nothing, and of a URL. A directory is a stream if it has a numbered
    file of JSON lines.

    Raises:
        DataError: the file is a pointer of Git LFS.
    """
    if isinstance(path, Path):
        if path.is_dir():
            return STREAM if streams.chunks_of(path) else FOLDER
        try:
            stat = path.stat()
            container = _by_content(path, stat.st_size, stat.st_mtime_ns)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):  # damaged
            container = None
        if container is not None:
            return container
    return next((kind for kind in FILES if path.name.endswith(kind.suffixes)), None)


@lru_cache(maxsize=4096)
def _by_content(path: Path, size: int, modified: int) -> Container | None:  # noqa: ARG001
    with path.open("rb") as file:
        head = file.read(1024)
    if head.startswith(b"version https://git-lfs"):
        raise DataError(
            f"{path}: is a pointer of Git LFS, not the file itself", tip="run: git lfs pull"
        )
    if head.startswith(b"PAR1"):
        return PARQUET
    if head.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            return PICKLE if any(x.endswith("data.pkl") for x in archive.namelist()) else ZIP
    if head.startswith(b"\x80"):
        return PICKLE
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return JSON if text.startswith((b"{", b"[")) or head.startswith((*MAGIC,)) else None


def is_dump_file(path: AnyPath) -> bool:
    """Return whether a file is in a container, except Parquet."""
    return container_of(path) in (JSON, PICKLE, ZIP)


def without_suffixes(path: Path) -> Path:
    """Return a path without the suffix of its container: `a/0.jsonl.zst` is `a/0`.

    A name that is nothing but a suffix keeps it.
    """
    suffixes = (suffix for container in FILES for suffix in container.suffixes)
    fitting = [suffix for suffix in suffixes if path.name[1:].endswith(suffix)]
    return path.with_name(path.name.removesuffix(max(fitting, key=len, default="")))
