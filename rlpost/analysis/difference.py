"""Two columns of the same rows: what differs, and both read side by side.

`verify`, `compare` and `replay` compare columns so.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.responses import columns as lists
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, number
from rlpost.io.arrow import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Engine
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.totals import ExactTotals

    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.float64]

Json = dict[str, Any]
_FIRST = 10
"""Rows that are listed."""


def finite(value: Any) -> float | None:
    """Return a number as JSON has it; None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class Difference:
    """Recorded and computed numbers of the same rows, element by element."""

    recorded: Numbers
    """[T] of tokens or [N] of responses, float64."""
    computed: Numbers
    """Of the same shape."""
    chosen: Mask
    """The elements that count: policy tokens, or responses, that both sides have."""
    slack: Numbers | float
    """Absolute tolerance of each element."""
    relative: float
    """Relative tolerance."""

    @property
    def distance(self) -> Numbers:
        """Absolute differences of all elements."""
        return np.abs(self.recorded - self.computed)

    @cached_property
    def wrong(self) -> Mask:
        """The elements that count and differ by more than the tolerance; NaN differs from all."""
        near = self.distance <= self.slack + self.relative * np.abs(self.computed)
        return self.chosen & ~near

    @property
    def equal(self) -> bool:
        """Whether no element differs by more than the tolerance."""
        return not bool(self.wrong.any())

    def totals(self, numbers: Codes, rows: Codes | None = None) -> DifferenceTotals:
        """Return what differs.

        Args:
            numbers: [N] of the rows in their input.
            rows: [T] position of the row of each element; None: an element is a row.
        """
        distance, wrong = self.distance[self.chosen], np.flatnonzero(self.wrong)
        differing = wrong if rows is None else np.unique(rows[wrong])
        return DifferenceTotals(
            len(distance),
            len(wrong),
            len(distance) - int(np.count_nonzero(distance)),
            float(distance.max(initial=0.0)),
            len(numbers),
            len(differing),
            numbers[differing[:_FIRST]].tolist(),
        )


@dataclass
class DifferenceTotals:
    """What differs between two columns of the same rows, added up part by part."""

    compared: int = 0
    differing: int = 0
    """Numbers that differ by more than the tolerance."""
    identical: int = 0
    largest: float = 0.0
    """Largest absolute difference."""
    rows: int = 0
    rows_differing: int = 0
    first_rows: list[int] = field(default_factory=list)
    """The first rows that differ."""

    def add(self, part: DifferenceTotals) -> None:
        """Add the next rows."""
        self.compared += part.compared
        self.differing += part.differing
        self.identical += part.identical
        self.largest = float(np.maximum(self.largest, part.largest))
        self.rows += part.rows
        self.rows_differing += part.rows_differing
        self.first_rows += part.first_rows[: _FIRST - len(self.first_rows)]

    def facts(self) -> Json:
        """Return counts of numbers and responses, and the share of numbers that are equal."""
        return {
            "compared": self.compared,
            "differing": self.differing,
            "share_equal": 1.0 - self.differing / self.compared if self.compared else None,
            "identical": self.identical,
            "largest": finite(self.largest),
            "responses": self.rows,
            "responses_differing": self.rows_differing,
            "first_rows": self.first_rows,
        }


def largest_table(
    rows: Sequence[Json], sides: Mapping[str, str], title: str, difference: str = "difference"
) -> Iterator[TextTable]:
    """Yield the table of the rows that differ the most, if there are any.

    Args:
        rows: with `row`, `reward`, the numbers of both sides and of their difference; `file` and
            `file_row`, `step`, `prompt_id` and `token` as far as there are such.
        sides: the names of both numbers, with their headings.
        title: of the table.
        difference: the name of that number.
    """
    if not rows:
        return
    columns = {}
    if any(row.get("file_row", row["row"]) != row["row"] for row in rows):
        columns["file:row"] = [f"{row['file']}:{row['file_row']}" for row in rows]
    else:
        columns["row"] = [str(row["row"]) for row in rows]
    for name, heading in (("step", "step"), ("prompt_id", "prompt"), ("token", "token")):
        if rows[0].get(name) is not None:
            columns[heading] = [str(row[name]) for row in rows]
    text = [i for i, heading in enumerate(columns) if heading in ("file:row", "prompt")]
    columns["reward"] = [number(row["reward"]) for row in rows]
    numbers = [aligned([row[name] for row in rows]) for name in (*sides, difference)]
    headings = (*columns, *sides.values(), "Δ")
    cells = [*zip(*columns.values(), *numbers, strict=True)]
    yield TextTable(headings, cells, title, text=text)


# ---- both columns, row by row ----


class ColumnChunk(NamedTuple):
    """A token column of consecutive rows."""

    lengths: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[n+1], from 0."""
        return np.concatenate([[0], self.lengths.cumsum()])

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.lengths)

    def slice(self, offset: int, length: int | None = None) -> ColumnChunk:
        """Return some rows, as pyarrow does."""
        lengths = self.lengths[offset:][:length]
        first = self.lengths[:offset].sum()
        return ColumnChunk(lengths, self.values[first : first + lengths.sum()])


def column_chunk(array: pa.Array) -> ColumnChunk:
    """Return the rows of a column; a number is a list of one."""
    if not is_list(array.type):
        return ColumnChunk(np.ones(len(array), dtype=np.int64), lists.numbers(array))
    offsets, values = lists.flat(array)
    return ColumnChunk(np.diff(offsets), values)


def without_totals(plan: Plan) -> Plan:
    """Return a plan that computes columns alone, and no summary."""
    from rlpost.pipeline.totals import Counted, ExactTotals  # noqa: PLC0415 - slow to import

    nothing = Counted({}, lambda _: ExactTotals())
    return replace(plan, count=lambda _: nothing, observe=lambda _: {})


def recomputed(
    engine: Engine,
    file: int,
    responses: Responses,
    names: tuple[str, ...],
    convert: Callable[[pa.RecordBatch], Any] = lambda columns: columns,
    count: Callable[[ExactTotals], None] = lambda _: None,
) -> Generator[Any]:
    """Yield the columns that the last pass computes for a file, in the order of its rows.

    Args:
        engine: of the recipe.
        file: index of the file.
        responses: of the engine.
        names: the columns.
        convert: called with the rows of each row group, in threads.
        count: called with the totals of each chunk.
    """
    for result in engine.last_pass([file], responses, names, lambda parts: [*map(convert, parts)]):
        count(result.totals)
        yield from (columns for *_, columns in result.parts)


def align(streams: Sequence[Generator[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the same rows of every stream, whatever their chunks, until the shortest ends.

    A chunk has `num_rows` and `slice`, as those of pyarrow.
    """
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(closing(stream))
        pending: list[Any] = [None] * len(streams)
        while True:
            for i, stream in enumerate(streams):
                pending[i] = _next_rows(pending[i], stream)
            chunks = [chunk for chunk in pending if chunk is not None]
            if len(chunks) < len(streams):
                return
            rows = min(chunk.num_rows for chunk in chunks)
            yield tuple(chunk.slice(0, rows) for chunk in chunks)
            pending = [chunk.slice(rows) for chunk in chunks]


def _next_rows(chunk: Any, stream: Iterator[Any]) -> Any:
    """Return the chunk if it has rows, else the next one with rows; None at the end."""
    while chunk is None or not chunk.num_rows:
        chunk = next(stream, None)
        if chunk is None:
            return None
    return chunk
