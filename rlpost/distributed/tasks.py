"""The tasks of a distributed run: pure functions of small arguments and batches of blocks.

`read` and `map_tokens` work on a partition, `reduce` on a bucket: the responses of some steps.
The last pass is `write` for a partition of whole files. A file in several partitions takes one
`encode` for each of them and one `join`. `enrich` is the last pass over a table.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from rlpost.distributed.blocks import (
    ArrowBlock,
    arrays_of,
    arrow_block,
    columns_of,
    key_column,
    keyed_table,
    responses_block,
    table_of,
)
from rlpost.distributed.partition import ROW, assemble_responses
from rlpost.distributed.staging import digest_of
from rlpost.io.clock import Clock
from rlpost.io.keys import KeyColumn
from rlpost.io.parquet.encode import EncodedWriter, read_encoded
from rlpost.pipeline.data import Collector
from rlpost.pipeline.engine import reduced, response_table, with_mapped
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.run import (
    FilledFile,
    complete_file,
    encoder_of,
    enrich_table,
    enriched_metadata,
    fill_file,
    sink_of,
)
from rlpost.pipeline.summary import response_facts, summary_of
from rlpost.pipeline.totals import ExactTotals, SummaryCells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.distributed.partition import (
        Json,
        Labels,
        LoadedBatch,
        Partition,
        TablePartition,
        TaskContext,
    )
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.paths import AnyPath
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.stages.units import RowsDiffer


class TaskOutput(NamedTuple):
    """What a task returns: a few facts for the driver, and rows for other tasks."""

    note: Json
    rows: Any = None
    """A block, or a table after the last pass over a table."""


def read(
    context: TaskContext, partition: Partition | TablePartition, _: Iterable[LoadedBatch]
) -> TaskOutput:
    """Run the first pass; return the rows of a partition, one batch for each bucket.

    Rows of a bucket are in input order. The note has the buckets that have rows here, and the steps
    and domains in order of their first appearance.
    """
    with context.engine(partition.source()) as engine:
        chunks = [{**rows, **mapped} for rows, mapped in engine.first_pass()]
    table = keyed_table(chunks)
    if not table.num_rows:
        return TaskOutput({"buckets": [], "step": [], "domain": []})
    steps, domains = (key_column(table, name) for name in ("batch", "domain"))
    own = _buckets(steps, table.num_rows, context.buckets)
    order = np.argsort(own, kind="stable")
    table = table.append_column(ROW, pa.array(np.arange(len(own)))).take(order)
    buckets, sizes = np.unique(own, return_counts=True)
    note = {
        "buckets": buckets.tolist(),
        "step": ["all"] if steps is None else steps.unique().to_pylist(),
        "domain": ["all"] if domains is None else domains.unique().to_pylist(),
    }
    return TaskOutput(note, arrow_block(table, sizes.tolist(), {}))


def _buckets(steps: pa.ChunkedArray | None, rows: int, buckets: int) -> NDArray[np.int64]:
    """Return the bucket of each row, [rows]: a hash of its step, so that all tasks agree."""
    if steps is None or buckets == 1:
        return np.zeros(rows, dtype=np.int64)
    keys = KeyColumn.of(steps.chunks)
    names = [str(label) for label in keys.labels.to_pylist()]
    return np.array([crc32(name.encode()) % buckets for name in names])[keys.codes]


def reduce(context: TaskContext, number: int, batches: Iterable[LoadedBatch]) -> TaskOutput:
    """Run one phase on the table of a bucket; return it with one batch for each partition.

    Args:
        context: of the run.
        number: of the phase, from 0.
        batches: what the partitions read or mapped for this bucket, in input order; in a later
            phase the table of the phase before comes first.
    """
    plan = context.plan_on_responses()
    phases = plan.phases()
    batches = iter(batches)
    if number == 0:
        collector, sizes = Collector(), []
        for loaded in batches:
            batch = loaded.block.batch(loaded.batch)
            sizes.append(batch.num_rows)
            collector.add(columns_of(batch), {})
        responses = response_table(collector, plan).noting(part=context.buckets > 1)
    else:
        before = next(batches).block
        responses, sizes = before.responses(), before.sizes
        mapped = (arrays_of(loaded.block.batch(loaded.batch)) for loaded in batches)
        responses = with_mapped(phases[number], responses, mapped)
    responses = reduced(phases[number], responses)
    notes = {
        key: responses.notes[key] for key in ("part", "slots", "kl_coef") if key in responses.notes
    }
    running = {name: _plain(one) for name, one in responses.notes.get("running", {}).items()}
    notes["running"] = running
    note = {
        "nothing_left": responses.notes.get("nothing_left", {}),
        "rows": len(responses),
        "after": {key: notes[key] for key in ("running", "kl_coef") if key in notes},
        "rows_differ": _located(responses, sizes),
    }
    if number == len(phases) - 1:
        note["facts"] = response_facts(plan, responses).to_json()
    return TaskOutput(note, responses_block(responses, sizes, notes))


def _located(responses: Responses, sizes: Sequence[int]) -> Json | None:
    """Return rows of one rollout that differ, with the batch and the row in it; None for none.

    Args:
        responses: of a bucket.
        sizes: rows of each of its batches.
    """
    differ: RowsDiffer | None = responses.notes.get("rows_differ")
    if differ is None:
        return None
    ends = list(accumulate(sizes))
    own = [(bisect_right(ends, row), int(responses[ROW][row])) for row in differ.rows]
    return {"own": own, "values": differ.values, "column": differ.column}


def _plain(state: RunningMoments | Json) -> Json:
    """Return running statistics as plain data, which they are already after an earlier phase."""
    return state if isinstance(state, dict) else asdict(state)


def map_tokens(
    context: TaskContext,
    partition: Partition | TablePartition,
    number: int,
    labels: Labels,
    batches: Iterable[LoadedBatch],
) -> TaskOutput:
    """Run the pass of a later phase; return its numbers, one batch for each bucket."""
    responses, own = assemble_responses(labels, batches, empty=partition.rows == 0)
    with context.engine(partition.source()) as engine:
        phase = engine.plan.phases()[number]
        table = table_of(list(engine.map_pass(phase, responses)))
    if context.buckets == 1:  # a stage that gathers may return any count of numbers
        return TaskOutput({}, arrow_block(table, None, {}))
    order, sizes = np.argsort(own, kind="stable"), np.bincount(own).tolist()
    return TaskOutput({}, arrow_block(table.take(order), sizes, {}))


def write(
    context: TaskContext, partition: Partition, labels: Labels, batches: Iterable[LoadedBatch]
) -> TaskOutput:
    """Run the last pass over whole files; each file is complete at its staged path afterwards."""
    responses, _ = assemble_responses(labels, batches, empty=partition.rows == 0)
    assert context.metadata is not None
    metadata = partial(enriched_metadata, run=context.metadata, first=partition.first)
    with context.engine(partition.source()) as engine:
        total, files, plan = ExactTotals(), [], engine.plan
        names = emitted(plan.resolved)
        for index, target in enumerate(partition.targets):
            fill = partial(fill_file, engine, index, responses, names, metadata)
            totals, file = _written(plan, index, target, engine.clock, fill)
            total += totals
            files.append(file)
    return TaskOutput(_note(engine.clock, total, responses, files))


def _written(
    plan: Plan,
    index: int,
    target: AnyPath,
    clock: Clock,
    fill: Callable[[Sink], FilledFile],
) -> tuple[ExactTotals, Json]:
    """Write one file to its staged path; return its totals, and facts about the file.

    The facts are a digest of its footer, and the reason if it was not spliced.
    """
    names = emitted(plan.resolved)
    sink = sink_of(plan, index, target, names=names)
    try:
        totals = complete_file(clock, fill(sink)).totals
        sink.publish()
    except BaseException:
        sink.abort()
        raise
    return totals, {"reason": sink.reason, "digest": digest_of(target)}


def _note(
    clock: Clock,
    totals: ExactTotals,
    responses: Responses,
    files: Sequence[Json] = (),
) -> Json:
    """Return the note of a task of the last pass."""
    seconds = clock.seconds
    return {
        "totals": totals.to_text(),
        "cells": responses.cells.names(totals.keys),
        "busy": seconds["busy"],
        "cpu": seconds["cpu"],
        "files": list(files),
    }


def enrich(
    context: TaskContext, partition: TablePartition, labels: Labels, batches: Iterable[LoadedBatch]
) -> TaskOutput:
    """Run the last pass over a table; return it with the new columns."""
    responses, _ = assemble_responses(labels, batches, empty=partition.rows == 0)
    with context.engine(partition.source()) as engine:
        table, totals = enrich_table(engine, partition.table, responses)
    return TaskOutput(_note(engine.clock, totals, responses), table)


def encode(
    context: TaskContext, partition: Partition, labels: Labels, batches: Iterable[LoadedBatch]
) -> TaskOutput:
    """Run the last pass over a part of a file; return the encoded pages of its new columns."""
    assert partition.part is not None
    responses, _ = assemble_responses(labels, batches, empty=partition.rows == 0)
    totals, packer = ExactTotals(), EncodedWriter()
    with context.engine(partition.source()) as engine:
        names = emitted(engine.plan.resolved)
        encoder = encoder_of(engine.plan, names)
        for chunk in engine.last_pass(0, responses, names, encoder.encode):
            for row_group, columns in chunk.parts:
                packer.add(partition.part.first + row_group, columns)
            totals += chunk.totals
    note = _note(engine.clock, totals, responses)
    return TaskOutput(note, ArrowBlock(packer.finish()))


def join(
    context: TaskContext,
    partition: Partition,
    labels: Labels,
    notes: Sequence[Json],
    tables: int,
    batches: Iterable[LoadedBatch],
) -> TaskOutput:
    """Write a whole file to its staged path from the pages that `encode` returned for its parts.

    Args:
        context: of the run.
        partition: the whole file.
        labels: the steps and domains of the input.
        notes: of the tasks that encoded its parts.
        tables: how many of the batches are rows of reduced tables.
        batches: these rows, and then the encoded pages, in file order.
    """
    batches, clock = iter(batches), Clock()
    assert context.metadata is not None
    responses, _ = assemble_responses(labels, islice(batches, tables), empty=partition.rows == 0)
    totals, cells = merged_totals(notes, labels)
    source = partition.source()
    plan = context.plan(source)
    summary = summary_of(plan, cells, response_facts(plan, responses), totals)
    metadata = context.metadata.of_file(partition.first, partition.files[0].path, summary)

    def fill(sink: Sink) -> FilledFile:
        assert sink.reason is None, "files that cannot be copied are not divided"
        with clock.busy("copy"):
            for loaded in batches:
                for row_group, encoded in read_encoded(loaded.block.rows):
                    sink.append(row_group, encoded)
        return FilledFile(0, sink, totals, metadata.entries)

    _, file = _written(plan, 0, partition.targets[0], clock, fill)
    source.check_unchanged()
    return TaskOutput(_note(clock, ExactTotals(), responses, [file]))


def merged_totals(notes: Sequence[Json], labels: Labels) -> tuple[ExactTotals, SummaryCells]:
    """Return the totals of some tasks of the last pass by cell, and the cells.

    Args:
        notes: of the tasks.
        labels: the steps and domains of the input.
    """
    parts = ((note["cells"], ExactTotals.from_text(note["totals"])) for note in notes)
    cells, total = SummaryCells.joined(labels["step"], labels["domain"], parts)
    return total, cells
