"""Dumps as inputs of other commands: fetched if remote, and converted into a temporary folder."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import UsageError
from rlpost.formats import FORMATS, format_named
from rlpost.formats.base import LENGTH, TOKEN_COLUMNS, ReadOptions, ReadStats
from rlpost.formats.convert import warnings_of, write_files
from rlpost.formats.dumps import (
    FoundDumps,
    check_options,
    common_format,
    find_dumps,
    is_dump_table,
    is_nested,
)
from rlpost.formats.fetching import fetched_inputs
from rlpost.formats.proposal import field_paths, sample_of
from rlpost.formats.writer import missing_roles
from rlpost.io.input_paths import UNDECLARED, Declaration, InputPaths, naming_errors, without_paths
from rlpost.io.locks import scratch_folder
from rlpost.io.parquet.column_names import first_table
from rlpost.io.paths import (
    RemotePath,
    parse_path,
)
from rlpost.recipe.roles import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.formats.dumps import Dump
    from rlpost.formats.where import Where
    from rlpost.formats.writer import CanonicalFile
    from rlpost.io.paths import AnyPath, PathText


_FEW = 16  # records that show which fields a dump has
JOINED = "dumps.parquet"
"""The name of the temporary file for several dumps that are one input."""


@contextmanager
def canonical_inputs(
    paths: Sequence[PathText],
    beside: AnyPath | None = None,
    *,
    overwrite: bool = True,
    note: Callable[[str], None] = lambda _: None,
    where: Where | None = None,
    declared: Declaration = UNDECLARED,
) -> Iterator[InputPaths]:
    """Yield inputs of any kind as paths of Parquet files, which exist until the block ends.

    Parquet files of responses are returned unchanged. Errors from within the block name the
    dumps, not the converted files.

    Args:
        paths: files, directories and globs.
        beside: the output, whose folder also has the temporary files. None: the system's
            temporary folder.
        overwrite: whether the output may exist; otherwise that is an error before any work.
        note: is called with a line or two per input of dumps.
        where: which rows the paths have; None: all.
        declared: format, rows and groups, and fields of roles: those that the dumps have are in
            `InputPaths.bound`.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.formats.convert.convert`.
    """
    with fetched_inputs(paths, tables=declared.of_dumps) as local:
        inputs = [(path, dumps_of(path, declared)) for path in local.paths]
        if where is None and not any(listing for _, listing in inputs):
            yield local
            return
        if beside is not None and beside.is_file() and not overwrite:
            raise UsageError(f"{beside}: exists already", tip="--overwrite  # replaces it")
        joined = beside is not None and beside.suffix == ".parquet" and not beside.is_dir()
        names: dict[str, str] = {}
        rows: dict[str, NDArray[np.int64]] = {}
        with _staging(beside) as folder, naming_errors(InputPaths((), names, rows)):
            options = _options(inputs, declared, where)
            named = partial(without_paths, names=local.names)
            converted = _converted(
                inputs, folder, names, lambda line: note(named(line)), options, joined=joined
            )
            if where is not None:
                from rlpost.formats.selected import select_rows  # noqa: PLC0415 - imports polars

                selected = select_rows(converted, where, folder / "selected", but=folder)
                converted = [*selected.paths]
                names |= selected.names
                rows |= selected.rows
                if not where.matched:
                    raise where.no_match(local.paths)
            yield InputPaths(converted, names, rows, frozenset(options.map)).made_of(local)


def dumps_of(path: PathText, declared: Declaration) -> FoundDumps | None:
    """Return the dumps of an input; None for Parquet of responses, and for URLs of it.

    Raises:
        UsageError, ReadWriteError: as `find_dumps`.
    """
    location = parse_path(path)
    if isinstance(location, RemotePath) or location.is_fifo() or location.is_char_device():
        return None
    source = format_named(declared.source) if declared.source else None
    table = first_table(path)
    if source is None and table is not None and not is_dump_table(table):
        if not declared.of_dumps and not is_nested(table, declared.map):
            return None
        source = FORMATS["parquet"] if declared.of_dumps else None
    return find_dumps([path], source)


def _options(
    inputs: Sequence[tuple[PathText, FoundDumps | None]],
    declared: Declaration,
    where: Where | None,
) -> ReadOptions:
    """Return how the dumps are read: as declared, or as proposed; the map has their fields alone.

    Raises:
        UsageError: dumps of unknown format do not say what the reward is; or an option does not
            apply.
    """
    listing = FoundDumps()
    for _, part in inputs:
        listing.add(part or FoundDumps())
    options = ReadOptions(
        declared.map, rows=declared.rows, group_size=declared.group_size, where=where
    )
    if not listing.dumps:
        return replace(options, map={})
    options = listing.proposed(options)
    if listing.proposal is None and declared.map:
        paths = {"none", *field_paths(sample_of([listing.dumps[0].path], _FEW), declared.rows)}
        chosen = {role: path for role, path in declared.map.items() if path in paths}
        options = replace(options, map=chosen)
    for _, part in inputs:
        if part is not None:
            part.dumps = [dump for dump in part.dumps if dump in listing.dumps]
            part.proposal = listing.proposal
    for dump in listing.dumps:
        check_options(dump.format, options)
    return options


def _converted(
    inputs: Sequence[tuple[PathText, FoundDumps | None]],
    staging: Path,
    names: dict[str, str],
    note: Callable[[str], None],
    options: ReadOptions,
    *,
    joined: bool,
) -> list[PathText]:
    """Return inputs as Parquet paths: dumps are converted into `staging`, others unchanged.

    Args:
        inputs: paths, and their dumps.
        staging: an empty folder.
        names: gets the dump by the path of its converted file, the input by that of its folder.
        note: is called with a line per input of converted dumps, and the notes of each format once.
        options: how dumps are read; one without a row that matches becomes no file.
        joined: convert the dumps to one file if all inputs are dumps, because the output is one.
    """
    parts = [(str(path), staging / str(number), listing) for number, (path, listing)
             in enumerate(inputs)]  # fmt: skip
    dumps = [dump for _, listing in inputs if listing for dump in listing.dumps]
    several = len(dumps) > 1 or not parse_path(inputs[0][0]).is_file()
    joined = joined and several and all(listing for _, listing in inputs)
    if joined:
        common_format(dumps)
        merged = replace(inputs[0][1] or FoundDumps(), dumps=dumps)
        parts = [(", ".join(name for name, *_ in parts), staging / JOINED, merged)]
    converted: list[PathText] = []
    noted = {""}
    for (name, top, listing), (path, _) in zip(parts, inputs, strict=False):
        if listing is None:
            converted.append(path)
            continue
        plan: dict[AnyPath, list[Dump]] = {top / dump.converted: [dump] for dump in listing.dumps}
        names |= {str(target): str(dump.path) for target, (dump,) in plan.items()}
        names[str(top)] = name
        read = replace(options, stats=ReadStats())
        files = write_files({top: dumps} if joined else plan, read, SilentReporter())
        line, _, about = converted_line(listing, files, joined=joined).partition("\n")
        about_once = [] if about in noted else [about.strip()]
        note("\n  ".join([line, *about_once, *warnings_of(read.stats)]))
        noted.add(about)
        single = joined or (len(listing.dumps) == 1 and parse_path(path).is_file())
        if files:
            converted.append(str(files[0].target if single else top))
    return converted


def converted_line(listing: FoundDumps, files: Sequence[CanonicalFile], *, joined: bool) -> str:
    """Return what was converted: the format, what it lacks, and its notes on a second line.

    Of an unknown format these are what was proposed, and the command that states it.
    """
    dumps, dump_format = listing.dumps, common_format(listing.dumps)
    count = counted(sum(file.rows for file in files), "response")
    if listing.proposal is not None:
        return f"{_range_of_paths(dumps)}: {count}, {listing.proposal.lines}"
    columns = {name for file in files for name in file.columns}
    missing, without = list(missing_roles(dump_format, columns)), ""
    if columns.isdisjoint(TOKEN_COLUMNS):
        lengths = " or lengths" if LENGTH in missing else ""
        missing = [role for role in missing if kind_of(role) != "tokens" and role != LENGTH]
        without = f", without columns of tokens{lengths}"
    without += f"; it has no {', '.join(missing)}" if missing else ""
    note = f"\n  {dump_format.note}" if dump_format.note else ""
    several = f"{len(dumps)} dumps, read" if len(dumps) > 1 else "read"
    one_input = " as one input," if joined and len(dumps) > 1 else ""
    read = f"{several}{one_input} as {dump_format.name}"
    return f"{_range_of_paths(dumps)}: {read}, {count}{without}{note}"


def _range_of_paths(dumps: Sequence[Dump]) -> str:
    """Return the path of a dump, or the first and last path of several."""
    return str(dumps[0].path) if len(dumps) == 1 else f"{dumps[0].path} to {dumps[-1].path}"


@contextmanager
def _staging(beside: AnyPath | None) -> Iterator[Path]:
    """Yield a new folder beside the output, or in the closest parent folder that exists."""
    parent = None
    if isinstance(beside, Path):
        parent = next(folder for folder in beside.absolute().parents if folder.is_dir())
    with scratch_folder(parent) as folder:
        yield folder
