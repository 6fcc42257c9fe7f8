"""The last pass: its tasks, and what their notes come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rlpost._version import __version__
from rlpost.distributed import tasks as ranges
from rlpost.distributed import tasks as steps
from rlpost.distributed.executor import Call, Named
from rlpost.distributed.partition import Block, Partition
from rlpost.pipeline.summary import summary_of
from rlpost.pipeline.totals import TotalsByStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.distributed.driver import Settled
    from rlpost.distributed.executor import Done, Executor
    from rlpost.distributed.partition import Json, Labels, Work
    from rlpost.io.places import AnyPath
    from rlpost.pipeline.plan import Plan


def written(
    work: Work, lots: Sequence[Partition | Block], found: Settled, crew: Executor
) -> tuple[list[Json], list[Any]]:
    """The last pass, over all lots: their notes, and the sheets or tables they gave."""
    done = crew.run("write", work, list(calls_to_write(lots, found)))
    notes = [one.note for one in done]
    joins = joins_of(lots)
    calls = [call_to_join(lots, found, own, done[own.start : own.stop]) for own in joins]
    joined = crew.run("join", work, calls) if calls else []
    return in_order(notes, joins, [one.note for one in joined]), [one.sheet for one in done]


def joins_of(lots: Sequence[Partition | Block]) -> list[range]:
    """The lots of each file that was divided into several."""
    places: dict[int, list[int]] = {}
    for place, lot in enumerate(lots):
        if isinstance(lot, Partition) and lot.part is not None:
            places.setdefault(lot.first, []).append(place)
    return [range(own[0], own[-1] + 1) for own in places.values()]


T = TypeVar("T")


def in_order(of_lots: Sequence[T], joins: Sequence[range], of_joins: Sequence[T]) -> list[T]:
    """What belongs to lots and to divided files, in the order of the input."""
    found = list(of_lots)
    for own, one in zip(reversed(joins), reversed(of_joins), strict=True):
        found.insert(own.stop, one)
    return found


def call_to_join(
    lots: Sequence[Partition | Block], found: Settled, own: range, done: Sequence[Done]
) -> Call:
    """The task that puts a divided file together.

    Args:
        lots: all.
        found: their settled rows.
        own: the file's lots.
        done: what encoding these gave.
    """
    parts, rows = [], 0
    for place in own:
        if lots[place].rows:
            parts += [named._replace(shift=rows) for named in found.parts[place]]
        rows += lots[place].rows
    first = lots[own[0]]
    assert isinstance(first, Partition)
    file = first._replace(part=None, rows=rows)
    ledgers = [one.note["ledger"] for one in done]
    encoded = [Named(one.sheet, 0) for one in done]
    given = (file, found.labels, ledgers, len(parts))
    return Call(ranges.join, given, (*parts, *encoded), 0, tokens=False)


def calls_to_write(lots: Sequence[Partition | Block], found: Settled) -> Iterator[Call]:
    """The tasks of the last pass."""
    for lot, labels, parts in zip(lots, found.own, found.parts, strict=True):
        task: Callable[..., steps.Outcome] = steps.write
        if isinstance(lot, Block):
            task = steps.enrich
        elif lot.part is not None:
            task = ranges.encode
        yield Call(task, (lot, labels), parts, lot.rows, tokens=True)


def summary_from(
    job: Plan,
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
        **summary_of(job, replace(found.facts, labels=labels), cells),
        "rlpost_version": __version__,
        "recipe": job.shape.recipe.model_dump(mode="json"),
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
