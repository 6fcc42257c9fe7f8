"""Exports: rows of Parquet files as files that a training framework reads."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError
from rlpost.formats.targets import target_named
from rlpost.formats.targets.base import LENGTH_OF, Rows, held_columns
from rlpost.io.arrow import is_list
from rlpost.io.outputs import OutputFiles, file_errors
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import check_target, parse_path
from rlpost.optional import need
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.display.reporter import Reporter
    from rlpost.formats.targets.base import ExportColumns, ExportTarget
    from rlpost.io.paths import AnyPath, PathText

Json = dict[str, Any]
WEIGHTS = ("sample_weight", "is_weight")
"""Columns that multiply losses."""
CHUNK_TOKENS = 1 << 16
"""Of the largest column at a time: as Python objects they need 32 bytes each."""


def export(
    inputs: Sequence[PathText],
    output: str | Path,
    to: str,
    columns_map: Mapping[str, str] | None = None,
    *,
    lossy: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Json:
    """Run `rlpost.export` on Parquet files; return the summary as a plain mapping.

    Args:
        inputs: Parquet files, directories, globs and URLs.
        output: as of `rlpost.export`.
        to: the target's name.
        columns_map: role to column.
        lossy: whether columns and values that the target cannot hold are left out.
        overwrite: whether to replace existing files.
        reporter: shows the progress.
    """
    started, reporter, target = time.perf_counter(), reporter or SilentReporter(), target_named(to)
    if target.library:
        what = f"--to {target.name}, whose file {target.library} itself writes,"
        need(what, target.library, target.library)
    path = _output(output, target)
    source = Source(find_inputs(inputs))
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows to export")
    held = held_columns(source, target, columns_map or {}, lossy=lossy)
    steps = _steps(source, held, target)
    plan = _plan(path, target, sorted({*steps}) or [0])
    texts = {parse_path(f"{path}{end}"): text for end, text in target.beside(held).items()}
    outputs = [*chain.from_iterable(plan.values()), *texts]
    resolved = {file.path.resolve() for file in source.files}
    for name in outputs:
        with file_errors(name, "cannot be written"):
            check_target(name, resolved, overwrite=overwrite)
    reporter.start("export", source.rows)
    counts, warnings = Counter[str](), list[str]()
    parts = _counted(_read(source, held), held, counts, reporter)
    with OutputFiles(outputs) as staged:
        for step, rows in _by_step(parts, steps):
            files = [*map(staged.stage, plan[step])]
            with file_errors(plan[step][0], "cannot be written"):
                warnings += target.write(rows, files, held, step)
        source.check_unchanged()
        for name, text in texts.items():
            with file_errors(name, "cannot be written"):
                staged.stage(name).path.write_text(text, encoding="utf-8")
        staged.complete()
        staged.publish()
    return {
        "target": target.name,
        "title": target.title,
        "inputs": [str(file.path) for file in source.files],
        "outputs": [str(path) for path in outputs],
        "responses": source.rows,
        "tokens": counts["tokens"],
        "fields": {column: target.fields[item] for item, column in held.columns.items()},
        "others": [*held.others],
        "lost": dict(held.lost),
        "use": (target.use + target.use_beside * bool(texts)).format(out=path),
        "note": target.note,
        "warnings": [*warnings, *_warnings(source, held, target, counts)],
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


def _output(output: str | Path, target: ExportTarget) -> AnyPath:
    """Return the path of OUT; raise UsageError if it does not fit the target."""
    path, is_file = parse_path(output), target.layout == "file"
    is_folder = str(output).endswith(("/", os.sep)) or path.is_dir()
    if is_file and is_folder:
        raise UsageError(f"{output}: is a directory; --to {target.name} writes one file: name it")
    fits = {target.suffix} if is_file else set()
    if path.suffix in {".jsonl", ".parquet", ".pkl", ".pt"} - fits and not is_folder:
        kind = f"a {target.suffix} file" if is_file else "a directory"
        raise UsageError(
            f"{path}: --to {target.name} writes {kind}, not {path.suffix}: name another"
        )
    return path


def _steps(source: Source, held: ExportColumns, target: ExportTarget) -> list[int]:
    """Return the step of each row; none if the target writes one file, or the input has no steps.

    Raises:
        DataError: a step is not a whole number.
    """
    column = held.columns.get("batch")
    if target.layout != "steps" or column is None:
        return []
    steps: list[int] = []
    for rows in _rows(source, [column], held, ""):
        for row, key in enumerate(rows.keys("batch")):
            if not str(key).removeprefix("-").isdecimal():
                why = f"--to {target.name} numbers its files by whole steps"
                raise rows.error(row, f"`{column}` is {key!r}; {why}")
            steps.append(int(key))
    return steps


def _plan(output: AnyPath, target: ExportTarget, steps: list[int]) -> dict[int, list[AnyPath]]:
    """Return the files of each step."""
    if target.layout == "file":
        return {0: [output]}
    if target.layout == "stream":
        return {0: [output / "00000.jsonl", parse_path(f"{output}.index.jsonl")]}
    return {step: [output / f"{step}{target.suffix}"] for step in steps}


def _rows(
    source: Source, names: Sequence[str], held: ExportColumns, sized_by: str
) -> Iterator[Rows]:
    """Yield some columns of the input in pieces by a column of lists, or by rows if that is ""."""
    for chunk in source.read(names, CHUNK_TOKENS, sized_by):
        places = np.arange(chunk.first_row, chunk.first_row + chunk.table.num_rows)
        path, before = str(source.files[chunk.file].path), source.first_rows[chunk.file]
        yield Rows(chunk.table, path, places, before, held.columns)


def _read(source: Source, held: ExportColumns) -> Iterator[Rows]:
    """Yield the rows of the input, in pieces by the longest lists, else by the largest column."""
    names = [*dict.fromkeys([*held.columns.values(), *held.others])]
    lists = [column.name for column in held.schema if is_list(column.type)]
    largest = max(lists, key=source.values_of, default="")
    largest = largest or max(names, key=lambda name: source.bytes_of([name]))
    return _rows(source, names, held, largest)


def _by_step(parts: Iterable[Rows], steps: list[int]) -> Iterator[tuple[int, Iterable[Rows]]]:
    """Yield each step and its rows, when its last row was read; all rows if there are no steps."""
    if not steps:
        yield 0, parts
        return
    of_rows, left, held = np.array(steps), Counter(steps), defaultdict[int, list[Rows]](list)
    for rows in parts:
        numbers = of_rows[rows.before + rows.places]
        for step in np.unique(numbers).tolist():
            held[step].append(rows.take(np.flatnonzero(numbers == step)))
            left[step] -= len(held[step][-1])
            if not left[step]:
                yield step, held.pop(step)


def _counted(
    parts: Iterable[Rows], held: ExportColumns, counts: Counter[str], reporter: Reporter
) -> Iterator[Rows]:
    """Yield rows; count response tokens, those trained on, and rewards that are no numbers."""
    lists = {column.name for column in held.schema if is_list(column.type)}
    names = [held.columns[item] for item in LENGTH_OF if item in held.columns]
    names += [name for item in LENGTH_OF for name in ROLES[item].aliases]
    lengths = next((name for name in names if name in lists), "")
    for rows in parts:
        if lengths:
            tokens = pc.sum(pc.list_value_length(rows.table.column(lengths))).as_py() or 0
            masked = tokens and ("mask" in rows or "sample_mask" in rows)
            counts["trained"] += sum(int(x.sum()) for x in rows.trained()) if masked else tokens
            counts["tokens"] += tokens
        if "reward" in rows:
            counts["bad"] += int((~np.isfinite(rows.numbers_of("reward"))).sum())
        yield rows
        reporter.advance(len(rows))


def _warnings(
    source: Source, held: ExportColumns, target: ExportTarget, counts: Mapping[str, int]
) -> Iterator[str]:
    """Yield what differs from a training on the file's own columns, and what trains nothing."""
    if target.trains and "advantages" not in held.columns:
        yield f"no advantages: {target.name} computes its own; `rlpost advantages` writes them"
    unused = {*source.columns} - {*held.columns.values()}
    weights = " and ".join(f"`{name}`" for name in WEIGHTS if name in unused)
    if target.trains and weights:
        yield (
            f"the weights ({weights}) are not in the loss of {target.name}; multiply the "
            "advantages by them before the export"
        )
    if counts["bad"]:
        rows = counted(counts["bad"], "response")
        yield f"`{held.columns['reward']}` is NaN, infinite or null in {rows}"
    if counts["tokens"] and not counts["trained"]:
        masks = [held.columns[name] for name in ("mask", "sample_mask") if name in held.columns]
        yield f"no token is trained on: {' and '.join(masks)} leave all out"
