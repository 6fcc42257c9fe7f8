"""Dumps at URLs: their files are fetched into a folder that goes when the command ends."""

from __future__ import annotations

import glob
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, RlpostError
from rlpost.formats.dumps import is_dumped_table
from rlpost.leftovers import scratch_folder
from rlpost.parquet.places import (
    Remote,
    absence,
    below,
    files_below,
    matching,
    place_of,
    reaching,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.parquet.places import Place


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
            place = place_of(path)
            if isinstance(place, Remote) and (tables or not _holds_tables(place)):
                found.paths += _fetch(place, folder / str(number), found.urls)
            else:
                found.paths.append(str(path))
        try:
            yield found
        except RlpostError as error:
            raise type(error)(found.renamed(str(error))) from None


def _holds_tables(place: Remote) -> bool:
    """Whether a URL means Parquet files of responses, or nothing that could be fetched."""
    files = _files(place)
    tables = [file for file, _ in files if file.suffix == ".parquet"]
    return not is_dumped_table(tables[0]) if tables else not files


def _files(place: Remote) -> list[tuple[Place, Path]]:
    """The files that a URL means, and where they lie below a directory."""
    if place.is_file():
        return [(place, Path(place.name))]
    if glob.has_magic(place.url):
        return [(file, below(place, file)) for file in matching(place)]
    return files_below(place) if place.is_dir() else []


def _fetch(place: Remote, top: Path, urls: dict[str, str]) -> list[str]:
    """Fetch what a URL means; gives the local file, directory or glob, or all files of one."""
    files = _files(place)
    if not files and glob.has_magic(place.url):
        raise ReadWriteError(f"{place}: the pattern matches no file")
    if not files:
        raise ReadWriteError(f"{place}: {absence(place)}")
    urls[str(top)] = place.url.rstrip("/")
    for file, relative in files:
        assert isinstance(file, Remote)
        copy = top / relative
        urls[str(copy)] = file.url
        copy.parent.mkdir(parents=True, exist_ok=True)
        with reaching(file, "cannot be read"):
            file.client.get_file(file.path, str(copy))
    if place.is_file():
        return [str(top / place.name)]
    if not glob.has_magic(place.url):
        return [str(top)]
    pattern = top / below(place, place)
    copies = sorted(str(top / relative) for _, relative in files)
    return [str(pattern)] if [*map(str, matching(pattern))] == copies else copies
