"""The driver of a distributed run: it calls the tasks of each pass and merges their notes.

A driver has block references, counts and labels: a few kilobytes for each partition, whatever the
number of responses.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rlpost.distributed import tasks
from rlpost.distributed.executor import BatchRef, Call
from rlpost.distributed.partition import Partition, TablePartition, TaskContext, partition_files
from rlpost.io.keys import step_order
from rlpost.io.memory_limit import memory_limit
from rlpost.pipeline.device import AUTO, CPU
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.run import bind, check_clash, run_metadata
from rlpost.pipeline.stages.responses import nothing_left
from rlpost.pipeline.stages.units import RowsDiffer
from rlpost.pipeline.summary import ResponseFacts, run_summary, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rlpost.distributed.executor import Executor, TaskResult
    from rlpost.distributed.partition import Json, Labels
    from rlpost.io.parquet.inputs import InputMetadata
    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe


T = TypeVar("T")
ROWS_A_BUCKET = 250_000
MOST_BUCKETS = 512


class Prepared(NamedTuple):
    """A run over files before its first task."""

    plan: Plan
    context: TaskContext
    partitions: list[Partition]


def prepare(
    survey: InputMetadata,
    targets: Sequence[AnyPath],
    recipe: Recipe,
    state: RunState,
    options: Options,
    slots: int,
) -> Prepared:
    """Bind a recipe to files, and divide the files into partitions.

    Args:
        survey: of the files.
        targets: the staged output of each file.
        recipe: what is computed.
        state: before the first batch.
        options: how it is computed; `workers` are the threads of one task, one by default.
        slots: how many tasks may run at once.

    Raises:
        UsageError, DataError: the recipe does not fit the input, or the columns clash.
    """
    source = cast("Source", survey)  # it has all attributes of a source that are used here
    plan = bind(source, recipe, state)
    check_clash(plan, emitted(plan.resolved))
    context = TaskContext(
        plan.resolved.recipe,
        plan.columns,
        state,
        bucket_count(plan, survey.rows),
        run_metadata(plan, source, state, options),
        CPU if options.device == AUTO else options.device,
        options.chunk_tokens,
        options.workers or 1,
        str(Path.cwd()),
        memory_limit().text or None,
    )
    return Prepared(plan, context, partition_files(survey, targets, slots))


def bucket_count(plan: Plan, rows: int) -> int:
    """Return the number of tables on which this many responses are reduced."""
    return 1 if plan.why_one_table else max(1, min(MOST_BUCKETS, -(-rows // ROWS_A_BUCKET)))


@dataclass
class Reduced:
    """The reduced responses of each partition, and facts about all responses."""

    batches: list[tuple[BatchRef, ...]]
    """The batches of each partition in the reduced tables."""
    labels: Labels
    """Steps and domains of the whole input, in order."""
    own: list[Labels]
    """Those of each partition, in the same order."""
    facts: ResponseFacts
    after: Json = field(default_factory=dict)
    """The notes of which `RunState.after` makes the state after the last batch, as plain data."""


def reduce_responses(
    context: TaskContext, partitions: Sequence[Partition | TablePartition], executor: Executor
) -> Reduced:
    """Run all passes but the last, over all partitions.

    Raises:
        DataError: there are no rows, or masks drop all of them, or a row is bad.
    """
    phases = context.plan_on_responses().phases()
    tokens = bool(phases[0].reading.mapped)
    calls = [
        Call(tasks.read, (partition,), (), partition.rows, tokens=tokens)
        for partition in partitions
    ]
    results = executor.run(phases[0].reading.purpose, context, calls)
    layout = _Layout([result.note["buckets"] for result in results])
    labels, own = _labels([result.note for result in results])
    tables = _reduce(context, executor, 0, layout, results, [()] * len(layout.buckets))
    _check_rollouts(context, partitions, layout, [table.note for table in tables])
    for number, phase in enumerate(phases[1:], 1):
        calls = [
            Call(
                tasks.map_tokens,
                (partition, number, own[index]),
                layout.of_partition(index, tables),
                partition.rows,
                tokens=True,
            )
            for index, partition in enumerate(partitions)
        ]
        results = executor.run(phase.reading.purpose, context, calls)
        before = [(BatchRef(table.block, 0),) for table in tables]
        tables = _reduce(context, executor, number, layout, results, before)
    batches = [layout.of_partition(index, tables) for index in range(len(partitions))]
    notes = [table.note for table in tables]
    facts = (ResponseFacts.from_json(note["facts"]) for note in notes)
    total = functools.reduce(operator.add, facts)
    return Reduced(batches, labels, own, total, notes[0]["after"])


class _Layout:
    """Which buckets have rows of which partitions.

    Args:
        buckets: those of each partition, ascending.
    """

    def __init__(self, buckets: Sequence[Sequence[int]]) -> None:
        self._partitions = buckets
        self.buckets = sorted({bucket for own in buckets for bucket in own})
        self._numbers = {bucket: number for number, bucket in enumerate(self.buckets)}
        self._within: list[dict[int, int]] = []  # of each partition: bucket -> batch of its table
        filled: Counter[int] = Counter()
        for own in buckets:
            self._within.append({bucket: filled[bucket] for bucket in own})
            filled.update(own)

    def of_partition(self, index: int, tables: Sequence[TaskResult]) -> tuple[BatchRef, ...]:
        """Return the partition's batches of the tables; any batch if it has no rows.

        That batch has the columns.
        """
        within = self._within[index].items()
        numbers = [(self._numbers[bucket], batch) for bucket, batch in within]
        batches = [BatchRef(tables[number].block, batch, number) for number, batch in numbers]
        return tuple(batches) or (BatchRef(tables[0].block, 0),)

    def partitions_of(self, number: int) -> list[int]:
        """Return the partitions that have rows of a bucket, by its number in `buckets`."""
        bucket = self.buckets[number]
        return [index for index, own in enumerate(self._partitions) if bucket in own]

    def of_buckets(self, results: Sequence[TaskResult]) -> list[list[BatchRef]]:
        """Return the batches of the partitions' blocks for each bucket, in partition order."""
        batches: list[list[BatchRef]] = [[] for _ in self.buckets]
        for own, result in zip(self._partitions, results, strict=True):
            for number, bucket in enumerate(own):
                batches[self._numbers[bucket]].append(BatchRef(result.block, number))
        return batches


def _reduce(
    context: TaskContext,
    executor: Executor,
    number: int,
    layout: _Layout,
    results: Sequence[TaskResult],
    before: Sequence[tuple[BatchRef, ...]],
) -> list[TaskResult]:
    """Run one phase on the tables of all buckets; raises DataError if no response is left."""
    batches = [(*one, *own) for one, own in zip(before, layout.of_buckets(results), strict=True)]
    calls = [Call(tasks.reduce, (number,), own, 0, tokens=False) for own in batches]
    tables = executor.run("reduce", context, calls)
    _check_left([table.note for table in tables])
    return tables


def _check_left(notes: Sequence[Json]) -> None:
    """Raise DataError if some masks together leave no response in any bucket."""
    for advice in notes[0]["nothing_left"]:
        if all(advice in note["nothing_left"] for note in notes):
            counts: Counter[str] = Counter()
            for note in notes:
                counts.update(note["nothing_left"][advice])
            raise nothing_left(counts, sum(note["rows"] for note in notes), advice)


def _check_rollouts(
    context: TaskContext,
    partitions: Sequence[Partition | TablePartition],
    layout: _Layout,
    notes: Sequence[Json],
) -> None:
    """Raise DataError if rows of one rollout differ; of several buckets, the first such rows."""
    found = []
    for number, note in enumerate(notes):
        if note["rows_differ"]:
            owners = layout.partitions_of(number)
            own = [(owners[batch], row) for batch, row in note["rows_differ"]["own"]]
            found.append((own[::-1], note["rows_differ"]))
    if not found:
        return
    own, differ = min(found, key=lambda item: item[0])
    names = [partitions[number].row_name(row) for number, row in own[::-1]]
    error = RowsDiffer([row for _, row in own], differ["values"], differ["column"])
    raise error.error(names, context.columns)


def _labels(notes: Sequence[Json]) -> tuple[Labels, list[Labels]]:
    """Return steps and domains of the whole input and of each partition, all in input order."""
    every: Labels = {}
    own: list[Labels] = [{} for _ in notes]
    for name in ("step", "domain"):
        labels = _first_seen([note[name] for note in notes])
        if name == "step":
            labels = [labels[number] for number in step_order(labels)]
        every[name] = labels
        numbers = {str(label): number for number, label in enumerate(labels)}
        for note, partition in zip(notes, own, strict=True):
            chosen = sorted(numbers[str(label)] for label in note[name])
            partition[name] = [labels[number] for number in chosen]
            if partition[name] == ["all"] != labels:  # a step called "all" is not a missing column
                partition[name].append(next(label for label in labels if label != "all"))
    return every, own


def _first_seen(notes: Sequence[Sequence[str | int]]) -> list[str | int]:
    """Return labels in the order of their first appearance; all as strings if some are."""
    labels = [label for own in notes for label in own]
    if any(isinstance(label, str) for label in labels):
        labels = [str(label) for label in labels]
    return list(dict.fromkeys(labels))


def last_pass(
    context: TaskContext,
    partitions: Sequence[Partition | TablePartition],
    reduced: Reduced,
    executor: Executor,
) -> tuple[list[Json], list[Any]]:
    """Run the last pass over all partitions; return its notes, and the blocks or tables."""
    results = executor.run("write", context, list(write_calls(partitions, reduced)))
    notes = [result.note for result in results]
    files = divided_files(partitions)
    calls = [join_call(partitions, reduced, own, results[own.start : own.stop]) for own in files]
    joined = executor.run("join", context, calls) if calls else []
    return (
        in_input_order(notes, files, [result.note for result in joined]),
        [result.block for result in results],
    )


def write_calls(
    partitions: Sequence[Partition | TablePartition], reduced: Reduced
) -> Iterator[Call]:
    """Yield the calls of the last pass, one for each partition."""
    for partition, labels, batches in zip(partitions, reduced.own, reduced.batches, strict=True):
        task: Callable[..., tasks.TaskOutput] = tasks.write
        if isinstance(partition, TablePartition):
            task = tasks.enrich
        elif partition.part is not None:
            task = tasks.encode
        yield Call(task, (partition, labels), batches, partition.rows, tokens=True)


def divided_files(partitions: Sequence[Partition | TablePartition]) -> list[range]:
    """Return the partitions of each file that is divided into several."""
    numbers: dict[int, list[int]] = {}
    for number, partition in enumerate(partitions):
        if isinstance(partition, Partition) and partition.part is not None:
            numbers.setdefault(partition.first, []).append(number)
    return [range(own[0], own[-1] + 1) for own in numbers.values()]


def in_input_order(
    of_partitions: Sequence[T], divided: Sequence[range], of_divided: Sequence[T]
) -> list[T]:
    """Merge items of partitions and items of divided files in the order of the input."""
    items = list(of_partitions)
    for own, item in zip(reversed(divided), reversed(of_divided), strict=True):
        items.insert(own.stop, item)
    return items


def join_call(
    partitions: Sequence[Partition | TablePartition],
    reduced: Reduced,
    own: range,
    results: Sequence[TaskResult],
) -> Call:
    """Return the call of the task that joins a divided file.

    Args:
        partitions: all.
        reduced: their reduced responses.
        own: the partitions of the file.
        results: of the tasks that encoded them.
    """
    batches, rows = [], 0
    for index in own:
        if partitions[index].rows:
            batches += [batch._replace(shift=rows) for batch in reduced.batches[index]]
        rows += partitions[index].rows
    first = partitions[own[0]]
    assert isinstance(first, Partition)
    file = first._replace(part=None, rows=rows)
    encoded = [BatchRef(result.block, 0) for result in results]
    notes = [result.note for result in results]
    arguments = (file, reduced.labels, notes, len(batches))
    return Call(tasks.join, arguments, (*batches, *encoded), 0, tokens=False)


def whole_summary(
    plan: Plan,
    reduced: Reduced,
    notes: Sequence[Json],
    inputs: Sequence[object],
    device: str,
    targets: Sequence[AnyPath],
) -> Json:
    """Return the summary of a run over files, without its seconds.

    Args:
        plan: of the run.
        reduced: its reduced responses.
        notes: of its last pass.
        inputs: the input files, as the user named them.
        device: that computed, as of `--device`.
        targets: the published files.
    """
    totals, cells = tasks.merged_totals(notes, reduced.labels)
    named = zip(targets, (file["reason"] for file in written_files(notes)), strict=True)
    rewritten = [f"{target.name}: {reason}" for target, reason in named if reason]
    return {
        **summary_of(plan, cells, reduced.facts, totals),
        **run_summary(plan, inputs, device, targets, rewritten),
        "new_columns": list(plan.resolved.written),
    }


def written_files(notes: Sequence[Json]) -> list[Json]:
    """Return the facts of each written file, in input order, from the notes of the last pass."""
    return [file for note in notes for file in note["files"]]


def work_seconds(
    notes: Sequence[Json], driver_cpu: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return `busy` and `cpu` of a run: the seconds of all tasks of the last pass, by kind of work.

    Args:
        notes: of the tasks.
        driver_cpu: CPU time outside the tasks: `total`, and `start_up` of the processes. That of a
            task, before its pass, is in the total alone, as its wall time is in the pass.
    """
    kinds = {
        kind: {
            name: sum(note[kind].get(name, 0.0) for note in notes)
            for name in dict.fromkeys(name for note in notes for name in note[kind])
        }
        for kind in ("busy", "cpu")
    }
    total = kinds["cpu"].get("total", 0.0) + driver_cpu["total"]
    kinds["cpu"] |= {"total": total, "start_up": driver_cpu["start_up"]}
    return kinds
