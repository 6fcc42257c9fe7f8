"""Whether enriched files are what they claim: they are made again from what they hold.

An enriched file has its input's columns, unchanged, and its metadata says by which recipe the new
ones were made of them. So they can be made again and compared, and the summary with them. Of the
columns that were kept nothing in the file says what they were; that all of them decode is checked.

Differences between what a file holds and what it should hold: of columns, and of summaries.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost._version import __version__
from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import is_list
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.reader import damaged_columns
from rlpost.io.parquet.sink import SourceReader
from rlpost.io.parquet.source import Source
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.engine import single_threaded_torch
from rlpost.pipeline.file_metadata import FileMetadata, cut
from rlpost.pipeline.options import Options
from rlpost.pipeline.output import emitted
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import bind, engine_for
from rlpost.pipeline.summary import summarise
from rlpost.pipeline.totals import ExactTotals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""How far scans over tokens may be apart that were made in other pieces, or on another device."""
_LONG = 60  # characters of a value in a sentence
GOOD = ("identical", "equal to rounding")


@dataclass
class Difference:
    """How far a column is from what it should be."""

    name: str
    rows: int = 0
    differing: int = 0
    first: int | None = None
    largest: float = 0.0
    """Of absolute differences."""
    rounded: bool = False
    """Some bits differ, all within rounding."""
    kinds: list[str] = field(default_factory=list)

    def add(self, held: pa.Array, made: pa.Array) -> None:
        """Compare the next rows: as the file has them, and as they are made."""
        start, self.rows = self.rows, self.rows + len(made)
        if held.type != made.type or held.null_count:
            self.kinds = [str(held.type), str(made.type)]
            self._note(start, np.ones(len(made), np.bool_))
            return
        if held.equals(made):
            return
        if is_list(made.type):
            wrong = _numbers(held.value_lengths()) != _numbers(made.value_lengths())
            if wrong.any():
                self._note(start, wrong)
                return
            owner = np.repeat(np.arange(len(made)), _numbers(made.value_lengths()).astype(int))
            far = self._far(_numbers(held.flatten()), _numbers(made.flatten()))
            self._note(start, np.bincount(owner[far], minlength=len(made)) > 0)
        else:
            self._note(start, self._far(_numbers(held), _numbers(made)))

    def _far(self, held: NDArray[Any], made: NDArray[Any]) -> NDArray[np.bool_]:
        """Which numbers are further apart than rounding explains."""
        apart = np.abs(held - made)
        self.largest = max(self.largest, float(apart.max(initial=0.0)))
        self.rounded = True
        near: NDArray[np.bool_] = apart <= ABSOLUTE + RELATIVE * np.abs(made)
        return ~near  # NaN is far from everything

    def _note(self, start: int, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            self.differing += int(wrong.sum())
            if self.first is None:
                self.first = start + int(np.flatnonzero(wrong)[0])

    def facts(self) -> Json:
        """The verdict: `identical`, `equal to rounding` or `differs`, and where."""
        verdict = (
            "differs" if self.differing else "equal to rounding" if self.rounded else "identical"
        )
        largest = self.largest if math.isfinite(self.largest) else None
        return {
            "column": self.name,
            "verdict": verdict,
            "rows": self.differing,
            "first_row": self.first,
            "largest_difference": largest,
            **({"types": self.kinds} if self.kinds else {}),
        }


def _numbers(array: pa.Array) -> NDArray[np.float64]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)


def summary_differences(claimed: Json, made: Json) -> list[str]:
    """Where two summaries differ: each the path of a value, what is claimed and what it is."""
    found = []
    for path, left, right in _pairs(claimed, made, ""):
        close = left == right or (
            isinstance(left, float | int)
            and isinstance(right, float | int)
            and math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        )
        # How a role's column was found, and warnings in words, depend on what stands beside it.
        if not close and not path.endswith(".found_by") and not path.startswith("warnings"):
            found.append(f"{path}: {_short(left)} is claimed, {_short(right)} it is")
    return found


def _short(value: Any) -> str:
    """A value that may be a table, in a line."""
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _pairs(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The values of two structures at the same places."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            below = f"{path}.{key}".lstrip(".")
            yield from _pairs(left.get(key), right.get(key), below)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _pairs(one, other, f"{path}[{place}]")
    else:
        yield path, left, right


_SHOWN = 5  # differences of a summary


def verify(paths: Sequence[str | Path], options: Options | None = None) -> Json:
    """Make the new columns of enriched files again, from their own metadata, and compare.

    Args:
        paths: enriched files, directories or globs; the statistics of a run may span its files, so
            all files of a run are needed.
        options: how it is done.

    Returns:
        Whether all is as it should be (`ok`), and for each file: what differs, by column; columns
        that do not decode (`damaged`); `notes` of what could not be compared.

    Raises:
        UsageError: files of a run are missing.
        DataError: a file is not an enriched one, its metadata is damaged, or it lacks what its
            columns were made of.
        ReadWriteError: a file can't be read.
    """
    source = Source(find_inputs([str(path) for path in paths]))
    runs: dict[str, list[EnrichedFile]] = defaultdict(list)
    for file, footer in zip(source.files, source.footers, strict=True):
        metadata = FileMetadata.read(str(file.path), footer.metadata or {})
        runs[metadata.run].append(EnrichedFile(file, footer.num_rows, metadata))
    options = options or Options()
    verdicts = [verdict for run in runs.values() for verdict in _verified(run, options)]
    return {
        "ok": all(verdict["ok"] for verdict in verdicts),
        "files": sorted(verdicts, key=lambda verdict: str(verdict["file"])),
        "rlpost_version": __version__,
    }


def _verified(run: list[EnrichedFile], options: Options) -> list[Json]:
    """The verdicts on all files of one run."""
    run = sorted(run, key=lambda enriched: enriched.metadata.file)
    _check_complete(run)
    options.reporter.start("decode", sum(enriched.rows for enriched in run))
    damage = [damaged_columns(enriched.file.path, options.reporter.advance) for enriched in run]
    try:
        verdicts = _compared(run, damage, options)
    except DataError as error:
        if not any(damage):
            raise
        note = f"its columns were not made again: {error}"
        verdicts = [_unmade(enriched, note) for enriched in run]
    return [_with_damage(*pair) for pair in zip(verdicts, damage, strict=True)]


def _check_complete(run: list[EnrichedFile]) -> None:
    """Raise UsageError where files of a run, in order, are missing or there twice."""
    first = run[0]
    here = [enriched.metadata.file for enriched in run]
    if len(here) == first.metadata.files and here == [*range(len(here))]:
        return
    twice = next((number for number in here if here.count(number) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{run[here.index(twice)].file.path}: is there twice; name each file of a run once"
        )
    raise UsageError(
        f"{first.file.path}: is of a run of {first.metadata.files} files, and {len(run)} of them "
        f"{'is' if len(run) == 1 else 'are'} here: groups and batches may span files, so all "
        "are needed: rlpost verify OUTDIR"
    )


def _compared(
    run: list[EnrichedFile], damage: Sequence[Collection[str]], options: Options
) -> list[Json]:
    """Make the columns of all files of a run again, and compare those that decode."""
    first = run[0]
    running = {name: RunningMoments(**values) for name, values in first.metadata.running.items()}
    with _blaming(first):
        before = _Before([enriched.file for enriched in run], first.metadata.recipe)
    with closing(before) as source:
        if first.metadata.rows not in (-1, source.rows):
            raise DataError(
                f"{first.file.path}: the files of its run have {source.rows} rows, and had "
                f"{first.metadata.rows}"
            )
        _check_roles(source, first)
        with _blaming(first):
            job = bind(source, first.metadata.recipe, running)
        engine = engine_for(job, options)
        with single_threaded_torch(), _blaming(first):
            responses = engine.responses()
            options.reporter.start("compare", source.rows)
            return [
                _verdict(engine, responses, index, enriched, damage[index])
                for index, enriched in enumerate(run)
            ]


@contextmanager
def _blaming(enriched: EnrichedFile) -> Iterator[None]:
    """A recipe that does not fit the file is the file's, and no mistake of the command line."""
    try:
        yield
    except UsageError as error:
        raise DataError(
            f"{enriched.file.path}: cannot be made again by the recipe in its metadata: "
            f"{cut(error)}"
        ) from None


def _unmade(enriched: EnrichedFile, note: str) -> Json:
    """What can be said of a file where its run can't be made again."""
    return {
        "file": str(enriched.file.path),
        "ok": False,
        "rows": enriched.rows,
        "version": enriched.metadata.version,
        "estimator": enriched.metadata.recipe.estimator,
        "columns": [],
        "kept_columns": None,
        "summary": [],
        "notes": [*enriched.metadata.notes, note],
    }


def _with_damage(verdict: Json, damage: Mapping[str, str]) -> Json:
    """The verdict on a file, with the columns that do not decode."""
    nothing = {"rows": None, "first_row": None, "largest_difference": None}
    damaged = [
        {"column": name, "verdict": "damaged", **nothing, "why": why}
        for name, why in damage.items()
    ]
    return {
        **verdict,
        "ok": verdict["ok"] and not damaged,
        "columns": [*verdict["columns"], *damaged],
    }


class EnrichedFile(NamedTuple):
    """An enriched file, its rows, and its metadata."""

    file: InputFile
    rows: int
    metadata: FileMetadata


class _Before(Source):
    """Enriched files as they were before: without the columns that the recipe added."""

    def __init__(self, files: Sequence[InputFile], recipe: Recipe) -> None:
        super().__init__(files)
        self.written = emitted(resolve_recipe(recipe, columns_of(self, recipe)))
        self.found = self.schemas
        self.schemas = [
            pa.schema([one for one in schema if one.name not in self.written])
            for schema in self.schemas
        ]
        del self.columns


def _check_roles(source: _Before, enriched: EnrichedFile) -> None:
    """Raise DataError where the file lacks a column that it was made of."""
    if enriched.metadata.summary is None:
        return
    for role, told in enriched.metadata.summary["roles"].items():
        if told["column"] not in source.columns:
            why = (
                "--emit-only left it out"
                if enriched.metadata.recipe.emit_only
                else "--replace replaced it"
                if told["column"] in source.written
                else "it may have come from the names of the input's folders"
            )
            raise DataError(
                f"{enriched.file.path}: cannot be made again: the column {told['column']}, its "
                f"{role}, is not in it ({why})"
            )


def _verdict(
    engine: Engine,
    responses: Responses,
    index: int,
    enriched: EnrichedFile,
    damaged: Collection[str],
) -> Json:
    """Make one file's columns again and compare them with those that it has."""
    job, source = engine.plan, engine.plan.source
    assert isinstance(source, _Before)
    names = source.written
    missing = [name for name in names if name not in source.found[index].names]
    there = [name for name in names if name not in missing and name not in damaged]
    differences = {name: Difference(name) for name in there}
    rows = SourceReader(enriched.file.path, there, ())
    tally = ExactTotals()
    for made in engine.last_pass(index, responses, names, lambda columns: columns):
        tally += made.totals
        for row_group, columns in made.parts:
            left = columns
            while left.num_rows and there:
                held = rows.read(row_group, left.num_rows)
                for name in there:
                    differences[name].add(held.column(name), left.column(name).slice(0, len(held)))
                left = left.slice(held.num_rows)
    first, last = source.first_rows[index : index + 2]
    again = json.loads(json.dumps(summarise(job, responses.rows(first, last), tally)))
    columns = [one.facts() for one in differences.values()]
    columns += [{"column": name, "verdict": "missing", "rows": last - first} for name in missing]
    summary = (
        summary_differences(enriched.metadata.summary, again) if enriched.metadata.summary else []
    )
    return {
        "file": str(enriched.file.path),
        "ok": not summary and all(column["verdict"] in GOOD for column in columns),
        "rows": last - first,
        "version": enriched.metadata.version,
        "estimator": enriched.metadata.recipe.estimator,
        "columns": columns,
        "kept_columns": len(source.schemas[index].names),
        "summary": summary[:_SHOWN],
        "notes": enriched.metadata.notes,
    }
