"""Dumps as inputs of other commands: converted into a folder that goes when the command ends."""

from __future__ import annotations

import glob
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, RlpostError, UsageError
from rlpost.formats import detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.dumps import Dump, fill, find_dumps
from rlpost.formats.tables import columns_in
from rlpost.formats.writer import CanonicalFile, missing_roles
from rlpost.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@contextmanager
def canonical_inputs(
    paths: Sequence[str | Path],
    beside: Path | None = None,
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
        UsageError, DataError, ReadWriteError: as `rlpost.convert.convert`.
    """
    if not any(_is_dump(path) for path in paths):
        yield [str(path) for path in paths]
        return
    if beside is not None and beside.is_file() and not overwrite:
        raise UsageError(f"{beside}: exists already; --overwrite replaces it")
    with _staging(beside) as folder:
        try:
            yield canonical(paths, folder, tell)
        except RlpostError as error:
            raise type(error)(_renamed(str(error), folder, paths)) from None


def canonical(
    paths: Sequence[str | Path], staging: Path, tell: Callable[[str], None] | None = None
) -> list[str]:
    """Inputs as Parquet paths: dumps are converted below `staging`, the rest is given back.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.convert.convert`.
    """
    found: list[str] = []
    for number, path in enumerate(paths):
        if not _is_dump(path):
            found.append(str(path))
            continue
        dumps = find_dumps([path], None).dumps
        top = staging / str(number)
        targets = [top / dump.relative.with_suffix(".parquet") for dump in dumps]
        for dump, target in zip(dumps, targets, strict=True):
            line = _convert(dump, target)
            if tell is not None:
                tell(line)
        single = len(dumps) == 1 and Path(path).is_file()
        found.append(str(targets[0] if single else top))
    return found


def _is_dump(path: str | Path) -> bool:
    """Whether an input has to be converted before other commands can read it.

    A Parquet file is one only if it has neither rewards nor a mask under their canonical names
    and is laid out as a framework does.
    """
    text = Path(path)
    if text.is_dir():
        files = [file for file in sorted(text.rglob("*")) if file.is_file()]
        tables = [file for file in files if file.suffix == ".parquet"]
        if tables:
            return _is_dump(tables[0])
        return any(detect(file) is not None for file in files)
    if not text.exists() and glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        return bool(matches) and _is_dump(matches[0])
    if not text.is_file():
        return False
    if text.suffix == ".parquet":
        return not {"reward", "response_mask"} & columns_in(text) and detect(text) is not None
    return text.suffix in {".jsonl", ".json", ".pt"}


def _convert(dump: Dump, target: Path) -> str:
    """Convert one dump, and say what it was, what it lacks and what to know of it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None
    file = CanonicalFile(target)
    try:
        fill(file, [dump], ReadOptions(), Silent())
        file.publish()
    finally:
        file.abort()
    lacks = missing_roles(dump.format, file.columns)
    without = f"; it has no {', '.join(lacks)}" if lacks else ""
    note = f"\n  {dump.format.note}" if dump.format.note else ""
    return f"{dump.path}: read as {dump.format.name}, {file.rows:,} responses{without}{note}"


@contextmanager
def _staging(beside: Path | None) -> Iterator[Path]:
    """A new folder beside the output, or in the nearest folder above it that is there."""
    parent = None
    if beside is not None:
        parent = next(folder for folder in beside.absolute().parents if folder.is_dir())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".rlpost-", dir=parent))
    except OSError as error:
        raise ReadWriteError(f"{parent}: cannot be written: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _renamed(text: str, folder: Path, paths: Sequence[str | Path]) -> str:
    """An error's text with the dump's name in place of the converted file's."""
    for number, path in enumerate(paths):
        top = folder / str(number)
        if Path(path).is_file():
            text = text.replace(str(top / Path(path).with_suffix(".parquet").name), str(path))
        text = text.replace(str(top), str(path))
    return text
