"""Driving a run up to the last pass: which tasks there are, and what their notes come to.

A driver holds names of sheets, counts and labels: a few kilobytes a lot of files, whatever the
number of responses.

Preparing a run in tasks: what a recipe and an input come to, before the first task.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from rlpost.distributed import tasks as steps
from rlpost.distributed.executor import BatchRef, Call
from rlpost.distributed.partition import Partition, TaskContext, partition_files
from rlpost.pipeline.data import ordered
from rlpost.pipeline.file_metadata import run_identity_of
from rlpost.pipeline.output import emitted
from rlpost.pipeline.run import bind, check_clash
from rlpost.pipeline.stages.responses import nothing_left
from rlpost.pipeline.summary import GroupFacts, ResponseFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.distributed.executor import Executor, TaskResult
    from rlpost.distributed.partition import Block, Json, Labels
    from rlpost.io.parquet.inputs import InputMetadata
    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe


ROWS_A_BUCKET = 250_000
MOST_BUCKETS = 512


def bucket_count(plan: Plan, rows: int) -> int:
    """How many tables the responses of this many rows are settled on."""
    return 1 if plan.together else max(1, min(MOST_BUCKETS, -(-rows // ROWS_A_BUCKET)))


@dataclass
class Settled:
    """Where the settled rows of each lot are, and what is known of all of them."""

    parts: list[tuple[BatchRef, ...]]
    """Those of each lot."""
    labels: Labels
    """Steps and domains of the whole input, in order."""
    own: list[Labels]
    """Those of each lot, in the same order."""
    facts: ResponseFacts
    running: Json = field(default_factory=dict)
    """Where the running moments of domains stand at the end."""


def settled(
    work: TaskContext, partitions: Sequence[Partition | Block], executor: Executor
) -> Settled:
    """All passes but the last, over all lots.

    Raises:
        DataError: there are no rows, or none is left, or the data of one is bad.
    """
    phases = work.plan_on_responses().phases()
    tokens = bool(phases[0].reading.mapped)
    calls = [
        Call(steps.read, (partition,), (), partition.rows, tokens=tokens)
        for partition in partitions
    ]
    done = executor.run(phases[0].reading.purpose, work, calls)
    layout = _Layout([one.note["bundles"] for one in done])
    labels, own = _labels([one.note for one in done])
    tables = _reduce(work, executor, 0, layout, done, [()] * len(layout.buckets))
    for number, phase in enumerate(phases[1:], 1):
        calls = [
            Call(
                steps.measure,
                (partition, number, own[place]),
                layout.of_partition(place, tables),
                partition.rows,
                tokens=True,
            )
            for place, partition in enumerate(partitions)
        ]
        done = executor.run(phase.reading.purpose, work, calls)
        before = [(BatchRef(table.block, 0),) for table in tables]
        tables = _reduce(work, executor, number, layout, done, before)
    parts = [layout.of_partition(place, tables) for place in range(len(partitions))]
    notes = [table.note for table in tables]
    return Settled(parts, labels, own, _facts(notes), notes[0]["running"])


class _Layout:
    """Which bundles have rows of which lots.

    Args:
        buckets: those of each lot, ascending.
    """

    def __init__(self, buckets: Sequence[Sequence[int]]) -> None:
        self._partitions = buckets
        self.buckets = sorted({one for own in buckets for one in own})
        self._numbers = {bucket: number for number, bucket in enumerate(self.buckets)}
        self._within: list[dict[int, int]] = []  # of each lot: bundle -> its batch in the table
        filled: Counter[int] = Counter()
        for own in buckets:
            self._within.append({bucket: filled[bucket] for bucket in own})
            filled.update(own)

    def of_partition(self, partition: int, tables: Sequence[TaskResult]) -> tuple[BatchRef, ...]:
        """The lot's batches of the tables; for one without rows any batch, to tell the columns."""
        within = self._within[partition].items()
        numbers = [(self._numbers[bucket], place) for bucket, place in within]
        found = [BatchRef(tables[number].block, place, number) for number, place in numbers]
        return tuple(found) or (BatchRef(tables[0].block, 0),)

    def of_buckets(self, blocks: Sequence[TaskResult]) -> list[list[BatchRef]]:
        """The batches of the lots' sheets that belong to each bundle, in the order of lots."""
        found: list[list[BatchRef]] = [[] for _ in self.buckets]
        for own, done in zip(self._partitions, blocks, strict=True):
            for place, bucket in enumerate(own):
                found[self._numbers[bucket]].append(BatchRef(done.block, place))
        return found


def _reduce(
    work: TaskContext,
    executor: Executor,
    number: int,
    layout: _Layout,
    blocks: Sequence[TaskResult],
    before: Sequence[tuple[BatchRef, ...]],
) -> list[TaskResult]:
    """One phase on the tables of all bundles; raises DataError where no response is left."""
    parts = [(*one, *own) for one, own in zip(before, layout.of_buckets(blocks), strict=True)]
    calls = [Call(steps.reduce, (number,), tuple(own), 0, tokens=False) for own in parts]
    tables = executor.run("settle", work, calls)
    _check_left([table.note for table in tables])
    return tables


def _check_left(notes: Sequence[Json]) -> None:
    """Raise DataError where some masks together leave nothing in any of the bundles."""
    for advice in notes[0]["nothing_left"]:
        if all(advice in note["nothing_left"] for note in notes):
            counts: Counter[str] = Counter()
            for note in notes:
                counts.update(note["nothing_left"][advice])
            raise nothing_left(counts, sum(note["rows"] for note in notes), advice)


def _labels(notes: Sequence[Json]) -> tuple[Labels, list[Labels]]:
    """Steps and domains of the whole input and of each lot, all in the order of the input."""
    every: Labels = {}
    own: list[Labels] = [{} for _ in notes]
    for name in ("step", "domain"):
        labels = _as_first_seen([note[name] for note in notes])
        if name == "step":
            labels = [labels[place] for place in ordered(labels)]
        every[name] = labels
        places = {str(label): place for place, label in enumerate(labels)}
        for note, found in zip(notes, own, strict=True):
            chosen = sorted(places[str(label)] for label in note[name])
            found[name] = [labels[place] for place in chosen]
            if found[name] == ["all"] != labels:  # a step of that name is not a lack of steps
                found[name].append(next(label for label in labels if label != "all"))
    return every, own


def _as_first_seen(found: Sequence[Sequence[str | int]]) -> list[str | int]:
    """Labels in the order of their first appearance; all as strings, if some are."""
    labels = [label for own in found for label in own]
    if any(isinstance(label, str) for label in labels):
        labels = [str(label) for label in labels]
    return list(dict.fromkeys(labels))


def _facts(notes: Sequence[Json]) -> ResponseFacts:
    """The facts of all rows, from those of the bundles; the labels come later."""
    groups = [
        GroupFacts(Counter(dict(note["sizes"])), note["zero_variance"])
        for note in notes
        if note["sizes"] is not None
    ]
    return ResponseFacts(
        labels={},
        groups=sum(groups, GroupFacts()) if groups else None,
        empty=sum(note["empty"] for note in notes),
        coefficients=notes[0]["coefficients"],  # where β adapts, there is one bundle
        unwhitened=sum(note["unwhitened"] for note in notes),
    )


class Prepared(NamedTuple):
    """A run over files, ready to be driven."""

    plan: Plan
    work: TaskContext
    partitions: list[Partition]


def prepare(
    survey: InputMetadata,
    places: Sequence[AnyPath],
    recipe: Recipe,
    running: Mapping[str, RunningMoments],
    options: Options,
    slots: int,
) -> Prepared:
    """Bind a recipe to files, and divide these into lots.

    Args:
        survey: of the files.
        places: where each file's twin is written.
        recipe: what is done.
        running: where each domain's running reward moments stand.
        options: how it is done; `workers` are the threads of one task, one where it is open.
        slots: how many tasks may run at once.

    Raises:
        UsageError, DataError: the recipe does not fit the input, or the columns clash.
    """
    plan = bind(cast("Source", survey), recipe, running)  # it has what binding asks of a source
    check_clash(plan, emitted(plan.resolved))
    used = running if "running" in plan.resolved.norm else {}
    work = TaskContext(
        recipe,
        plan.columns,
        running,
        bucket_count(plan, survey.rows),
        run_identity_of(survey.files, survey.first_rows, used, options.asked),
        "cpu" if options.device == "auto" else options.device,
        options.chunk_tokens,
        options.workers or 1,
        str(Path.cwd()),
        options.verify,
    )
    return Prepared(plan, work, partition_files(survey, places, slots))
