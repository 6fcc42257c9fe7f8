"""Dumps as inputs of other commands: fetched if remote, and converted into a temporary folder."""

from __future__ import annotations

import glob
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, RlpostError, UsageError
from rlpost.formats import detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.dumps import fill, find_dumps, is_dumped_table, same_format
from rlpost.formats.writer import CanonicalFile, missing_roles
from rlpost.io.locks import scratch_folder
from rlpost.io.paths import (
    RemotePath,
    glob_files,
    list_files,
    parse_path,
    relative_to_glob,
    remote_errors,
    why_missing,
)
from rlpost.io.progress import SilentReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.formats.dumps import Dump
    from rlpost.io.paths import AnyPath


JOINED = "dumps.parquet"
"""What several dumps that are one input are called meanwhile."""


@dataclass
class Fetched:
    """Inputs as local paths."""

    paths: list[str] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    """Local path -> the URL that it is a copy of."""

    def renamed(self, text: str) -> str:
        """A text with URLs in place of the local copies' paths."""
        for path in sorted(self.urls, key=len, reverse=True):
            text = text.replace(path, self.urls[path])
        return text


@contextmanager
def canonical_inputs(
    paths: Sequence[str | Path],
    beside: AnyPath | None = None,
    *,
    overwrite: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Iterator[list[str]]:
    """Inputs of any kind as Parquet paths, for as long as the block runs.

    Parquet files of responses are given back as they are. Errors from within the block name the
    dumps, not the converted files.

    Args:
        paths: files, directories and globs.
        beside: the output; what is converted lies beside it meanwhile. None: in the system's
            temporary folder.
        overwrite: whether the output may be there already; else that is said before the work.
        tell: is told what was converted, a line or two a dump; None: nobody is.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.formats.convert.convert`.
    """
    if any(isinstance(parse_path(path), RemotePath) for path in paths):
        with fetched(paths, tables=False) as local:
            named = None if tell is None else lambda line: tell(local.renamed(line))
            with _canonical_inputs(local.paths, beside, named, overwrite=overwrite) as inputs:
                yield inputs
        return
    with _canonical_inputs(paths, beside, tell, overwrite=overwrite) as inputs:
        yield inputs


@contextmanager
def _canonical_inputs(
    paths: Sequence[str | Path],
    beside: AnyPath | None,
    tell: Callable[[str], None] | None,
    *,
    overwrite: bool,
) -> Iterator[list[str]]:
    if not any(_is_dump(path) for path in paths):
        yield [str(path) for path in paths]
        return
    if beside is not None and beside.is_file() and not overwrite:
        raise UsageError(f"{beside}: exists already; --overwrite replaces it")
    with _staging(beside) as folder:
        joined = beside is not None and beside.suffix == ".parquet" and not beside.is_dir()
        try:
            yield canonical(paths, folder, tell, joined=joined)
        except RlpostError as error:
            raise type(error)(_renamed(str(error), folder, paths)) from None


def canonical(
    paths: Sequence[str | Path],
    staging: Path,
    tell: Callable[[str], None] | None = None,
    *,
    joined: bool = False,
) -> list[str]:
    """Inputs as Parquet paths: dumps are converted below `staging`, the rest is given back.

    Args:
        paths: files, directories and globs.
        staging: an empty folder.
        tell: is told what was converted.
        joined: dumps become one file, where all of the inputs are dumps: it goes to one output.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.formats.convert.convert`.
    """
    if joined and all(_is_dump(path) for path in paths):
        dumps = find_dumps(paths, None).dumps
        if len(dumps) > 1 or not Path(paths[0]).is_file():
            line = _convert(dumps, staging / JOINED)
            if tell is not None:
                tell(line)
            return [str(staging / JOINED)]
    found: list[str] = []
    for number, path in enumerate(paths):
        if not _is_dump(path):
            found.append(str(path))
            continue
        dumps = find_dumps([path], None).dumps
        top = staging / str(number)
        targets = [top / dump.relative.with_suffix(".parquet") for dump in dumps]
        for dump, target in zip(dumps, targets, strict=True):
            line = _convert([dump], target)
            if tell is not None:
                tell(line)
        single = len(dumps) == 1 and Path(path).is_file()
        found.append(str(targets[0] if single else top))
    return found


def _is_dump(path: str | Path) -> bool:
    """Whether an input has to be converted before other commands can read it.

    What is remote was fetched before, if it has.
    """
    text = parse_path(path)
    if isinstance(text, RemotePath):
        return False
    if text.is_dir():
        files = [file for file in sorted(text.rglob("*")) if file.is_file()]
        tables = [file for file in files if file.suffix == ".parquet"]
        if tables:
            return _is_dump(tables[0])
        return any(detect(file) is not None for file in files)
    if not text.exists() and glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        return bool(matches) and _is_dump(matches[0])
    if text.suffix == ".parquet" and text.is_file():
        return is_dumped_table(text)
    return text.suffix in {".jsonl", ".json", ".pt"} and text.is_file()


def _convert(dumps: Sequence[Dump], target: Path) -> str:
    """Convert dumps to one file, and say what they were, what they lack and what to know of it."""
    one = same_format(dumps)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
    file = CanonicalFile(target)
    try:
        fill(file, dumps, ReadOptions(), SilentReporter())
        file.publish()
    finally:
        file.abort()
    lacks = missing_roles(one, file.columns)
    without = f"; it has no {', '.join(lacks)}" if lacks else ""
    note = f"\n  {one.notes()}" if one.notes() else ""
    noun = "response" if file.rows == 1 else "responses"
    several = f"{len(dumps)} dumps, read as one input" if len(dumps) > 1 else "read"
    return f"{_named(dumps)}: {several} as {one.name}, {file.rows:,} {noun}{without}{note}"


def _named(dumps: Sequence[Dump]) -> str:
    """A dump's path; the first and last of several."""
    return str(dumps[0].path) if len(dumps) == 1 else f"{dumps[0].path} to {dumps[-1].path}"


@contextmanager
def _staging(beside: AnyPath | None) -> Iterator[Path]:
    """A new folder beside the output, or in the nearest folder above it that is there."""
    parent = None
    if isinstance(beside, Path):
        parent = next(folder for folder in beside.absolute().parents if folder.is_dir())
    with scratch_folder(parent) as folder:
        yield folder


def _renamed(text: str, folder: Path, paths: Sequence[str | Path]) -> str:
    """An error's text with the dump's name in place of the converted file's."""
    text = text.replace(str(folder / JOINED), ", ".join(map(str, paths)))
    for number, path in enumerate(paths):
        top = folder / str(number)
        if Path(path).is_file():
            text = text.replace(str(top / Path(path).with_suffix(".parquet").name), str(path))
        text = text.replace(str(top), str(path))
    return text


@contextmanager
def fetched(paths: Sequence[str | Path], *, tables: bool) -> Iterator[Fetched]:
    """Inputs with local copies in place of URLs, for as long as the block runs.

    Errors from within the block name the URLs.

    Args:
        paths: files, directories and globs, local and remote.
        tables: whether Parquet files of responses are fetched, too, and not only dumps; else their
            URLs are given back as they are.

    Raises:
        ReadWriteError: a URL can't be read, a glob matches nothing, or the temporary folder is
            full.
    """
    found = Fetched()
    with scratch_folder(None) as folder:
        for number, path in enumerate(paths):
            place = parse_path(path)
            if isinstance(place, RemotePath) and (tables or not _holds_tables(place)):
                found.paths += _fetch(place, folder / str(number), found.urls)
            else:
                found.paths.append(str(path))
        try:
            yield found
        except RlpostError as error:
            raise type(error)(found.renamed(str(error))) from None


def _holds_tables(place: RemotePath) -> bool:
    """Whether a URL means Parquet files of responses, or nothing that could be fetched."""
    files = _files(place)
    tables = [file for file, _ in files if file.suffix == ".parquet"]
    return not is_dumped_table(tables[0]) if tables else not files


def _files(place: RemotePath) -> list[tuple[AnyPath, Path]]:
    """The files that a URL means, and where they lie below a directory."""
    if place.is_file():
        return [(place, Path(place.name))]
    if glob.has_magic(place.url):
        return [(file, relative_to_glob(place, file)) for file in glob_files(place)]
    return list_files(place) if place.is_dir() else []


def _fetch(place: RemotePath, top: Path, urls: dict[str, str]) -> list[str]:
    """Fetch what a URL means; gives the local file, directory or glob, or all files of one."""
    files = _files(place)
    if not files and glob.has_magic(place.url):
        raise ReadWriteError(f"{place}: the pattern matches no file")
    if not files:
        raise ReadWriteError(f"{place}: {why_missing(place)}")
    urls[str(top)] = place.url.rstrip("/")
    for file, relative in files:
        assert isinstance(file, RemotePath)
        copy = top / relative
        urls[str(copy)] = file.url
        copy.parent.mkdir(parents=True, exist_ok=True)
        with remote_errors(file, "cannot be read"):
            file.client.get_file(file.path, str(copy))
    if place.is_file():
        return [str(top / place.name)]
    if not glob.has_magic(place.url):
        return [str(top)]
    pattern = top / relative_to_glob(place, place)
    copies = sorted(str(top / relative) for _, relative in files)
    return [str(pattern)] if [*map(str, glob_files(pattern))] == copies else copies
