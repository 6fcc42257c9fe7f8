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
    block,
    columns_of,
    key_column,
    keyed_table,
    responses_block,
    table_of,
    tensors_of,
)
from rlpost.distributed.partition import ROW, assemble_responses
from rlpost.distributed.staging import mark_of
from rlpost.io.parquet.encode import EncodedWriter, read_encoded
from rlpost.io.parquet.indexes import indexed_row_groups_of
from rlpost.io.progress import Clock
from rlpost.io.staged import StagedFile
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
from rlpost.pipeline.summary import response_facts, summary_of
from rlpost.pipeline.totals import ExactTotals, TotalsByStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.distributed.partition import Block, Json, Labels, Part, Partition, TaskContext
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import Arranged, Tallied


T = TypeVar("T", bound="Tallied")


class TaskOutput(NamedTuple):
    """What a task gives: a few facts for who drives the run, and rows for other tasks."""

    note: Json
    rows: Any = None
    """A sheet, or a table where the task is the last one."""


def read(work: TaskContext, partition: Partition | Block, _: Iterable[Part]) -> TaskOutput:
    """The first pass: the rows of a lot, one batch a bundle, in the order of the input in each.

    The note has the bundles that have rows here, and the steps and domains, each in the order of
    their first appearance.
    """
    with work.engine(partition.source()) as engine:
        chunks = [{**rows, **measured} for rows, measured in engine.first_pass()]
    table = keyed_table(chunks)
    if not table.num_rows:
        return TaskOutput({"bundles": [], "step": [], "domain": []})
    steps, domains = (key_column(table, name) for name in ("batch", "domain"))
    own = _buckets(steps, table.num_rows, work.buckets)
    order = np.argsort(own, kind="stable")
    table = table.append_column(ROW, pa.array(np.arange(len(own)))).take(order)
    buckets, sizes = np.unique(own, return_counts=True)
    note = {
        "bundles": buckets.tolist(),
        "step": ["all"] if steps is None else steps.unique().to_pylist(),
        "domain": ["all"] if domains is None else domains.unique().to_pylist(),
    }
    return TaskOutput(note, block(table, sizes.tolist(), {}))


def _buckets(steps: pa.ChunkedArray | None, rows: int, buckets: int) -> NDArray[np.int64]:
    """The bundle of each row, [rows]: by its step's name, so that no task need ask another."""
    if steps is None or buckets == 1:
        return np.zeros(rows, dtype=np.int64)
    codes = pa.chunked_array(steps).combine_chunks().dictionary_encode()
    names = [str(label) for label in codes.dictionary.to_pylist()]
    of_step = np.array([crc32(name.encode()) % buckets for name in names])
    own: NDArray[np.int64] = of_step[np.asarray(codes.indices)]
    return own


def reduce(work: TaskContext, number: int, parts: Iterable[Part]) -> TaskOutput:
    """One phase on the table of a bundle; its batches are the lots that have rows in it.

    Args:
        work: what all tasks have in common.
        number: of the phase, from 0.
        parts: the batches that the lots read or measured for this bundle, in input order; in a
            later phase the table as it was before comes first.
    """
    plan = work.plan_on_responses()
    phases = plan.phases()
    parts = iter(parts)
    if number == 0:
        collector, sizes = Collector(), []
        for part in parts:
            batch = part.block.batch(part.place)
            sizes.append(batch.num_rows)
            collector.add(columns_of(batch), {})
        responses = tabled(collector, plan).noting(part=work.buckets > 1)
    else:
        before = next(parts).block
        responses, sizes = before.responses(), before.sizes
        found = (tensors_of(part.block.batch(part.place)) for part in parts)
        responses = gathered(phases[number], responses, found)
    responses = settled(phases[number], responses)
    noted = responses.notes
    kept = {key: noted[key] for key in ("part", "slots") if key in noted}
    kept["running"] = {name: _plain(state) for name, state in noted.get("running", {}).items()}
    note = {
        "nothing_left": noted.get("nothing_left", {}),
        "rows": len(responses),
        "running": kept["running"],
        **(_facts(plan, responses) if number == len(phases) - 1 else {}),
    }
    return TaskOutput(note, responses_block(responses, sizes, kept))


def _plain(state: RunningMoments | Json) -> Json:
    """Running moments as plain data, as which they come from the phase before."""
    return state if isinstance(state, dict) else asdict(state)


def _facts(plan: Plan, responses: Responses) -> Json:
    """What the summary says of settled responses."""
    facts = response_facts(plan, responses)
    groups = facts.groups
    return {
        "sizes": None if groups is None else [*groups.sizes.items()],
        "zero_variance": 0 if groups is None else groups.zero_variance,
        "empty": facts.empty,
        "coefficients": facts.coefficients,
        "unwhitened": facts.unwhitened,
    }


def measure(
    work: TaskContext,
    partition: Partition | Block,
    number: int,
    labels: Labels,
    parts: Iterable[Part],
) -> TaskOutput:
    """What a later phase measures on a lot, one batch for each of the lot's bundles."""
    responses, own = assemble_responses(labels, parts, empty=partition.rows == 0)
    with work.engine(partition.source()) as engine:
        phase = engine.plan.phases()[number]
        table = table_of(list(engine.map_pass(phase, responses)))
    if work.buckets == 1:  # what a stage gathers need not have a number for each response
        return TaskOutput({}, block(table, None, {}))
    order = own.argsort(stable=True)
    sizes = torch.bincount(own).tolist()
    return TaskOutput({}, block(table.take(order.numpy()), sizes, {}))


def write(
    work: TaskContext, partition: Partition, labels: Labels, parts: Iterable[Part]
) -> TaskOutput:
    """The last pass: the files of a lot, complete, under the names of its targets."""
    responses, _ = assemble_responses(labels, parts, empty=partition.rows == 0)
    total, files = ExactTotals(), []
    with work.engine(partition.source()) as engine:
        for index in range(len(partition.files)):
            tally, file = _written(work, partition, engine, index, responses)
            total += tally
            files.append(file)
    return TaskOutput({**counted(engine, total, responses), "files": files})


def _written(
    work: TaskContext, partition: Partition, engine: Engine, index: int, responses: Responses
) -> tuple[ExactTotals, Json]:
    """One file of a lot: what was counted, and what is noted of it."""
    names, whole = emitted(engine.plan.resolved), work.whole
    assert whole is not None
    metadata = partial(enriched_metadata, whole=whole, first=partition.first)

    def filled(sink: Sink) -> ExactTotals:
        totals: ExactTotals = fill(sink, engine, index, responses, names, metadata)
        return totals

    return published(work, engine.plan, index, partition.targets[index], engine.clock, filled)


def published(
    work: TaskContext,
    plan: Plan,
    index: int,
    target: AnyPath,
    clock: Clock,
    fill: Callable[[Sink], T],
) -> tuple[T, Json]:
    """Write one file of a job, check it if that is asked for, and let it wait for the others.

    Args:
        work: what all tasks have in common.
        plan: the work on a source that has the file.
        index: the file's number there.
        target: where it waits.
        clock: is told how long checking takes.
        fill: fills and completes a sink, and gives what it counted.

    Returns:
        What was counted; why the file was not spliced, if it was not, and its mark.
    """
    names = emitted(plan.resolved)
    sink = sink_of(plan, index, target, names=names)
    try:
        if isinstance(sink.output, StagedFile):
            sink.output.checksumming = work.verify
        tally = fill(sink)
        if work.verify:
            with clock.busy("verify"):
                check_written(plan, index, sink, names, tally)
        sink.publish()
    except BaseException:
        sink.abort()
        raise
    return tally, {"reason": sink.reason, "mark": mark_of(target)}


def enrich(
    work: TaskContext, partition: Block, labels: Labels, parts: Iterable[Part]
) -> TaskOutput:
    """The last pass over a table: the table with the new columns beside it."""
    responses, _ = assemble_responses(labels, parts, empty=partition.rows == 0)
    with work.engine(partition.source()) as engine:
        names = emitted(engine.plan.resolved)
        made = list(engine.written(0, responses, names, lambda columns: columns))
    tally = sum((some.tally for some in made), ExactTotals())
    batches = [batch for some in made for _, batch in some.parts]
    columns = pa.Table.from_batches(batches, schema_of(names))
    table = beside(engine.plan, partition.table, columns)
    return TaskOutput(counted(engine, tally, responses), table)


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


def encode(
    work: TaskContext, partition: Partition, labels: Labels, parts: Iterable[Part]
) -> TaskOutput:
    """The new columns of a part of a file, as the pages that the file will have."""
    assert partition.part is not None
    responses, _ = assemble_responses(labels, parts, empty=partition.rows == 0)
    tally, packer = ExactTotals(), EncodedWriter()
    source = partition.source()
    indexed = any(indexed_row_groups_of(footer) for footer in source.footers)
    with work.engine(source) as engine:
        names = emitted(engine.plan.resolved)
        encoder = encoder_of(engine.plan, names, indexed=indexed)
        for made in engine.written(0, responses, names, encoder.encode):
            for row_group, columns in made.parts:
                packer.add(partition.part.first + row_group, columns)
            tally += made.tally
    return TaskOutput(
        {**counted(engine, tally, responses), "files": []}, ArrowBlock(packer.finish())
    )


def join(
    work: TaskContext,
    partition: Partition,
    labels: Labels,
    ledgers: Sequence[list[Json]],
    settled: int,
    parts: Iterable[Part],
) -> TaskOutput:
    """A whole file, complete, under the name of its target, from what tasks encoded of it.

    Args:
        work: what all tasks have in common.
        partition: the file.
        labels: the steps and domains of the input.
        ledgers: what was counted of each part of the file.
        settled: how many of the parts are rows of settled tables.
        parts: these, and then what was encoded, in the order of the file.
    """
    parts, clock, whole = iter(parts), Clock(), work.whole
    assert whole is not None
    responses, _ = assemble_responses(labels, islice(parts, settled), empty=partition.rows == 0)
    ledger = TotalsByStep()
    for one in ledgers:
        ledger += TotalsByStep.from_json(one)
    cells = ledger.arranged(labels["step"], labels["domain"])
    source = partition.source()
    plan = work.plan(source)
    facts = replace(response_facts(plan, responses), labels={**labels, "cell": [*cells.cells]})
    metadata = metadata_of(plan, 0, summary_of(plan, facts, cells), whole.part(partition.first))

    def fill(sink: Sink) -> Arranged:
        assert sink.reason is None, "files that can't be copied are not divided"
        with clock.busy("copy"):
            for part in parts:
                for row_group, encoded in read_encoded(part.block.rows):
                    sink.append(row_group, encoded)
            sink.complete(metadata)
        source.check_unchanged()
        return cells

    _, file = published(work, plan, 0, partition.targets[0], clock, fill)
    seconds = clock.seconds
    note = {"ledger": [], "halved": 0, "seconds": seconds["total"], "busy": seconds["busy"]}
    return TaskOutput({**note, "files": [file]})
