"""Paths that stand for inputs: texts name the input, not the temporary file that is made of it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlpost.errors import RlpostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import PurePath

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.io.paths import PathText

T = TypeVar("T")


@dataclass(frozen=True)
class InputPaths:
    """Paths of files, directories and globs, and what the temporary ones among them stand for."""

    paths: Sequence[PathText]
    names: Mapping[str, str] = field(default_factory=dict)
    """Temporary path -> the dump, URL or table that it is made of."""
    rows: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Temporary path -> the number of each of its rows in what it is made of, if it has not all."""
    bound: frozenset[str] = frozenset()
    """Roles whose fields of dumps have the columns of the roles' names now."""

    def made_of(self, others: InputPaths) -> InputPaths:
        """Return these paths, if they are made of the others, with the names of both."""
        own = {path: without_paths(name, others.names) for path, name in self.names.items()}
        return replace(self, names={**others.names, **own})

    def row(self, path: str, row: int) -> int:
        """Return the number of a row of a temporary file in what it is made of."""
        return int(self.rows[path][row]) if path in self.rows else row

    def named(self, text: str) -> str:
        """Return a text with the names and rows of inputs in place of temporary ones."""
        for path in self.rows:
            place = rf"(?<={re.escape(path)})(, row |:)(\d+)\b"
            text = re.sub(place, partial(self._named_row, path), text)
        return without_paths(text, self.names)

    def _named_row(self, path: str, found: re.Match[str]) -> str:
        return f"{found[1]}{self.row(path, int(found[2]))}"


@dataclass(frozen=True)
class Declaration:
    """What the user says about inputs that are dumps; their contents may say it, too."""

    source: str | None = None
    """The name of their format."""
    rows: str | None = None
    """The list of the responses in a record."""
    group_size: int | None = None
    """Consecutive records per group."""
    map: Mapping[str, str] = field(default_factory=dict)
    """Role -> field of a dump, or column of any input."""

    @property
    def of_dumps(self) -> bool:
        """Whether it is about dumps alone, so that Parquet is read as one, too."""
        return bool(self.source or self.rows or self.group_size)


UNDECLARED = Declaration()


def without_paths(value: T, names: Mapping[str, str]) -> T:
    """Return a text, or all texts of a result, with names in place of temporary paths.

    Args:
        value: a text, or plain data.
        names: temporary path -> name.
    """
    return _named(value, sorted(names.items(), key=lambda item: -len(item[0]))) if names else value


def _named(value: Any, names: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for path, name in names:
            value = value.replace(path, name)
    elif isinstance(value, dict):
        return {_named(key, names): _named(one, names) for key, one in value.items()}
    elif isinstance(value, list):
        return [_named(one, names) for one in value]
    return value


@lru_cache(maxsize=1024)
def step_key_of(path: PurePath) -> int | None:
    """Return N of the last `step_N`, `stepN` or `step=N` of a path; the file name comes first."""
    for part in reversed(Path(path).absolute().parts):
        match = re.findall(r"(?:^|[^a-zA-Z])step[_=]?(\d+)", part)
        if match:
            return int(match[-1])
    return None


@contextmanager
def naming_errors(paths: InputPaths) -> Iterator[None]:
    """Raise the block's errors with names in place of temporary paths; more may be added in it."""
    try:
        yield
    except RlpostError as error:
        raise error.reworded(paths.named) from None
