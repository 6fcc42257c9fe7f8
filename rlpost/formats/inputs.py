"""Dumps as inputs of other commands: converted into a folder that goes when the command ends.

Which files of an input are dumps, and of which format.

Dumps at URLs: their files are fetched into a folder that goes when the command ends.
"""

from __future__ import annotations

import glob
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rlpost.errors import DataError, ReadWriteError, RlpostError, UsageError
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.canonical import CANONICAL
from rlpost.formats.pickles import first_texts
from rlpost.formats.records import columns_in, first_fields
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
from rlpost.recipe.roles import ROLES, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from rlpost.formats.base import Format
    from rlpost.io.paths import AnyPath
    from rlpost.io.progress import Reporter


_SPLIT = ("slime-rollout", "miles", "prime-rl")
_BLOCK = 1 << 16
ANYBODYS = ("jsonl", "parquet")
_OPTIONS = {"layout": "--layout", "group_size": "--group-size", "map": "--map"}


@dataclass(frozen=True)
class Dump:
    """One file of a dump, and where its converted twin goes below an output directory."""

    path: Path
    format: Format
    relative: Path

    def read(self, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Its rows as canonical columns; none of an empty file."""
        return iter(()) if is_empty(self.path) else self.format.read(self.path, options)


@dataclass
class Found:
    """The dumps of an input, and the files beside them that are none."""

    dumps: list[Dump] = field(default_factory=list)
    passed: list[Path] = field(default_factory=list)
    """Files of directories that were passed over: no format knows them."""

    def add(self, other: Found) -> None:
        """Add what is new of other dumps; the same file counts once."""
        known = {dump.path.resolve() for dump in self.dumps}
        self.dumps += [dump for dump in other.dumps if dump.path.resolve() not in known]
        self.passed += other.passed


def find_dumps(inputs: Sequence[str | Path], one: Format | None) -> Found:
    """The dumps that these files, directories and globs mean, sorted in each.

    Args:
        inputs: paths and globs.
        one: the format of all of them; None: each file's is found by its contents.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory has no file of
            a known format.
        UsageError: a file's format is not known, or a directory mixes formats, or the `all` and the
            `effective` traces of one run.
    """
    found = Found()
    for text in map(str, inputs):
        found.add(_expanded(text, one))
    return found


def _expanded(text: str, one: Format | None) -> Found:
    path = Path(text)
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _visible(file, path))
            return _directory(text, files, one, path)
        if path.exists():
            return Found([_single(path, one)])
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if not glob.has_magic(text):
        raise ReadWriteError(f"{text}: no such file or directory")
    matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207
    dumps = [_single(file, one, relative_to_glob(path, file)) for file in matches if file.is_file()]
    if not dumps:
        raise ReadWriteError(f"{text}: the pattern matches no file")
    return Found(dumps)


def _visible(file: Path, top: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(top).parts)
    return not hidden and file.is_file()


def _single(path: Path, one: Format | None, relative: Path | None = None) -> Dump:
    found = one or detect(path)
    if found is None and is_empty(path):
        raise DataError(f"{path}: the file is empty, so there is nothing to convert")
    if found is None:
        raise UsageError(
            f"{path}: its contents do not tell its format; say which with rlpost convert IN OUT "
            "--from NAME (rlpost convert --list lists them; jsonl and parquet, with --map, read "
            "anybody's)"
        )
    return Dump(path, found, relative or Path(path.name))


def _directory(text: str, files: Sequence[Path], one: Format | None, top: Path) -> Found:
    """The dumps among a directory's files."""
    kinds = [_fits(file, one) if one else detect(file) for file in files]
    found = Found()
    for file, kind in zip(files, kinds, strict=True):
        if kind is None:
            found.passed.append(file)
        else:
            found.dumps.append(Dump(file, kind, file.relative_to(top)))
    names = list(dict.fromkeys(dump.format.name for dump in found.dumps))
    if not names:
        what = f"no {' or '.join(one.suffixes)} file" if one else "no file of a known format"
        raise ReadWriteError(f"{text}: holds {what}; rlpost convert --list says what is known")
    if len(names) > 1:
        raise UsageError(
            f"{text}: holds dumps of {', '.join(names)}; say which with --from NAME, or name the "
            "directory of one of them"
        )
    _check_cohorts(text, found.dumps)
    return found


def is_dumped_table(table: AnyPath) -> bool:
    """Whether a Parquet file, local or remote, has to be converted before others can read it.

    It has neither rewards nor a mask under their canonical names, and is laid out as a framework
    does.

    Raises:
        UsageError: it may be of several.
        ReadWriteError: it is remote, and can't be read.
    """
    # What knows Parquet by its columns reads the footer alone, wherever that lies.
    named = cast("Path", table)
    return not {"reward", "response_mask"} & columns_in(table) and detect(named) is not None


def is_empty(path: Path) -> bool:
    """Whether a file has nothing but white space.

    Raises:
        ReadWriteError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return not any(block.strip() for block in iter(lambda: file.read(_BLOCK), b""))
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None


def _fits(file: Path, one: Format) -> Format | None:
    """The format, unless the file can't be of it or is known to be of another.

    What can't be read at all passes for it, so that a damaged dump is named and not passed over.
    """
    if not file.name.endswith(one.suffixes):
        return None
    if one.name in ANYBODYS:
        others = (other for other in FORMATS.values() if file.name.endswith(other.suffixes))
        return None if any(other.sniff(file) for other in others if other is not one) else one
    return one if one.sniff(file) or not _legible(file) else None


def _legible(file: Path) -> bool:
    """Whether a file's beginning can be read, be it what it may."""
    return bool(first_fields(file) or columns_in(file) or first_texts(file))


def _check_cohorts(text: str, dumps: Sequence[Dump]) -> None:
    """Refuse rollouts that are not of one kind: their groups and steps have the same names.

    Evaluation lies beside training under `eval_7.pt` or `eval/`; and older prime-rl writes each
    trained-on episode twice, below `all` and below `effective`.
    """
    folders = [{*dump.relative.parts[:-1]} for dump in dumps]
    evaluation = [
        dump.path.stem.removeprefix("rollout_").startswith("eval_") or "eval" in parts
        for dump, parts in zip(dumps, folders, strict=True)
    ]
    if dumps[0].format.name in _SPLIT and any(evaluation) and not all(evaluation):
        one = dumps[evaluation.index(True)].path
        raise UsageError(
            f"{text}: has rollouts of training and of evaluation ({one}); name the files or the "
            "directory of one kind, for instance by a glob"
        )
    if dumps[0].format.name == "prime-rl" and {"all", "effective"} <= set().union(*folders):
        raise UsageError(
            f"{text}: has the traces below all/ and, again, below effective/: name one of them"
        )


def fill(
    file: CanonicalFile, dumps: Sequence[Dump], options: ReadOptions, reporter: Reporter
) -> None:
    """Read dumps into a file and complete it; publishing is the caller's.

    Raises:
        DataError: a record is bad, or there is none.
        ReadWriteError: reading or writing failed.
    """
    for dump in dumps:
        for batch in dump.read(options):
            file.append(batch, str(dump.path))
            reporter.advance(batch.num_rows)
    if not file.rows:
        names = ", ".join(str(dump.path) for dump in dumps)
        empty = all(is_empty(dump.path) for dump in dumps)
        what = (
            ("the file is empty" if len(dumps) == 1 else "the files are empty")
            if empty
            else ("no records")
        )
        raise DataError(f"{names}: {what}, so there is nothing to convert")
    file.complete(dumps[0].format)


def same_format(dumps: Sequence[Dump]) -> Format:
    """The format of all of them.

    Raises:
        UsageError: two are of different ones.
    """
    one = dumps[0].format
    if other := next((dump for dump in dumps if dump.format is not one), None):
        raise UsageError(
            f"{dumps[0].path} is of {one.name} and {other.path} of {other.format.name}: convert "
            "them one after the other"
        )
    return one


def check_options(one: Format, options: ReadOptions) -> None:
    """Refuse what means nothing to a format.

    Raises:
        UsageError: an option that the format does not take, or a map of an unknown role.
    """
    for name, flag in _OPTIONS.items():
        if getattr(options, name) and name not in one.takes:
            raise UsageError(f"{flag}: means nothing for {one.name} dumps; leave it out")
    for role, source in options.map.items():
        if role not in ROLES and role not in CANONICAL and source != "none":
            known = {**ROLES, **CANONICAL}
            raise UsageError(f"--map {role}={source}: no role {role!r}{closest(role, known)}")


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


JOINED = "dumps.parquet"
"""What several dumps that are one input are called meanwhile."""


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
