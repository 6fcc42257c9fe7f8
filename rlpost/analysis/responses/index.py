"""Index of an input: keys, reward and length of every response, to sort, filter and find them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.counted import (
    KEYS,
    RowReader,
    counted_table,
    counting_of,
    joined,
    stream_chunks,
)
from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.columns import log_probs_of, named, text_columns, text_of
from rlpost.display.text import counted, first_of
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import content_kind, is_list, without_dictionary
from rlpost.io.input_paths import InputPaths
from rlpost.io.keys import KeyColumn
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.kernels.moments import group_moments, group_offsets
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.kernels.segments import segment_sum
from rlpost.pipeline.columns import LENGTH, TEXT, masked_rows
from rlpost.pipeline.data import FAILURE, LEFT_OUT
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.rollout_order import ROLLOUT_ORDER, add_order, rollout_codes
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable, Rows
    from rlpost.display.reporter import Reporter
    from rlpost.io.keys import Label
    from rlpost.io.paths import PathText
    from rlpost.kernels.moments import Moments
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


MEASURES = ("reward", "kl", "length", "advantage")
MOST_NAMED = 3  # files in an error
_DIGITS = 18  # of the number of a row
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
    rows: Rows
    """What rows say, of `RowReader`: [N] each, with `tokens` and `length`, policy tokens and all;
    `kl` and `advantage` after `number`."""
    stored_counting: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe in the files that count their responses, as of `counting_of`."""
    made_of: InputPaths = field(default_factory=lambda: InputPaths(()))
    """What temporary files are made of, for display."""

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def keys(self) -> dict[str, KeyColumn]:
        """The columns of keys, and `failure`: a text that is empty for a row that did not fail."""
        return {x: KeyColumn.of([self.rows[x]]) for x in (*KEYS, FAILURE) if x in self.rows}

    @property
    def reward(self) -> Numbers:
        """[N] the reward of each row, as the file has it; NaN for none."""
        reward: Numbers = self.rows["reward"]
        return reward

    @property
    def length(self) -> Numbers:
        """[N] the policy tokens of each row; NaN if no column has them."""
        tokens: Numbers = self.rows["tokens"]
        return tokens

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
        name = "tokens" if measure == "length" else measure
        if name not in self.rows:
            mask = self.columns.columns.get("mask")
            read = [*columns, *([mask] if mask else [])]
            chunks = stream_chunks(self.source, read, self.sized_by, f"{measure}s", reporter)
            parts = [lists.policy_means(chunk.table, columns, mask) for chunk in chunks]
            self.rows[name] = np.concatenate(parts) if parts else np.zeros(0)
        numbers: Numbers = self.rows[name]
        return numbers

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
        known = self.table.scored & ("reward_null" in self.rows)
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
        if not number.isdecimal() or len(number) > _DIGITS:
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


def search_rows(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """Return the rows whose prompts, responses or messages contain a text in any case, [N].

    Raises:
        DataError: the input has no text.
    """
    columns = [*text_columns(index.source.schemas[0], index.names).values()]
    if not columns:
        raise DataError(f"{index.source.name}: there is no text column to search")
    rows = [np.zeros(0, dtype=np.bool_)]
    for chunk in stream_chunks(index.source, columns, columns[0], "search", reporter):
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
    columns = resolve_input(source, columns_map)
    fields, stored = counting_of(source, columns, counting)
    sized_by = _list_column(source, columns)
    lengths = columns.columns.get(LENGTH)
    if sized_by or (lengths and content_kind(column_type(source, lengths)) != "number"):
        columns = columns.without([LENGTH])
    resolved = resolve_recipe(Recipe(estimator="raw", **fields), columns)
    reader = RowReader(source, _with_prompts(source, columns))
    read, parts = [*reader.names, *([sized_by] if sized_by else [])], []
    for chunk in stream_chunks(source, read, sized_by, "index", reporter):
        rows = reader.rows(chunk)
        if sized_by is not None:
            array = chunk.table.column(sized_by)
            rows["tokens"] = rows["length"] = lists.list_lengths(array).astype(np.float64)
            if columns.columns.get("mask") == sized_by and lists.holds_numbers(array.type):
                offsets, mask = lists.flat(array)
                rows["tokens"] = segment_sum((mask > 0).astype(np.float64), offsets)
        parts.append(rows)
    rows = joined(parts)
    masked = masked_rows(source, columns)
    table = counted_table(rows, resolved, count=source.rows, masked=masked)
    index = index_of(source, columns, sized_by, rows, table)
    return replace(index, stored_counting=stored)


def index_of(
    source: Source,
    columns: ColumnMap,
    sized_by: str | None,
    rows: Rows,
    table: CountedTable,
) -> Index:
    """Return the index of rows that were read; arguments as of Index."""
    names = named(source.columns)
    if TEXT in columns:
        names["response"] = columns.column(TEXT)
    for what in {"kl", "advantage"} & {*names}:
        if content_kind(column_type(source, names[what])) in ("text", "other"):
            del names[what]
    unknown = {name: np.full(source.rows, np.nan) for name in ("reward", "tokens")}
    return Index(source, columns, names, sized_by, table, {**unknown, **rows})


def _list_column(source: Source, columns: ColumnMap) -> str | None:
    """Return the mask, otherwise another list with one entry per response token."""
    names = named(source.columns)
    roles = ("mask", "old_log_probs", "infer_log_probs", "log_probs", "ref_log_probs", "values")
    candidates = [columns.column(role) for role in roles if role in columns]
    candidates += [names[what] for what in ("advantage", "tokens") if what in names]
    return next((name for name in candidates if is_list(column_type(source, name))), None)


def _with_prompts(source: Source, columns: ColumnMap) -> ColumnMap:
    """Return the columns with prompts as groups, if no column has the key of groups."""
    prompt = named(source.columns).get("prompt")
    if "group" in columns or prompt is None:
        return columns
    if content_kind(column_type(source, prompt)) not in ("text", "number"):
        return columns
    return replace(columns, columns={**columns.columns, "group": prompt})
