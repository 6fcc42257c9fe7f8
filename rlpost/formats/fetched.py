"""Dumps at URLs: their files are fetched into a folder that goes when the command ends."""

from __future__ import annotations

import glob
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, RlpostError, UsageError
from rlpost.leftovers import scratch_folder
from rlpost.parquet.places import Remote, absence, files_below, matching, place_of, reaching

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
        tables: whether Parquet files are fetched, too; else their URLs are given back as they are.

    Raises:
        ReadWriteError: a URL can't be read, or the temporary folder is full.
        UsageError: a glob matches nothing.
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
    """Whether a URL means Parquet files, or nothing that could be fetched."""
    return any(file.suffix == ".parquet" for file, _ in _files(place)) or not _files(place)


def _files(place: Remote) -> list[tuple[Place, Path]]:
    """The files that a URL means, and where they lie below a directory."""
    if place.is_file():
        return [(place, Path(place.name))]
    if glob.has_magic(place.url):
        return [(file, Path(file.name)) for file in matching(place)]
    return files_below(place) if place.is_dir() else []


def _fetch(place: Remote, top: Path, urls: dict[str, str]) -> list[str]:
    """Fetch what a URL means; gives the local file, or the local directory, or all of a glob's."""
    files = _files(place)
    if not files and glob.has_magic(place.url):
        raise UsageError(f"{place}: the pattern matches no file")
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
    whole = not place.is_file() and not glob.has_magic(place.url)
    return [str(top)] if whole else [str(top / relative) for _, relative in files]
