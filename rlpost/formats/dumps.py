"""Which files of an input are dumps, and of which format."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import CANONICAL
from rlpost.formats.pickles import first_texts
from rlpost.formats.records import columns_in, first_fields
from rlpost.io.paths import relative_to_glob
from rlpost.recipe.roles import ROLES, closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.writer import CanonicalFile
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
