"""The last pass over one large file by several tasks: each encodes some row groups, one joins."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from rlpost.ledger import Ledger
from rlpost.output import emitted
from rlpost.parquet.indexes import indexed_groups_of
from rlpost.parquet.packed import Packer, unpacked
from rlpost.progress import Clock
from rlpost.report import summary_of
from rlpost.row_facts import row_facts
from rlpost.run import encoder_of, metadata_of
from rlpost.tally import Tally
from rlpost.tasks.lots import assembled
from rlpost.tasks.sheets import Sheet
from rlpost.tasks.steps import Outcome, counted, published

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.ledger import Arranged
    from rlpost.parquet.sink import Sink
    from rlpost.tasks.lots import Json, Labels, Lot, Part, Work


def encode(work: Work, lot: Lot, labels: Labels, parts: Iterable[Part]) -> Outcome:
    """The new columns of a part of a file, as the pages that the file will have."""
    assert lot.part is not None
    responses, _ = assembled(labels, parts, empty=lot.rows == 0)
    tally, packer = Tally(), Packer()
    source = lot.source()
    indexed = any(indexed_groups_of(footer) for footer in source.footers)
    with work.engine(source) as engine:
        names = emitted(engine.job.shape)
        encoder = encoder_of(engine.job, names, indexed=indexed)
        for made in engine.written(0, responses, names, encoder.encode):
            for row_group, columns in made.parts:
                packer.add(lot.part.first + row_group, columns)
            tally += made.tally
    return Outcome({**counted(engine, tally, responses), "files": []}, Sheet(packer.finish()))


def join(
    work: Work,
    lot: Lot,
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
    ledger = Ledger()
    for one in ledgers:
        ledger += Ledger.from_json(one)
    cells = ledger.arranged(labels["step"], labels["domain"])
    source = lot.source()
    job = work.job(source)
    facts = replace(row_facts(job, responses), labels={**labels, "cell": [*cells.cells]})
    metadata = metadata_of(job, 0, summary_of(job, facts, cells)) | whole.part(lot.first).note

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
