"""Index of an input: keys, reward and length of every response, to sort, filter and find them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.counted import counted_table, counting_of
from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import log_probs_of, named, text_columns, text_of
from rlpost.analysis.segments import segment_sums
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted, first_of
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import (
    CellLocation,
    content_kind,
    is_list,
    is_true,
    plain_keys,
    without_dictionary,
)
from rlpost.io.arrow import numbers as checked_numbers
from rlpost.io.finish_reasons import truncations
from rlpost.io.input_paths import InputPaths
from rlpost.io.keys import KeyColumn, encode_keys, of_one_type
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.io.threads import prefetch
from rlpost.kernels.moments import group_moments, group_offsets
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.pipeline.columns import LENGTH, TEXT, masked_rows
from rlpost.pipeline.data import ATTEMPTS, FAILURE, LEFT_OUT, TRUNCATED
from rlpost.pipeline.failures import failure_reasons
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.rollout_order import PLACE, ROLLOUT_ORDER, add_order, rollout_codes
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.display.reporter import Reporter
    from rlpost.io.keys import Label
    from rlpost.io.parquet.source import RowChunk
    from rlpost.io.paths import PathText
    from rlpost.kernels.moments import Moments
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


MEASURES = ("reward", "kl", "length", "advantage")
MOST_NAMED = 3  # files in an error
_NUMBERS = {
    "reward": "reward", "turn": "turn", "turn_reward": "turn_reward", "sample_mask": "kept",
    **dict(zip(ATTEMPTS, ATTEMPTS, strict=True)),
}  # fmt: skip
"""The columns of the index, by the role whose column has one number for each row."""
_LEFT_OUT = dict(zip(LEFT_OUT, ("masked", "superseded", "failed"), strict=True))
_MISSING = {
    "kl": "the KL: it needs `kl`, or old and reference log-probs (--map old_log_probs=COLUMN)",
    "advantage": "advantages: write one with `rlpost advantages`",
    "reward": "the reward: name one with --map reward=COLUMN",
    "length": "the length: it needs a mask or another list with one entry per token (--map "
    "mask=COLUMN), or a column of lengths (--map response_length=COLUMN)",
    "logprob": "log-probs: name one with --map old_log_probs=COLUMN",
}


@dataclass
class Index:
    """Every response of an input, in its order; built by streaming a few columns.

    Rows are numbered from 0 over all files.
    """

    source: Source
    columns: ColumnMap
    names: Mapping[str, str]
    """Columns of texts, tokens, advantages and KL; from `responses.columns.named`."""
    sized_by: str | None
    """The list column whose entries are the tokens."""
    table: CountedTable
    """Which responses count; that of `rlpost inspect`."""
    keys: Mapping[str, KeyColumn]
    """`batch`, `group`, `domain`, `rollout`, `branch` and `failure`, as far as the input has them;
    a text is empty for a row that did not fail."""
    numbers: dict[str, Numbers]
    """[N] each, NaN where a row has none: `reward` as the file has it, `length` (policy tokens),
    `turn`, `turn_reward`; `kl` and `advantage` after `number`."""
    stored_counting: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe in the files that count their responses, as of `counting_of`."""
    made_of: InputPaths = field(default_factory=lambda: InputPaths(()))
    """What temporary files are made of, for display."""

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def reward(self) -> Numbers:
        """[N] the reward of each row; NaN for none."""
        return self.numbers["reward"]

    @property
    def length(self) -> Numbers:
        """[N] the policy tokens of each row; NaN if no column has them."""
        return self.numbers["length"]

    @property
    def step_rank(self) -> Codes:
        """[N] rank of the row's step among all steps; 0 without steps."""
        return self.table.rows["step"]

    @property
    def group(self) -> Codes:
        """[N] code of step and prompt, ordered by step, then by first row."""
        return self.table.rows["group"]

    def label(self, name: str, row: int) -> Label:
        """Return the key of a row; None without such a column."""
        return self.keys[name].label(int(self.keys[name].codes[row])) if name in self.keys else None

    def step_name(self, rank: float) -> str:
        """Return the label of a step."""
        return str(self.table.rows.labels["step"][int(rank)])

    def columns_of(self, measure: str) -> list[str]:
        """Return the columns of a measure, besides the mask; empty if the input lacks them.

        `kl` is that column, otherwise old − reference log-probs (k1, clamped to ±40); `advantage` a
        column of tokens or responses.
        """
        roles, pair = self.columns.columns, ["old_log_probs", "ref_log_probs"]
        if measure == "kl" and "kl" not in self.names:
            return [roles[role] for role in pair] if {*pair} <= {*roles} else []
        columns = {
            "reward": roles.get("reward"),
            "length": self.sized_by or roles.get(LENGTH),
            "logprob": log_probs_of(self.columns),
        }
        column = columns.get(measure, self.names.get(measure))
        return [] if column is None else [column]

    def number(self, measure: str, reporter: Reporter | None = None) -> Numbers:
        """Return one of MEASURES for each row, [N]; streams the columns of `kl` and `advantage`.

        These are means over each row's policy tokens.

        Raises:
            DataError: the input has no column for it.
        """
        columns = self.columns_of(measure)
        if not columns:
            raise self.missing(measure)
        if measure not in self.numbers:
            mask = self.columns.columns.get("mask")
            read = [*columns, *([mask] if mask else [])]
            chunks = stream_chunks(self.source, read, self.sized_by, reporter, f"{measure}s")
            parts = [lists.policy_means(chunk.table, columns, mask) for chunk in chunks]
            self.numbers[measure] = np.concatenate(parts) if parts else np.zeros(0)
        return self.numbers[measure]

    def missing(self, measure: str) -> DataError:
        """Return the error for a measure whose columns the input lacks."""
        return DataError(f"{self.source.name}: no column for {_MISSING[measure]}")

    # Which responses count

    @property
    def by_rollout(self) -> bool:
        """Statistics count rollouts, not rows, as `rlpost advantages` does by default."""
        return "unit" in self.table.rows

    @cached_property
    def rewards(self) -> Numbers:
        """[U] the reward of each response that counts: of a rollout one; NaN for none."""
        known = self.table.scored & ("reward" in self.columns)
        return np.where(known, self.table.units["reward"], np.nan)

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """[N] the rows of responses that statistics count."""
        counts: NDArray[np.bool_] = self.table.counted_units[self.table.unit] & self.table.counted
        return counts

    def counted(self, rows: Codes) -> Codes:
        """Return the responses of these rows that statistics count: places in `table.units`."""
        units = np.unique(self.table.unit[rows])
        return units[self.table.counted_units[units]]

    def counts_text(self, rows: Codes) -> str:
        """Return how many responses rows are, and how many of them are left out, and why."""
        text, units = counted(len(rows), "response"), np.unique(self.table.unit[rows])
        if self.by_rollout:
            text = f"{counted(len(units), 'rollout')} ({counted(len(rows), 'row')})"
        reasons = np.bincount(self.table.units["left_out"][units], minlength=len(LEFT_OUT) + 1)
        numbers = zip(_LEFT_OUT.values(), reasons[1:].tolist(), strict=True)
        parts = [f"{number:,} {reason}" for reason, number in numbers if number]
        return f"{text}, {', '.join(parts)} and left out" if parts else text

    @cached_property
    def order(self) -> RolloutOrder | None:
        """The rows of rollouts in their order; None without rollouts."""
        if "rollout" not in self.keys:
            return None
        rows, grouped = self.table.rows, "group" in self.keys
        rows = rows if ROLLOUT_ORDER in rows else add_order(rows, grouped=grouped)
        return RolloutOrder.of(rollout_codes(rows, grouped=grouped), rows[ROLLOUT_ORDER])

    def rollout_rows(self, row: int) -> Codes:
        """Return the rows of a row's rollout in their order; without rollouts the row."""
        if self.order is None:
            return np.array([row])
        rollout = self.order.rollout[row]
        return self.order.order[slice(*self.order.offsets[rollout : rollout + 2])]

    def left_out(self, row: int) -> str:
        """Return why no statistic counts a row; empty if they do."""
        return ("", *_LEFT_OUT.values())[int(self.table.rows["left_out"][row])]

    # Where rows are

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
        paths = [self.made_of.named(str(file.path)) for file in self.source.files]
        files = [i for i, path in enumerate(paths) if path == name] or [
            i for i, path in enumerate(paths) if not name or path.endswith(f"/{name}")
        ]
        if len(files) > 1:
            likely, *others = (f"--row {paths[i]}:{number}" for i in files)
            tip = f"{likely}  # or {first_of(others)}"
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

    def place(self, row: int) -> tuple[int, int]:
        """Return the file of a row, and its number in that file."""
        file = int(np.searchsorted(self.source.first_rows, row, side="right")) - 1
        return file, row - self.source.first_rows[file]

    def shown_place(self, row: int) -> tuple[str, int]:
        """Return the path of a row's file, and its number in that file, as results print them."""
        file, file_row = self.place(row)
        path = str(self.source.files[file].path)
        return self.made_of.named(path), self.made_of.row(path, file_row)

    def row_name(self, row: float) -> str:
        """Return the number of a row in the only file, otherwise over all files."""
        return str(self.shown_place(int(row))[1] if len(self.source.files) == 1 else int(row))


def moments_by(values: Numbers, keys: Codes, count: int) -> Moments:
    """Return number, mean and standard deviation (Bessel) by key, [count] each, without NaN.

    The mean of no number is NaN, the deviation of a single one and of equal ones 0.
    """
    known = np.flatnonzero(~np.isnan(values))
    known = known[np.argsort(keys[known], kind="stable")]
    moments = group_moments(values[known], group_offsets(keys[known], count))
    return moments._replace(mean=np.where(moments.number > 0, moments.mean, np.nan))


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


def search_rows(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """Return the rows whose prompts, responses or messages contain a text in any case, [N].

    Raises:
        DataError: the input has no text.
    """
    columns = [*text_columns(index.source.schemas[0], index.names).values()]
    if not columns:
        raise DataError(f"{index.source.name}: there is no text column to search")
    rows = [np.zeros(0, dtype=np.bool_)]
    for chunk in stream_chunks(index.source, columns, columns[0], reporter, "search"):
        matches = [_matches(chunk.table.column(name), text) for name in columns]
        rows.append(np.logical_or.reduce(matches))
    return np.concatenate(rows)


def _matches(array: pa.Array, text: str) -> NDArray[np.bool_]:
    array = without_dictionary(array)
    if pa.types.is_nested(array.type):
        array = pa.array([text_of(value) for value in array.to_pylist()], pa.large_string())
    contains = pc.fill_null(pc.match_substring(array, text, ignore_case=True), False)  # noqa: FBT003
    return np.asarray(contains.to_numpy(zero_copy_only=False), dtype=np.bool_)


def column_type(source: Source, name: str) -> pa.DataType:
    """Return the type of a column in the first file; a hive partition is a number."""
    schema = source.schemas[0]
    return schema.field(name).type if name in schema.names else pa.int64()  # else a partition


def build_index(
    inputs: Sequence[PathText],
    columns_map: Mapping[str, str],
    reporter: Reporter | None = None,
    **counting: Any,
) -> Index:
    """Return the index of an input; reads only keys, rewards and masks.

    Args:
        inputs: Parquet files, directories or globs.
        columns_map: role to column, as in `--map`.
        reporter: gets the progress.
        counting: fields of COUNTING, as of `rlpost.inspect`.

    Raises:
        UsageError, DataError: a role in `columns_map` is unknown, its column is missing, or has
            other values than numbers although the role needs numbers.
        ReadWriteError: an input cannot be read.
    """
    source = Source(find_inputs(inputs))
    builder = IndexBuilder(source, columns_map, **counting)
    read = builder.read or source.columns[:1]
    for chunk in stream_chunks(source, read, builder.sized_by, reporter, "index"):
        builder.add(chunk)
    return builder.finish()


class IndexBuilder:
    """Builds an Index from all chunks of a source, in order."""

    def __init__(self, source: Source, columns_map: Mapping[str, str], **counting: Any) -> None:
        self.source = source
        columns = resolve_input(source, columns_map)
        kinds = {name: content_kind(column_type(source, name)) for name in source.columns}
        if LENGTH in columns and kinds.get(columns.column(LENGTH)) != "number":
            columns = columns.without([LENGTH])
        self.columns = columns
        self.names = named(source.columns)
        if TEXT in columns:
            self.names["response"] = columns.column(TEXT)
        for what in ("kl", "advantage"):
            if kinds.get(self.names.get(what, "")) in ("text", "other"):
                del self.names[what]
        self._counting, self._stored = counting_of(source, columns, counting)
        roles = ("group", "batch", "domain", "rollout", *PLACE[1:])
        self.keys = {role: columns.column(role) for role in roles if role in columns}
        prompt = self.names.get("prompt", "")
        if "group" not in columns and kinds.get(prompt) in ("text", "number"):
            self.keys["group"] = prompt
        self.sized_by = self._list_column()
        self._numbers = {
            name: columns.column(role) for role, name in _NUMBERS.items() if role in columns
        }
        self._masked = masked_rows(source, columns) if "kept" in self._numbers else "none"
        if self._masked == "none":
            self._numbers.pop("kept", None)
        if self.sized_by is None and LENGTH in columns:
            self._numbers["length"] = columns.column(LENGTH)
        others = [columns.column(role) for role in (TRUNCATED, FAILURE) if role in columns]
        read = {*self.keys.values(), *self._numbers.values(), *others, self.sized_by}
        self.read = sorted(name for name in read if name is not None)
        """The columns that chunks need."""
        self._parts: dict[str, list[Any]] = {}

    def _list_column(self) -> str | None:
        """Return the mask, otherwise another list with one entry per response token."""
        roles = ("mask", "old_log_probs", "infer_log_probs", "log_probs", "ref_log_probs", "values")
        candidates = [self.columns.column(role) for role in roles if role in self.columns]
        candidates += [self.names[what] for what in ("advantage", "tokens") if what in self.names]
        types = ((name, column_type(self.source, name)) for name in candidates)
        return next((name for name, kind in types if is_list(kind)), None)

    def add(self, chunk: RowChunk) -> None:
        """Add the next chunk."""
        table, roles, parts = chunk.table, self.columns.columns, dict[str, Any]()

        def cells(column: str) -> tuple[pa.Array, CellLocation]:
            path = str(self.source.files[chunk.file].path)
            return table.column(column), CellLocation(path, chunk.first_row, column)

        for name, column in self.keys.items():
            parts[name] = encode_keys(plain_keys(table.column(column)))
        for name, column in self._numbers.items():
            parts[name] = _numbers(*cells(column))
        if "reward" in parts:
            parts["reward_null"] = is_true(table.column(roles["reward"]).is_null())
        if TRUNCATED in roles:
            parts[TRUNCATED] = truncations(*cells(roles[TRUNCATED])).truncated
        if FAILURE in roles:
            parts[FAILURE] = encode_keys(failure_reasons(*cells(roles[FAILURE])))
        if self.sized_by is not None:
            array = table.column(self.sized_by)
            parts["tokens"] = parts["length"] = lists.list_lengths(array).astype(np.float64)
            if roles.get("mask") == self.sized_by and lists.holds_numbers(array.type):
                offsets, mask = lists.flat(array)
                parts["length"] = segment_sums((mask > 0).astype(np.float64), offsets)
        for name, part in parts.items():
            self._parts.setdefault(name, []).append(part)

    def finish(self) -> Index:
        """Return the index of all chunks."""
        arrays: dict[str, Any] = {}
        for name in [*self._parts]:
            parts = self._parts.pop(name)
            if isinstance(parts[0], pa.Array):
                whole = pa.chunked_array(of_one_type(parts)).unify_dictionaries()
                arrays[name] = whole.combine_chunks()
            else:
                arrays[name] = np.concatenate(parts)
        keys = {name: KeyColumn.of([x]) for name, x in arrays.items() if isinstance(x, pa.Array)}
        numbers = {name: x for name, x in arrays.items() if name not in keys}
        for name in ("reward", "length"):
            numbers.setdefault(name, np.full(self.source.rows, np.nan))
        sizes = {"tokens": numbers["length"], "length": numbers.get("tokens", numbers["length"])}
        resolved = resolve_recipe(Recipe(estimator="raw", **self._counting), self.columns)
        table = counted_table(arrays | sizes, resolved, count=self.source.rows, masked=self._masked)
        return Index(
            self.source, self.columns, self.names, self.sized_by, table, keys, numbers,
            self._stored,
        )  # fmt: skip


def _numbers(array: pa.Array, location: CellLocation) -> Numbers:
    """Return one float64 per row; lists are summed, and a null is NaN."""
    values = np.full(len(array), np.nan)
    values[is_true(array.is_valid())] = checked_numbers(array.drop_null(), location)
    return values
