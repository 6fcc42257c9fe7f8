"""Conditions on rows, such as `reward > 0 and domain = 'math'`: SQL by polars, over scalars.

A number that is NaN counts as null, so a comparison with it is never true. That makes the bounds of
a column enough to exclude many rows at once: those of a row group, of an episode in an index.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.display.text import counted, size
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import without_dictionary
from rlpost.io.finish_reasons import truncations
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from rlpost.io.arrow import CellLocation

    Bounds = Mapping[str, tuple[pl.Series, pl.Series]]


FUNCTIONS = (
    "abs", "ceil", "floor", "round", "sign", "sqrt", "exp", "ln", "log", "log2", "log10", "pow",
    "mod", "lower", "upper", "length", "left", "right", "substr", "trim", "replace", "starts_with",
    "ends_with", "regexp_like", "coalesce", "ifnull", "nullif", "if", "greatest", "least", "cast",
    "try_cast",
)  # fmt: skip
"""Functions of one row. Others are of several rows (`sum`), of lists, or of files."""
_WORDS = ("and", "or", "not", "in", "between", "like", "ilike", "when", "then", "else", "case")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`")
_RESERVED = re.compile(rf"({_QUOTED.pattern})|\b(group|offset|values)\b")
"""Quoted parts, and roles whose names are words of SQL."""
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
_COMPARISONS = {
    ">": ("{high} > {value}", "{value} > {low}"),
    ">=": ("{high} >= {value}", "{value} >= {low}"),
    "<": ("{low} < {value}", "{value} < {high}"),
    "<=": ("{low} <= {value}", "{value} <= {high}"),
    "=": ("{low} <= {value} and {high} >= {value}",) * 2,
}
"""Comparison -> what bounds must fulfil if the column is left of it, and right of it."""
_MOST_VALUES = 1000  # of an `in (...)` that bounds are compared with


@dataclass
class SelectionCounts:
    """What a condition kept, and what did not have to be read for it."""

    condition: str
    """As typed, with its flag."""
    rows: int = 0
    """Rows of the input; without those of episodes that an index excludes."""
    matched: int = 0
    row_groups: int = 0
    row_groups_skipped: int = 0
    """Row groups whose bounds exclude every row."""
    bytes: int = 0
    bytes_skipped: int = 0
    """Bytes of these row groups, or of the episodes that an index excludes."""
    episodes: int = 0
    """Episodes of an index."""
    episodes_skipped: int = 0
    """Of these, those that it excludes."""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and `line`."""
        return {**vars(self), "line": self.line()}

    def line(self) -> str:
        """Return `12 of 512 rows match --where ok; 3 of 4 row groups (1.2 MB) were skipped`."""
        parts = [f"{self.matched:,} of {counted(self.rows, 'row')} match {self.condition}"]
        skipped = f"{self.row_groups_skipped:,} of {counted(self.row_groups, 'row group')}"
        if self.row_groups:
            parts.append(f"skipped {skipped} ({size(self.bytes_skipped)})")
        if self.episodes:
            skipped = f"{self.episodes_skipped:,} of {counted(self.episodes, 'episode')}"
            parts.append(f"skipped {skipped} ({size(self.bytes_skipped)})")
        return "; ".join([*parts, *self.notes])


class Where:
    """A condition on rows.

    Args:
        text: the expression.
        chosen: role -> column, as of `--map`.
        flag: the option, for errors.

    Raises:
        UsageError: it is not an expression, names nothing, or has a function of several rows.
    """

    def __init__(
        self,
        text: str,
        chosen: Mapping[str, str] = MappingProxyType({}),
        flag: str = "--where",
    ) -> None:
        self.text, self.chosen, self.flag = text, chosen, flag
        self.expression = _parsed(text, flag)
        self.names = tuple(dict.fromkeys(self.expression.meta.root_names()))
        if not self.names:
            raise self.error("names no column, so it is the same for all rows")
        self.matches = SelectionCounts(f"{flag} {text}")

    def error(self, problem: str) -> UsageError:
        """Return an error that quotes the condition."""
        return UsageError(f"{self.flag} {self.text}: {problem}")

    def no_match(self, paths: Iterable[object]) -> DataError:
        """Return the error for a condition that no row of these inputs fulfils."""
        topic = "steps" if self.flag == "--steps" else "columns"
        tip = f"rlpost inspect IN --about {topic} prints what the input has"
        return DataError(f"{', '.join(map(str, paths))}: {self.matches.line()}", tip=tip)

    def unknown(self, name: str, known: Iterable[str], of: str) -> UsageError:
        """Return the error for a name that is neither a column nor a role nor a field."""
        names = sorted({*known})
        every = f"the names are {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}"  # noqa: PLR2004
        return UsageError(
            no_such(f"{self.flag} {self.text}: {of} has no {name!r}", name, names, every)
        )

    def columns(self, columns: Iterable[str], roles: Mapping[str, str]) -> dict[str, str | None]:
        """Return the column of each name; None if there is none.

        A role that the user maps comes first, then a column of that name, then a role. A name of
        `--steps` is a role.

        Args:
            columns: of the input.
            roles: role -> column.
        """
        mapped = {role: column for role, column in self.chosen.items() if column != "none"}
        own = {name: name for name in columns}
        by_name = {**own, **roles} if self.flag == "--steps" else {**roles, **own}
        by_name |= {role: column for role, column in mapped.items() if column in by_name}
        return {name: by_name.get(name) for name in self.names}

    def values(self, name: str, column: pa.Array, place: CellLocation) -> pl.Series:
        """Return the values of a name; a finish reason by the name of its role is true or false.

        Raises:
            UsageError: the column has lists or objects.
        """
        array = without_dictionary(column)
        if name != place.column and name == "truncated":
            array = pa.array(truncations(array, place).truncated)
        if pa.types.is_nested(array.type):
            raise self.error(f"{name} is {array.type} in {place.path}; a scalar is needed")
        series = pl.from_arrow(array)
        assert isinstance(series, pl.Series)
        return series

    def matching(self, values: Mapping[str, pl.Series]) -> NDArray[np.bool_]:
        """Return which rows match, [n]; a row for which the condition is null does not.

        Args:
            values: name -> its value in each row, [n].

        Raises:
            UsageError: the condition does not fit the types, or is neither true nor false.
        """
        frame = _without_nan(pl.DataFrame(dict(values)))
        try:
            result = self._result(frame)
        except pl.exceptions.PolarsError as error:
            types = ", ".join(f"{name} is {kind}" for name, kind in frame.schema.items())
            raise self.error(f"does not fit its columns ({types}): {_first_line(error)}") from None
        if result.dtype not in (pl.Boolean, pl.Null):
            raise self.error(f"is {result.dtype}; a condition that is true or false is needed")
        found: NDArray[np.bool_] = result.cast(pl.Boolean).fill_null(False).to_numpy()  # noqa: FBT003
        return found

    def _result(self, frame: pl.DataFrame) -> pl.Series:
        try:
            return frame.select(self.expression).to_series()
        except pl.exceptions.PolarsError:
            empty = [name for name, kind in frame.schema.items() if kind == pl.Null]
            if not empty:
                raise
            texts = frame.with_columns(pl.col(name).cast(pl.String) for name in empty)
            return texts.select(self.expression).to_series()

    def possible(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return which parts may have a row that matches, [count].

        Args:
            bounds: name -> the lowest and the highest value in each part, null if unknown; one
                series twice if each part has a single value. Names may be missing.
            count: of parts.
        """
        exact = {name: low for name, (low, high) in bounds.items() if low is high}
        ends = {_end(name, end): one for name, pair in bounds.items()
                for end, one in zip(("low", "high"), pair, strict=True)}  # fmt: skip
        frame = _without_nan(pl.DataFrame({**exact, **ends}))
        test = _may(self.expression, exact.keys(), bounds.keys())
        if not test.meta.root_names():
            return np.ones(count, np.bool_)
        try:
            result = frame.select(test).to_series()
        except pl.exceptions.PolarsError:  # reading the rows raises the error
            return np.ones(count, np.bool_)
        found: NDArray[np.bool_] = result.cast(pl.Boolean).fill_null(True).to_numpy()  # noqa: FBT003
        return found


def of_steps(text: str, chosen: Mapping[str, str]) -> Where:
    """Return the condition of `--steps`: `300:320` is from 300 to 319, either end may be left out.

    Raises:
        UsageError: the text has another form, or no step.
    """
    match = re.fullmatch(r"(-?\d*):(-?\d*)", text.strip())
    first, end = match.groups() if match else ("", "")
    if not (first or end):
        raise UsageError(
            f"--steps {text}: FIRST:END is needed, such as 300:320, the steps 300 to 319; 300: and "
            ":320 have one end"
        )
    if first and end and int(first) >= int(end):
        raise UsageError(f"--steps {text}: has no step, since END is not part of it")
    tests = [f"batch >= {first}"] * bool(first) + [f"batch < {end}"] * bool(end)
    where = Where(" and ".join(tests), chosen, "--steps")
    where.text, where.matches = text, SelectionCounts(f"--steps {text}")
    return where


def role_columns(columns: Iterable[str]) -> dict[str, str]:
    """Return the column of each role that one of these names serves."""
    names = {*columns}
    found = {role: next((x for x in own.aliases if x in names), "") for role, own in ROLES.items()}
    return {role: column for role, column in found.items() if column}


def _parsed(text: str, flag: str) -> pl.Expr:
    plain = _QUOTED.sub("''", text)
    for name in _CALL.findall(plain):
        if name.lower() not in (*FUNCTIONS, *_WORDS):
            every = f"the functions are {', '.join(FUNCTIONS)}"
            part = f"{flag} {text}: {name}(...) is not a function of one row"
            raise UsageError(no_such(part, name.lower(), FUNCTIONS, every))
    if found := re.search(r"\b(select|over|from)\b", plain, re.IGNORECASE):
        raise UsageError(f"{flag} {text}: `{found[0]}` is of several rows; a condition on one row "
                         "is needed")  # fmt: skip
    try:
        return pl.sql_expr(_RESERVED.sub(lambda match: match[1] or _name(match[2]), text))
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise UsageError(
            f"{flag} {text}: is no condition in SQL: {_first_line(error)}",
            tip=f"{flag} \"reward > 0 and domain = 'math'\"; a name with a dot is in double quotes",
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unreadable"])[0]


def _without_nan(frame: pl.DataFrame) -> pl.DataFrame:
    floats = [name for name, kind in frame.schema.items() if kind.is_float()]
    return frame.with_columns(pl.col(name).fill_nan(None) for name in floats)


def _end(name: str, end: str) -> str:
    return f"{name}\x1f{end}"


def _may(test: pl.Expr, exact: Iterable[str], bounded: Iterable[str]) -> pl.Expr:
    """Return an expression of bounds that is false only if the condition is true in no row."""
    parts = test.meta.pop()[::-1]
    if len(parts) == 2:  # noqa: PLR2004
        for join in (operator.and_, operator.or_):
            if join(*parts).meta.eq(test):
                both: pl.Expr = join(*(_may(part, exact, bounded) for part in parts))
                return both
    names = {*test.meta.root_names()}
    if names and names <= {*exact}:
        return test.fill_null(True)  # noqa: FBT003
    bound = _bound(test, next(iter(names))) if len(names) == 1 and names <= {*bounded} else None
    return pl.lit(True) if bound is None else bound.fill_null(True)  # noqa: FBT003


def _bound(test: pl.Expr, name: str) -> pl.Expr | None:
    """Return a comparison of a column with constants as one of its bounds; None of other tests.

    The comparison is written again as SQL, since polars compares decimals by a function of its own.
    """
    column, low, high = (_name(one) for one in (name, _end(name, "low"), _end(name, "high")))
    if test.meta.eq(pl.col(name)):
        return pl.sql_expr(high)
    parts = test.meta.pop()[::-1]
    if len(parts) != 2 or sum(bool(part.meta.root_names()) for part in parts) != 1:  # noqa: PLR2004
        return None
    on_left = bool(parts[0].meta.root_names())
    values = _constants(parts[on_left])
    if not values:
        return None
    for sign, (if_left, if_right) in _COMPARISONS.items():
        for value in values if len(values) == 1 else ():
            for text in _literals(value):
                sides = (column, text) if on_left else (text, column)
                if pl.sql_expr(f"{sides[0]} {sign} {sides[1]}").meta.eq(test):
                    ends = [if_left, if_right][not on_left].format(low=low, high=high, value=text)
                    return pl.sql_expr(ends)
    texts = [_literals(value)[0] for value in values]
    if on_left and pl.sql_expr(f"{column} in ({', '.join(texts)})").meta.eq(test):
        return pl.sql_expr(" or ".join(f"({low} <= {x} and {high} >= {x})" for x in texts))
    return None


def _constants(value: pl.Expr) -> list[Any]:
    """Return the values of a constant, several of a list; none if there are too many, or nulls."""
    found = pl.select(value).to_series()
    values = (found.explode() if found.dtype == pl.List else found).to_list()
    return values if len(values) <= _MOST_VALUES and None not in values else []


def _literals(value: object) -> list[str]:
    """Return a value as SQL may write it."""
    if isinstance(value, str):
        text = value.replace("'", "''")
        return [f"'{text}'"]
    texts = [f"{value:f}"] if isinstance(value, Decimal) else [str(value)]
    return [*texts, f"{value:e}"] if isinstance(value, float) else texts


def _name(column: str) -> str:
    quoted = column.replace('"', '""')
    return f'"{quoted}"'
