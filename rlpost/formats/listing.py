"""The dumps among input files, their formats, and how their fields are read."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from rlpost.display.text import first_of
from rlpost.errors import DataError, ErrorPart, ReadWriteError, RlpostError, UsageError, no_such
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
from rlpost.formats.proposal import Proposal, field_paths, propose, sample_of
from rlpost.formats.reading import no_field, read_dump
from rlpost.io.arrow import to_arrow
from rlpost.io.input_paths import InputPaths, naming_errors, step_key_of
from rlpost.io.locks import scratch_folder
from rlpost.io.parquet.column_names import is_canonical
from rlpost.io.parquet.inputs import files_of
from rlpost.io.paths import RemotePath, check_beside, parse_path, remote_errors
from rlpost.recipe.roles import ROLES, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.io.paths import AnyPath, PathText


_WITH_EVALUATION = ("slime-rollout", "prime-rl")
_HEAD = 16  # bytes to show
_FEW = 16  # records that show which fields a dump has
GENERIC = ("jsonl", "parquet")
Located = tuple[Path, Path]
"""A file, and its path below the input that it is of."""


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
    def size(self) -> int:
        """Bytes of its files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())

    def read(self, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield its rows as canonical columns.

        Where no field has the step, it is that of the name of the file.
        """
        omitted = self.format.name not in GENERIC or "step" in options.omitted_columns
        step = None if omitted else step_key_of(self.path)
        for batch in read_dump(self.path, self.format, options):
            if step is None or not {"step", "batch"}.isdisjoint(batch.schema.names):
                yield batch
            else:
                options.stats.sources["step"] = "the name of the file"
                steps = to_arrow(np.full(batch.num_rows, step), pa.int64())
                yield batch.append_column("step", steps)


@dataclass
class Dumps:
    """The dumps of inputs, and files of their directories that are not dumps."""

    dumps: list[Dump] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    """Files of directories whose format is unknown."""
    inputs: list[str] = field(default_factory=list)
    """The paths, directories and globs that they are of."""
    proposal: Proposal | None = None
    """How dumps of an unknown format are read."""

    @property
    def format(self) -> Format:
        """The format of all dumps.

        Raises:
            UsageError: they have different formats.
        """
        first = self.dumps[0]
        if other := next((dump for dump in self.dumps if dump.format is not first.format), None):
            raise UsageError(
                f"{first.path} is a dump of {first.format.name}, and {other.path} is one of "
                f"{other.format.name}: convert one format at a time",
                tip="--from NAME, or the directory of one format",
            )
        return first.format

    def add(self, other: Dumps) -> None:
        """Add other dumps, except files that are already included."""
        paths = {dump.path.resolve() for dump in self.dumps}
        self.dumps += [dump for dump in other.dumps if dump.path.resolve() not in paths]
        self.skipped += other.skipped
        self.inputs += other.inputs

    def read_by(self, options: ReadOptions, also: Collection[str] | None = ()) -> ReadOptions:
        """Return the options by which the dumps are read: with the proposal, if they need one.

        Files whose first record lacks the rows or the reward of the proposal are skipped.

        Args:
            options: what the user says.
            also: names in the map that need be no fields of the dumps: columns that they get; None:
                any, for columns of other inputs.

        Raises:
            DataError: a field of the map is not in the proposal.
            UsageError: an option does not apply, or the map names an unknown role; the fields do
                not say what the reward is; or the user says that any file is right, and no field
                has a name that says its role.
        """
        unknown, doubt, asked = [dump for dump in self.dumps if not dump.declared], "", options.map
        if not unknown and _is_unnamed(self.dumps[0], options):
            unknown, doubt = self.dumps[:1], "no field has a known name"
        if unknown:
            layout = self.format
            sample = sample_of([dump.path for dump in unknown])
            proposal = propose(sample, options)
            for dump in unknown if len(unknown) > 1 and not proposal.doubt else ():
                if not proposal.fits(sample_of([dump.path], 1)):
                    self.dumps.remove(dump)
                    self.skipped.append(dump.path)
            stated = [str(dump.path) for dump in self.dumps] if self.skipped else self.inputs
            self.proposal = replace(proposal, inputs=stated, source=layout.name)
            given, options = options, self.proposal.applied(options)
            for role, path in asked.items():
                if also is not None and options.map.get(role) != path and path not in also:
                    others = {name: x for name, x in asked.items() if name != role}
                    fields = propose(sample, replace(given, map=others)).fields
                    raise no_field(str(self.dumps[0].path), role, path, fields)
            if doubt := doubt or f"the format is unknown, and {proposal.doubt}" * bool(
                proposal.doubt
            ):
                raise self._not_sure(doubt, self.proposal, options)
        elif asked and also != ():
            paths = {"none", *field_paths(sample_of([self.dumps[0].path], _FEW), options.rows)}
            chosen = {role: path for role, path in asked.items() if path in paths}
            options = replace(options, map=chosen)
        for layout in {dump.format.name: dump.format for dump in self.dumps}.values():
            _check_options(layout, options)
        return options

    def _not_sure(self, doubt: str, proposal: Proposal, options: ReadOptions) -> UsageError:
        """Return the error that lists the fields and their likeliest roles, and what to type."""
        tip = "name the reward with --map reward=FIELD"
        if "reward" in proposal.roles:
            tip = proposal.command
            try:
                for _ in islice(self.dumps[0].read(replace(options, stats=ReadStats())), 1):
                    pass
            except (DataError, UsageError) as error:
                tip = f"{tip}, once this is right: {error}"
        return UsageError(
            f"{first_of([str(dump.path) for dump in self.dumps], 1)}: {doubt}",
            ErrorPart(f"fields (type, example: likeliest role): {proposal.listed}", tip=tip),
        )


def _is_unnamed(dump: Dump, options: ReadOptions) -> bool:
    """Return whether no option and no name says what the fields of a dump of any format are."""
    if dump.format.name not in GENERIC or options.rows or options.map:
        return False
    container = container_of(dump.path)
    fields = container.first(dump.path) if container else {}
    named = resolve(fields, {}, "").columns.keys() | (CANONICAL.keys() & fields.keys())
    return bool(fields) and not named


def _check_options(layout: Format, options: ReadOptions) -> None:
    if options.rows and layout.name not in GENERIC:
        raise UsageError(f"--rows: does not apply to {layout.name} dumps; omit it")
    for role, source in options.map.items():
        if role not in ROLES and role not in CANONICAL and source != "none":
            names = {**ROLES, **CANONICAL}
            raise UsageError(no_such(f"--map {role}={source}: no role {role!r}", role, names))


def find_dumps(inputs: Sequence[PathText], layout: Format | None) -> Dumps:
    """Return the dumps of local files, directories and globs; each directory and glob is sorted.

    Args:
        inputs: paths and globs.
        layout: the format of all of them; None: the contents of each file determine it.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory has no file of
            a known format.
        UsageError: a file has no records, or a directory mixes formats, training and evaluation, or
            the `all` and the `effective` traces of one run.
    """
    listing = Dumps()
    for text in map(str, inputs):
        top, files = cast("tuple[Path, list[Located]]", files_of(text))
        if top.is_dir():
            part = _directory(top, files, layout)
        else:
            part = Dumps([_single(file, below, layout) for file, below in files])
        part.inputs = [text]
        listing.add(part)
    for dump in listing.dumps:
        check_beside(dump.path, "an input")
    return listing


def _single(path: Path, below: Path, layout: Format | None) -> Dump:
    """Return a dump of a file; without a known format it has records, which a proposal reads."""
    layout = layout or detect(path)
    if layout is None and not _has_records(path):
        raise _without_records(path)
    return Dump(path, layout or _generic(path), below, declared=layout is not None)


def _has_records(path: Path) -> bool:
    container = container_of(path)
    return container in (JSON, ZIP, PARQUET) and bool(container.first(path))


def _without_records(path: Path) -> RlpostError:
    """Return the error of a file of an unknown format whose beginning has no records.

    Raises:
        DataError: it is damaged, as its container says.
    """
    if is_cut_archive(path):
        return DataError(f"{path}: damaged: a zip archive whose end is missing; write it again")
    if (container := container_of(path)) is not None:
        record = next(container.records(path), None)
        if record is None:
            return DataError(f"{path}: no records, so there is nothing to convert")
        seen = f"its first record has {'other' if record.fields else 'no'} fields"
    else:
        with path.open("rb") as file:
            seen = f"it begins with {file.read(_HEAD)!r}"
    return UsageError(
        f"{path}: the format is unknown: {seen}",
        tip="rlpost list dumps  # --from NAME of rlpost convert names it; jsonl and parquet, "
        "with --map, read any file",
    )


def _generic(path: Path) -> Format:
    return FORMATS["parquet"] if container_of(path) is PARQUET else JSONL


def _directory(top: Path, files: Sequence[Located], layout: Format | None) -> Dumps:
    """Return the dumps among the files of a directory, and directories that are one dump."""
    objects = container_of(top) is FOLDER and has_objects(top)
    if objects and layout is JSONL:
        return Dumps([Dump(top, JSONL, Path(top.name))])
    dumps, skipped = [*_folders(top, files, layout)], list[Located]()
    inside = {file for dump in dumps for file, _ in files if dump.format.contains(dump.path, file)}
    for file, below in files:
        if file not in inside:
            known = _format_if_fits(file, layout) if layout else detect(file)
            if known is None:
                skipped.append((file, below))
            else:
                dumps.append(Dump(file, known, below))
    paths = {dump.path for dump in dumps}
    dumps = [x for x in dumps if x.format.part_of is None or x.format.part_of(x.path) not in paths]
    if not dumps and layout is None:
        if objects:
            return Dumps([Dump(top, JSONL, Path(top.name), declared=False)])
        unknown = [(file, below) for file, below in skipped if _has_records(file)]
        dumps = [Dump(file, _generic(file), below, declared=False) for file, below in unknown]
        skipped = [located for located in skipped if located not in unknown]
    if not dumps:
        kinds = " or ".join(kind.name for kind in layout.containers) if layout else ""
        what = f"no {kinds}" if layout else "no file of a known format"
        raise ReadWriteError(f"{top}: contains {what}; rlpost list dumps lists the formats")
    listing = Dumps(dumps, [file for file, _ in skipped])
    _check_mixed(top, listing)
    return listing


def _folders(top: Path, files: Sequence[Located], layout: Format | None) -> Iterator[Dump]:
    """Yield the directories that are one dump; those inside of another are not looked at."""
    layouts = [layout] if layout else [*FORMATS.values()]
    layouts = [x for x in layouts if not {STREAM, FOLDER}.isdisjoint(x.containers)]
    yielded: list[Path] = []
    folders = {top / parent for _, below in files for parent in below.parents}
    for folder in sorted(folders) if layouts else ():
        if any(other in folder.parents for other in yielded):
            continue
        if fitting := next((candidate for candidate in layouts if candidate.fits(folder)), None):
            yielded.append(folder)
            below = folder.relative_to(top) if folder != top else Path(top.absolute().name)
            yield Dump(folder, fitting, below)


def _format_if_fits(file: Path, layout: Format) -> Format | None:
    """Return the format, or None if the file has another one.

    An unreadable file fits, so that a damaged dump is an error and not skipped.
    """
    container = container_of(file)
    if container is None or container not in layout.containers:
        return None
    unreadable = not container.first(file, layout.members)
    return layout if layout.name in GENERIC or unreadable or layout.fits(file) else None


def _check_mixed(top: Path, listing: Dumps) -> None:
    """Check that rollouts are of one kind, because kinds share the names of groups and steps.

    Evaluation is beside training as `eval_7.pt` or in `eval/`, and older prime-rl writes each
    episode of training twice, in `all` and in `effective`.
    """
    layout = listing.format
    folders = [{*dump.relative.parts[:-1]} for dump in listing.dumps]
    evaluation = {
        dump.path.stem.removeprefix("rollout_").startswith("eval_") or "eval" in parts
        for dump, parts in zip(listing.dumps, folders, strict=True)
    }
    if layout.name in _WITH_EVALUATION and len(evaluation) > 1:
        raise UsageError(
            f"{top}: contains rollouts of training and of evaluation",
            tip="name the files or the directory of one kind, for instance with a glob",
        )
    if layout.name == "prime-rl" and {"all", "effective"} <= set().union(*folders):
        raise UsageError(
            f"{top}: contains the traces twice, in all/ and in effective/; name one of the two"
        )


def is_dump_table(table: AnyPath) -> bool:
    """Return whether a Parquet file, local or remote, is a dump that needs conversion.

    A dump has no rewards and no mask under their canonical names, and its columns are those of a
    format.

    Raises:
        UsageError: its columns are those of several formats.
        ReadWriteError: it is remote and cannot be read.
    """
    # To sniff Parquet, a format reads the footer only, which works for remote paths too.
    return not is_canonical(table) and detect(cast("Path", table)) is not None


def is_nested(table: Path, columns_map: Mapping[str, str]) -> bool:
    """Return whether the roles of a Parquet file can only be in its structs; damaged, it is not."""
    record = None
    with suppress(DataError):
        record = next(PARQUET.records(table), None)
    if record is None or columns_map or resolve(record.fields, {}, "").columns:
        return False
    return any(isinstance(value, dict) for value in record.fields.values())


@contextmanager
def fetched_inputs(paths: Sequence[PathText], *, tables: bool) -> Iterator[InputPaths]:
    """Yield inputs with local copies in place of URLs, which exist until the block ends.

    Errors from within the block name the URLs. Of a glob the copies are a directory.

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
            url, files = files_of(path) if isinstance(parse_path(path), RemotePath) else (None, [])
            parquet = [file for file, _ in files if file.suffix == ".parquet"]
            if not isinstance(url, RemotePath) or not (
                tables or not parquet or is_dump_table(parquet[0])
            ):
                local.append(path)
                continue
            is_file, name = files[0][0] is url, "" if url.is_pattern else url.name
            top = folder / str(number) / ("" if is_file else name)
            urls[str(top)] = str(url).rstrip("/")
            for file, below in files:
                _fetch(cast("RemotePath", file), top / below, urls)
            local.append(str(top / name if is_file else top))
        yield InputPaths(local, urls)


def _fetch(url: RemotePath, copy: Path, urls: dict[str, str]) -> None:
    urls[str(copy)] = str(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with remote_errors(url, "cannot be read"):
        url.store.fetch(url.path, copy)
