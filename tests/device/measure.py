"""Runs of the pipeline on the shadow, with what each chunk of each pass waited for and sent."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import rlpost
from rlpost.pipeline.engine import Engine
from rlpost.pipeline.reading import Decoder
from tests.device import shadow

UNSTABLE = ("seconds", "bytes", "device")
"""Parts of a summary that are not results."""


@dataclass
class Chunk:
    """What the work of one chunk did on the card."""

    counts: shadow.Counts
    rows: int
    tokens: int
    roles: tuple[str, ...]
    """The token columns that were decoded, with `mask` if the chunk has observations."""


@dataclass
class Measured:
    """What engines did on the cards."""

    counts: shadow.Counts
    """Of all threads."""
    by_pass: dict[int, list[Chunk]] = field(default_factory=lambda: defaultdict(list))

    @property
    def passes(self) -> list[list[Chunk]]:
        return [*self.by_pass.values()]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.passes for chunk in chunks]


@contextmanager
def measured():
    """Measure all engines that run in the block."""
    worked, batch, read = Engine._worked, Decoder.batch, {}

    def batch_noted(self, pieces, roles, *rest, **named):
        tokens = batch(self, pieces, roles, *rest, **named)
        read[id(pieces)] = len(tokens.mask), (*roles, *(() if tokens.full else ("mask",)))
        return tokens

    def counted(work, number, pieces):
        with shadow.counted(own_thread=True) as counts:
            result = work(pieces)
        rows = sum(piece.table.num_rows for piece in pieces)
        run.by_pass[number].append(Chunk(counts, rows, *read.pop(id(pieces), (0, ()))))
        return result

    def worked_counted(self, work, *rest):
        return worked(self, partial(counted, work, len(run.by_pass)), *rest)

    with (
        mock.patch.object(Engine, "_worked", worked_counted),
        mock.patch.object(Decoder, "batch", batch_noted),
        shadow.counted() as counts,
    ):
        run = Measured(counts)
        yield run


def on_shadow(table, recipe: rlpost.Recipe, **options):
    """Run a recipe on a table on the card `shadow:0`; return table, summary and `Measured`."""
    with measured() as run:
        result, summary = rlpost.enrich(
            table, recipe, rlpost.Options(**{"device": "shadow:0", **options})
        )
    return result, summary, run


def same_results(summary: dict, other: dict) -> bool:
    """Return whether two summaries have the same results, bit for bit."""
    left, right = (
        {name: value for name, value in facts.items() if name not in UNSTABLE}
        for facts in (summary, other)
    )
    return repr(left) == repr(right)  # NaN equals NaN
