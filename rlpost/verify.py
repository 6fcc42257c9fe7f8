"""Whether enriched files are what they claim: they are made again from what they hold.

An enriched file has its input's columns, unchanged, and its metadata says by which recipe the new
ones were made of them. So they can be made again and compared, and the summary with them. Of the
columns that were kept nothing in the file says what they were; that all of them decode is checked.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost._version import __version__
from rlpost.claims import Claim, claim_of, cut
from rlpost.columns import columns_of
from rlpost.differences import GOOD, Difference, summary_differences
from rlpost.engine import single_threaded_torch
from rlpost.errors import DataError, UsageError
from rlpost.kernels.rewards import RunningMoments
from rlpost.output import emitted
from rlpost.parquet.damage import damaged_columns
from rlpost.parquet.inputs import find_inputs
from rlpost.parquet.rewrite import SourceRows
from rlpost.parquet.source import Source
from rlpost.report import summarise
from rlpost.run import bind, engine_of
from rlpost.run_options import Options
from rlpost.shape import shape_of
from rlpost.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.batch import Responses
    from rlpost.engine import Engine
    from rlpost.parquet.inputs import InputFile
    from rlpost.recipe import Recipe

Json = dict[str, Any]
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
    claims = [
        claim_of(file, footer.num_rows, footer.metadata or {})
        for file, footer in zip(source.files, source.footers, strict=True)
    ]
    runs: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        runs[claim.part.run].append(claim)
    options = options or Options()
    verdicts = [verdict for run in runs.values() for verdict in _verified(run, options)]
    return {
        "ok": all(verdict["ok"] for verdict in verdicts),
        "files": sorted(verdicts, key=lambda verdict: str(verdict["file"])),
        "rlpost_version": __version__,
    }


def _verified(run: list[Claim], options: Options) -> list[Json]:
    """The verdicts on all files of one run."""
    run = sorted(run, key=lambda claim: claim.part.file)
    _check_complete(run)
    options.reporter.start("decode", sum(claim.rows for claim in run))
    damage = [damaged_columns(claim.file.path, options.reporter.advance) for claim in run]
    try:
        verdicts = _compared(run, damage, options)
    except DataError as error:
        if not any(damage):
            raise
        note = f"its columns were not made again: {error}"
        verdicts = [_unmade(claim, note) for claim in run]
    return [_with_damage(*pair) for pair in zip(verdicts, damage, strict=True)]


def _check_complete(run: list[Claim]) -> None:
    """Raise UsageError where files of a run, in order, are missing or there twice."""
    first = run[0]
    here = [claim.part.file for claim in run]
    if len(here) == first.part.files and here == [*range(len(here))]:
        return
    twice = next((number for number in here if here.count(number) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{run[here.index(twice)].file.path}: is there twice; name each file of a run once"
        )
    raise UsageError(
        f"{first.file.path}: is of a run of {first.part.files} files, and {len(run)} of them "
        f"{'is' if len(run) == 1 else 'are'} here: groups and batches may span files, so all "
        "are needed: rlpost verify OUTDIR"
    )


def _compared(run: list[Claim], damage: Sequence[Collection[str]], options: Options) -> list[Json]:
    """Make the columns of all files of a run again, and compare those that decode."""
    first = run[0]
    running = {name: RunningMoments(**values) for name, values in first.part.running.items()}
    with _blaming(first):
        before = _Before([claim.file for claim in run], first.recipe)
    with closing(before) as source:
        if first.part.rows not in (-1, source.rows):
            raise DataError(
                f"{first.file.path}: the files of its run have {source.rows} rows, and had "
                f"{first.part.rows}"
            )
        _check_roles(source, first)
        with _blaming(first):
            job = bind(source, first.recipe, running)
        engine = engine_of(job, options)
        with single_threaded_torch(), _blaming(first):
            responses = engine.responses()
            options.reporter.start("compare", source.rows)
            return [
                _verdict(engine, responses, index, claim, damage[index])
                for index, claim in enumerate(run)
            ]


@contextmanager
def _blaming(claim: Claim) -> Iterator[None]:
    """A recipe that does not fit the file is the file's, and no mistake of the command line."""
    try:
        yield
    except UsageError as error:
        raise DataError(
            f"{claim.file.path}: cannot be made again by the recipe in its metadata: {cut(error)}"
        ) from None


def _unmade(claim: Claim, note: str) -> Json:
    """What can be said of a file where its run can't be made again."""
    return {
        "file": str(claim.file.path),
        "ok": False,
        "rows": claim.rows,
        "version": claim.version,
        "estimator": claim.recipe.estimator,
        "columns": [],
        "kept_columns": None,
        "summary": [],
        "notes": [*claim.notes, note],
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


class _Before(Source):
    """Enriched files as they were before: without the columns that the recipe added."""

    def __init__(self, files: Sequence[InputFile], recipe: Recipe) -> None:
        super().__init__(files)
        self.written = emitted(shape_of(recipe, columns_of(self, recipe)))
        self.found = self.schemas
        self.schemas = [
            pa.schema([one for one in schema if one.name not in self.written])
            for schema in self.schemas
        ]
        del self.columns


def _check_roles(source: _Before, claim: Claim) -> None:
    """Raise DataError where the file lacks a column that it was made of."""
    if claim.summary is None:
        return
    for role, told in claim.summary["roles"].items():
        if told["column"] not in source.columns:
            why = (
                "--emit-only left it out"
                if claim.recipe.emit_only
                else "--replace replaced it"
                if told["column"] in source.written
                else "it may have come from the names of the input's folders"
            )
            raise DataError(
                f"{claim.file.path}: cannot be made again: the column {told['column']}, its "
                f"{role}, is not in it ({why})"
            )


def _verdict(
    engine: Engine, responses: Responses, index: int, claim: Claim, damaged: Collection[str]
) -> Json:
    """Make one file's columns again and compare them with those that it has."""
    job, source = engine.job, engine.job.source
    assert isinstance(source, _Before)
    names = source.written
    missing = [name for name in names if name not in source.found[index].names]
    there = [name for name in names if name not in missing and name not in damaged]
    differences = {name: Difference(name) for name in there}
    rows = SourceRows(claim.file.path, there, ())
    tally = Tally()
    for made in engine.written(index, responses, names, lambda columns: columns):
        tally += made.tally
        for row_group, columns in made.parts:
            left = columns
            while left.num_rows and there:
                held = rows.take(row_group, left.num_rows)
                for name in there:
                    differences[name].add(held.column(name), left.column(name).slice(0, len(held)))
                left = left.slice(held.num_rows)
    first, last = source.first_rows[index : index + 2]
    again = json.loads(json.dumps(summarise(job, responses.rows(first, last), tally)))
    columns = [one.facts() for one in differences.values()]
    columns += [{"column": name, "verdict": "missing", "rows": last - first} for name in missing]
    summary = summary_differences(claim.summary, again) if claim.summary else []
    return {
        "file": str(claim.file.path),
        "ok": not summary and all(column["verdict"] in GOOD for column in columns),
        "rows": last - first,
        "version": claim.version,
        "estimator": claim.recipe.estimator,
        "columns": columns,
        "kept_columns": len(source.schemas[index].names),
        "summary": summary[:_SHOWN],
        "notes": claim.notes,
    }
