"""Verification of enriched files: recomputed columns and summary against the stored ones.

An enriched file has the columns of its input and, in its metadata, the recipe, so the new columns
and the summary can be recomputed and compared.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost._version import __version__
from rlpost.analysis.difference import (
    Difference,
    DifferenceTotals,
    align,
    column_chunk,
    finite,
    recomputed,
)
from rlpost.display.text import shortened_middle
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import prefetch
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.findings import texts_of
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.output.metadata import FileMetadata, cut
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import bind, engine_for
from rlpost.pipeline.summary import FileSummaries
from rlpost.pipeline.totals import ExactTotals, Totals
from rlpost.recipe.named import check_effect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import PathText
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances for scans over tokens with other chunks or on another device."""
_MOST_CHARACTERS = 60  # of a value in a sentence
_MOST_DIFFERENCES = 5  # of a summary
OTHER_SEMANTICS = "other semantics"
GOOD = ("identical", "equal to rounding", OTHER_SEMANTICS)


@dataclass
class ColumnDifference:
    """The difference of a stored column from the recomputed one."""

    name: str
    totals: DifferenceTotals = field(default_factory=DifferenceTotals)
    rounded: bool = False
    """Some numbers differ within rounding."""
    types: list[str] = field(default_factory=list)

    def add(self, stored: pa.Array, computed: pa.Array) -> None:
        """Compare the next rows."""
        count = len(computed)
        numbers = self.totals.rows + np.arange(count)
        if stored.type != computed.type or stored.null_count:
            self.types = [str(stored.type), str(computed.type)]
            wrong = numbers >= 0
        elif stored.equals(computed):
            wrong = numbers < 0
        else:
            left, right = column_chunk(stored), column_chunk(computed)
            wrong = left.lengths != right.lengths
            if not wrong.any():
                chosen, rows = np.ones(len(right.values), np.bool_), np.arange(count)
                difference = Difference(left.values, right.values, chosen, ABSOLUTE, RELATIVE)
                self.rounded = True
                self.totals.add(difference.totals(numbers, np.repeat(rows, right.lengths)))
                return
        differing = numbers[wrong].tolist()
        part = DifferenceTotals(rows=count, rows_differing=len(differing), first_rows=differing[:1])
        self.totals.add(part)

    def facts(self) -> Json:
        """Return the verdict (`identical`, `equal to rounding` or `differs`) and the rows."""
        totals, same = self.totals, "equal to rounding" if self.rounded else "identical"
        return {
            "column": self.name,
            "verdict": "differs" if totals.rows_differing else same,
            "rows": totals.rows_differing,
            "first_row": next(iter(totals.first_rows), None),
            "largest_difference": finite(totals.largest),
            **({"types": self.types} if self.types else {}),
        }


def summary_differences(stored: Json | None, computed: Json) -> list[str]:
    """Return the differences of two summaries, each with the path and both values."""
    differences = []
    before, after = ({**x, "findings": texts_of(x, "error")} for x in (stored or {}, computed))
    for path, left, right in _pairs(before, after, ""):
        close = left == right or (
            isinstance(left, float | int)
            and isinstance(right, float | int)
            and math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        )
        # These depend on the other columns of the input.
        others = path.endswith(".found_by") or ".ignored" in path
        # advantages, which the run may have replaced
        others |= path == "recorded" or path.startswith("facts.recorded_")
        if not close and not others:
            values = (shortened_middle(str(value), _MOST_CHARACTERS) for value in (left, right))
            differences.append(f"{path}: {next(values)} stored, {next(values)} recomputed")
    return differences


def _pairs(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values of two structures at the same paths."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            below = f"{path}.{key}".lstrip(".")
            yield from _pairs(left.get(key), right.get(key), below)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for i, (before, after) in enumerate(zip(left, right, strict=True)):
            yield from _pairs(before, after, f"{path}[{i}]")
    else:
        yield path, left, right


def verify(
    paths: Sequence[PathText],
    options: Options | None = None,
    estimator: str | None = None,
) -> Json:
    """Run `rlpost.verify`; return the verdicts as a plain mapping."""
    source = Source(find_inputs(paths))
    footers = zip(source.files, source.footers, strict=True)
    stored = [FileMetadata.read(str(file.path), footer.metadata or {}) for file, footer in footers]
    check_effect(estimator, (metadata.recipe for metadata in stored))
    runs: dict[tuple[str, str, int], list[EnrichedFile]] = defaultdict(list)
    copies: Counter[tuple[str, str, int]] = Counter()
    for file, footer, read in zip(source.files, source.footers, stored, strict=True):
        metadata = read.with_estimator(estimator, str(file.path))
        how = f"{metadata.recipe.model_dump_json()} {metadata.running} {metadata.semantics}"
        number = copies[metadata.run, how, metadata.file]
        copies[metadata.run, how, metadata.file] += 1
        runs[metadata.run, how, number].append(EnrichedFile(file, footer.num_rows, metadata))
    verdicts = [x for run in runs.values() for x in _verify_run(run, options or Options())]
    return {
        "ok": all(verdict["ok"] for verdict in verdicts),
        "files": sorted(verdicts, key=lambda verdict: str(verdict["file"])),
        "rlpost_version": __version__,
    }


def _verify_run(run: list[EnrichedFile], options: Options) -> list[Json]:
    """Return the verdicts on all files of one run: of one input, recipe and state."""
    run = sorted(run, key=lambda enriched: enriched.metadata.file)
    _check_complete(run)
    first = run[0]
    try:
        source = _EnrichedInputs([enriched.file for enriched in run], first.metadata.recipe)
        _check_input(source, first)
        plan = bind(source, first.metadata.recipe, first.metadata.state)
        return _compared(plan, source, run, options)
    except (DataError, UsageError) as error:
        problem = error
        if isinstance(error, UsageError):  # the command line is correct
            text = "cannot be recomputed by the recipe in its metadata"
            problem = DataError(f"{first.file.path}: {text}: {cut(error)}")
    if first.metadata.comparable:
        raise problem
    note = f"its columns were not recomputed: {problem}"
    return [_facts(enriched, ok=True, notes=[*enriched.metadata.notes, note]) for enriched in run]


def _facts(enriched: EnrichedFile, **verdict: Any) -> Json:
    """Return the verdict on a file."""
    return {
        "file": str(enriched.file.path),
        "ok": True,
        "rows": enriched.rows,
        "version": enriched.metadata.version,
        "semantics": enriched.metadata.semantics,
        "estimator": enriched.metadata.recipe.estimator,
        "columns": [],
        "summary": [],
        "notes": enriched.metadata.notes,
    } | verdict


def _check_complete(run: list[EnrichedFile]) -> None:
    """Raise UsageError if files of a run, in order, are missing."""
    first = run[0]
    numbers = [enriched.metadata.file for enriched in run]
    if len(numbers) == first.metadata.files and numbers == [*range(len(numbers))]:
        return
    raise UsageError(
        f"{first.file.path}: belongs to a run of {first.metadata.files} files, and the input has "
        f"{len(run)} of them; groups and batches can span files, so name all: rlpost verify "
        "OUTDIR. "
        "If others were deleted, its numbers can no longer be recomputed: write it again"
    )


class EnrichedFile(NamedTuple):
    """An enriched file, its rows, and its metadata."""

    file: InputFile
    rows: int
    metadata: FileMetadata


class _EnrichedInputs(Source):
    """Enriched files without the columns that the recipe added."""

    page_checksums = True

    def __init__(self, files: Sequence[InputFile], recipe: Recipe) -> None:
        super().__init__(files)
        self.written = emitted(resolve_recipe(recipe, columns_of(self, recipe)))
        self.all_columns = copy(self)
        self.schemas = [
            pa.schema([column for column in schema if column.name not in self.written])
            for schema in self.schemas
        ]
        del self.columns, self.lacking


def _check_input(source: _EnrichedInputs, enriched: EnrichedFile) -> None:
    """Raise DataError if the files lack rows of their run, or an input column of its recipe."""
    if enriched.metadata.rows not in (-1, source.rows):
        raise DataError(
            f"{enriched.file.path}: the files of its run have {source.rows} rows; the run wrote "
            f"{enriched.metadata.rows}"
        )
    if enriched.metadata.summary is None:
        return
    for role, binding in enriched.metadata.summary["roles"].items():
        if binding["column"] not in source.columns:
            why = (
                "--emit-only omitted it; the input has it"
                if enriched.metadata.recipe.emit_only
                else "--replace replaced it"
                if binding["column"] in source.written
                else "it may have come from the names of the input's folders"
            )
            raise DataError(
                f"{enriched.file.path}: cannot be recomputed: it has no column "
                f"{binding['column']}, its {role} ({why})"
            )


def _compared(
    plan: Plan,
    source: _EnrichedInputs,
    run: list[EnrichedFile],
    options: Options,
) -> list[Json]:
    """Recompute the columns of all files of a run, and compare those that decode."""
    engine = engine_for(plan, options)
    with single_threaded():
        responses = engine.responses(source.written, part=True)
        options.reporter.start("compare", source.rows)
        summaries = FileSummaries(plan, responses)
        return [
            _verdict(engine, source, responses, summaries, index, enriched)
            for index, enriched in enumerate(run)
        ]


def _verdict(
    engine: Engine,
    source: _EnrichedInputs,
    responses: Responses,
    summaries: FileSummaries,
    index: int,
    enriched: EnrichedFile,
) -> Json:
    """Recompute the columns of a file and return the comparison with the stored ones."""
    names, stored, metadata = source.written, source.all_columns, enriched.metadata
    missing = [name for name in names if name not in stored.schemas[index].names]
    present = [name for name in names if name not in missing]
    differences = [ColumnDifference(name) for name in present]
    totals = ExactTotals()

    def count(part: ExactTotals) -> None:
        nonlocal totals
        totals += part

    computed = recomputed(engine, index, responses, names, count=count)
    if present:
        read = stored.read_file(index, present, engine.chunk_tokens, engine.plan.sized_by)
        tables = (chunk.table for chunk in prefetch(read, 1))
        # The stored rows are first: a row group may have more than its footer, which is an error.
        for pair in align([tables, computed]):
            for difference in differences:
                difference.add(*(columns.column(difference.name) for columns in pair))
    for _ in computed:
        pass
    first, last = source.first_rows[index : index + 2]
    sums = summaries.sums_of(totals, np.full_like(totals.codes, index))
    again = json.loads(json.dumps(summaries.of(index, sums.get(index, Totals()))))
    compared = metadata.summary is not None and metadata.comparable
    summary = summary_differences(metadata.summary, again) if compared else []
    columns = [difference.facts() for difference in differences]
    for column in columns:
        if column["verdict"] == "differs" and "types" not in column and not metadata.comparable:
            column["verdict"] = OTHER_SEMANTICS
    columns += [{"column": name, "verdict": "missing", "rows": last - first} for name in missing]
    return _facts(
        enriched,
        ok=not summary and all(column["verdict"] in GOOD for column in columns),
        columns=columns,
        summary=summary[:_MOST_DIFFERENCES],
    )
