"""Which files an input means: a file, several, a directory with hive partitions, a glob; a URL."""

from __future__ import annotations

import glob
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.paths import (
    RemotePath,
    glob_files,
    list_files,
    parse_path,
    relative_to_glob,
    why_missing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from rlpost.io.parquet.fingerprint import FileFingerprint
    from rlpost.io.paths import AnyPath


@dataclass(frozen=True)
class InputFile:
    """One Parquet file of the input."""

    path: AnyPath
    relative: Path
    """Where its twin goes below an output directory."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partitions of its path, `step=3/` as ("step", "3")."""


def find_inputs(inputs: Sequence[str]) -> list[InputFile]:
    """The files that these paths, URLs, directories and globs mean, each once, sorted in each.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory holds no
            Parquet file.
        UsageError: two files would have the same output name.
    """
    found: dict[AnyPath, InputFile] = {}
    for text in inputs:
        for file in _expand(text):
            found.setdefault(file.path.resolve(), file)
    files = list(found.values())
    (name, times), *_ = Counter(file.relative for file in files).most_common(1)
    if times > 1:
        raise UsageError(
            f"{times} input files are called {name}, and so would be their outputs: name the "
            "directory above them, or quote a glob of them: the output keeps the folders"
        )
    return files


def _expand(text: str) -> list[InputFile]:
    path = parse_path(text)
    if isinstance(path, RemotePath):
        path.forget()
    try:
        if path.is_dir():
            return _directory(path)
        if isinstance(path, Path) and path.exists() and not path.is_file():
            raise ReadWriteError(f"{text}: cannot be read: it is no regular file")
        if path.exists():
            return [InputFile(path, Path(path.name), _partitions(path))]
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if glob.has_magic(text):
        files = glob_files(path)
        if not files:
            raise ReadWriteError(f"{text}: the pattern matches no file")
        return [InputFile(file, relative_to_glob(path, file), _partitions(file)) for file in files]
    raise ReadWriteError(f"{text}: {why_missing(path)}")


def _directory(top: AnyPath) -> list[InputFile]:
    files = [
        InputFile(file, relative, _partitions(file))
        for file, relative in list_files(top)
        if file.suffix == ".parquet" and not any(p.startswith((".", "_")) for p in relative.parts)
    ]
    if not files:
        raise ReadWriteError(f"{top}: the directory holds no .parquet file")
    return files


def _partitions(path: AnyPath) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in path.parts[:-1])
    return tuple((unquote(key), unquote(value)) for key, equals, value in pairs if equals and key)


MISSING_ROLES = b"rlpost.lacks"  # key-value metadata: role -> why a converted dump has none


@dataclass(frozen=True)
class InputMetadata:
    """What binding a recipe needs to know of an input: a `Source` without its footers.

    A footer takes more memory than its file's name, and thousands of files have a few schemas.
    """

    files: list[InputFile] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Rows of each file."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each file once it is decompressed."""
    stamps: list[FileFingerprint | None] = field(default_factory=list)
    """When each file was changed, as `Source` has it."""
    schemas: list[pa.Schema] = field(default_factory=list)
    """Of each file; files that have the same one share it."""
    columns: list[str] = field(default_factory=list)
    """The names every file has, hive partitions among them, in the first file's order."""
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    """Of the key-value metadata what binding reads."""

    @cached_property
    def name(self) -> str:
        """What errors call the input."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    @cached_property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(self.counts)

    @cached_property
    def first_rows(self) -> list[int]:
        """Row number, in the whole input, of each file's first row."""
        return list(accumulate(self.counts, initial=0))


def join_metadata(surveys: Sequence[InputMetadata]) -> InputMetadata:
    """The survey of consecutive parts of an input, of at least one."""
    first = surveys[0]
    shared = set(first.columns).intersection(*(one.columns for one in surveys))
    metadata: dict[bytes, bytes] = {}
    for one in reversed(surveys):
        metadata |= one.metadata
    return InputMetadata(
        [file for one in surveys for file in one.files],
        [count for one in surveys for count in one.counts],
        [size for one in surveys for size in one.sizes],
        [stamp for one in surveys for stamp in one.stamps],
        distinct_schemas([schema for one in surveys for schema in one.schemas]),
        [name for name in first.columns if name in shared],
        metadata,
    )


def distinct_schemas(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """The same schemas, without what files say of themselves, each distinct one once."""
    distinct: dict[bytes, pa.Schema] = {}
    plain = [schema.remove_metadata() for schema in schemas]
    return [distinct.setdefault(one.serialize().to_pybytes(), one) for one in plain]
