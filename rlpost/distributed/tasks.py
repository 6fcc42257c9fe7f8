"""The tasks: pure functions of small arguments and of parts of sheets.

The last pass over one large file by several tasks: each encodes some row groups, one joins.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import torch

from rlpost.distributed.exchange import (
    ArrowBlock,
    columns_of,
    key_column,
    keyed_table,
    sheet,
    sheet_of,
    table_of,
    tensors_of,
)
from rlpost.distributed.partition import ROW, assembled
from rlpost.distributed.staging import mark_of
from rlpost.io.parquet.encode import Packer, unpacked
from rlpost.io.parquet.indexes import indexed_groups_of
from rlpost.io.progress import Clock
from rlpost.io.staged import Staged
from rlpost.pipeline.data import Collector
from rlpost.pipeline.engine import gathered, settled, tabled
from rlpost.pipeline.output import emitted, schema_of
from rlpost.pipeline.readback import check_written
from rlpost.pipeline.run import (
    beside,
    encoder_of,
    enriched_metadata,
    fill,
    metadata_of,
    sink_of,
)
from rlpost.pipeline.summary import row_facts, summary_of
from rlpost.pipeline.totals import ExactTotals, TotalsByStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.distributed.partition import Block, Json, Labels, Part, Partition, Work
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.places import AnyPath
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import Arranged, Tallied


T = TypeVar("T", bound="Tallied")


class Outcome(NamedTuple):
    """What a task gives: a few facts for who drives the run, and rows for other tasks."""

    note: Json
    rows: Any = None
    """A sheet, or a table where the task is the last one."""


def read(work: Work, lot: Partition | Block, _: Iterable[Part]) -> Outcome:
    """The first pass: the rows of a lot, one batch a bundle, in the order of the input in each.

    The note has the bundles that have rows here, and the steps and domains, each in the order of
    their first appearance.
    """
    with work.engine(lot.source()) as engine:
        pieces = [{**rows, **measured} for rows, measured in engine.first_pass()]
    table = keyed_table(pieces)
    if not table.num_rows:
        return Outcome({"bundles": [], "step": [], "domain": []})
    steps, domains = (key_column(table, name) for name in ("batch", "domain"))
    own = _bundles(steps, table.num_rows, work.bundles)
    order = np.argsort(own, kind="stable")
    table = table.append_column(ROW, pa.array(np.arange(len(own)))).take(order)
    bundles, sizes = np.unique(own, return_counts=True)
    note = {
        "bundles": bundles.tolist(),
        "step": ["all"] if steps is None else steps.unique().to_pylist(),
        "domain": ["all"] if domains is None else domains.unique().to_pylist(),
    }
    return Outcome(note, sheet(table, sizes.tolist(), {}))


def _bundles(steps: pa.ChunkedArray | None, rows: int, bundles: int) -> NDArray[np.int64]:
    """The bundle of each row, [rows]: by its step's name, so that no task need ask another."""
    if steps is None or bundles == 1:
        return np.zeros(rows, dtype=np.int64)
    codes = pa.chunked_array(steps).combine_chunks().dictionary_encode()
    names = [str(label) for label in codes.dictionary.to_pylist()]
    of_step = np.array([crc32(name.encode()) % bundles for name in names])
    own: NDArray[np.int64] = of_step[np.asarray(codes.indices)]
    return own


def settle(work: Work, number: int, parts: Iterable[Part]) -> Outcome:
    """One phase on the table of a bundle; its batches are the lots that have rows in it.

    Args:
        work: what all tasks have in common.
        number: of the phase, from 0.
        parts: the batches that the lots read or measured for this bundle, in input order; in a
            later phase the table as it was before comes first.
    """
    job = work.job_on_responses()
    phases = job.phases()
    parts = iter(parts)
    if number == 0:
        collector, sizes = Collector(), []
        for part in parts:
            batch = part.sheet.batch(part.place)
            sizes.append(batch.num_rows)
            collector.add(columns_of(batch), {})
        responses = tabled(collector, job).noting(part=work.bundles > 1)
    else:
        before = next(parts).sheet
        responses, sizes = before.responses(), before.sizes
        found = (tensors_of(part.sheet.batch(part.place)) for part in parts)
        responses = gathered(phases[number], responses, found)
    responses = settled(phases[number], responses)
    noted = responses.notes
    kept = {key: noted[key] for key in ("part", "slots") if key in noted}
    kept["running"] = {name: _plain(state) for name, state in noted.get("running", {}).items()}
    note = {
        "nothing_left": noted.get("nothing_left", {}),
        "rows": len(responses),
        "running": kept["running"],
        **(_facts(job, responses) if number == len(phases) - 1 else {}),
    }
    return Outcome(note, sheet_of(responses, sizes, kept))


def _plain(state: RunningMoments | Json) -> Json:
    """Running moments as plain data, as which they come from the phase before."""
    return state if isinstance(state, dict) else asdict(state)


def _facts(job: Plan, responses: Responses) -> Json:
    """What the summary says of settled responses."""
    facts = row_facts(job, responses)
    groups = facts.groups
    return {
        "sizes": None if groups is None else [*groups.sizes.items()],
        "zero_variance": 0 if groups is None else groups.zero_variance,
        "empty": facts.empty,
        "coefficients": facts.coefficients,
        "unwhitened": facts.unwhitened,
    }


def measure(
    work: Work, lot: Partition | Block, number: int, labels: Labels, parts: Iterable[Part]
) -> Outcome:
    """What a later phase measures on a lot, one batch for each of the lot's bundles."""
    responses, own = assembled(labels, parts, empty=lot.rows == 0)
    with work.engine(lot.source()) as engine:
        phase = engine.job.phases()[number]
        table = table_of(list(engine.measured(phase, responses)))
    if work.bundles == 1:  # what a stage gathers need not have a number for each response
        return Outcome({}, sheet(table, None, {}))
    order = own.argsort(stable=True)
    sizes = torch.bincount(own).tolist()
    return Outcome({}, sheet(table.take(order.numpy()), sizes, {}))


def write(work: Work, lot: Partition, labels: Labels, parts: Iterable[Part]) -> Outcome:
    """The last pass: the files of a lot, complete, under the names of its targets."""
    responses, _ = assembled(labels, parts, empty=lot.rows == 0)
    total, files = ExactTotals(), []
    with work.engine(lot.source()) as engine:
        for index in range(len(lot.files)):
            tally, file = _written(work, lot, engine, index, responses)
            total += tally
            files.append(file)
    return Outcome({**counted(engine, total, responses), "files": files})


def _written(
    work: Work, lot: Partition, engine: Engine, index: int, responses: Responses
) -> tuple[ExactTotals, Json]:
    """One file of a lot: what was counted, and what is noted of it."""
    names, whole = emitted(engine.job.shape), work.whole
    assert whole is not None
    metadata = partial(enriched_metadata, whole=whole, first=lot.first)

    def filled(sink: Sink) -> ExactTotals:
        totals: ExactTotals = fill(sink, engine, index, responses, names, metadata)
        return totals

    return published(work, engine.job, index, lot.targets[index], engine.clock, filled)


def published(
    work: Work, job: Plan, index: int, target: AnyPath, clock: Clock, fill: Callable[[Sink], T]
) -> tuple[T, Json]:
    """Write one file of a job, check it if that is asked for, and let it wait for the others.

    Args:
        work: what all tasks have in common.
        job: the work on a source that has the file.
        index: the file's number there.
        target: where it waits.
        clock: is told how long checking takes.
        fill: fills and completes a sink, and gives what it counted.

    Returns:
        What was counted; why the file was not spliced, if it was not, and its mark.
    """
    names = emitted(job.shape)
    sink = sink_of(job, index, target, names=names)
    try:
        if isinstance(sink.output, Staged):
            sink.output.summing = work.verify
        tally = fill(sink)
        if work.verify:
            with clock.busy("verify"):
                check_written(job, index, sink, names, tally)
        sink.publish()
    except BaseException:
        sink.abort()
        raise
    return tally, {"reason": sink.reason, "mark": mark_of(target)}


def enrich(work: Work, lot: Block, labels: Labels, parts: Iterable[Part]) -> Outcome:
    """The last pass over a table: the table with the new columns beside it."""
    responses, _ = assembled(labels, parts, empty=lot.rows == 0)
    with work.engine(lot.source()) as engine:
        names = emitted(engine.job.shape)
        made = list(engine.written(0, responses, names, lambda columns: columns))
    tally = sum((some.tally for some in made), ExactTotals())
    batches = [batch for some in made for _, batch in some.parts]
    columns = pa.Table.from_batches(batches, schema_of(names))
    table = beside(engine.job, lot.table, columns)
    return Outcome(counted(engine, tally, responses), table)


def counted(engine: Engine, tally: ExactTotals, responses: Responses) -> Json:
    """The note of a task of the last pass, but for its files."""
    ledger = TotalsByStep.of(tally, responses.labels).to_json() if tally else []
    seconds = engine.clock.seconds
    return {
        "ledger": ledger,
        "halved": engine.splits,
        "seconds": seconds["total"],
        "busy": seconds["busy"],
    }


def encode(work: Work, lot: Partition, labels: Labels, parts: Iterable[Part]) -> Outcome:
    """The new columns of a part of a file, as the pages that the file will have."""
    assert lot.part is not None
    responses, _ = assembled(labels, parts, empty=lot.rows == 0)
    tally, packer = ExactTotals(), Packer()
    source = lot.source()
    indexed = any(indexed_groups_of(footer) for footer in source.footers)
    with work.engine(source) as engine:
        names = emitted(engine.job.shape)
        encoder = encoder_of(engine.job, names, indexed=indexed)
        for made in engine.written(0, responses, names, encoder.encode):
            for row_group, columns in made.parts:
                packer.add(lot.part.first + row_group, columns)
            tally += made.tally
    return Outcome({**counted(engine, tally, responses), "files": []}, ArrowBlock(packer.finish()))


def join(
    work: Work,
    lot: Partition,
    labels: Labels,
    ledgers: Sequence[list[Json]],
    settled: int,
    parts: Iterable[Part],
) -> Outcome:
    """A whole file, complete, under the name of its target, from what tasks encoded of it.

    Args:
        work: what all tasks have in common.
        lot: the file.
        labels: the steps and domains of the input.
        ledgers: what was counted of each part of the file.
        settled: how many of the parts are rows of settled tables.
        parts: these, and then what was encoded, in the order of the file.
    """
    parts, clock, whole = iter(parts), Clock(), work.whole
    assert whole is not None
    responses, _ = assembled(labels, islice(parts, settled), empty=lot.rows == 0)
    ledger = TotalsByStep()
    for one in ledgers:
        ledger += TotalsByStep.from_json(one)
    cells = ledger.arranged(labels["step"], labels["domain"])
    source = lot.source()
    job = work.job(source)
    facts = replace(row_facts(job, responses), labels={**labels, "cell": [*cells.cells]})
    metadata = metadata_of(job, 0, summary_of(job, facts, cells), whole.part(lot.first))

    def fill(sink: Sink) -> Arranged:
        assert sink.reason is None, "files that can't be copied are not divided"
        with clock.busy("copy"):
            for part in parts:
                for row_group, encoded in unpacked(part.sheet.rows):
                    sink.append(row_group, encoded)
            sink.complete(metadata)
        source.check_unchanged()
        return cells

    _, file = published(work, job, 0, lot.targets[0], clock, fill)
    seconds = clock.seconds
    note = {"ledger": [], "halved": 0, "seconds": seconds["total"], "busy": seconds["busy"]}
    return Outcome({**note, "files": [file]})
