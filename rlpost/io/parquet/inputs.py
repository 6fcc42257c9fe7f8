"""Input files of paths, directories, globs and URLs, with hive partitions and metadata."""

from __future__ import annotations

import glob
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rlpost.display.controls import in_utf8
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.paths import (
    RemotePath,
    check_beside,
    glob_files,
    list_files,
    missing_error,
    parse_path,
    relative_to_glob,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from rlpost.io.paths import AnyPath, PathText


@dataclass(frozen=True)
class InputFile:
    """One Parquet file of the input."""

    path: AnyPath
    relative: Path
    """The path of its output below an output directory."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partitions of its path: ("step", "3") for `step=3/`."""


def find_inputs(inputs: Sequence[PathText]) -> list[InputFile]:
    """Return the files of some paths, URLs, directories and globs: each file once.

    The files of each directory and of each glob are sorted.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory contains no
            Parquet file.
        UsageError: two files would have the same output path.
    """
    by_path: dict[AnyPath, InputFile] = {}
    for text in inputs:
        for file in _tables(text):
            check_beside(file.path, "an input")
            by_path.setdefault(file.path.resolve(), file)
    files = list(by_path.values())
    (name, count), *_ = Counter(file.relative for file in files).most_common(1)
    if count > 1:
        raise UsageError(
            f"{count} input files are named {name}, so their outputs would overwrite each other; "
            "pass their common directory, or a quoted glob: then the output keeps the folders"
        )
    return files


def files_of(text: PathText) -> tuple[AnyPath, list[tuple[AnyPath, Path]]]:
    """Return a path, and its files: itself, or those of a directory or glob.

    They are sorted, each with its path below the directory, or below the fixed part of the glob.
    Names of a directory that begin with `.` or `_` are left out.

    Raises:
        ReadWriteError: the path does not exist or cannot be read, or a glob matches nothing.
    """
    path = parse_path(text)
    text = text if isinstance(text, str) and isinstance(path, Path) else str(path)
    if isinstance(path, RemotePath):
        path.forget()
    try:
        if path.is_dir():
            return path, [(file, below) for file, below in list_files(path)
                          if not any(x.startswith((".", "_")) for x in below.parts)]  # fmt: skip
        if isinstance(path, Path) and path.exists() and not path.is_file():
            raise ReadWriteError(f"{text}: cannot be read: not a regular file")
        if path.exists():
            return path, [(path, Path(path.name))]
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if not (path.is_pattern if isinstance(path, RemotePath) else glob.has_magic(text)):
        raise missing_error(path, text)
    if not (files := glob_files(path)):
        raise ReadWriteError(f"{text}: the pattern matches no file")
    return path, [(file, relative_to_glob(path, file)) for file in files]


def _tables(text: PathText) -> list[InputFile]:
    """Return the files of a path; of a directory, those of Parquet."""
    path, files = files_of(text)
    if path.is_dir():
        files = [(file, below) for file, below in files if file.suffix == ".parquet"]
    if not files:
        raise ReadWriteError(
            f"{path}: the directory contains no .parquet files; convert other formats with "
            "`rlpost convert`"
        )
    return [InputFile(file, below, partitions_of(file)) for file, below in files]


def partitions_of(path: AnyPath | PurePath) -> tuple[tuple[str, str], ...]:
    """Return the hive partitions of a path: ("step", "3") for `step=3/`."""
    pairs = (part.partition("=") for part in path.parts[:-1])
    return tuple((_decoded(key), _decoded(value)) for key, equals, value in pairs if equals and key)


def _decoded(text: str) -> str:
    """Return a part of a path without its percent signs; bytes that are not UTF-8 stay distinct."""
    return in_utf8(unquote(text, errors="surrogateescape"))


# Keys of the key-value metadata that a plan reads.
MISSING_ROLES = b"rlpost.missing_roles"  # role -> reason that a converted dump lacks it
FORMAT_KEY = b"rlpost.format"  # the name of the format that a dump was converted from
RECIPE_KEY = b"rlpost.recipe"  # how the advantages of the file were computed
MASK_KEY = b"rlpost.sample_mask"  # what the column `sample_mask` is, if a run computed it
COMPUTED, COMBINED = "computed", "combined"  # COMBINED: the input's own mask was replaced


def parse(text: bytes) -> dict[str, Any]:
    """Return a mapping from JSON; raise ValueError if it is none."""
    try:
        table = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(table, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - the text is wrong
    return table


def stored_object(metadata: Mapping[bytes, bytes], key: bytes) -> dict[str, Any]:
    """Return the JSON object under a key of a file's metadata; empty without one.

    A damaged one is empty, too: `rlpost verify` reports it.
    """
    try:
        return parse(metadata.get(key, b"{}"))
    except ValueError:
        return {}


def entry_origins(
    files: Sequence[InputFile], entries: Sequence[Mapping[bytes, bytes] | None], key: bytes
) -> dict[bytes, str]:
    """Return the values that a key has in the metadata of files, each with the first such file.

    Args:
        files: of an input.
        entries: the key-value metadata of each.
        key: of one entry; its value is empty in a file without it.
    """
    origins: dict[bytes, str] = {}
    for file, metadata in zip(files, entries, strict=True):
        origins.setdefault((metadata or {}).get(key, b""), str(file.path))
    return origins


def lacking_columns(files: Sequence[InputFile], schemas: Sequence[pa.Schema]) -> dict[str, str]:
    """Return the columns that some files have and others lack, with the first file without each.

    Args:
        files: of an input.
        schemas: of each.
    """
    names = [
        {*schema.names, *(key for key, _ in file.partitions)}
        for file, schema in zip(files, schemas, strict=True)
    ]
    lacking: dict[str, str] = {}
    for name in dict.fromkeys(name for schema in schemas for name in schema.names):
        without = (file for file, own in zip(files, names, strict=True) if name not in own)
        first = next(without, None)
        if first is not None:
            lacking[name] = str(first.path)
    return lacking
