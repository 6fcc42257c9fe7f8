"""Local copies of inputs that are URLs, until they are read."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError
from rlpost.formats.dumps import is_dump_table
from rlpost.io.input_paths import InputPaths, naming_errors
from rlpost.io.locks import scratch_folder
from rlpost.io.paths import (
    RemotePath,
    glob_files,
    list_files,
    missing_error,
    parse_path,
    relative_to_glob,
    remote_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.io.paths import AnyPath, PathText


@contextmanager
def fetched_inputs(paths: Sequence[PathText], *, tables: bool) -> Iterator[InputPaths]:
    """Yield inputs with local copies in place of URLs, which exist until the block ends.

    Errors from within the block name the URLs.

    Args:
        paths: files, directories and globs, local and remote.
        tables: whether to fetch Parquet files of responses, too; otherwise their URLs are returned
            unchanged.

    Raises:
        ReadWriteError: a URL cannot be read, a glob matches nothing, or the temporary folder is
            full.
    """
    if not any(isinstance(parse_path(path), RemotePath) for path in paths):
        yield InputPaths([*paths])
        return
    local: list[PathText] = []
    urls: dict[str, str] = {}
    with scratch_folder(None) as folder, naming_errors(InputPaths((), urls)):
        for number, path in enumerate(paths):
            url = parse_path(path)
            if isinstance(url, RemotePath) and (tables or not _has_tables(url)):
                local += _fetch(url, folder / str(number), urls)
            else:
                local.append(path)
        yield InputPaths(local, urls)


def _has_tables(url: RemotePath) -> bool:
    """Return whether a URL means Parquet files of responses, or no files."""
    files = _files(url)
    tables = [file for file, _ in files if file.suffix == ".parquet"]
    return not is_dump_table(tables[0]) if tables else not files


def _files(url: RemotePath) -> list[tuple[AnyPath, Path]]:
    """Return the files of a URL, and their paths relative to its directory."""
    if url.is_file():
        return [(url, Path(url.name))]
    if url.is_pattern:
        return [(file, relative_to_glob(url, file)) for file in glob_files(url)]
    return list_files(url) if url.is_dir() else []


def _fetch(url: RemotePath, top: Path, urls: dict[str, str]) -> list[str]:
    """Fetch the files of a URL; return the local file, directory or glob, or all its files."""
    files = _files(url)
    if not files and url.is_pattern:
        raise ReadWriteError(f"{url}: the pattern matches no file")
    if not files:
        raise missing_error(url, str(url))
    urls[str(top)] = str(url).rstrip("/")
    for file, relative in files:
        assert isinstance(file, RemotePath)
        copy = top / relative
        urls[str(copy)] = str(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with remote_errors(file, "cannot be read"):
            file.store.fetch(file.path, copy)
    if url.is_file():
        return [str(top / url.name)]
    if not url.is_pattern:
        return [str(top)]
    pattern = top / relative_to_glob(url, url)
    copies = sorted(str(top / relative) for _, relative in files)
    return [str(pattern)] if [*map(str, glob_files(pattern))] == copies else copies
