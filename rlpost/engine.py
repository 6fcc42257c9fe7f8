"""The engine: streams batches through the stages, pass after pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.kernels.segments import count_true
from rlpost.output import record_batch
from rlpost.plan import roles_of
from rlpost.progress import Clock
from rlpost.summary import Tally, measure
from rlpost.table import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from rlpost.batch import Batch, Responses
    from rlpost.decode import Decoder
    from rlpost.parquet.source import Piece
    from rlpost.plan import Job, Pass
    from rlpost.progress import Reporter
    from rlpost.stages import Stage

CHUNK_TOKENS = 1 << 20


class Engine:
    """Runs a job, pass after pass.

    Args:
        job: from `job_of`.
        decoder: reads roles out of pieces.
        chunk_tokens: list elements per batch, about.
        reporter: who is told of progress.
    """

    def __init__(
        self, job: Job, decoder: Decoder, *, chunk_tokens: int, reporter: Reporter
    ) -> None:
        self.job = job
        self.decoder = decoder
        self.chunk_tokens = chunk_tokens
        self.reporter = reporter
        self.clock = Clock()
        self._passes = job.passes()
        self._starts: list[int] = []

    def responses(self) -> Responses:
        """All passes but the last: the table of responses with everything settled."""
        responses = self._table(self._passes[0])
        later = iter(self._passes[1:-1])
        for stage in self.job.stages:
            if stage.measure and not stage.measures_file:
                responses = responses.with_(**self._measure(next(later), responses))
            if stage.settle:
                with self.clock.phase("responses"):
                    responses = stage.settle(responses)
        return responses

    def _table(self, step: Pass) -> Responses:
        collector = Collector()
        roles = roles_of(step.measured)
        for piece in self._pieces(step):
            with self.clock.phase("compute"):
                rows = self.decoder.rows(piece, self.job.row_roles)
                batch = self.decoder.batch(piece, roles)
                collector.add(rows, _measured(step.measured, batch) | _sizes(batch))
        with self.clock.phase("responses"):
            return collector.finish(self.job.shape.recipe)

    def _measure(self, step: Pass, responses: Responses) -> dict[str, torch.Tensor]:
        parts = []
        for piece in self._pieces(step):
            with self.clock.phase("compute"):
                batch = self._applied(step, piece, responses)
                parts.append(
                    {name: value.cpu() for name, value in _measured(step.measured, batch).items()}
                )
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def written(
        self, file: int, responses: Responses, tally: Tally, names: tuple[str, ...]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The last pass over one file: new columns, with the row group each piece belongs to.

        Args:
            file: index of the file.
            responses: from `responses`.
            tally: counts every row in, by the responses' cell of step and domain.
            names: the columns to make.
        """
        step = self._passes[-1]
        pieces = self.job.source.read_file(file, step.columns, self.chunk_tokens)
        keys = responses["cell"]
        for piece in self.clock.timed("read", pieces):
            with self.clock.phase("compute"):
                batch = self._applied(step, piece, responses)
                start = self._row(piece)
                measured = measure(batch, self.job.shape)
                tally.add(keys[start : start + piece.table.num_rows], measured.sums, measured.spans)
                columns = record_batch(batch, self.job.shape, names)
            yield piece.row_group, columns
            self.reporter.advance(piece.table.num_rows)

    def _applied(self, step: Pass, piece: Piece, responses: Responses) -> Batch:
        batch = self.decoder.batch(piece, roles_of((*step.applied, *step.measured)))
        batch = batch.beside(responses, self._row(piece))
        for stage in step.applied:
            assert stage.apply is not None
            batch = stage.apply(batch)
        return batch

    def _pieces(self, step: Pass) -> Iterator[Piece]:
        self.reporter.start(step.purpose, self.job.source.rows)
        pieces = self.job.source.read(step.columns, self.chunk_tokens)
        for piece in self.clock.timed("read", pieces):
            yield piece
            self.reporter.advance(piece.table.num_rows)

    def _row(self, piece: Piece) -> int:
        return self.job.source.first_rows[piece.file] + piece.first_row


def _measured(stages: Sequence[Stage], batch: Batch) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        assert stage.measure is not None
        found |= stage.measure(batch)
    return found


def _sizes(batch: Batch) -> dict[str, torch.Tensor]:
    return {"tokens": count_true(batch.mask, batch.offsets), "length": batch.lengths}
