"""Filters and searches: conditions such as `reward<0.5 prompt~arith`, and text in responses."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses.columns import is_text, text_of
from rlpost.analysis.responses.index import stream_chunks
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import without_dictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.display.reporter import Reporter


_CONDITION = re.compile(r"^(\w+)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*)$")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_OF_GROUPS = ("n", "mean", "std")
NUMBERS = ("reward", "length", "kl", "advantage", "row", "truncated", *_OF_GROUPS)
NAMES = ("step", "prompt", "domain")


def filter_rows(text: str, index: Index) -> NDArray[np.bool_]:
    """Return the rows that fulfil every condition of a filter line, [N].

    Conditions are `FIELD<NUMBER` (also `<=`, `>`, `>=`, `=`, `!=`) of reward, length, kl,
    advantage, row, truncated, and of the row's group n, mean and std (of rewards); and
    `FIELD=NAME`, `FIELD!=NAME` or `FIELD~PART` of step, prompt and domain.

    Raises:
        UsageError: a condition has another form, an unknown field, or not a number.
        DataError: the input lacks the columns of KL or advantage.
    """
    kept = np.ones(len(index), dtype=np.bool_)
    for condition in text.split():
        match = _CONDITION.match(condition)
        if match is None:
            raise UsageError(
                f"{condition}: write FIELD<NUMBER, FIELD=NAME or FIELD~PART, without spaces"
            )
        field, sign, value = match.groups()
        if field in NAMES:
            kept &= _named(index, field, sign, value)
        elif field in NUMBERS:
            kept &= _numbered(index, field, sign, value)
        else:
            fields = (*NUMBERS, *NAMES)
            every = f"the fields are {', '.join(fields)}"
            raise UsageError(no_such(f"{condition}: no field {field!r}", field, fields, every))
    return kept


def _numbered(index: Index, field: str, sign: str, value: str) -> NDArray[np.bool_]:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{field}{sign}{value}: {value!r} is not a number") from None
    if sign == "~":
        raise UsageError(f"{field}~{value}: ~ finds a part of a name, and {field} is a number")
    found: NDArray[np.bool_] = _COMPARE[sign](field_numbers(index, field), number)
    return found


def field_numbers(index: Index, field: str) -> NDArray[np.float64]:
    """Return a field of NUMBERS for each row, [N]."""
    if field == "row":
        return np.arange(len(index), dtype=np.float64)
    if field == "truncated":
        return np.zeros(len(index)) if index.truncated is None else index.truncated.astype(float)
    if field not in _OF_GROUPS:
        if not index.columns_for(field):
            raise index.missing_error(field)
        index.measure(field)
        return index.number(field)
    count = np.bincount(index.group).astype(np.float64)
    mean = np.bincount(index.group, index.reward) / np.maximum(count, 1)
    if field == "std":
        squares = np.bincount(index.group, np.square(index.reward - mean[index.group]))
        return np.sqrt(squares / np.maximum(count - 1, 1))[index.group]
    return (count if field == "n" else mean)[index.group]


def _named(index: Index, field: str, sign: str, value: str) -> NDArray[np.bool_]:
    keys = getattr(index, field)
    if keys is None:
        raise UsageError(f"{field}{sign}{value}: the input has no column for the {field}")
    labels = pc.fill_null(keys.labels.cast(pa.string()), "")
    if sign == "~":
        matches = pc.match_substring(labels, value, ignore_case=True)
    elif sign in ("=", "==", "!="):
        matches = pc.equal(labels, value)
    else:
        return np.asarray(_compare_labels(labels, field, sign, value)[keys.codes])
    rows = np.asarray(matches.to_numpy(zero_copy_only=False))[keys.codes]
    return np.asarray(~rows if sign == "!=" else rows, dtype=np.bool_)


def _compare_labels(labels: pa.Array, field: str, sign: str, value: str) -> NDArray[np.bool_]:
    """Return which labels fulfil a comparison as numbers, such as `step>2`."""
    try:
        numbers = labels.cast(pa.float64()).to_numpy(zero_copy_only=False)
        found: NDArray[np.bool_] = _COMPARE[sign](numbers, float(value))
    except (pa.ArrowInvalid, ValueError):
        raise UsageError(f"{field}{sign}{value}: names have no order; use =, != or ~") from None
    return found


def text_columns(index: Index) -> list[str]:
    """Return the columns of prompts, responses and messages."""
    schema = index.source.schemas[0]
    names = [
        index.names[what] for what in ("prompt", "response", "messages") if what in index.names
    ]
    return [name for name in names if name in schema.names and is_text(schema.field(name).type)]


def search_rows(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """Return the rows whose texts contain this text, [N]; case does not matter."""
    columns = text_columns(index)
    if not columns:
        return np.zeros(len(index), dtype=np.bool_)
    parts = []
    for chunk in stream_chunks(index.source, columns, columns[0], reporter, "search"):
        rows = np.zeros(chunk.table.num_rows, dtype=np.bool_)
        for name in columns:
            rows |= _matches(chunk.table.column(name), text)
        parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)


def _matches(array: pa.Array, text: str) -> NDArray[np.bool_]:
    array = without_dictionary(array)
    if pa.types.is_nested(array.type):
        array = pa.array([text_of(value) for value in array.to_pylist()], pa.large_string())
    found = pc.fill_null(pc.match_substring(array, text, ignore_case=True), False)  # noqa: FBT003
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


FilterKind = Literal["search", "filter"]


class RowFilter:
    """A filter line, a search text, and the rows that match both.

    Args:
        index: of the input.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.texts: dict[FilterKind, str] = {"search": "", "filter": ""}
        self._kept: dict[FilterKind, NDArray[np.bool_]] = {}

    @property
    def kept(self) -> NDArray[np.bool_]:
        """[N] whether a row matches."""
        kept = np.ones(len(self.index), dtype=np.bool_)
        for rows in self._kept.values():
            kept &= rows
        return kept

    def set(self, kind: FilterKind, text: str) -> None:
        """Set the filter or the search; empty matches every row. May stream columns.

        Raises:
            UsageError: the filter is wrong, or no row matches; the old one stays.
            DataError: the input has no text to search, or no column for a field.
        """
        others = {name: kept for name, kept in self._kept.items() if name != kind}
        if text:
            others[kind] = self._rows(kind, text)
            if not np.logical_and.reduce([*others.values()]).any():
                raise UsageError(f"{text}: no response matches")
        self.texts[kind], self._kept = text, others

    def _rows(self, kind: FilterKind, text: str) -> NDArray[np.bool_]:
        if kind == "filter":
            return filter_rows(text, self.index)
        if not text_columns(self.index):
            raise DataError(f"{self.index.source.name}: there is no text column to search")
        return search_rows(text, self.index)

    def clear(self) -> None:
        """Remove the filter and the search."""
        self.texts = {"search": "", "filter": ""}
        self._kept = {}
