"""Index of an input: keys, reward and length of every response, to sort, filter and find them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import is_text, log_probs_of, named
from rlpost.analysis.segments import segment_sums
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import (
    CellLocation,
    is_list,
    is_number,
    is_true,
    numbers,
    string_array,
)
from rlpost.io.finish_reasons import truncations
from rlpost.io.input_paths import InputPaths
from rlpost.io.keys import KeyColumn, encode_keys, name_ranks, plain_keys, step_order
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.threads import prefetch
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import RolloutOrder, rollout_ranks
from rlpost.pipeline.columns import LENGTH, TEXT
from rlpost.pipeline.data import FAILURE
from rlpost.pipeline.failures import failed_units, failure_reasons
from rlpost.pipeline.rollout_order import PLACE
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.numerics import Numerics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import RowChunk
    from rlpost.io.paths import PathText
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


MEASURES = ("reward", "kl", "length", "advantage")
CHUNK_TOKENS = 1 << 20
MOST_NAMED = 3  # files in an error
_KL_CLAMP = Numerics().log_ratio_clamp.bound


@dataclass
class Index:
    """Every response of an input, in its order; built by streaming a few columns.

    Rows are numbered from 0 over all files. Missing numbers are NaN.
    """

    source: Source
    columns: ColumnMap
    names: dict[str, str]
    """Columns of texts, tokens, advantages and KL; from `responses.columns.named`."""
    reward: Numbers
    tokens: Codes
    """Entries of the row's token lists; 0 where the input has no such column."""
    length: Numbers
    """Number of policy tokens among them; without lists that of a column of lengths, or NaN."""
    step: KeyColumn | None
    prompt: KeyColumn | None
    domain: KeyColumn | None
    step_rank: Codes
    """[N] rank of the row's step among all steps; 0 without steps."""
    group: Codes
    """[N] code of (step, prompt), ordered by step, then by first row."""
    rollout: KeyColumn | None = None
    branch: KeyColumn | None = None
    order: RolloutOrder | None = None
    """The rows of rollouts in their order; None without rollouts."""
    failure: KeyColumn | None = None
    """Why each row failed; empty texts for those that did not. None without the column."""
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """[N] rows that failed; by rollout, all rows of one that failed, as in `rlpost advantages`."""
    truncated: NDArray[np.bool_] | None = None
    turn: Numbers | None = None
    turn_reward: Numbers | None = None
    made_of: InputPaths = field(default_factory=lambda: InputPaths(()))
    """What temporary files are made of, for display."""
    measures: dict[str, Numbers] = field(default_factory=dict)
    """`kl` and `advantage`, after `measure`: means over each response's policy tokens."""

    def __len__(self) -> int:
        return len(self.reward)

    def number(self, measure: str) -> Numbers:
        """Return one of MEASURES for each row, [N]; `measure` KL and advantage first.

        `kl` is the mean of the `kl` column, otherwise of old − reference log-probs (k1, clamped to
        ±40); `advantage` is the mean of the `advantages` column, or a scalar column.
        """
        if measure == "reward":
            return self.reward
        return self.length if measure == "length" else self.measures[measure]

    def columns_for(self, measure: str) -> list[str]:
        """Return the columns that a measure needs; empty if the input lacks them."""
        roles, names = self.columns, self.names
        if measure == "reward":
            return [roles.column("reward")] if "reward" in roles else []
        if measure == "length":
            column = self.sized_by or length_column(self.source, self.columns)
            return [column] if column else []
        pair = [roles.column(r) for r in ("old_log_probs", "ref_log_probs") if r in roles]
        if measure == "logprob":
            log_probs = log_probs_of(roles)
            columns = [log_probs] if log_probs else []
        elif measure in names:
            columns = [names[measure]]
        else:
            columns = pair if measure == "kl" and len(pair) == 2 else []  # noqa: PLR2004
        mask = [roles.column("mask")] if columns and "mask" in roles else []
        return [*columns, *mask]

    @property
    def sized_by(self) -> str | None:
        """The list column whose entries are the tokens."""
        return list_column(self.source, self.columns, self.names)

    def measure(self, measure: str, reporter: Reporter | None = None) -> None:
        """Stream the columns of `kl` or `advantage`, and store the mean of each response.

        Raises:
            DataError: the input has no column for it.
        """
        if measure in ("reward", "length") or measure in self.measures:
            return
        columns = self.columns_for(measure)
        if not columns:
            raise self.missing_error(measure)
        mask = self.columns.column("mask") if "mask" in self.columns else None
        values = [name for name in columns if name != mask]
        parts = [
            _means(chunk.table, values, mask)
            for chunk in stream_chunks(self.source, columns, self.sized_by, reporter, f"{measure}s")
        ]
        self.measures[measure] = np.concatenate(parts) if parts else np.zeros(0)

    def missing_error(self, measure: str) -> DataError:
        """Return the error for a measure whose columns are missing."""
        return DataError(f"{self.source.name}: no column for {_MISSING[measure]}")

    @property
    def by_rollout(self) -> bool:
        """Statistics count rollouts, not rows, as `rlpost advantages` does by default."""
        return self.order is not None and self.columns.unit(None) == "rollout"

    def counted(self, rows: Codes) -> Codes:
        """Return the rows that count in statistics of these rows: one of each response.

        Failures are left out. The last row with a reward stands for a rollout.
        """
        rows = rows[~self.failed[rows]]
        if self.order is None or not self.by_rollout:
            return rows
        chosen = np.full(len(self.order.first), -1)
        for part in (rows, rows[~np.isnan(self.reward[rows])]):
            flags = np.zeros(len(self), np.bool_)
            flags[part] = True
            last = self.order.last_of(flags)
            chosen[self.order.rollout[last]] = last
        return np.sort(chosen[chosen >= 0])

    @cached_property
    def total_length(self) -> Numbers:
        """[N] policy tokens of each row's response: of a rollout, those of all its rows."""
        if self.order is None or not self.by_rollout:
            return self.length
        return self.order.sums(self.length)

    def rows_of(self, prompt: str) -> Codes:
        """Return the rows of a prompt, in the order of the input; empty for an unknown id."""
        if self.prompt is None:
            return np.zeros(0, dtype=np.int64)
        labels = self.prompt.labels.cast(pa.string())
        codes = np.flatnonzero(is_true(pc.equal(labels, string_array([prompt])[0])))
        return np.flatnonzero(np.isin(self.prompt.codes, codes))

    def rollout_rows(self, row: int) -> Codes:
        """Return the rows of a row's rollout in their order; without rollouts the row."""
        if self.order is None:
            return np.array([row])
        rollout = self.order.rollout[row]
        return self.order.order[slice(*self.order.offsets[rollout : rollout + 2])]

    def row_named(self, text: str) -> int:
        """Return the number of a row over all files.

        Args:
            text: `FILE:ROW`, with the path of a file or its end; or a number alone, of one file.

        Raises:
            UsageError: the text is no row, a number alone is of several files, or several files
                have such a name.
            DataError: there is no such file or row.
        """
        name, _, number = text.rpartition(":")
        if not number.isdecimal():
            raise UsageError(f"--row {text}: [FILE:]INT is needed, a row counted from 0")
        paths = [self.shown_path(file) for file in range(len(self.source.files))]
        files = [i for i, path in enumerate(paths) if path == name] or [
            i for i, path in enumerate(paths) if not name or path.endswith(f"/{name}")
        ]
        if len(files) > 1:
            tip = " or ".join(f"--row {paths[i]}:{number}" for i in files[:MOST_NAMED])
            tip += ", ..." if len(files) > MOST_NAMED else ""
            text = f"--row {text}: {counted(len(files), 'file')} may be meant, each with such rows"
            raise UsageError(text, tip=tip)
        if not files:
            text = f"--row {text}: the input has no file {name!r}"
            raise DataError(no_such(text, name, paths, f"files: {', '.join(paths[:3])}"))
        first, end = self.source.first_rows[files[0] :][:2]
        if int(number) >= end - first:
            rows = counted(end - first, "row")
            raise DataError(f"--row {text}: {paths[files[0]]} has {rows}, counted from 0")
        return first + int(number)

    def shown_path(self, file: int) -> str:
        """Return the path of a file as results print it."""
        return self.made_of.named(str(self.source.files[file].path))

    def shown_row(self, row: int) -> int:
        """Return the number of a row in its file as results print it."""
        file, file_row = self.place(row)
        return self.made_of.row(str(self.source.files[file].path), file_row)

    def place(self, row: int) -> tuple[int, int]:
        """Return the file of a row, and its number in that file."""
        file = int(np.searchsorted(self.source.first_rows, row, side="right")) - 1
        return file, row - self.source.first_rows[file]


_MISSING = {
    "kl": "the KL: it needs `kl`, or old and reference log-probs (--map old_log_probs=COLUMN)",
    "advantage": "advantages: write one with `rlpost advantages`",
    "reward": "the reward: name one with --map reward=COLUMN",
    "length": "the length: it needs a mask or another list with one entry per token (--map "
    "mask=COLUMN), or a column of lengths (--map response_length=COLUMN)",
    "logprob": "log-probs: name one with --map old_log_probs=COLUMN",
}


def stream_chunks(
    source: Source,
    columns: Sequence[str],
    sized_by: str | None,
    reporter: Reporter | None,
    purpose: str,
) -> Iterator[RowChunk]:
    """Yield the chunks of an input, read ahead in a thread; report each one after its use."""
    reporter = reporter or SilentReporter()
    reporter.start(purpose, source.rows)
    for chunk in prefetch(source.read(list(columns), CHUNK_TOKENS, sized_by or ""), 1):
        yield chunk
        reporter.advance(chunk.table.num_rows)


def list_column(source: Source, columns: ColumnMap, names: Mapping[str, str]) -> str | None:
    """Return the mask, otherwise another list with one entry per response token."""
    roles = ("mask", "old_log_probs", "infer_log_probs", "log_probs", "ref_log_probs", "values")
    candidates = [columns.column(role) for role in roles if role in columns]
    candidates += [names[what] for what in ("advantage", "tokens") if what in names]
    return next((name for name in candidates if is_list(column_type(source, name))), None)


def length_column(source: Source, columns: ColumnMap) -> str | None:
    """Return the column with the number of policy tokens, which counts without lists of tokens."""
    name = columns.columns.get(LENGTH)
    return name if name is not None and is_number(column_type(source, name)) else None


def column_type(source: Source, name: str) -> pa.DataType:
    """Return the type of a column in the first file; a hive partition is a number."""
    schema = source.schemas[0]
    return schema.field(name).type if name in schema.names else pa.int64()  # else a partition


def _means(table: pa.RecordBatch, columns: list[str], mask: str | None) -> Numbers:
    """Return the mean over policy tokens of a column, or of the clamped difference of two."""
    first = table.column(columns[0])
    if not is_list(first.type):
        return lists.numbers(first)
    offsets, values = lists.flat(first)
    if len(columns) > 1:
        others, minus = lists.flat(table.column(columns[1]))
        if not np.array_equal(offsets, others):
            return np.full(len(first), np.nan)
        values = np.clip(values - minus, -_KL_CLAMP, _KL_CLAMP)
    preview_of = None if mask is None else lists.flat(table.column(mask))
    return lists.row_means(values, offsets, lists.mask_beside(preview_of, offsets))


def build_index(
    inputs: Sequence[PathText], columns_map: Mapping[str, str], reporter: Reporter | None = None
) -> Index:
    """Return the index of an input; reads only keys, rewards and masks.

    Raises:
        UsageError, DataError: a role in `columns_map` is unknown, its column is missing, or has
            other values than numbers although the role needs numbers.
        ReadWriteError: an input cannot be read.
    """
    source = Source(find_inputs(inputs))
    builder = IndexBuilder(source, columns_map)
    read = builder.read or source.columns[:1]
    for chunk in stream_chunks(source, read, builder.sized_by, reporter, "index"):
        builder.add(chunk)
    return builder.finish()


def _is_key(source: Source, name: str) -> bool:
    kind = column_type(source, name)
    plain = is_text(kind) and not is_list(kind) and not pa.types.is_struct(kind)
    return bool(plain or is_number(kind))


def _truncated(array: pa.Array, location: CellLocation) -> NDArray[np.bool_]:
    return truncations(array, location).truncated


def _failures(array: pa.Array, location: CellLocation) -> Any:
    return encode_keys(failure_reasons(array, location))


_READ: dict[str, Callable[[pa.Array, CellLocation], Any]] = {
    **dict.fromkeys(("reward", "turn", "turn_reward"), numbers),
    "truncated": _truncated,
    FAILURE: _failures,
}
"""By role, how its column is read."""


class IndexBuilder:
    """Builds an Index from all chunks of a source, in order."""

    def __init__(self, source: Source, columns_map: Mapping[str, str]) -> None:
        self.source = source
        self.columns = columns = resolve_input(source, columns_map)
        self.names = named(source.columns)
        if TEXT in columns:
            self.names["response"] = columns.column(TEXT)
        prompt = columns.columns.get("group", self.names.get("prompt"))
        self.keys = {
            "step": columns.columns.get("batch"),
            "prompt": prompt if prompt is not None and _is_key(source, prompt) else None,
            **{role: columns.columns.get(role) for role in ("domain", "rollout", *PLACE[1:])},
        }
        self.sized_by = list_column(source, columns, self.names)
        self.counted_by = None if self.sized_by else length_column(source, columns)
        """The column of lengths, if no list has the tokens."""
        self._roles = [role for role in _READ if role in columns]
        read = {*self.keys.values(), self.sized_by, self.counted_by}
        self.read = sorted(map(str, {*read, *map(columns.column, self._roles)} - {None}))
        """The columns that chunks need."""
        self.parts: dict[str, list[Any]] = {}

    def add(self, chunk: RowChunk) -> None:
        """Add the next chunk."""
        table, count = chunk.table, chunk.table.num_rows
        for name, column in self.keys.items():
            if column is not None:
                self._append(name, encode_keys(plain_keys(table.column(column))))
        for role in self._roles:
            self._append(role, self._read(chunk, role))
        if "reward" not in self._roles:
            self._append("reward", np.full(count, np.nan))
        tokens, length = np.zeros(count, dtype=np.int64), np.full(count, np.nan)
        if self.counted_by is not None:
            length = lists.numbers(table.column(self.counted_by))
        if self.sized_by is not None:
            array = table.column(self.sized_by)
            tokens = lists.list_lengths(array)
            length = tokens.astype(np.float64)
            is_mask = self.columns.columns.get("mask") == self.sized_by
            if is_mask and lists.holds_numbers(array.type):
                offsets, mask = lists.flat(array)
                length = segment_sums((mask > 0).astype(np.float64), offsets)
        self._append("tokens", tokens)
        self._append("length", length)

    def _append(self, name: str, part: Any) -> None:
        self.parts.setdefault(name, []).append(part)

    def _read(self, chunk: RowChunk, role: str) -> Any:
        column = self.columns.column(role)
        array = chunk.table.column(column)
        if is_list(array.type) and array.null_count:
            return segment_sums(*reversed(lists.flat(array)))  # type: ignore[arg-type]
        path = str(self.source.files[chunk.file].path)
        return _READ[role](array, CellLocation(path, chunk.first_row, column))

    def finish(self) -> Index:
        """Return the index of all chunks."""
        keys = {name: self.parts.get(name) for name in (*self.keys, FAILURE)}
        codes = {
            name: None if parts is None else KeyColumn.of(parts) for name, parts in keys.items()
        }
        whole = {name: np.zeros(0) for name in ("reward", "tokens", "length")}
        whole |= {name: np.concatenate(p) for name, p in self.parts.items() if name not in keys}
        step, prompt, agent = codes["step"], codes["prompt"], codes.pop(PLACE[-1])
        rows = np.arange(len(whole["reward"]))
        rank = np.zeros_like(rows) if step is None else _ranks(step)[step.codes]
        group, failed = joint_codes(rank, rows if prompt is None else prompt.codes), rows < 0
        agents = None if agent is None else agent.codes
        rollout, branch, failure = (codes[name] for name in ("rollout", "branch", FAILURE))
        order = None
        if rollout is not None:  # by group, then by first row
            rollouts = joint_codes(group, rollout.codes)
            names = None if branch is None else name_ranks(branch.labels.to_pylist())[branch.codes]
            measures = (whole[name] for name in ("tokens", "length", "reward"))
            ranks = rollout_ranks(rollouts, whole.get("turn"), names, agents, *measures)
            order = RolloutOrder.of(rollouts, ranks)
        if failure is not None:
            reasons = np.array([text != "" for text in failure.labels.to_pylist()], np.bool_)
            failed = reasons[failure.codes]
            if order is not None and self.columns.unit(None) != "row":
                failed = failed_units(failed, order, whole.get("turn"), agents)
        whole["tokens"] = whole["tokens"].astype(np.int64)
        parts: dict[str, Any] = {**codes, **whole}
        return Index(
            self.source, self.columns, self.names, step_rank=rank, group=group, order=order,
            failed=failed, **parts,
        )  # fmt: skip


def _ranks(keys: KeyColumn) -> NDArray[np.int64]:
    """Return the rank of each label: numbers by size, names in the order of the input."""
    order = step_order(keys.labels.to_pylist())
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
