"""Runs of the pipeline on the shadow, with what each chunk of each pass waited for and sent."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import pyarrow as pa

import rlpost
from rlpost.pipeline.engine import Engine
from rlpost.pipeline.reading import Decoder
from tests.device import shadow

UNSTABLE = ("seconds", "bytes", "halved_pieces", "scratch")
"""Parts of a summary that are not results."""


@dataclass
class Chunk:
    """What the work of one chunk did on the card."""

    counts: shadow.Counts
    rows: int
    tokens: int
    roles: list[str] = field(default_factory=list)
    """The token columns that the pass read, with `mask` if the chunk has observations."""


@dataclass
class Run:
    """A run on the shadow."""

    table: pa.Table
    summary: dict
    counts: shadow.Counts
    """Of all threads."""
    passes: list[list[Chunk]]
    peak: int
    """Most bytes of memory of card 0 at once."""

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.passes for chunk in chunks]


def on_shadow(
    table: pa.Table, recipe: rlpost.Recipe, *, stacks: bool = False, **options
) -> Run:
    """Run a recipe on a table on the card `shadow:0`, which is plugged in already."""
    chunks = defaultdict(list)
    worked, batch = Engine._worked, Decoder.batch
    reading: dict[int, list[str]] = {}

    def batch_noted(self, pieces, roles, *rest, **named):
        made = batch(self, pieces, roles, *rest, **named)
        reading[id(pieces)] = [*roles] + ([] if made.full else ["mask"])
        return made

    def counted(work, number, pieces):
        with shadow.counted(own_thread=True) as counts:
            result = work(pieces)
        rows = sum(one.table.num_rows for one in pieces)
        chunk = Chunk(counts, rows, sum(one.tokens for one in pieces), reading.pop(id(pieces), []))
        chunks[number].append(chunk)
        return result

    def worked_counted(self, work, *rest):
        return worked(self, partial(counted, work, len(chunks)), *rest)

    options = rlpost.Options(**{"device": "shadow:0", **options})
    card = shadow.cards[0]
    card.peak = card.allocated
    with (
        mock.patch.object(Engine, "_worked", worked_counted),
        mock.patch.object(Decoder, "batch", batch_noted),
        shadow.counted(stacks=stacks) as counts,
    ):
        result, summary = rlpost.enrich(table, recipe, options)
    return Run(result, summary, counts, [*chunks.values()], card.peak)


def same_results(summary: dict, other: dict) -> bool:
    """Return whether two summaries have the same results, bit for bit."""
    left, right = (
        {name: value for name, value in one.items() if name not in UNSTABLE}
        for one in (summary, other)
    )
    return repr(left) == repr(right)  # NaN equals NaN
