"""Conditions on rows, such as `reward > 0 and domain = 'math'`, over scalars.

A number that is NaN counts as null, so a comparison with it is never true.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.conditions import Condition
from rlpost.formats.records import first_names
from rlpost.io.arrow import CellLocation, without_dictionary
from rlpost.io.finish_reasons import truncations
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from numpy.typing import NDArray


KEYS = ("group", "batch")
"""Roles that name a prompt group."""
_OF_GROUPS = {"batch", "step", "group", "domain"}  # all responses of a group have the same


class Where:
    """A condition on rows, and counts of the rows that it kept.

    Args:
        text: the expression.
        chosen: role -> column, as of `--map`.
        flag: the option, for errors.
        shown: what the user typed; None: the expression.

    Raises:
        UsageError: it is no condition, names nothing, or has what is not allowed.
    """

    def __init__(
        self,
        text: str,
        chosen: Mapping[str, str] = MappingProxyType({}),
        flag: str = "--where",
        shown: str | None = None,
    ) -> None:
        self.chosen, self.flag, self.label = chosen, flag, f"{flag} {shown or text}"
        self.condition = Condition(text, flag)
        self.names = tuple(self.condition.names)
        if not self.names:
            raise self.error("names no column, so it is the same for all rows")
        self.rows = self.matched = 0
        self._of_dumps: dict[str, str] = {}
        self._groups: dict[bool, list[NDArray[np.uint64]]] = {True: [], False: []}

    def error(self, problem: str) -> UsageError:
        """Return an error that quotes the condition."""
        return UsageError(f"{self.label}: {problem}")

    def no_match(self, paths: Iterable[object]) -> DataError:
        """Return the error for a condition that no row of these inputs fulfils."""
        topic = "steps" if self.flag == "--steps" else "columns"
        tip = f"rlpost inspect IN --about {topic}  # prints what the input has"
        return DataError(f"{', '.join(map(str, paths))}: {self.line()}", tip=tip)

    def columns(self, columns: Iterable[str], roles: Mapping[str, str]) -> dict[str, str]:
        """Return the column of each name that has one.

        A role that the user maps comes first, then a column of that name, then a role. A name of
        `--steps` is a role.

        Args:
            columns: of the input.
            roles: role -> column.
        """
        mapped = {role: column for role, column in self.chosen.items() if column != "none"}
        names = {name: name for name in columns}
        by_name = {**names, **roles} if self.flag == "--steps" else {**roles, **names}
        by_name |= {role: column for role, column in mapped.items() if column in by_name}
        return {name: by_name[name] for name in self.names if name in by_name}

    def check(self, named: Container[str], known: Iterable[str], of: str) -> None:
        """Raise UsageError for a name of the condition that is neither a column nor a role.

        Args:
            named: names that have a column.
            known: names that there are.
            of: the input.
        """
        for name in self.names:
            if name not in named:
                names = sorted({*known})
                listed = f"the names are {first_names(names)}"
                if name in ROLES:
                    listed = f"--map {name}=COLUMN"
                raise UsageError(
                    no_such(f"{self.label}: {of} has no {name!r}", name, names, listed)
                )

    def kept(
        self, rows: pa.RecordBatch, roles: Mapping[str, str], path: str, first: int = 0
    ) -> NDArray[np.bool_]:
        """Return which rows match, [n], and count them; where the condition is null, none does.

        Args:
            rows: some of the input; a column that they lack is null.
            roles: role -> column.
            path: of the input, for errors.
            first: the number of the first row.

        Raises:
            UsageError: the condition does not fit the types.
        """
        values = {name: pl.Series([None] * len(rows)) for name in self.names}
        for name, column in self.columns(rows.schema.names, roles).items():
            values[name] = self._values(
                name, rows.column(column), CellLocation(path, first, column)
            )
        kept = self.matching(values)
        groups = {} if _OF_GROUPS.issuperset(self.names) else {
            role: pl.from_arrow(without_dictionary(rows.column(roles[role])))
            for role in KEYS if roles.get(role) in rows.schema.names
        }  # fmt: skip
        self.rows += len(kept)
        self.matched += int(kept.sum())
        if "group" in groups:
            keys = pl.DataFrame(groups)
            known, codes = keys["group"].is_not_null().to_numpy(), keys.hash_rows().to_numpy()
            for which, of_groups in self._groups.items():
                of_groups.append(np.unique(codes[known & (kept == which)]))
        return kept

    def kept_of_dump(self, batch: pa.RecordBatch, path: str) -> NDArray[np.bool_]:
        """Return which rows of a dump match, as `kept`, by canonical columns and roles."""
        roles = role_columns(batch.schema.names)
        self._of_dumps |= {name: name for name in batch.schema.names} | roles
        return self.kept(batch, roles, path)

    def check_dumps(self, of: str) -> None:
        """Raise UsageError for a name that no batch of the dumps has."""
        if self._of_dumps:
            self.check(self.columns(self._of_dumps, self._of_dumps), self._of_dumps, of)

    def _values(self, name: str, column: pa.Array, place: CellLocation) -> pl.Series:
        """Return the values of a name; a finish reason by the name of its role is true or false.

        NaN is null, and whole numbers have a type in which they do not overflow.

        Raises:
            UsageError: the column has lists or objects.
        """
        array = without_dictionary(column)
        if name != place.column and name == "truncated":
            array = pa.array(truncations(array, place).truncated)
        if pa.types.is_nested(array.type):
            raise self.error(f"{name} is {array.type} in {place.path}; a scalar is needed")
        return pl.Series(array)

    def matching(self, values: Mapping[str, pl.Series]) -> NDArray[np.bool_]:
        """Return which rows match, [n]; a row for which the condition is null does not.

        Args:
            values: name -> its value in each row, [n].

        Raises:
            UsageError: the condition does not fit the types.
        """
        value = self.condition.expression({name: _kind(x.dtype) for name, x in values.items()})
        columns = [_comparable(values[x]).alias(str(i)) for i, x in enumerate(self.names)]
        try:
            result = pl.DataFrame(columns).select(value).to_series()
        except pl.exceptions.PolarsError as error:
            what = ", ".join(f"{name} is {series.dtype}" for name, series in values.items())
            why = (str(error).splitlines() or ["unreadable"])[0]
            raise self.error(f"does not fit its columns ({what}): {why}") from None
        kept: NDArray[np.bool_] = result.cast(pl.Boolean).fill_null(value=False).to_numpy()
        return kept

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and `line`."""
        empty = np.zeros(0, np.uint64)
        groups, others = (np.unique(np.concatenate([empty, *x])) for x in self._groups.values())
        cut = len(np.intersect1d(groups, others))
        line = f"{self.matched:,} of {counted(self.rows, 'row')} match {self.label}"
        if cut:
            many = f"{cut:,} of {counted(len(groups), 'prompt group')}"
            line += f"; {many} {'is' if len(groups) == 1 else 'are'} cut to part of the rows"
        return {
            "condition": self.label,
            "rows": self.rows,
            "matched": self.matched,
            "groups": len(groups),
            "groups_cut": cut,
            "line": line,
        }

    def line(self) -> str:
        """Return `12 of 512 rows match --where ok; 3 of 4 prompt groups are cut to ...`."""
        return str(self.as_json()["line"])


def of_steps(text: str, chosen: Mapping[str, str]) -> Where:
    """Return the condition of `--steps`: `300:320` is from 300 to 319, either end may be left out.

    Raises:
        UsageError: the text has another form, or no step.
    """
    match = re.fullmatch(r"(-?\d{0,18}):(-?\d{0,18})", text.strip())
    first, end = match.groups() if match else ("", "")
    if not (first or end):
        raise UsageError(
            f"--steps {text}: FIRST:END is needed, such as 300:320, the steps 300 to 319; 300: and "
            ":320 have one end"
        )
    if first and end and int(first) >= int(end):
        raise UsageError(f"--steps {text}: has no step, since END is not part of it")
    tests = [f"batch >= {first}"] * bool(first) + [f"batch < {end}"] * bool(end)
    return Where(" and ".join(tests), chosen, "--steps", text)


def role_columns(columns: Iterable[str]) -> dict[str, str]:
    """Return the column of each role that one of these names serves."""
    names = {*columns}
    columns_of = {
        name: next((x for x in role.aliases if x in names), "") for name, role in ROLES.items()
    }
    return {role: column for role, column in columns_of.items() if column}


def _kind(dtype: pl.DataType) -> str:
    """Return what values are to a condition; empty for a column that is null throughout."""
    if dtype.is_numeric():
        return "number"
    known = {pl.Null: "", pl.String: "text", pl.Boolean: "bool"}
    return known.get(type(dtype), str(dtype))


def _comparable(values: pl.Series) -> pl.Series:
    """Return values with null in place of NaN, and whole numbers that do not overflow."""
    if values.dtype.is_float():
        return values.fill_nan(None)
    return values.cast(pl.Int128) if values.dtype.is_integer() else values
