"""The filter line: `reward<0.5 length>=20 prompt~arith step=2`.

Which rows have a text in their prompt or response; the text columns are streamed once.

Which responses are listed: those that a filter and a search leave.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses.columns import is_text, text_of
from rlpost.analysis.responses.index import stream
from rlpost.errors import DataError, UsageError
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.io.progress import Reporter


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
NUMBERS = ("reward", "length", "kl", "advantage", "row", "cut", *_OF_GROUPS)
NAMES = ("step", "prompt", "domain")


def kept_by(text: str, index: Index) -> NDArray[np.bool_]:
    """The rows that fulfil every condition of a filter line, [N].

    Conditions are `FIELD<NUMBER` (also `<=`, `>`, `>=`, `=`, `!=`) of reward, length, kl,
    advantage, row, cut, and of the row's group n, mean and std (of rewards); and `FIELD=NAME`,
    `FIELD!=NAME` or `FIELD~PART` of step, prompt and domain.

    Raises:
        UsageError: a condition that is not of that form, an unknown field, no number.
        DataError: KL or advantage of an input that lacks the columns.
    """
    kept = np.ones(len(index), dtype=np.bool_)
    for word in text.split():
        found = _CONDITION.match(word)
        if found is None:
            raise UsageError(f"{word}: write FIELD<NUMBER, FIELD=NAME or FIELD~PART, no spaces")
        field, sign, value = found.groups()
        if field in NAMES:
            kept &= _named(index, field, sign, value)
        elif field in NUMBERS:
            kept &= _numbered(index, field, sign, value)
        else:
            known = (*NUMBERS, *NAMES)
            hint = closest(field, known) or f"; there are {', '.join(known)}"
            raise UsageError(f"{word}: no field {field!r}{hint}")
    return kept


def _numbered(index: Index, field: str, sign: str, value: str) -> NDArray[np.bool_]:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{field}{sign}{value}: {value!r} is not a number") from None
    if sign == "~":
        raise UsageError(f"{field}~{value}: ~ looks for a part of a name; {field} is a number")
    found: NDArray[np.bool_] = _COMPARE[sign](numbers_of(index, field), number)
    return found


def numbers_of(index: Index, field: str) -> NDArray[np.float64]:
    """A field of NUMBERS for each row, [N]."""
    if field == "row":
        return np.arange(len(index), dtype=np.float64)
    if field == "cut":
        return np.zeros(len(index)) if index.truncated is None else index.truncated.astype(float)
    if field not in _OF_GROUPS:
        if not index.columns_for(field):
            raise index.lacking(field)
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
        chosen = pc.match_substring(labels, value, ignore_case=True)
    elif sign in ("=", "==", "!="):
        chosen = pc.equal(labels, value)
    else:
        return np.asarray(_numbers_among(labels, field, sign, value)[keys.codes])
    found = np.asarray(chosen.to_numpy(zero_copy_only=False))[keys.codes]
    return np.asarray(~found if sign == "!=" else found, dtype=np.bool_)


def _numbers_among(labels: pa.Array, field: str, sign: str, value: str) -> NDArray[np.bool_]:
    """Which labels compare so, as numbers: `step>2`."""
    try:
        numbers = labels.cast(pa.float64()).to_numpy(zero_copy_only=False)
        found: NDArray[np.bool_] = _COMPARE[sign](numbers, float(value))
    except (pa.ArrowInvalid, ValueError):
        raise UsageError(f"{field}{sign}{value}: names have no order; = != ~ are there") from None
    return found


def text_columns(index: Index) -> list[str]:
    """The columns of prompts, responses and messages."""
    schema = index.source.schemas[0]
    names = [
        index.names[what] for what in ("prompt", "response", "messages") if what in index.names
    ]
    return [name for name in names if name in schema.names and is_text(schema.field(name).type)]


def rows_with(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """The rows with this text somewhere, [N]; capitals and small letters are the same."""
    columns = text_columns(index)
    if not columns:
        return np.zeros(len(index), dtype=np.bool_)
    parts = []
    for piece in stream(index.source, columns, columns[0], reporter, "search"):
        found = np.zeros(piece.table.num_rows, dtype=np.bool_)
        for name in columns:
            found |= _matches(piece.table.column(name), text)
        parts.append(found)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)


def _matches(array: pa.Array, text: str) -> NDArray[np.bool_]:
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_nested(array.type):
        array = pa.array([text_of(value) for value in array.to_pylist()], pa.large_string())
    found = pc.fill_null(pc.match_substring(array, text, ignore_case=True), False)  # noqa: FBT003
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


Asked = Literal["search", "filter"]


class Narrowing:
    """A filter line, a text that is searched for, and the rows that fulfil both.

    Args:
        index: of the input.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.texts: dict[Asked, str] = {"search": "", "filter": ""}
        self._kept: dict[Asked, NDArray[np.bool_]] = {}

    @property
    def kept(self) -> NDArray[np.bool_]:
        """[N] the rows to list."""
        every = np.ones(len(self.index), dtype=np.bool_)
        for kept in self._kept.values():
            every &= kept
        return every

    def ask(self, what: Asked, text: str) -> None:
        """Take a new filter or search; an empty one asks for nothing. May stream columns.

        Raises:
            UsageError: the filter is wrong, or nothing would be left; the old one stays.
            DataError: the input has no text to search, or no column for what is filtered by.
        """
        others = {name: kept for name, kept in self._kept.items() if name != what}
        if text:
            others[what] = self._rows(what, text)
            if not np.logical_and.reduce([*others.values()]).any():
                raise UsageError(f"no response: {text}")
        self.texts[what], self._kept = text, others

    def _rows(self, what: Asked, text: str) -> NDArray[np.bool_]:
        if what == "filter":
            return kept_by(text, self.index)
        if not text_columns(self.index):
            raise DataError(f"{self.index.source.name}: there is no column of text to search")
        return rows_with(text, self.index)

    def clear(self) -> None:
        """List everything again."""
        self.texts = {"search": "", "filter": ""}
        self._kept = {}
