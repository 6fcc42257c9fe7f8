"""Containers: what the records of a dump are in. A container knows nothing of their fields.

A container yields `Record`s: fields, the place for errors (file and line, row, member or element)
and the file. A layout (`rlpost.formats.base.Format`) declares the containers that it is found in,
and turns records into rows.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache, partial
from io import BufferedReader, BytesIO
from itertools import islice
from lzma import LZMAError
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.formats.json_text import records_of
from rlpost.formats.pickles import first_texts, load
from rlpost.formats.records import Record
from rlpost.io.compressed import COMPRESSED, MAGIC, open_bytes, read_errors
from rlpost.io.memory_limit import memory_limit
from rlpost.io.parquet.column_names import column_names_of
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from rlpost.io.paths import AnyPath


MOST_SNIFFED = 64 << 20
"""Most bytes of a first record that a sniff reads."""
_TRIED = 16  # files of a directory that show what all are
_TEXTS = (".jsonl", ".ndjson", ".json")
_CHUNK = re.compile(r"(\d{5,})\.jsonl(\.zst|\.gz)?")
_ROWS = 256
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error,
               LZMAError)  # fmt: skip
_NO_RECORD = (DataError, NotEnoughMemoryError, ReadWriteError, OSError, ValueError, LookupError,
              StopIteration, *_UNREADABLE)  # fmt: skip
_ZSTD, _LENGTHS = 93, 26  # its method, and where a member's header has the lengths of two fields


class Text(NamedTuple):
    """A file or a member of an archive, of JSON text."""

    path: PurePath
    where: str
    """Its name in errors."""
    open: Callable[[], AbstractContextManager[IO[bytes]]]
    live: bool = False
    """A program still writes it."""

    def records(self, most: int | None = None) -> Iterator[Record]:
        """Yield its records, of at most so many bytes."""
        with self.open() as file:
            yield from records_of(file, self.path, self.where, most, live=self.live)


@dataclass(frozen=True)
class Container:
    """One way in which records are stored.

    Args:
        name: in errors, such as "a zip archive".
        suffixes: of its files, a hint where their first bytes say nothing.
        records: yields the records of a path; of a directory or archive, a second argument is a
            glob of the files that have records, which is empty for all.
        first_of: returns the fields of the first record, or their names with None, of the same
            arguments; it executes nothing of the file.
    """

    name: str
    suffixes: tuple[str, ...]
    records: Callable[..., Iterator[Record]]
    first_of: Callable[[Path, str], Mapping[str, Any]]

    def first(self, path: Path, members: str = "") -> Mapping[str, Any]:
        """Return what `first_of` does; nothing of a path that cannot be read. Never raises."""
        with suppress(*_NO_RECORD):
            if not isinstance(path, Path) or path.is_dir():
                return self.first_of(path, members)
            stat = path.stat()
            return _first(self, path, members, stat.st_size, stat.st_mtime_ns)
        return {}


@lru_cache(maxsize=64)
def _first(
    container: Container, path: Path, members: str, size: int, modified: int  # noqa: ARG001
) -> Mapping[str, Any]:  # fmt: skip
    return container.first_of(path, members)


def _of_texts(
    name: str, suffixes: tuple[str, ...], texts: Callable[[Path, str], Iterator[Text]]
) -> Container:
    """Return the container of one or several texts."""

    def records(path: Path, members: str = "") -> Iterator[Record]:
        for text in texts(path, members):
            yield from text.records()

    def first(path: Path, members: str) -> Mapping[str, Any]:
        for text in texts(path, members):
            for record in text.records(MOST_SNIFFED):
                return record.fields
        return {}

    return Container(name, suffixes, records, first)


def json_text(path: Path) -> Text:
    """Return a file of JSON text."""
    return Text(path, str(path), partial(open_bytes, path))


def json_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a file of JSON text; raise DataError or ReadWriteError as it does."""
    return json_text(path).records()


def _folder_files(folder: Path, members: str = "") -> Iterator[Path]:
    """Yield the files of a directory that have records: those of a pattern, or all of JSON."""
    for file in sorted(folder.rglob(members or "*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
        if (members or not hidden) and file.is_file() and container_of(file) is JSON:
            yield file


def has_objects(folder: Path) -> bool:
    """Return whether a directory has several files of JSON, of one object each."""
    files = [*islice(_folder_files(folder), _TRIED)]
    return len(files) > 1 and all(map(_is_one_object, files))


def _is_one_object(path: Path) -> bool:
    try:
        records = [*islice(json_text(path).records(MOST_SNIFFED), 2)]
    except (DataError, ReadWriteError, NotEnoughMemoryError):
        return False
    return len(records) == 1 and not records[0].where.endswith("of the array")


def _folder_texts(folder: Path, members: str) -> Iterator[Text]:
    if members or has_objects(folder):
        yield from map(json_text, _folder_files(folder, members))


def _chunks_of(folder: Path) -> list[Path]:
    """Return the files of a stream by their numbers.

    A writer that compresses a finished file removes the plain one afterwards, so of two files of
    one number the plain one is read.
    """
    chunks: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        if (match := _CHUNK.fullmatch(file.name)) and file.is_file():
            chunks.setdefault(int(match.group(1)), file)  # x.jsonl is before x.jsonl.zst
    return [chunks[number] for number in sorted(chunks)]


def _stream_texts(folder: Path, _: str) -> Iterator[Text]:
    chunks = _chunks_of(folder)
    for path in chunks:
        yield json_text(path)._replace(live=path == chunks[-1])


def _zip_texts(path: Path, pattern: str) -> Iterator[Text]:
    """Yield the members of an archive that match a pattern, in its order; empty: of JSON text.

    An archive with a folder `samples`, such as the log of an evaluation, has its records there.

    Raises:
        DataError: the archive is damaged or encrypted.
        ReadWriteError: it cannot be read.
    """
    with _zip_errors(f"{path}: a zip archive"), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()  # several can have one name
        samples = any(entry.filename.startswith("samples/") for entry in entries)
        pattern = pattern or ("samples/*" if samples else "")
        for entry in entries:
            name = entry.filename
            if fnmatch(name, pattern) if pattern else name.endswith(_TEXTS):
                where = f"{path}, member {name}"
                yield Text(path / name, where, partial(_opened, archive, entry, where))


@contextmanager
def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, where: str) -> Iterator[IO[bytes]]:
    with _zip_errors(where), _member(archive, entry, where) as member:
        yield cast("Any", BufferedReader(cast("Any", member)))


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, where: str) -> IO[bytes]:
    """Open a member; Python 3.14 is the first that reads those that zstd compressed."""
    file = archive.fp
    if entry.compress_type != _ZSTD or file is None:
        return archive.open(entry)
    memory_limit().check(entry.compress_size + entry.file_size, where)
    file.seek(entry.header_offset + _LENGTHS)
    lengths = [int.from_bytes(file.read(2), "little") for _ in ("name", "extra")]
    file.seek(sum(lengths), 1)
    packed = file.read(entry.compress_size)
    try:
        return BytesIO(pa.decompress(packed, entry.file_size, "zstd", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise zipfile.BadZipFile(str(error)) from None


@contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    """Raise the errors of reading an archive as DataError (its bytes) or ReadWriteError."""
    with read_errors(where):
        try:
            yield
        except _UNREADABLE as error:
            raise DataError(f"{where}: damaged or encrypted: {error}") from None


def _table_records(path: Path, _: str = "") -> Iterator[Record]:
    """Yield the rows of a Parquet file as records.

    Raises:
        DataError: the file is not Parquet, or is damaged.
        ReadWriteError: it cannot be read.
    """
    try:
        with ParquetReader(path) as reader:
            row = 0
            for group in range(reader.file.num_row_groups):
                for batch in reader.batches(_ROWS, group, reader.file.schema_arrow.names):
                    for values in batch.to_pylist():
                        yield Record(f"{path}, row {row}", values, path)
                        row += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a Parquet file, or damaged ({why})") from None


def _pickle_records(path: Path, _: str = "") -> Iterator[Record]:
    """Yield the dictionary of a torch.save file as one record.

    Raises:
        DataError: the file has no dictionary, or is rejected by `rlpost.formats.pickles.load`.
        NotEnoughMemoryError, ReadWriteError: as `rlpost.formats.pickles.load`.
    """
    dump = load(path)
    if not isinstance(dump, dict):
        raise DataError(f"{path}: contains a {type(dump).__name__}; a dictionary is needed")
    yield Record(str(path), dump, path)


JSON = _of_texts(
    "JSON lines, a JSON array or JSON objects",
    tuple(text + packed for text in _TEXTS for packed in ("", *COMPRESSED)),
    lambda path, _: iter([json_text(path)]),
)
ZIP = _of_texts("a zip archive of JSON files", (".zip", ".eval"), _zip_texts)
STREAM = _of_texts("a directory of numbered files of JSON lines", (), _stream_texts)
FOLDER = _of_texts("a directory of JSON files", (), _folder_texts)
PARQUET = Container(
    "Parquet", (".parquet",), _table_records, lambda path, _: dict.fromkeys(column_names_of(path))
)
PICKLE = Container(
    "a torch.save file", (".pt",), _pickle_records, lambda path, _: dict.fromkeys(first_texts(path))
)

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
            return STREAM if _chunks_of(path) else FOLDER
        with suppress(OSError, zipfile.BadZipFile, ValueError, NotImplementedError):  # damaged
            stat = path.stat()
            if container := _by_content(path, stat.st_size, stat.st_mtime_ns):
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


def without_suffixes(path: Path) -> Path:
    """Return a path without the suffix of its container: `a/0.jsonl.zst` is `a/0`.

    A name that is nothing but a suffix keeps it.
    """
    suffixes = (suffix for container in FILES for suffix in container.suffixes)
    fitting = [suffix for suffix in suffixes if path.name[1:].endswith(suffix)]
    return path.with_name(path.name.removesuffix(max(fitting, key=len, default="")))
