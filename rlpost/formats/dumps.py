"""The dumps among input files, and their formats."""

from __future__ import annotations

import glob
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from rlpost.errors import DataError, ErrorPart, ReadWriteError, UsageError, no_such
from rlpost.formats import FORMATS, detect
from rlpost.formats.base import CANONICAL, ReadStats
from rlpost.formats.containers import (
    FOLDER,
    JSON,
    PARQUET,
    STREAM,
    ZIP,
    container_of,
    has_objects,
    without_suffixes,
)
from rlpost.formats.generic import JSONL
from rlpost.formats.pickles import is_cut_archive
from rlpost.formats.proposal import Proposal, propose, sample_of
from rlpost.formats.reading import read_dump
from rlpost.io.compressed import open_bytes
from rlpost.io.input_paths import step_key_of
from rlpost.io.parquet.column_names import is_canonical
from rlpost.io.paths import check_beside, missing_error, relative_to_glob
from rlpost.recipe.roles import ROLES, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.io.paths import AnyPath, PathText


_WITH_EVALUATION = ("slime-rollout", "prime-rl")


_BLOCK, _HEAD = 1 << 16, 16  # bytes to read at a time, and to show


GENERIC = ("jsonl", "parquet")


@dataclass(frozen=True)
class Dump:
    """One file of a dump, and the path of the converted file in an output directory."""

    path: Path
    format: Format
    relative: Path
    declared: bool = True
    """Its contents, or the user, say the format; otherwise its fields are read by a proposal."""

    @property
    def converted(self) -> Path:
        """The relative path of its converted file."""
        path = without_suffixes(self.relative)
        return path.with_name(f"{path.name}.parquet")

    @property
    def owner(self) -> Path | None:
        """The file that reads this one, too."""
        return self.format.part_of(self.path) if self.format.part_of else None

    def read(self, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield its rows as canonical columns; none for an empty file."""
        if is_empty(self.path):
            return iter(())
        batches = read_dump(self.path, self.format, options)
        return self._with_steps(batches, options) if self.format.name in GENERIC else batches

    def _with_steps(
        self, batches: Iterator[pa.RecordBatch], options: ReadOptions
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches with the step of the file's name, if no field has it."""
        step = None if "step" in options.omitted_columns else step_key_of(self.path)
        for batch in batches:
            known = step is None or not {"step", "batch"}.isdisjoint(batch.schema.names)
            if not known:
                options.stats.sources["step"] = "the name of the file"
                steps = pa.array([step] * batch.num_rows, pa.int64())
                batch = batch.append_column("step", steps)  # noqa: PLW2901
            yield batch

    @property
    def size(self) -> int:
        """Bytes of its files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())


@dataclass
class FoundDumps:
    """The dumps of an input, and files of its directories that are not dumps."""

    dumps: list[Dump] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    """Files of directories whose format is unknown."""
    inputs: list[str] = field(default_factory=list)
    """The paths, directories and globs that they are of."""
    proposal: Proposal | None = None
    """How dumps of an unknown format are read."""

    def add(self, other: FoundDumps) -> None:
        """Add other dumps, except files that are already included."""
        paths = {dump.path.resolve() for dump in self.dumps}
        self.dumps += [dump for dump in other.dumps if dump.path.resolve() not in paths]
        self.skipped += other.skipped
        self.inputs += other.inputs

    def proposed(self, options: ReadOptions) -> ReadOptions:
        """Return the options by which dumps of an unknown format are read; others unchanged.

        Files whose first record lacks the rows or their reward are skipped.

        Raises:
            UsageError: their fields do not say what the reward is; or the user says that any file
                is right, and no field has a name that says its role.
        """
        unknown, doubt = [dump for dump in self.dumps if not dump.declared], ""
        if not unknown and _is_unnamed(self.dumps[0], options):
            unknown, doubt = self.dumps[:1], "no field has a known name"
        if not unknown:
            return options
        common_format(self.dumps)
        proposal = propose(sample_of([dump.path for dump in unknown]), options)
        for dump in unknown if len(unknown) > 1 and not proposal.doubt else ():
            if not proposal.fits(sample_of([dump.path], 1)):
                self.dumps.remove(dump)
                self.skipped.append(dump.path)
        stated = [str(dump.path) for dump in self.dumps] if self.skipped else self.inputs
        proposal = replace(proposal, inputs=stated, source=self.dumps[0].format.name)
        options, self.proposal = proposal.applied(options), proposal
        if doubt or proposal.doubt:
            doubt = doubt or f"the format is unknown, and {proposal.doubt}"
            raise _not_sure(self.dumps, doubt, proposal, options)
        return options


def _is_unnamed(dump: Dump, options: ReadOptions) -> bool:
    """Return whether no option and no name says what the fields of a dump of any format are."""
    if dump.format.name not in GENERIC or options.rows or options.map:
        return False
    container = container_of(dump.path)
    fields = container.first(dump.path) if container else {}
    named = resolve(fields, {}, "").columns.keys() | (CANONICAL.keys() & fields.keys())
    return bool(fields) and not named


def _not_sure(
    dumps: Sequence[Dump], doubt: str, proposal: Proposal, options: ReadOptions
) -> UsageError:
    """Return the error that lists the fields and their likeliest roles, and a command that runs."""
    first, *others = dumps
    where = f"{first.path} and {len(others):,} more" if others else str(first.path)
    tip = "name the reward with --map reward=FIELD"
    if "reward" in proposal.roles:
        tip = proposal.command
        try:
            for _ in islice(first.read(replace(options, stats=ReadStats())), 1):
                pass
        except (DataError, UsageError) as error:
            tip = f"{tip}  # once this is right: {error}"
    return UsageError(
        f"{where}: {doubt}",
        ErrorPart(f"fields (type, example: likeliest role): {proposal.listed}", tip=tip),
    )


def find_dumps(inputs: Sequence[PathText], dump_format: Format | None) -> FoundDumps:
    """Return the dumps of files, directories and globs; each directory and glob is sorted.

    Args:
        inputs: paths and globs.
        dump_format: the format of all of them; None: the contents of each file determine it.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory has no file of
            a known format.
        UsageError: a file has no records, or a directory mixes formats, training and evaluation, or
            the `all` and the `effective` traces of one run.
    """
    listing = FoundDumps()
    for text in map(str, inputs):
        listing.add(replace(_expand(text, dump_format), inputs=[text]))
    for dump in listing.dumps:
        check_beside(dump.path, "an input")
    return listing


def _expand(text: str, dump_format: Format | None) -> FoundDumps:
    path = Path(text)
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _visible(file, path))
            return _directory(text, files, dump_format, path)
        if path.exists():
            if not path.is_file():  # to open a pipe would wait for its writer
                raise ReadWriteError(f"{text}: cannot be read: not a regular file")
            return FoundDumps([_single(path, dump_format)])
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if not glob.has_magic(text):
        raise missing_error(path, text)
    matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207
    dumps = [
        _single(file, dump_format, relative_to_glob(path, file))
        for file in matches
        if file.is_file()
    ]
    if not dumps:
        raise ReadWriteError(f"{text}: the pattern matches no file")
    return FoundDumps(dumps)


def _visible(file: Path, top: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(top).parts)
    return not hidden and file.is_file()


def _single(path: Path, dump_format: Format | None, relative: Path | None = None) -> Dump:
    dump_format = dump_format or detect(path)
    if dump_format is None and is_empty(path):
        raise DataError(f"{path}: the file is empty, so there is nothing to convert")
    if dump_format is None and is_cut_archive(path):
        raise DataError(f"{path}: damaged: a zip archive whose end is missing; write it again")
    if dump_format is None and not _has_records(path):
        _check_records(path)
    relative = relative or Path(path.name)
    return Dump(path, dump_format or _generic(path), relative, declared=dump_format is not None)


def _has_records(path: Path) -> bool:
    """Return whether a file of an unknown format has records, which a proposal may read."""
    container = container_of(path)
    return container in (JSON, ZIP, PARQUET) and bool(container.first(path))


def _check_records(path: Path) -> None:
    """Raise the error of a file of an unknown format whose beginning has no records.

    Raises:
        DataError: it is damaged, as its container says, or has no records.
        UsageError: the container is unknown, or the record has no fields.
    """
    container = container_of(path)
    if container in (JSON, ZIP, PARQUET):
        record = next(container.records(path), None)
        if record is None:
            raise DataError(f"{path}: no records, so there is nothing to convert")
        if record.fields:
            return
        seen = "its first record has no fields"
    else:
        with path.open("rb") as file:
            seen = f"it begins with {file.read(_HEAD)!r}"
    raise UsageError(
        f"{path}: the format is unknown: {seen}",
        tip="rlpost list dumps  # --from NAME of rlpost convert names it; jsonl and parquet, "
        "with --map, read any file",
    )


def _generic(path: Path) -> Format:
    return FORMATS["parquet"] if container_of(path) is PARQUET else JSONL


def _directory(
    text: str, files: Sequence[Path], dump_format: Format | None, top: Path
) -> FoundDumps:
    """Return the dumps among the files of a directory, and directories that are one dump."""
    listing, part = FoundDumps(), set[Path]()
    objects = container_of(top) is FOLDER and has_objects(top)
    if objects and dump_format is JSONL:
        return FoundDumps([Dump(top, JSONL, Path(top.name))])
    for folder, layout in _dump_folders(top, files, dump_format):
        relative = folder.relative_to(top) if folder != top else Path(top.absolute().name)
        listing.dumps.append(Dump(folder, layout, relative))
        part |= {file for file in files if layout.contains(folder, file)}
    for file in files:
        if file in part:
            continue
        file_format = _format_if_fits(file, dump_format) if dump_format else detect(file)
        if file_format is None:
            listing.skipped.append(file)
        else:
            listing.dumps.append(Dump(file, file_format, file.relative_to(top)))
    paths = {dump.path for dump in listing.dumps}
    listing.dumps = [dump for dump in listing.dumps if dump.owner not in paths]
    if not listing.dumps and objects and dump_format is None:
        return FoundDumps([Dump(top, JSONL, Path(top.name), declared=False)])
    if not listing.dumps and dump_format is None:
        unknown = [file for file in listing.skipped if _has_records(file)]
        listing.dumps = [
            Dump(file, _generic(file), file.relative_to(top), declared=False) for file in unknown
        ]
        listing.skipped = [file for file in listing.skipped if file not in unknown]
    names = list(dict.fromkeys(dump.format.name for dump in listing.dumps))
    if not names:
        kinds = (
            " or ".join(candidate.name for candidate in dump_format.containers)
            if dump_format
            else ""
        )
        what = f"no {kinds}" if dump_format else "no file of a known format"
        raise ReadWriteError(f"{text}: contains {what}; rlpost list dumps lists the formats")
    if len(names) > 1:
        raise UsageError(
            f"{text}: contains dumps of {', '.join(names)}; select a format with --from NAME, or "
            "name the directory of one format"
        )
    check_mixed(text, listing.dumps)
    return listing


def _dump_folders(
    top: Path, files: Sequence[Path], dump_format: Format | None
) -> Iterator[tuple[Path, Format]]:
    """Yield the directories that are one dump, and their formats; the top one comes first."""
    layouts = [dump_format] if dump_format else [*FORMATS.values()]
    layouts = [
        candidate for candidate in layouts if not {STREAM, FOLDER}.isdisjoint(candidate.containers)
    ]
    yielded: list[Path] = []
    for folder in sorted({parent for file in files for parent in file.parents if top in
                          (parent, *parent.parents)}) if layouts else ():  # fmt: skip
        if any(other in folder.parents for other in yielded):
            continue
        if layout := next((candidate for candidate in layouts if candidate.fits(folder)), None):
            yielded.append(folder)
            yield folder, layout


def is_dump_table(table: AnyPath) -> bool:
    """Return whether a Parquet file, local or remote, is a dump that needs conversion.

    A dump has no rewards and no mask under their canonical names, and its columns are those of a
    format.

    Raises:
        UsageError: its columns are those of several formats.
        ReadWriteError: it is remote and cannot be read.
    """
    # To sniff Parquet, a format reads the footer only, which works for remote paths too.
    path = cast("Path", table)
    return not is_canonical(table) and detect(path) is not None


def is_nested(table: Path, columns_map: Mapping[str, str]) -> bool:
    """Return whether the roles of a Parquet file can only be in its structs; damaged, it is not."""
    record = None
    with suppress(DataError):
        record = next(PARQUET.records(table), None)
    if record is None or columns_map or resolve(record.fields, {}, "").columns:
        return False
    return any(isinstance(value, dict) for value in record.fields.values())


def is_empty(path: Path) -> bool:
    """Return whether a file has only white space.

    Raises:
        ReadWriteError: it cannot be read.
    """
    if path.is_dir():
        return False
    with open_bytes(path) as file:
        return not any(block.strip() for block in iter(lambda: file.read(_BLOCK), b""))


def _format_if_fits(file: Path, dump_format: Format) -> Format | None:
    """Return the format, or None if the file has another one.

    An unreadable file fits, so that a damaged dump is an error and not skipped.
    """
    container = container_of(file)
    if container is None or container not in dump_format.containers:
        return None
    if dump_format.name in GENERIC:
        return dump_format
    unreadable = not container.first(file, dump_format.members)
    return dump_format if unreadable or dump_format.fits(file) else None


def check_mixed(text: str, dumps: Sequence[Dump]) -> None:
    """Check that rollouts are of one kind, because kinds share the names of groups and steps.

    Evaluation is beside training as `eval_7.pt` or in `eval/`, and older prime-rl writes each
    episode of training twice, in `all` and in `effective`.
    """
    folders = [{*dump.relative.parts[:-1]} for dump in dumps]
    evaluation = [
        dump.path.stem.removeprefix("rollout_").startswith("eval_") or "eval" in parts
        for dump, parts in zip(dumps, folders, strict=True)
    ]
    if dumps[0].format.name in _WITH_EVALUATION and any(evaluation) and not all(evaluation):
        path = dumps[evaluation.index(True)].path
        raise UsageError(
            f"{text}: contains rollouts of training and of evaluation ({path}); name the files or "
            "the directory of one kind, for instance with a glob"
        )
    if dumps[0].format.name == "prime-rl" and {"all", "effective"} <= set().union(*folders):
        raise UsageError(
            f"{text}: contains the traces twice, in all/ and in effective/; name one of the two"
        )


def common_format(dumps: Sequence[Dump]) -> Format:
    """Return the format of all dumps.

    Raises:
        UsageError: they have different formats.
    """
    first = dumps[0]
    if other := next((dump for dump in dumps if dump.format is not first.format), None):
        raise UsageError(
            f"{first.path} is a dump of {first.format.name}, and {other.path} is one of "
            f"{other.format.name}: convert one format at a time"
        )
    return first.format


def check_options(dump_format: Format, options: ReadOptions) -> None:
    """Check that the options apply to a format.

    Raises:
        UsageError: an option does not apply to the format, or the map names an unknown role.
    """
    if options.rows and dump_format.name not in GENERIC:
        raise UsageError(f"--rows: does not apply to {dump_format.name} dumps; omit it")
    for role, source in options.map.items():
        if role not in ROLES and role not in CANONICAL and source != "none":
            names = {**ROLES, **CANONICAL}
            raise UsageError(no_such(f"--map {role}={source}: no role {role!r}", role, names))
