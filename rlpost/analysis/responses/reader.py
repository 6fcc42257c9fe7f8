"""Reader of single responses, which decodes only what they need; the rows of their rollouts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import WRITTEN, text_columns, text_of, vocabulary_of
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number
from rlpost.io.arrow import is_list, is_true
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.io.keys import Label
    from rlpost.io.parquet.source import RowChunk


Json = dict[str, Any]
_AROUND = 5  # rows before and after the row, of a long rollout


@dataclass(frozen=True)
class RolloutView:
    """A row among the rows of its rollout, which are sorted by turn and branch."""

    index: Index
    rows: NDArray[np.int64]
    place: int
    """Of the row among them."""

    @classmethod
    def of(cls, index: Index, row: int) -> Self | None:
        """Return the view of a row; None if its rollout has no other."""
        rows = index.rollout_rows(row)
        return cls(index, rows, int(np.flatnonzero(rows == row)[0])) if len(rows) > 1 else None

    @property
    def following(self) -> int | None:
        """The next row of the rollout."""
        after = self.place + 1
        return int(self.rows[after]) if after < len(self.rows) else None

    @property
    def label(self) -> str:
        """The rollout's id."""
        return printable_line(str(self.index.label("rollout", int(self.rows[0]))))

    @property
    def title(self) -> str:
        """Which row of the rollout it is: `rollout r1: turn 2, branch b · row 3 of 5`."""
        row = self._numbers(int(self.rows[self.place]))
        names = [f"{x} {row[x]}" for x in ("turn", "branch") if row[x] is not None]
        text = ": ".join([f"rollout {self.label}", *([", ".join(names)] if names else [])])
        return f"{text} · row {self.place + 1} of {len(self.rows)}"

    def _numbers(self, row: int) -> Json:
        """Return what the index has of a row; None for what it lacks."""
        index = self.index

        def finite(name: str) -> float | None:
            values = index.rows.get(name)
            return None if values is None or not np.isfinite(values[row]) else float(values[row])

        branch = index.label("branch", row)
        return {
            "row": row,
            "turn": number(finite("turn")) if "turn" in index.rows else None,
            "branch": None if branch is None else printable_line(str(branch)),
            "reward": finite("reward"),
            "turn_reward": finite("turn_reward"),
            "policy_tokens": finite("tokens"),
        }

    def table(self) -> TextTable:
        """Return the rows of the rollout, around this one if there are many."""
        first = max(0, min(self.place - _AROUND, len(self.rows) - 2 * _AROUND - 1))
        shown = self.rows[first : first + 2 * _AROUND + 1].tolist()
        rows = [self._numbers(row) for row in shown]
        columns = {"": ["›" if row == self.rows[self.place] else "" for row in shown]}
        for name, heading in _HEADINGS.items():
            has_any = any(row[name] is not None for row in rows)
            if has_any or name in ("reward", "policy_tokens"):
                columns[heading] = [_cell(name, row[name]) for row in rows]
        left_out = len(self.rows) - len(rows)
        notes = [f"{counted(left_out, 'row')} more"] if left_out else []
        text = [place for place, name in enumerate(columns) if name in ("", "branch")]
        cells = [*zip(*columns.values(), strict=True)]
        return TextTable([*columns], cells, self.title, notes=notes, text=text)

    def as_json(self) -> Json:
        """Return the rollout as plain data."""
        rows = [self._numbers(row) for row in self.rows.tolist()]
        return {"id": self.label, "place": self.place, "rows": rows}


_HEADINGS = {
    "row": "row", "turn": "turn", "branch": "branch", "reward": "reward",
    "turn_reward": "turn reward", "policy_tokens": "tokens",
}  # fmt: skip


def _cell(name: str, value: Any) -> str:
    return str(value) if name == "row" or isinstance(value, str) else number(value)


_CHUNK_BYTES = 32 << 20  # of a row group that are decoded at a time
_MOST_KEPT = 4  # chunks


@dataclass(frozen=True)
class Response:
    """One response of a rollout file, for display."""

    row: int
    """Counted from 0 over all inputs."""
    path: str
    file_row: int
    """Counted from 0 in its file."""
    place: str
    """The same as text: of several files, `FILE:ROW`."""
    step: Label
    prompt_id: Label
    reward: float
    length: int | None
    """Number of policy tokens; None if no column has it."""
    left_out: str
    """Why no statistic counts it; empty if they do."""
    prompt: str
    text: str
    """The response, or all messages; empty if the file has no text."""
    token_texts: list[str]
    """[t] the text of each token, or its id; a dot if the file has neither."""
    has_texts: bool
    """Whether `token_texts` are texts and not ids."""
    mask: NDArray[np.bool_]
    """[t] whether the token is a policy token."""
    tokens: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each: token columns by name, without those of another length."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The other columns, with one value each."""
    means: dict[str, float] = field(default_factory=dict)
    """`logprob`, `kl`, `advantage`: means over policy tokens, if their columns were read."""
    token_measures: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[t] each: the values of these measures per token."""
    nulls: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """[t] each: by measure, the tokens whose value is null in the file, and NaN here."""
    rollout: RolloutView | None = None
    """Its rollout, if that has several rows."""


class ResponseReader:
    """Reads rows of an indexed input and keeps the last chunks. Thread-safe.

    Args:
        index: of the input.
        measures: of `logprob`, `kl` and `advantage`; their columns are read.
        whole: read all token columns of roles and of rlpost, whatever the measures.
    """

    def __init__(self, index: Index, measures: Sequence[str] = (), *, whole: bool = False) -> None:
        self.index = index
        self.measures = tuple(m for m in measures if index.columns_of(m))
        self._texts, self._read_columns = _select_columns(index, self.measures, whole=whole)
        self._vocabulary = vocabulary_of(index.source.schemas[0])
        self._starts = [
            list(accumulate((f.row_group(g).num_rows for g in range(f.num_row_groups)), initial=0))
            for f in index.source.footers
        ]
        self._lock = Lock()
        self._kept: deque[RowChunk] = deque(maxlen=_MOST_KEPT)

    def read(self, rows: Sequence[int]) -> list[Response]:
        """Return these rows, in this order; each row group is decoded once.

        Raises:
            ReadWriteError: the input is no longer readable.
        """
        with self._lock:
            places = {int(row): self.index.place(int(row)) for row in rows}
            cells = {place: x for chunk in self._kept for place, x in _cells(chunk, places)}
            groups: dict[tuple[int, int], list[int]] = {}
            for file, row in sorted({*places.values()} - {*cells}):
                group = int(np.searchsorted(self._starts[file], row, side="right")) - 1
                groups.setdefault((file, group), []).append(row)
            source = self.index.source
            for (file, group), needed in groups.items():
                facts = source.footers[file].row_group(group)
                size = _CHUNK_BYTES * facts.num_rows // max(1, facts.total_byte_size)
                for chunk in source.read_file(file, self._read_columns, size, "", {group}):
                    inside = dict(_cells(chunk, places))
                    cells |= inside
                    if inside:
                        self._kept.append(chunk)
                    if chunk.first_row + chunk.table.num_rows > needed[-1]:
                        break
            return [self._response(row, cells[places[row]]) for row in map(int, rows)]

    def _response(self, row: int, cells: pa.RecordBatch) -> Response:
        index, (path, file_row) = self.index, self.index.shown_place(row)
        count = int(index.table.rows["length"][row]) if index.sized_by else 0
        kinds = {field.name: field.type for field in cells.schema}
        values = {
            name: lists.flat(cells.column(name))[1]
            for name, kind in kinds.items()
            if lists.holds_numbers(kind)
        }
        tokens = {name: array for name, array in values.items() if len(array) == count}
        mask = tokens.pop(str(index.columns.columns.get("mask")), np.ones(count)) > 0
        texts = {what: text_of(cells.column(x)[0].as_py()) for what, x in self._texts.items()}
        token_texts, has_texts = self._token_texts(cells, values, count)
        text = texts.get("response") or texts.get("messages")
        length = index.length[row]
        file = f"{printable_line(path)}:" if len(index.source.files) > 1 else ""
        response = Response(
            row=row,
            path=path,
            file_row=file_row,
            place=f"{file}{file_row}",
            step=index.label("batch", row),
            prompt_id=index.label("group", row),
            reward=float(index.reward[row]),
            length=None if np.isnan(length) else int(length),
            left_out=self.index.left_out(row),
            prompt=texts.get("prompt", ""),
            text=text or ("".join(token_texts) if has_texts else ""),
            token_texts=token_texts,
            has_texts=has_texts,
            mask=mask,
            tokens=tokens,
            rollout=RolloutView.of(index, row),
            fields={
                name: cells.column(name)[0].as_py()
                for name, kind in kinds.items()
                if not is_list(kind) and name not in self._texts.values()
            },
        )
        for measure in self.measures:
            self._add_measure(response, measure, cells)
        return response

    def _add_measure(self, response: Response, measure: str, cells: pa.RecordBatch) -> None:
        """Add a measure of the response's tokens; a number of the whole response is repeated."""
        columns, count = self.index.columns_of(measure), len(response.mask)
        number = response.fields.get(columns[0])
        if isinstance(number, int | float):
            response.means[measure] = float(number)
            values: NDArray[np.float64] | None = np.full(count, float(number)) if count else None
        elif not {*columns} <= {*response.tokens}:
            return
        else:
            first, *others = (response.tokens[name] for name in columns)
            values = lists.log_ratio(first, *others) if others else first
            policy = values[response.mask]
            response.means[measure] = float(policy.mean()) if len(policy) else float("nan")
            nulls = [is_true(cells.column(name).flatten().is_null()) for name in columns]
            response.nulls[measure] = np.any(nulls, axis=0)
        if values is not None:
            response.token_measures[measure] = values

    def _token_texts(
        self, cells: pa.RecordBatch, values: dict[str, Any], count: int
    ) -> tuple[list[str], bool]:
        """Return the last `count` tokens, as ids can include the prompt, and if they are texts."""
        name, words = self.index.names.get("tokens", ""), self._vocabulary
        texts: list[str] = []
        has_texts = bool(words)
        if name in values:
            ids = values[name][-count:].astype(np.int64).tolist() if count else []
            texts = [words[i] if 0 <= i < len(words) else str(i) for i in ids]
        elif name in cells.schema.names and is_list(cells.column(name).type):
            texts = [str(text) for text in cells.column(name)[0].as_py() or []][-count:]
            has_texts = bool(texts)
        return (texts, has_texts) if len(texts) == count else (["·"] * count, False)


def _cells(
    chunk: RowChunk, places: dict[int, tuple[int, int]]
) -> list[tuple[tuple[int, int], pa.RecordBatch]]:
    """Return the rows of a chunk that are at these places, each with its place."""
    first, end = chunk.first_row, chunk.first_row + chunk.table.num_rows
    return [
        ((file, row), chunk.table.slice(row - first, 1))
        for file, row in {*places.values()}
        if file == chunk.file and first <= row < end
    ]


def _select_columns(
    index: Index, measures: Sequence[str], *, whole: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the columns of texts by what they are, and all columns to decode."""
    schema, names, roles = index.source.schemas[0], index.names, index.columns.columns
    kinds = {name: schema.field(name).type for name in schema.names}
    texts = text_columns(schema, names)
    if "response" in texts and "prompt" in texts:
        texts.pop("messages", None)  # which repeat them
    read = {*texts.values(), names.get("tokens"), roles.get("mask")}
    read |= {column for measure in measures for column in index.columns_of(measure)}
    if whole:
        read |= {roles.get(role) for role, facts in ROLES.items() if facts.kind == "tokens"}
        read |= {*WRITTEN}

    def is_plain(kind: pa.DataType) -> bool:
        return not pa.types.is_nested(kind) and not pa.types.is_binary(kind)

    columns = index.source.columns
    return texts, [x for x in columns if x in read or x not in kinds or is_plain(kinds[x])]
