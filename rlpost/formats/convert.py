"""Conversion of other tools' dumps to canonical Parquet."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import ReadWriteError, UsageError
from rlpost.formats import format_named
from rlpost.formats.base import ReadOptions, ReadStats
from rlpost.formats.dumps import (
    Dump,
    check_options,
    common_format,
    dump_reader,
    find_dumps,
    write_dumps,
)
from rlpost.formats.exported import is_exported
from rlpost.formats.inputs import fetched_inputs
from rlpost.formats.writer import CanonicalFile, missing_roles, served_roles
from rlpost.io.input_paths import without_paths
from rlpost.io.outputs import OutputFiles
from rlpost.io.paths import PathText, check_target, parse_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlpost.display.reporter import Reporter
    from rlpost.io.paths import AnyPath


Json = dict[str, Any]


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
        options: roles, layout and groups that the dumps do not contain.
        workers: as of `rlpost.convert`.
        overwrite: as of `rlpost.convert`.
        reporter: gets the number of responses; their total is unknown.
    """
    paths = [inputs] if isinstance(inputs, PathText) else list(inputs)
    target, options, reporter = (
        parse_path(output),
        options or ReadOptions(),
        reporter or SilentReporter(),
    )
    with fetched_inputs(paths, tables=True) as local:
        summary = _convert(
            local.paths, target, source, options, reporter, workers=workers, overwrite=overwrite
        )
        for key in ("inputs", "skipped_files", "proposed"):
            if key not in summary:
                continue
            summary[key] = without_paths(summary[key], local.names)
    return summary


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
    found = find_dumps(paths, format_named(source) if source else None)
    common_format(found.dumps)
    options = found.proposed(replace(options, stats=ReadStats()))
    dumps = found.dumps
    dump_format = dumps[0].format
    check_options(dump_format, options)
    plan = plan_targets(dumps, paths, output, overwrite=overwrite)
    exported = all(is_exported(dump.path, options) for dump in dumps)
    files = write_all(plan, options, reporter, workers)
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
        "note": "" if exported else dump_format.note,
        **({"proposed": found.proposal.as_json()} if found.proposal else {}),
        "nonfinite": (nonfinite := _nonfinite(files)),
        "warnings": [
            *options.stats.warnings,
            *(f"{counted(n, noun)} {what}" for (noun, what), n in options.stats.counts.items()),
            *_attempt_warnings(options.stats.replaced),
            *_nonfinite_warnings(nonfinite),
            *_layout_warnings(options),
        ],
        "skipped_files": [str(path) for path in found.skipped],
        **({} if options.where is None else {"where": options.where.as_json()}),
        "attempts": {"kept": options.attempts, "left_out": options.stats.replaced},
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


def _nonfinite(files: Sequence[CanonicalFile]) -> dict[str, dict[str, int]]:
    """Return the counts of NaN and infinite numbers by column, over all files."""
    totals: dict[str, dict[str, int]] = {}
    for file in files:
        for name, counts in file.nonfinite.items():
            sums = totals.setdefault(name, dict.fromkeys(counts, 0))
            for what, count in counts.items():
                sums[what] += count
    return totals


def _nonfinite_warnings(nonfinite: dict[str, dict[str, int]]) -> list[str]:
    warnings = []
    for name, counts in nonfinite.items():
        rows = counted(counts["responses"], "response")
        what = (
            f"the reward of {rows} is NaN, infinite or null"
            if name == "reward"
            else f"NaN or infinite: {counted(counts['entries'], 'entry')} of {name} in {rows}"
        )
        warnings.append(f"{what}; rlpost advantages rejects that without --nonfinite mask")
    return warnings


def _attempt_warnings(replaced: int) -> list[str]:
    """Return the warning about rows that were left out because there is a later attempt."""
    text = f"{counted(replaced, 'row')} of which there is a later attempt left out"
    return [f"{text}; --attempts all keeps them"] if replaced else []


def _layout_warnings(options: ReadOptions) -> list[str]:
    stats = options.stats
    if options.layout not in (None, "response") and stats.unchanged and not stats.changed:
        text = (
            f"--layout {options.layout} changed nothing: all lists "
            f"({counted(stats.unchanged, 'response')}) already have one entry per response token"
        )
    elif stats.begins_with_0:
        text = (
            f"the mask of {counted(stats.begins_with_0, 'response')} begins with 0: if these "
            "tokens are a prompt or padding, set --layout padded or left-padded; if they belong to "
            "the response, set --layout response"
        )
    else:
        return []
    return [text]


def plan_targets(
    dumps: Sequence[Dump], inputs: Sequence[PathText], output: AnyPath, *, overwrite: bool
) -> dict[AnyPath, list[Dump]]:
    """Return the dumps of each output file: all in one `.parquet`, or a file for each dump.

    Raises:
        UsageError: a target is an input, exists already, or would be of two dumps.
        ReadWriteError: a target cannot be accessed.
    """
    single = len(inputs) == 1 and parse_path(inputs[0]).is_file()
    try:
        if not output.is_dir() and (single or output.suffix == ".parquet"):
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


def write_all(
    plan: dict[AnyPath, list[Dump]],
    options: ReadOptions,
    reporter: Reporter,
    workers: int | None = None,
) -> list[CanonicalFile]:
    """Write all files, and publish them when the last is complete."""
    reporter.start("convert", None)
    files: list[CanonicalFile] = []
    every = [*chain.from_iterable(plan.values())]
    with OutputFiles(plan) as staged, dump_reader(every, options, workers) as batches:
        for target, dumps in plan.items():
            files.append(CanonicalFile(staged.stage(target)))
            write_dumps(files[-1], dumps, options, reporter, batches)
        attempts = options.stats.attempts
        if options.attempts == "newest":
            options.stats.replaced = sum(file.leave_out(attempts) for file in files)
        for file, dumps in zip(files, plan.values(), strict=True):
            if file.rows:
                file.complete(dumps[0].format, options.tokenizer)
            else:
                staged.drop(file.target)
        if options.where is not None and not any(file.rows for file in files):
            raise options.where.no_match([one.path for dumps in plan.values() for one in dumps])
        staged.publish()
    return [file for file in files if file.rows]
