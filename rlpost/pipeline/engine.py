"""The engine: it streams batches through the stages, one pass after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.io.parquet.source import count_rows, join_chunks, split_by_row_group
from rlpost.io.threads import map_ordered, prefetch
from rlpost.kernels.arrays import on_host
from rlpost.kernels.segments import count_true, lengths
from rlpost.pipeline.columns import LENGTH
from rlpost.pipeline.data import FAILURE, Collector, concat_columns
from rlpost.pipeline.failures import named_failures
from rlpost.pipeline.output.columns import record_batch, written_columns
from rlpost.pipeline.plan import roles_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.io.clock import Clock
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.source import Chunks
    from rlpost.pipeline.data import Batch, Column, Responses
    from rlpost.pipeline.device import Device
    from rlpost.pipeline.plan import Pass, Plan
    from rlpost.pipeline.reading import Decoder
    from rlpost.pipeline.stages import Stage


R = TypeVar("R")
_PREFETCH = 2  # decoded chunks in the queue of the workers
_OF_LABEL = 18_000  # bytes for the totals of a step or domain, measured


@dataclass(frozen=True)
class ComputedChunk:
    """The new columns of a chunk of rows, and their totals."""

    parts: list[tuple[int, int, Any]]
    """Files, row groups, and the encoded columns of the rows in each."""
    totals: Any


class Passes(ABC):
    """The passes of a plan; those before the last make the table of responses.

    Args:
        plan: from `plan_of`.
        reporter: shows progress.
        clock: measures the run.
        device: that computes.
    """

    def __init__(self, plan: Plan, reporter: Reporter, clock: Clock, device: Device) -> None:
        self.plan = plan
        self.reporter = reporter
        self.clock = clock
        self.device = device
        self.passes = plan.passes()
        """Those that write any columns; `responses` replaces them."""

    def responses(self, names: tuple[str, ...], *, part: bool = False) -> Responses:
        """Run all passes but the last; return the reduced table of responses.

        Args:
            names: the columns that the last pass computes.
            part: the input may be a part of a run's, of which masks drop all responses.
        """
        self.reporter.begin(len(self.plan.passes(names)))
        collector = Collector(self.plan.source.rows, _OF_LABEL)
        for rows, mapped in self.first_pass():
            collector.add(rows, mapped)
        with self.clock.wall("reduce"):
            table = response_table(collector, self.plan).noting(part=part)
            responses = _reduced(self.passes[0], table)
        if differ := responses.notes.get("rows_differ"):
            source = self.plan.source
            rows_of = [row_name(source.files, source.first_rows, row) for row in differ.rows]
            raise differ.error(rows_of, self.plan.columns)
        self.passes = self.plan.passes(names)
        for number, step in enumerate(self.passes[1:-1], 1):
            parts, (stage,) = self.map_pass(number, responses), step.mapped
            responses = (stage.gather or _with_columns)(responses, parts)
            with self.clock.wall("reduce"):
                responses = _reduced(step, responses)
        return responses

    @abstractmethod
    def first_pass(self) -> Iterator[tuple[dict[str, Any], dict[str, Column]]]:
        """Yield keys and numbers of responses, and what stages map in the first pass, by chunk.

        All are [n], of consecutive rows: keys are Arrow arrays, numbers are arrays.
        """

    @abstractmethod
    def map_pass(self, number: int, responses: Responses) -> Iterator[dict[str, Column]]:
        """Yield what the stage of a later pass maps, by chunk.

        Args:
            number: of the pass, not 0.
            responses: of this input, reduced by the passes before.
        """


class Engine(Passes):
    """Runs the passes of a plan in this process.

    One thread reads. `workers` threads compute, on several chunks at once if these are small.
    Results are in the order of the input.

    Args:
        plan: from `plan_of`.
        decoder: converts chunks to arrays.
        chunk_tokens: approximate list elements of a chunk.
        workers: threads that compute.
        reporter: shows progress.
        clock: measures the run.
    """

    def __init__(
        self,
        plan: Plan,
        decoder: Decoder,
        *,
        chunk_tokens: int,
        workers: int,
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        super().__init__(plan, reporter, clock, decoder.device)
        self.decoder = decoder
        self.chunk_tokens = chunk_tokens
        self.workers = workers

    def first_pass(self) -> Iterator[tuple[dict[str, Any], dict[str, Column]]]:
        """Yield keys and numbers of responses, and what stages map in the first pass, by chunk."""
        step = self.passes[0]
        roles = roles_of(step.mapped)

        def read(chunks: Chunks) -> tuple[dict[str, Any], dict[str, Column]]:
            rows = self.decoder.rows(chunks, self.plan.row_roles)
            if self.plan.length_role is None:
                length = self.decoder.lengths(chunks)
                return rows, {"tokens": length, "length": length}
            if not step.mapped:
                return rows, _sizes(*self.decoder.structure(chunks))
            batch = self.decoder.batch(chunks, roles)
            mapped = self.device.fetch(_mapped(step.mapped, batch))
            return rows, mapped | _sizes(on_host(batch.offsets), on_host(batch.mask))

        return self._over_all(step, read)

    def map_pass(self, number: int, responses: Responses) -> Iterator[dict[str, Column]]:
        """Yield what the stage of a later pass maps, by chunk."""
        step = self.passes[number]
        step = replace(step, columns=self._columns(step, responses))

        def map_chunks(chunks: Chunks) -> dict[str, Column]:
            batch = self._applied(step, chunks, responses)
            observed = self.plan.observe(batch) if step.observed else {}
            return self.device.fetch(_mapped(step.mapped, batch) | observed)

        return self._over_all(step, map_chunks)

    def last_pass(
        self,
        files: Sequence[int],
        responses: Responses,
        names: tuple[str, ...],
        encode: Callable[[list[pa.RecordBatch]], Sequence[Any]],
    ) -> Iterator[ComputedChunk]:
        """Run the last pass over some files; yield their new columns in row order.

        Args:
            files: consecutive indices.
            responses: from `responses`.
            names: the columns to compute.
            encode: encodes the rows of row groups, each by itself; worker threads call it.
        """
        step = self.passes[-1]
        tokens = self.plan.needs_tokens(step, names)

        def make(chunks: Chunks) -> ComputedChunk:
            batch = self._applied(step, chunks, responses, tokens=tokens)
            counted = self.plan.count(batch)
            written = written_columns(batch, self.plan.resolved, names)
            fetched = self.device.fetch({**counted.numbers, **written})
            totals = counted.totals(fetched)
            row_name = partial(self._row_name, chunks)
            written = {name: fetched[name] for name in names}
            columns = record_batch(written, on_host(batch.offsets), row_name)
            split = [*split_by_row_group(chunks, columns)]
            encoded = encode([part for *_, part in split])
            places = [(file, group) for file, group, _ in split]
            parts = [(*place, rows) for place, rows in zip(places, encoded, strict=True)]
            return ComputedChunk(parts, totals)

        columns = self._columns(step, responses) if tokens else ()
        source, size, sized_by = self.plan.source, self.chunk_tokens, self.plan.sized_by
        chunks = (source.read_file(file, columns, size, sized_by) for file in files)
        if self.plan.whole_files:
            yield from self._worked(make, filter(None, map(tuple, chunks)))
        else:
            yield from self._worked(make, join_chunks(chain.from_iterable(chunks)))

    def _columns(self, step: Pass, responses: Responses) -> tuple[str, ...]:
        """Return the columns that a later pass reads; the mask only if there are observations."""
        needed = {self.plan.columns.column(role) for role in step.roles}
        if all_policy(responses):
            return tuple(sorted(needed))
        return step.columns

    def _applied(
        self, step: Pass, chunks: Chunks, responses: Responses, *, tokens: bool = True
    ) -> Batch:
        start = self._row(chunks)
        lengths = responses["length"][start : start + count_rows(chunks)]
        if not tokens:
            return self.decoder.without_tokens(lengths).beside(responses, start, self.device)
        own = lengths if all_policy(responses) else None
        batch = self.decoder.batch(chunks, step.roles, own)
        batch = batch.beside(responses, start, self.device)
        for stage in step.applied:
            assert stage.apply is not None
            batch = stage.apply(batch)
        return batch

    def _over_all(self, step: Pass, work: Callable[[Chunks], R]) -> Iterator[R]:
        """Yield the result for every chunk of the input, in order."""
        self.reporter.start(step.purpose, self.plan.source.rows)
        chunks = self.plan.source.read(step.columns, self.chunk_tokens, self.plan.sized_by)
        with self.clock.wall(step.purpose):
            yield from self._worked(work, join_chunks(chunks))

    def _worked(self, work: Callable[[Chunks], R], joined: Iterator[Chunks]) -> Iterator[R]:
        """Yield the results for joined chunks, in order, and report progress."""
        for result, rows in self._results(work, joined):
            yield result
            self.reporter.advance(rows)

    def _results(
        self, work: Callable[[Chunks], R], joined: Iterator[Chunks]
    ) -> Iterator[tuple[R, int]]:
        """Yield the results for joined chunks, in order, each with the number of its rows."""
        read = self._counted(joined)
        first = list(islice(read, 2))
        if len(first) < 2:  # noqa: PLR2004 - threads would gain nothing
            yield from (self._computed(work, only) for only in first)
            return
        items = prefetch(chain(first, read), _PREFETCH)
        yield from map_ordered(partial(self._computed, work), items, self.workers)

    def _counted(self, chunks: Iterator[Chunks]) -> Iterator[Chunks]:
        for joined in chunks:
            self.clock.count_bytes(decoded=sum(chunk.table.nbytes for chunk in joined))
            yield joined

    def _computed(self, work: Callable[[Chunks], R], chunks: Chunks) -> tuple[R, int]:
        with self.device.computing(partial(self._row_name, chunks, 0)):
            return work(chunks), count_rows(chunks)

    def _row_name(self, chunks: Chunks, row: int) -> str:
        """Return the name of a row in errors; `row` is counted from the start of some chunks."""
        source = self.plan.source
        return row_name(source.files, source.first_rows, self._row(chunks) + row)

    def _row(self, chunks: Chunks) -> int:
        return self.plan.source.first_rows[chunks[0].file] + chunks[0].first_row


def row_name(files: Sequence[InputFile], first_rows: Sequence[int], row: int) -> str:
    """Return the name of a row in errors: its file, and its number in the file.

    Args:
        files: of a source.
        first_rows: of the same source.
        row: number among the rows of the source.
    """
    file = min(bisect_right(first_rows, row), len(files)) - 1
    return f"{files[file].path}, row {row - first_rows[file]}"


def all_policy(responses: Responses) -> bool:
    """Return whether no response has an observation, so that lengths replace the mask."""
    return bool(responses.notes["all_policy"])


def response_table(collector: Collector, plan: Plan) -> Responses:
    """Return the table of the collected responses, at least one.

    Raises:
        DataError: a column of lengths is 0 in all responses that did not fail.
    """
    responses = collector.finish(plan.resolved.recipe, plan.resolved.unit)
    if plan.length_role is None and not responses["tokens"].any():
        column, ended = plan.columns.column(LENGTH), np.ones(len(responses), np.bool_)
        ended = ~named_failures(responses) if FAILURE in responses else ended
        if ended.any():
            count = counted(int(ended.sum()), "response")
            raise DataError(
                f"`{column}` is 0 in all of {count}: a length of 0 is no answer, so lengths are "
                f"unknown",
                tip=f"--map {LENGTH}=none  # leaves `{column}` out",
            )
    whole = bool((responses["tokens"] == responses["length"]).all())
    key, cells, first_rows = responses["cell"], len(responses.cells.pairs), plan.source.first_rows
    if len(first_rows) > 2:  # noqa: PLR2004 - several files
        key = key + cells * np.repeat(np.arange(len(first_rows) - 1), np.diff(first_rows))
    return responses.with_(key=key).noting(all_policy=whole)


def _reduced(step: Pass, responses: Responses) -> Responses:
    """Return the table after all stages that reduce before the next pass."""
    for stage in step.reduced:
        assert stage.reduce is not None
        responses = stage.reduce(responses)
    return responses


def _with_columns(responses: Responses, parts: Iterable[Mapping[str, Column]]) -> Responses:
    """Return the table with the numbers of consecutive chunks as columns."""
    return responses.with_(**concat_columns(parts, len(responses)))


def _mapped(stages: Sequence[Stage], batch: Batch) -> dict[str, Column]:
    mapped: dict[str, Column] = {}
    for stage in stages:
        assert stage.map is not None
        mapped |= stage.map(batch)
    return mapped


def _sizes(offsets: NDArray[np.int64], mask: NDArray[np.bool_]) -> dict[str, Column]:
    return {"tokens": count_true(mask, offsets), "length": lengths(offsets)}
