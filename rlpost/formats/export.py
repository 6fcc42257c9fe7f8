"""Exports: rows of Parquet files as files that a training framework reads."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
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
    from rlpost.formats.targets.base import ExportTarget, Held
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
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Json:
    """Run `rlpost.export` on Parquet files; return the summary as a plain mapping.

    Args:
        inputs: Parquet files, directories, globs and URLs.
        output: as of `rlpost.export`.
        to: the target's name.
        columns_map: role to column.
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
    held = held_columns(source, target, columns_map or {})
    steps = _steps(source, held, target)
    plan = {step: [parse_path(name.format(out=path, step=step)) for name in target.files]
            for step in sorted({*steps}) or [0]}  # fmt: skip
    hook, text, use = target.hook if "advantages" in held.columns else ("", "", "")
    texts = {path / hook: text} if hook else {}
    outputs = [*chain.from_iterable(plan.values()), *texts]
    resolved = {file.path.resolve() for file in source.files}
    for name in outputs:
        with file_errors(name, "cannot be written"):
            check_target(name, resolved, overwrite=overwrite)
    reporter.start("export", source.rows)
    tokens, warnings = Counter[str](), [*_warnings(source, held, target)]
    parts = _counted(_read(source, held), held, tokens, reporter)
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
        "inputs": [str(file.path) for file in source.files],
        "outputs": [str(path) for path in outputs],
        "responses": source.rows,
        "tokens": tokens.total(),
        "fields": {column: target.fields[item] for item, column in held.columns.items()},
        "others": [*held.others],
        "lost": dict(held.lost),
        "use": (target.use + use).format(out=path),
        "note": target.note,
        "warnings": warnings,
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


def _output(output: str | Path, target: ExportTarget) -> AnyPath:
    """Return the path of OUT; raise UsageError if it does not fit the target."""
    path, suffix = parse_path(output), target.suffix
    is_folder = str(output).endswith(("/", os.sep)) or path.is_dir()
    if suffix and is_folder:
        raise UsageError(f"{output}: is a directory; --to {target.name} writes one file: name it")
    if path.suffix in {".jsonl", ".parquet", ".pkl", ".pt"} - {suffix} and not is_folder:
        kind = f"a {suffix} file" if suffix else "a directory"
        raise UsageError(
            f"{path}: --to {target.name} writes {kind}, not {path.suffix}: name another"
        )
    return path


def _steps(source: Source, held: Held, target: ExportTarget) -> list[int]:
    """Return the step of each row; none if the target writes one file, or the input has no steps.

    Raises:
        DataError: a step is not a whole number.
    """
    column = held.columns.get("batch")
    if column is None or not any("{step}" in name for name in target.files):
        return []
    steps: list[int] = []
    for rows in _rows(source, [column], held, ""):
        for row, key in enumerate(rows["batch"]):
            if not str(key).removeprefix("-").isdecimal():
                why = f"--to {target.name} numbers its files by whole steps"
                raise rows.error(row, f"`{column}` is {key!r}; {why}")
            steps.append(int(key))
    return steps


def _rows(source: Source, names: Sequence[str], held: Held, sized_by: str) -> Iterator[Rows]:
    """Yield some columns of the input in pieces by a column of lists, or by rows if that is ""."""
    for chunk in source.read(names, CHUNK_TOKENS, sized_by):
        places = np.arange(chunk.first_row, chunk.first_row + chunk.table.num_rows)
        path, before = str(source.files[chunk.file].path), source.first_rows[chunk.file]
        yield Rows(chunk.table, path, places, before, held.columns)


def _read(source: Source, held: Held) -> Iterator[Rows]:
    """Yield the rows of the input, in pieces by the longest lists, else by the largest column."""
    names = [*dict.fromkeys([*held.columns.values(), *held.others])]
    lists = [x.name for x in source.schemas[0] if x.name in names and is_list(x.type)]
    largest = max(lists, key=source.values_of, default="")
    largest = largest or max(names, key=lambda name: source.bytes_of([name]))
    return _rows(source, names, held, largest)


def _by_step(parts: Iterable[Rows], steps: list[int]) -> Iterator[tuple[int, Iterable[Rows]]]:
    """Yield each step and its rows, when its last row was read; all rows if there are no steps."""
    if not steps:
        yield 0, parts
        return
    of_rows, left, waiting = np.array(steps), Counter(steps), defaultdict[int, list[Rows]](list)
    for rows in parts:
        numbers = of_rows[rows.before + rows.places]
        for step in np.unique(numbers).tolist():
            waiting[step].append(rows.take(np.flatnonzero(numbers == step)))
            left[step] -= len(waiting[step][-1])
            if not left[step]:
                yield step, waiting.pop(step)


def _counted(
    parts: Iterable[Rows], held: Held, tokens: Counter[str], reporter: Reporter
) -> Iterator[Rows]:
    """Yield rows, and count response tokens."""
    names = [held.columns[item] for item in LENGTH_OF if item in held.columns]
    names += [name for item in LENGTH_OF for name in ROLES[item].aliases]
    for rows in parts:
        kinds = dict(zip(rows.table.schema.names, rows.table.schema.types, strict=True))
        if name := next((name for name in names if is_list(kinds.get(name, pa.null()))), ""):
            tokens[name] += pc.sum(pc.list_value_length(rows.table.column(name))).as_py() or 0
        yield rows
        reporter.advance(len(rows))


def _warnings(source: Source, held: Held, target: ExportTarget) -> Iterator[str]:
    """Yield what differs from a training on the file's own columns."""
    if target.trains and "advantages" not in held.columns:
        yield f"no advantages: {target.name} computes its own; `rlpost advantages` writes them"
    unused = {*source.columns} - {*held.columns.values()}
    weights = " and ".join(f"`{name}`" for name in WEIGHTS if name in unused)
    if target.trains and weights:
        yield (
            f"the weights ({weights}) are not in the loss of {target.name}; multiply the "
            "advantages by them before the export"
        )
