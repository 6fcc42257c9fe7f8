"""Conversion of other tools' dumps to canonical Parquet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats import format_named
from rlpost.formats.base import ReadOptions, ReadStats
from rlpost.formats.dumps import (
    Dump,
    check_options,
    common_format,
    find_dumps,
    is_empty,
)
from rlpost.formats.fetching import fetched_inputs
from rlpost.formats.reading import no_field
from rlpost.formats.records import first_names
from rlpost.formats.writer import CanonicalFile, missing_roles, served_roles
from rlpost.io.input_paths import without_paths
from rlpost.io.outputs import OutputFiles
from rlpost.io.paths import PathText, check_target, is_output_folder, parse_path
from rlpost.io.processes import Processes
from rlpost.io.system import cores
from rlpost.io.threads import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlpost.display.reporter import Reporter
    from rlpost.io.paths import AnyPath


Json = dict[str, Any]
DumpBatches: TypeAlias = Iterator[pa.RecordBatch | None]
_LARGE = 128 << 20  # bytes; of fewer, two processes save less time than their start takes


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
    paths = [inputs] if isinstance(inputs, PathText) else list(inputs)
    with fetched_inputs(paths, tables=True) as local:
        summary = _convert(
            local.paths, parse_path(output), source, options or ReadOptions(),
            reporter or SilentReporter(), workers=workers, overwrite=overwrite,
        )  # fmt: skip
        named = {"inputs", "skipped_files", "proposed"} & summary.keys()
        return summary | {key: without_paths(summary[key], local.names) for key in named}


def _convert(
    paths: Sequence[PathText],
    output: AnyPath,
    source: str | None,
    options: ReadOptions,
    reporter: Reporter,
    *,
    workers: int | None,
    overwrite: bool,
) -> Json:
    started = time.perf_counter()
    listing = find_dumps(paths, format_named(source) if source else None)
    common_format(listing.dumps)
    asked, options = options.map, listing.proposed(replace(options, stats=ReadStats()))
    dumps = listing.dumps
    if listing.proposal is not None and (lost := [x for x in asked if x not in options.map]):
        fields = [field.path for field in listing.proposal.fields]
        raise no_field(str(dumps[0].path), lost[0], asked[lost[0]], fields)
    dump_format = dumps[0].format
    check_options(dump_format, options)
    plan = plan_targets(dumps, output, overwrite=overwrite)
    files = write_files(plan, options, reporter, workers)
    if not files and options.where is not None:
        raise options.where.no_match([dump.path for dump in dumps])
    columns = files[0].columns
    return {
        "format": dump_format.name,
        "title": dump_format.title,
        "inputs": [str(dump.path) for dump in dumps],
        "outputs": [str(file.target) for file in files],
        "responses": sum(file.rows for file in files),
        "tokens": sum(file.tokens for file in files),
        "columns": columns,
        "roles": served_roles(columns),
        "sources": {
            name: field for name, field in dump_format.sources(options).items() if name in columns
        },
        "missing_roles": dict(missing_roles(dump_format, columns)),
        "note": dump_format.note,
        **({"proposed": listing.proposal.as_json()} if listing.proposal else {}),
        "warnings": warnings_of(options.stats),
        "skipped_files": [str(path) for path in listing.skipped],
        **({} if options.where is None else {"where": options.where.as_json()}),
        "attempts": {"kept": options.attempts, "left_out": options.stats.replaced},
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


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
    try:
        if not is_output_folder(output):
            plan: dict[AnyPath, list[Dump]] = {output: list(dumps)}
        else:
            plan = {}
            for dump in dumps:
                target = output / dump.converted
                if target in plan:
                    raise UsageError(
                        f"{dump.path} and {plan[target][0].path} would both become {target}: name "
                        "their parent directory, so that the output has the same subdirectories"
                    )
                plan[target] = [dump]
        sources = {dump.path.resolve() for dump in dumps}
        for target in plan:
            check_target(target, sources, overwrite=overwrite)
    except OSError as error:
        raise ReadWriteError(f"{output}: cannot be written: {error.strerror}") from None
    return plan


@contextmanager
def dump_reader(
    dumps: Sequence[Dump], options: ReadOptions, workers: int | None
) -> Iterator[DumpBatches]:
    """Yield the batches of dumps whose rows match, in order; None follows the last one of each.

    Processes read them, each a whole dump at a time.

    Args:
        dumps: in the order of their batches.
        options: what the dumps do not contain; what is counted, and the attempts of all rows, are
            added to its `stats`.
        workers: processes; None: one per core and dump, at most 8, if the dumps are large.

    Raises:
        DataError, NotEnoughMemoryError, ReadWriteError: as `read_dump`.
    """
    read = replace(options, where=None)
    number = min(workers or min(cores(), MOST_WORKERS), len(dumps))
    small = workers is None and sum(dump.size for dump in dumps) < _LARGE
    if number == 1 or small or options.group_size is not None:  # blocks are counted over all dumps
        here = (batch for dump in dumps for batch in chain(dump.read(read), (None,)))
        yield _matching(dumps, here, options)
        return
    with Processes(number) as processes:
        yield _matching(
            dumps, _counted(processes.map(_read_whole, read, iter(dumps)), options), options
        )


def _matching(dumps: Sequence[Dump], batches: DumpBatches, options: ReadOptions) -> DumpBatches:
    for dump in dumps:
        rows = options.stats.attempts.recorded(iter(batches.__next__, None))
        yield from rows if options.where is None else options.where.batches(rows, dump.path)
        yield None


def _counted(
    results: Iterator[tuple[pa.RecordBatch | None, ReadStats]], options: ReadOptions
) -> DumpBatches:
    for batch, stats in results:
        options.stats.add(stats)
        yield batch


def _read_whole(
    options: ReadOptions, dump: Dump
) -> Iterator[tuple[pa.RecordBatch | None, ReadStats]]:
    """Yield the batches of a dump and None, and what was counted with the last one."""
    options = replace(options, stats=(stats := ReadStats()))
    for batch in dump.read(options):
        yield batch, ReadStats()
    yield None, stats


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
        workers: as of `dump_reader`.

    Returns:
        The files that have rows; others, of which no row matches, are not written.

    Raises:
        DataError: a record is bad; or there is none, and no condition excluded any.
        ReadWriteError: reading or writing failed.
    """
    reporter.start("convert", None)
    files: list[CanonicalFile] = []
    dumps_of_all = [*chain.from_iterable(plan.values())]
    with OutputFiles(plan) as staged, dump_reader(dumps_of_all, options, workers) as batches:
        for target, dumps in plan.items():
            file = CanonicalFile(staged.stage(target))
            files.append(file)
            for dump in dumps:
                for batch in iter(batches.__next__, None):
                    file.append(batch, str(dump.path))
                    reporter.advance(batch.num_rows)
            if not file.rows and options.where is None:
                raise _no_records(dumps)
        if options.attempts == "newest":
            attempts = options.stats.attempts
            options.stats.replaced = sum(file.leave_out(attempts) for file in files)
        for file, dumps in zip(files, plan.values(), strict=True):
            if file.rows:
                file.complete(dumps[0].format)
            else:
                staged.drop(file.target)
        staged.publish()
    return [file for file in files if file.rows]


def _no_records(dumps: Sequence[Dump]) -> DataError:
    names = ", ".join(str(dump.path) for dump in dumps)
    empty = all(is_empty(dump.path) for dump in dumps)
    files = "the file is" if len(dumps) == 1 else "the files are"
    what = f"{files} empty" if empty else "no records"
    return DataError(f"{names}: {what}, so there is nothing to convert")
