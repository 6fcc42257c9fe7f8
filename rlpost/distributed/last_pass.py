"""The last pass: its tasks, and what their notes come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rlpost._version import __version__
from rlpost.distributed import tasks as ranges
from rlpost.distributed import tasks as steps
from rlpost.distributed.executor import BatchRef, Call
from rlpost.distributed.partition import Block, Partition
from rlpost.pipeline.summary import summary_of
from rlpost.pipeline.totals import TotalsByStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.distributed.driver import Settled
    from rlpost.distributed.executor import Executor, TaskResult
    from rlpost.distributed.partition import Json, Labels, TaskContext
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.plan import Plan


def written(
    work: TaskContext, partitions: Sequence[Partition | Block], found: Settled, executor: Executor
) -> tuple[list[Json], list[Any]]:
    """The last pass, over all lots: their notes, and the sheets or tables they gave."""
    done = executor.run("write", work, list(calls_to_write(partitions, found)))
    notes = [one.note for one in done]
    joins = joins_of(partitions)
    calls = [call_to_join(partitions, found, own, done[own.start : own.stop]) for own in joins]
    joined = executor.run("join", work, calls) if calls else []
    return in_order(notes, joins, [one.note for one in joined]), [one.block for one in done]


def joins_of(partitions: Sequence[Partition | Block]) -> list[range]:
    """The lots of each file that was divided into several."""
    places: dict[int, list[int]] = {}
    for place, partition in enumerate(partitions):
        if isinstance(partition, Partition) and partition.part is not None:
            places.setdefault(partition.first, []).append(place)
    return [range(own[0], own[-1] + 1) for own in places.values()]


T = TypeVar("T")


def in_order(of_partitions: Sequence[T], joins: Sequence[range], of_joins: Sequence[T]) -> list[T]:
    """What belongs to lots and to divided files, in the order of the input."""
    found = list(of_partitions)
    for own, one in zip(reversed(joins), reversed(of_joins), strict=True):
        found.insert(own.stop, one)
    return found


def call_to_join(
    partitions: Sequence[Partition | Block], found: Settled, own: range, done: Sequence[TaskResult]
) -> Call:
    """The task that puts a divided file together.

    Args:
        partitions: all.
        found: their settled rows.
        own: the file's lots.
        done: what encoding these gave.
    """
    parts, rows = [], 0
    for place in own:
        if partitions[place].rows:
            parts += [named._replace(shift=rows) for named in found.parts[place]]
        rows += partitions[place].rows
    first = partitions[own[0]]
    assert isinstance(first, Partition)
    file = first._replace(part=None, rows=rows)
    ledgers = [one.note["ledger"] for one in done]
    encoded = [BatchRef(one.block, 0) for one in done]
    given = (file, found.labels, ledgers, len(parts))
    return Call(ranges.join, given, (*parts, *encoded), 0, tokens=False)


def calls_to_write(partitions: Sequence[Partition | Block], found: Settled) -> Iterator[Call]:
    """The tasks of the last pass."""
    for partition, labels, parts in zip(partitions, found.own, found.parts, strict=True):
        task: Callable[..., steps.TaskOutput] = steps.write
        if isinstance(partition, Block):
            task = steps.enrich
        elif partition.part is not None:
            task = ranges.encode
        yield Call(task, (partition, labels), parts, partition.rows, tokens=True)


def summary_from(
    plan: Plan,
    found: Settled,
    notes: Sequence[Json],
    inputs: Sequence[str],
    targets: Sequence[AnyPath],
) -> Json:
    """The summary of a run over files, from the notes of its last pass; all but its seconds."""
    ledger = TotalsByStep()
    for note in notes:
        ledger += TotalsByStep.from_json(note["ledger"])
    cells = ledger.arranged(found.labels["step"], found.labels["domain"])
    labels: Labels = {**found.labels, "cell": list(cells.cells)}
    named = zip(targets, (file["reason"] for file in files_of(notes)), strict=True)
    return {
        **summary_of(plan, replace(found.facts, labels=labels), cells),
        "rlpost_version": __version__,
        "recipe": plan.resolved.recipe.model_dump(mode="json"),
        "inputs": list(inputs),
        "outputs": [str(target) for target in targets],
        "rewritten": [f"{target.name}: {reason}" for target, reason in named if reason],
        "halved_pieces": sum(note["halved"] for note in notes),
    }


def files_of(notes: Sequence[Json]) -> list[Json]:
    """What the last pass says of each file, in the order of the input."""
    return [file for note in notes for file in note["files"]]


def busy(notes: Sequence[Json]) -> dict[str, float]:
    """Seconds that the tasks of the last pass spent on each kind of work, all together."""
    names = dict.fromkeys(name for note in notes for name in note["busy"])
    return {name: sum(note["busy"].get(name, 0.0) for note in notes) for name in names}
