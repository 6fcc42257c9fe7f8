"""Exports: rows of Parquet files as files that a training framework reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow.compute as pc

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats.targets import target_named
from rlpost.formats.targets.base import STDOUT, held_columns
from rlpost.formats.targets.parts import CHUNK_TOKENS, steps_of
from rlpost.formats.targets.rows import Rows
from rlpost.io.arrow import is_list
from rlpost.io.outputs import OutputFiles, StandardOutput, file_errors
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import check_target, parse_path
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.display.reporter import Reporter
    from rlpost.formats.targets.base import ExportColumns, ExportSink, ExportTarget, Writable
    from rlpost.io.paths import AnyPath, PathText

Json = dict[str, Any]
WEIGHTS = ("sample_weight", "is_weight")
"""Columns that multiply losses."""


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
        output: as of `rlpost.export`; `-` is standard output.
        to: the target's name.
        columns_map: role to column.
        lossy: whether columns and values that the target cannot hold are left out.
        overwrite: whether to replace existing files.
        reporter: shows the progress.
    """
    started, reporter, target = time.perf_counter(), reporter or SilentReporter(), target_named(to)
    target.available()
    path = _output(output, target)
    source = Source(find_inputs(inputs))
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows to export")
    held = held_columns(source, target, columns_map or {}, lossy=lossy)
    steps = steps_of(source, held, target)
    plan = _plan(path, target, steps, source, overwrite=overwrite)
    texts = _texts(plan, held, target, source, overwrite=overwrite)
    lengths = _lengths(held)
    rows_of = dict(Counter(steps)) or {0: source.rows}
    reporter.start("export", source.rows)
    counts = Counter[str]()
    with _Files(plan, texts, rows_of, held, target) as files:
        for rows, numbers in _read(source, held, steps):
            for step in np.unique(numbers).tolist():
                files.add(step, rows.take(np.flatnonzero(numbers == step)))
            counts += _counts(rows, lengths)
            reporter.advance(len(rows))
        source.check_unchanged()
        files.publish()
    return {
        "target": target.name,
        "title": target.title,
        "inputs": [str(file.path) for file in source.files],
        "outputs": [str(one) for one in files.outputs],
        "responses": source.rows,
        "tokens": counts["tokens"],
        "fields": {column: target.fields[item] for item, column in held.columns.items()},
        "others": [*held.others],
        "lost": dict(held.lost),
        "use": _use(target, path, plan, target.use + target.use_beside * bool(texts)),
        "note": target.note,
        "warnings": [
            *files.warnings,
            *_training_warnings(source, held, target),
            *_count_warnings(counts, held),
            *_other_steps(path, target, plan),
        ],
        "seconds": time.perf_counter() - started,
        "rlpost_version": __version__,
    }


def _output(output: str | Path, target: ExportTarget) -> AnyPath:
    """Return the path of OUT; raise UsageError if it does not fit the target."""
    path = parse_path(output)
    if path != STDOUT:
        ends = str(output).endswith(("/", os.sep))
        _check_kind(path, target, is_folder=ends or path.is_dir(), name=str(output))
    elif target.layout != "file":
        raise UsageError(f"-: --to {target.name} writes several files; name a directory")
    return path


def _use(
    target: ExportTarget, output: AnyPath, plan: Mapping[int, Sequence[AnyPath]], text: str
) -> str:
    """Return how the target reads the output, in the words of a text with the paths left out."""
    out = "FILE" if output == STDOUT else str(output)
    if [output] in plan.values():
        return text.format(out=out, file=out, folder=_folder(output))
    return text.format(out=out, file=output / target.each, folder=out)


def _folder(path: AnyPath) -> AnyPath:
    """Return the folder of a path or URL."""
    return path.parent if isinstance(path, Path) else parse_path(path.url.rpartition("/")[0])


def _plan(
    output: AnyPath, target: ExportTarget, steps: list[int], source: Source, *, overwrite: bool
) -> dict[int, list[AnyPath]]:
    """Return the files of each step; a target without steps has step 0 alone.

    Raises:
        UsageError: the output is an input, exists, or does not fit the target.
        ReadWriteError: it cannot be accessed.
    """
    numbers = sorted({*steps}) or [0]
    if output == STDOUT:
        return {0: [output]}
    if target.layout == "file":
        plan: dict[int, list[AnyPath]] = {0: [output]}
    elif target.layout == "stream":
        plan = {0: [output / "00000.jsonl", parse_path(f"{output}.index.jsonl")]}
    elif output.suffix == target.suffix:
        if len(numbers) > 1:
            raise UsageError(
                f"{output}: the input has {len(numbers)} steps, and --to {target.name} writes a "
                f"file for each: name a directory, not a {target.suffix} file"
            )
        plan = {numbers[0]: [output]}
    else:
        plan = {step: [output / f"{step}{target.suffix}"] for step in numbers}
    _check(list(chain.from_iterable(plan.values())), source, overwrite=overwrite)
    return plan


def _check_kind(output: AnyPath, target: ExportTarget, *, is_folder: bool, name: str) -> None:
    """Raise UsageError if the target writes a file and OUT is a directory, or the reverse."""
    if target.layout == "file" and is_folder:
        raise UsageError(f"{name}: is a directory; --to {target.name} writes one file: name it")
    own = target.suffix if target.layout != "stream" else ""
    if output.suffix not in {".jsonl", ".parquet", ".pkl", ".pt", own}:
        return
    if output.suffix != own and not is_folder:
        a_file = f"a {own} file{' for one step' if target.layout == 'steps' else ''}"
        kinds = ["a directory"] * (target.layout != "file") + [a_file] * bool(own)
        raise UsageError(
            f"{output}: --to {target.name} writes {' or '.join(kinds)}, not {output.suffix}: name "
            "another"
        )


def _other_steps(
    output: AnyPath, target: ExportTarget, plan: Mapping[int, Sequence[AnyPath]]
) -> list[str]:
    """Return a warning of files of other steps in the directory, which a framework reads, too."""
    if target.layout != "steps" or not isinstance(output, Path) or not output.is_dir():
        return []
    own = {str(path) for paths in plan.values() for path in paths}
    others = sorted(
        path.name
        for path in output.glob(f"*{target.suffix}")
        if path.stem.isdecimal() and str(path) not in own
    )
    some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")  # noqa: PLR2004
    text = f"{output} has files of other steps, which were there before: {some}"
    return [text] if others else []


def _check(paths: Sequence[AnyPath], source: Source, *, overwrite: bool) -> None:
    """Check that files may be written; raises as `_plan`."""
    inputs = {file.path.resolve() for file in source.files}
    for path in paths:
        try:
            check_target(path, inputs, overwrite=overwrite)
        except OSError as error:
            raise ReadWriteError(f"{path}: cannot be written: {error.strerror}") from None


def _texts(
    plan: Mapping[int, list[AnyPath]],
    held: ExportColumns,
    target: ExportTarget,
    source: Source,
    *,
    overwrite: bool,
) -> dict[AnyPath, str]:
    """Return the text files beside the others: a function for advantages, the types of columns."""
    first = next(iter(plan.values()))[0]
    if first == STDOUT:
        return {}
    texts: dict[AnyPath, str] = {
        _folder(first) / name.format(name=first.name): text
        for name, text in target.beside(held).items()
    }
    _check([*texts], source, overwrite=overwrite)
    return texts


def _read(
    source: Source, held: ExportColumns, steps: list[int]
) -> Iterator[tuple[Rows, np.ndarray[Any, Any]]]:
    """Yield the rows of the input in pieces of bounded size, and the step of each row."""
    names = [*dict.fromkeys([*held.columns.values(), *held.others])]
    of_rows = np.array(steps or [0] * source.rows, np.int64)
    for chunk in source.read(names, CHUNK_TOKENS, _largest(source, names)):
        path = str(source.files[chunk.file].path)
        rows = Rows.of(chunk, path, source.first_rows[chunk.file], held.columns)
        yield rows, of_rows[rows.numbers]


def _lengths(held: ExportColumns) -> str:
    """Return a column with a list per response for targets without a field for it, or ""."""
    names = [*ROLES["response_token_ids"].aliases, *ROLES["mask"].aliases, "advantages"]
    kinds = {one.name: one.type for one in held.schema}
    found = [name for name in names if name in held.others and is_list(kinds[name])]
    return found[0] if found else ""


def _counts(rows: Rows, lengths: str) -> Counter[str]:
    """Count response tokens, those that are trained on, and rewards that are no numbers."""
    if not rows.columns:
        tokens = pc.sum(pc.list_value_length(rows.table.column(lengths))).as_py() if lengths else 0
        return Counter(tokens=tokens or 0, trained=tokens or 0)
    tokens = rows.token_count()
    trained = sum(int(mask.sum()) for mask in rows.trained()) if tokens else 0
    bad = int((~np.isfinite(rows.numbers_of("reward"))).sum()) if "reward" in rows else 0
    return Counter(tokens=tokens, trained=trained, bad=bad)


def _training_warnings(source: Source, held: ExportColumns, target: ExportTarget) -> list[str]:
    """Return warnings of a training that differs from that of the file's own columns."""
    if not target.trains:
        return []
    found = []
    if "advantages" not in held.columns:
        found.append(
            f"no advantages: {target.name} computes its own; `rlpost advantages` writes them"
        )
    weights = [name for name in WEIGHTS if name in source.columns]
    weights = [name for name in weights if name not in held.columns.values()]
    if weights:
        names = " and ".join(f"`{name}`" for name in weights)
        found.append(
            f"the weights ({names}) are not in the loss of {target.name}; multiply the advantages "
            "by them before the export"
        )
    return found


def _count_warnings(counts: Counter[str], held: ExportColumns) -> list[str]:
    """Return warnings of rewards that are no numbers, and of an export that trains nothing."""
    found = []
    if counts["bad"]:
        rows = counted(counts["bad"], "response")
        found.append(f"`{held.columns['reward']}` is NaN, infinite or null in {rows}")
    if counts["tokens"] and not counts["trained"]:
        masks = [held.columns[name] for name in ("mask", "sample_mask") if name in held.columns]
        found.append(f"no token is trained on: {' and '.join(masks)} leave all out")
    return found


def _largest(source: Source, names: Sequence[str]) -> str:
    """Return the column with the most bytes."""
    sizes = dict.fromkeys(names, 0)
    for footer in source.footers:
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            for index in range(group.num_columns):
                chunk = group.column(index)
                name = chunk.path_in_schema.partition(".")[0]
                if name in sizes:
                    sizes[name] += chunk.total_uncompressed_size
    return max(sizes, key=lambda name: sizes[name])


class _Files:
    """The files of an export, which appear when the last one is complete.

    Args:
        plan: step -> its files.
        texts: other files, and their contents.
        rows: the number of rows of each step; its files are written after its last row.
        held: the columns.
        target: the target.
    """

    def __init__(
        self,
        plan: Mapping[int, list[AnyPath]],
        texts: Mapping[AnyPath, str],
        rows: Mapping[int, int],
        held: ExportColumns,
        target: ExportTarget,
    ) -> None:
        self._plan, self._texts, self._rows = plan, texts, dict(rows)
        self._held, self._target = held, target
        paths = [*chain.from_iterable(plan.values()), *texts]
        self._stdout = StandardOutput()
        self._staged = OutputFiles(path for path in paths if path != STDOUT)
        self.outputs: list[AnyPath] = paths
        self._sinks: dict[int, ExportSink] = {}
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        self._staged.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._staged.__exit__(*error)

    def _open(self, path: AnyPath) -> Writable | Path:
        return self._stdout if path == STDOUT else self._staged.stage(path)

    def add(self, step: int, rows: Rows) -> None:
        """Write rows of a step."""
        if step not in self._sinks:
            files = [self._open(path) for path in self._plan[step]]
            self._sinks[step] = self._target.open(files, self._held, step)
        sink = self._sinks[step]
        path = self._plan[step][0]
        with nullcontext() if path == STDOUT else file_errors(path, "cannot be written"):
            sink.add(rows)
            self._rows[step] -= len(rows)
            if not self._rows[step]:
                self.warnings += sink.finish()
                del self._sinks[step]

    def publish(self) -> None:
        """Complete the files, and rename them to their targets."""
        for path, text in self._texts.items():
            with file_errors(path, "cannot be written"):
                self._staged.stage(path).path.write_text(text, encoding="utf-8")
        if not self._staged.targets:
            self._stdout.flush()
        self._staged.complete()
        self._staged.publish()
