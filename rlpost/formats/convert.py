"""Dumps as canonical Parquet: files of the user's, or temporary ones that other commands read."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError
from rlpost.formats import FORMATS, format_named
from rlpost.formats.attempts import Attempts
from rlpost.formats.base import CANONICAL, LENGTH, TOKEN_COLUMNS, ReadOptions, ReadStats
from rlpost.formats.listing import (
    Dump,
    Dumps,
    fetched_inputs,
    find_dumps,
    is_dump_table,
    is_nested,
)
from rlpost.formats.records import first_names
from rlpost.formats.writer import CanonicalFile, missing_roles, served_roles
from rlpost.io.arrow import to_arrow
from rlpost.io.input_paths import UNDECLARED, Declaration, InputPaths, naming_errors, without_paths
from rlpost.io.locks import scratch_folder
from rlpost.io.outputs import OutputFiles, file_errors
from rlpost.io.parquet.column_names import first_table
from rlpost.io.paths import PathText, RemotePath, check_target, is_output_folder, parse_path
from rlpost.io.processes import Processes
from rlpost.io.system import cores
from rlpost.io.threads import MOST_WORKERS
from rlpost.recipe.roles import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.formats.where import Where
    from rlpost.io.paths import AnyPath


Json = dict[str, Any]
_LARGE = 128 << 20  # bytes; of fewer, two processes save less time than their start takes
JOINED = "dumps.parquet"
"""The name of the temporary file for several dumps that are one input."""


def convert(
    inputs: PathText | Sequence[PathText],
    output: str | Path,
    source: str | None = None,
    options: ReadOptions | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Json:
    """Run `rlpost.convert`; return the summary as a plain mapping.

    Args:
        inputs: as of `rlpost.convert`.
        output: as of `rlpost.convert`.
        source: as of `rlpost.convert`.
        options: roles and groups that the dumps do not contain.
        workers: as of `rlpost.convert`.
        overwrite: as of `rlpost.convert`.
        reporter: gets the number of responses; their total is unknown.
    """
    started, reporter = time.perf_counter(), reporter or SilentReporter()
    paths = [inputs] if isinstance(inputs, PathText) else list(inputs)
    with fetched_inputs(paths, tables=True) as local:
        listing = find_dumps(local.paths, format_named(source) if source else None)
        layout = listing.format
        options = listing.read_by(replace(options or ReadOptions(), stats=ReadStats()))
        plan = plan_targets(listing.dumps, parse_path(output), overwrite=overwrite)
        files = write_files(plan, options, reporter, workers)
        if not files and options.where is not None:
            raise options.where.no_match([dump.path for dump in listing.dumps])
        columns = files[0].columns
        sources = layout.sources(options)
        return without_paths({
            "format": layout.name,
            "title": layout.title,
            "inputs": [str(dump.path) for dump in listing.dumps],
            "outputs": [str(file.target) for file in files],
            "responses": sum(file.rows for file in files),
            "tokens": sum(file.tokens for file in files),
            "columns": columns,
            "roles": served_roles(columns),
            "sources": {name: field for name, field in sources.items() if name in columns},
            "missing_roles": dict(missing_roles(layout, columns)),
            "note": layout.note,
            **({"proposed": listing.proposal.as_json()} if listing.proposal else {}),
            "warnings": warnings_of(options.stats),
            "skipped_files": [str(path) for path in listing.skipped],
            **({} if options.where is None else {"where": options.where.as_json()}),
            "attempts": {"kept": options.attempts, "left_out": options.stats.replaced},
            "seconds": time.perf_counter() - started,
            "rlpost_version": __version__,
        }, local.names)  # fmt: skip


def warnings_of(stats: ReadStats) -> list[str]:
    """Return what was counted, left out and doubted."""
    warnings = [*stats.warnings]
    warnings += [f"{counted(count, noun)} {what}" for (noun, what), count in stats.counts.items()]
    if names := stats.left_out:
        what = f"{counted(len(names), 'field')} without a column, left out"
        warnings.append(f"{what}: {first_names(names)}")
    if stats.replaced:
        what = f"{counted(stats.replaced, 'row')} of older attempts left out"
        warnings.append(f"{what}; --attempts all keeps them")
    return warnings


def plan_targets(
    dumps: Sequence[Dump], output: AnyPath, *, overwrite: bool
) -> dict[AnyPath, list[Dump]]:
    """Return the dumps of each output file: all in one `.parquet`, or a file for each dump.

    Raises:
        UsageError: OUT has another suffix; a target is an input, exists already, or would be of
            two dumps.
        ReadWriteError: a target cannot be accessed.
    """
    with file_errors(output, "cannot be written"):
        is_folder = is_output_folder(output)
        plan: dict[AnyPath, list[Dump]] = {}
        for dump in dumps:
            target = output / dump.converted if is_folder else output
            if is_folder and target in plan:
                raise UsageError(
                    f"{dump.path} and {plan[target][0].path} would both become {target}: name "
                    "their parent directory, so that the output has the same subdirectories"
                )
            plan.setdefault(target, []).append(dump)
        sources = {dump.path.resolve() for dump in dumps}
        for target in plan:
            check_target(target, sources, overwrite=overwrite)
    return plan


def read_dumps(
    dumps: Sequence[Dump], options: ReadOptions, workers: int | None
) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """Yield the batches of dumps in order, each with the path of its dump.

    Processes read them, each a whole dump at a time.

    Args:
        dumps: in the order of their batches.
        options: what the dumps do not contain; what is counted is added to its `stats`.
        workers: processes; None: one per core and dump, at most 8, if the dumps are large.

    Raises:
        DataError, NotEnoughMemoryError, ReadWriteError: as `read_dump`.
    """
    number = min(workers or min(cores(), MOST_WORKERS), len(dumps))
    small = workers is None and sum(dump.size for dump in dumps) < _LARGE
    if number == 1 or small or options.group_size is not None:  # blocks are counted over all dumps
        for dump in dumps:
            yield from ((dump.path, batch) for batch in dump.read(options))
        return
    with Processes(number) as processes:
        read = replace(options, where=None)
        for path, batch, stats in processes.map(_read_whole, read, iter(dumps)):
            if batch is not None:
                yield path, batch
            options.stats.add(stats)


def _read_whole(
    options: ReadOptions, dump: Dump
) -> Iterator[tuple[Path, pa.RecordBatch | None, ReadStats]]:
    """Yield the batches of a dump, and None with what was counted."""
    options = replace(options, stats=(stats := ReadStats()))
    for batch in dump.read(options):
        yield dump.path, batch, ReadStats()
    yield dump.path, None, stats


def write_files(
    plan: Mapping[AnyPath, Sequence[Dump]],
    options: ReadOptions,
    reporter: Reporter,
    workers: int | None = None,
) -> list[CanonicalFile]:
    """Write the dumps of each file, and publish all when the last is complete.

    Args:
        plan: the dumps of each target.
        options: what the dumps do not contain.
        reporter: gets the number of responses.
        workers: as of `read_dumps`.

    Returns:
        The files that have rows; others, of which no row matches, are not written.

    Raises:
        DataError: a record is bad; or there is none, and no condition excluded any.
        ReadWriteError: reading or writing failed.
    """
    reporter.start("convert", None)
    attempts = Attempts()
    with OutputFiles(plan) as staged:
        files = _written(plan, options, reporter, workers, staged, attempts)
        flags = attempts.replaced() if options.attempts == "newest" else np.zeros(0, bool)
        options.stats.replaced = int(flags.sum())
        for target, file in files.items():
            flags, replaced = flags[file.rows :], flags[: file.rows]
            if replaced.any():
                file.leave_out(replaced)
            if file.rows:
                file.complete(plan[target][0].format)
            else:
                staged.drop(target)
        staged.publish()
    return [file for file in files.values() if file.rows]


def _written(
    plan: Mapping[AnyPath, Sequence[Dump]],
    options: ReadOptions,
    reporter: Reporter,
    workers: int | None,
    staged: OutputFiles,
    attempts: Attempts,
) -> dict[AnyPath, CanonicalFile]:
    """Return the files of targets, with the rows that match; all rows are added to the attempts."""
    target_of = {dump.path: target for target, dumps in plan.items() for dump in dumps}
    files: dict[AnyPath, CanonicalFile] = {}
    for path, batch in read_dumps([*chain.from_iterable(plan.values())], options, workers):
        if (target := target_of[path]) not in files:
            for file in [*files.values()][-1:]:
                file.flush()
            files[target] = CanonicalFile(staged.stage(target))
        where = options.where
        kept = np.ones(len(batch), bool) if where is None else where.kept_of_dump(batch, str(path))
        attempts.add(batch, kept)
        if kept.any():
            rows = batch if kept.all() else batch.filter(to_arrow(kept, pa.bool_()))
            files[target].append(rows, str(path))
            reporter.advance(int(kept.sum()))
    for target, dumps in plan.items():
        if options.where is not None:
            options.where.check_dumps(str(dumps[0].path))
        elif target not in files:
            names = ", ".join(str(dump.path) for dump in dumps)
            raise DataError(f"{names}: no records, so there is nothing to convert")
    return files


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
        listings = [listing for _, listing in inputs if listing is not None]
        if where is None and not listings:
            yield local
            return
        if beside is not None and beside.is_file() and not overwrite:
            raise UsageError(f"{beside}: exists already", tip="--overwrite  # replaces it")
        names: dict[str, str] = {}
        rows: dict[str, NDArray[np.int64]] = {}
        with _staging(beside) as folder, naming_errors(InputPaths((), names, rows)):
            whole = Dumps()
            for part in listings:
                whole.add(part)
            options = ReadOptions(declared.map if listings else {}, rows=declared.rows,
                                  group_size=declared.group_size, where=where)  # fmt: skip
            also = CANONICAL if len(listings) == len(inputs) else None
            options = whole.read_by(options, also) if listings else options
            one_output = beside is not None and beside.suffix == ".parquet" and not beside.is_dir()
            several = len(whole.dumps) > 1 or not parse_path(local.paths[0]).is_file()
            if joined := one_output and several and len(listings) == len(inputs):
                inputs = [(", ".join(map(str, local.paths)), whole)]
            converted, told = list[PathText](), {""}
            for number, (path, listing) in enumerate(inputs):
                if listing is None:
                    converted.append(path)
                    continue
                top = folder / (JOINED if joined else str(number))
                names[str(top)] = str(path)
                dumps = [dump for dump in listing.dumps if dump in whole.dumps]
                part = replace(whole, dumps=dumps)
                files, lines = _into(top, part, options, names, joined=joined)
                lines = [line for line in lines if line not in told]
                told.add(part.format.note)
                note(without_paths("\n  ".join(lines), local.names))
                single = joined or (len(dumps) == 1 and parse_path(path).is_file())
                converted += [str(files[0].target if single else top)] if files else []
            if where is not None:
                from rlpost.formats.selected import select_rows  # noqa: PLC0415 - imports polars

                selected = select_rows(converted, where, folder / "selected", but=folder)
                converted = [*selected.paths]
                names |= selected.names
                rows |= selected.rows
                if not where.matched:
                    raise where.no_match(local.paths)
            yield InputPaths(converted, names, rows, frozenset(options.map)).made_of(local)


def _into(
    top: Path, listing: Dumps, options: ReadOptions, names: dict[str, str], *, joined: bool
) -> tuple[list[CanonicalFile], list[str]]:
    """Convert dumps to a file, or to files of a folder; return them, and what the user should know.

    Args:
        top: the file or folder.
        listing: the dumps; one without a row that matches becomes no file.
        options: how they are read.
        names: gets the dump by the path of its converted file.
        joined: `top` is a file of all dumps.
    """
    plan: dict[AnyPath, list[Dump]] = {top / dump.converted: [dump] for dump in listing.dumps}
    names |= {str(target): str(dump.path) for target, (dump,) in plan.items()}
    options = replace(options, stats=ReadStats())
    files = write_files({top: listing.dumps} if joined else plan, options, SilentReporter())
    first, *_, last = [*listing.dumps, *listing.dumps]
    where = str(first.path) if first is last else f"{first.path} to {last.path}"
    count = counted(sum(file.rows for file in files), "response")
    if listing.proposal is not None:
        return files, [f"{where}: {count}, {listing.proposal.lines}", *warnings_of(options.stats)]
    columns = {name for file in files for name in file.columns}
    missing, without = list(missing_roles(listing.format, columns)), ""
    if columns.isdisjoint(TOKEN_COLUMNS):
        lengths = " or lengths" if LENGTH in missing else ""
        missing = [role for role in missing if kind_of(role) != "tokens" and role != LENGTH]
        without = f", without columns of tokens{lengths}"
    without += f"; it has no {', '.join(missing)}" if missing else ""
    several = f"{len(listing.dumps)} dumps, " if first is not last else ""
    as_one = " as one input," if joined and several else ""
    line = f"{where}: {several}read{as_one} as {listing.format.name}, {count}{without}"
    return files, [line, listing.format.note, *warnings_of(options.stats)]


def dumps_of(path: PathText, declared: Declaration) -> Dumps | None:
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


@contextmanager
def _staging(beside: AnyPath | None) -> Iterator[Path]:
    """Yield a new folder beside the output, or in the closest parent folder that exists."""
    parent = None
    if isinstance(beside, Path):
        parent = next(folder for folder in beside.absolute().parents if folder.is_dir())
    with scratch_folder(parent) as folder:
        yield folder
