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
from rlpost.io.arrow import CellLocation, without_dictionary
from rlpost.io.finish_reasons import truncations
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray


_OF_GROUPS = {"batch", "step", "group", "domain"}  # all responses of a group have the same
_WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)


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
        self._groups: dict[bool, list[NDArray[np.uint64]]] = {True: [], False: []}

    def error(self, problem: str) -> UsageError:
        """Return an error that quotes the condition."""
        return UsageError(f"{self.label}: {problem}")

    def no_match(self, paths: Iterable[object]) -> DataError:
        """Return the error for a condition that no row of these inputs fulfils."""
        topic = "steps" if self.flag == "--steps" else "columns"
        tip = f"rlpost inspect IN --about {topic}  # prints what the input has"
        return DataError(f"{', '.join(map(str, paths))}: {self.line()}", tip=tip)

    def unknown(self, name: str, known: Iterable[str], of: str) -> UsageError:
        """Return the error for a name that is neither a column nor a role nor a field."""
        names = sorted({*known})
        every = f"the names are {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}"  # noqa: PLR2004
        return UsageError(no_such(f"{self.label}: {of} has no {name!r}", name, names, every))

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
            UsageError: the condition does not fit the types.
        """
        columns = {self.condition.column(name): series for name, series in values.items()}
        types = ", ".join(f"{name} is {series.dtype}" for name, series in values.items())
        try:
            frame = _comparable(pl.DataFrame(columns))
            self.condition.check_kinds(frame)
            result = frame.select(self.condition.value).to_series()
        except pl.exceptions.PolarsError as error:
            raise self.error(f"does not fit its columns ({types}): {_first_line(error)}") from None
        if result.dtype not in (pl.Boolean, pl.Null):
            raise self.error(f"is {result.dtype}, no condition ({types})")
        kept: NDArray[np.bool_] = result.cast(pl.Boolean).fill_null(False).to_numpy()  # noqa: FBT003
        return kept

    @property
    def group_roles(self) -> tuple[str, ...]:
        """Roles that name a prompt group; none if the condition keeps each group as a whole."""
        return () if _OF_GROUPS.issuperset(self.names) else ("group", "batch")

    def count(self, kept: NDArray[np.bool_], groups: Mapping[str, pa.Array]) -> None:
        """Count rows, those that match, and the prompt groups that have rows of both kinds.

        Args:
            kept: which rows match, [n].
            groups: those of `group_roles` that the rows have, [n] each.
        """
        self.rows += len(kept)
        self.matched += int(kept.sum())
        if "group" in groups:
            plain = {role: pl.from_arrow(without_dictionary(key)) for role, key in groups.items()}
            keys = pl.DataFrame(plain)
            known, codes = keys["group"].is_not_null().to_numpy(), keys.hash_rows().to_numpy()
            for which, groups_of in self._groups.items():
                groups_of.append(np.unique(codes[known & (kept == which)]))

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

    def batches(self, batches: Iterable[pa.RecordBatch], path: Path) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a dump that match; a column that a batch lacks is null there.

        Raises:
            UsageError: no batch has a column for a name, or the condition does not fit the types.
        """
        known, missing = set[str](), {*self.names}
        for batch in batches:
            roles, values = role_columns(batch.schema.names), {}
            known |= {*batch.schema.names, *roles}
            for name, column in self.columns(batch.schema.names, roles).items():
                if column is None:
                    values[name] = pl.Series([None] * batch.num_rows)
                else:
                    missing.discard(name)
                    place = CellLocation(str(path), 0, column)
                    values[name] = self.values(name, batch.column(column), place)
            kept = self.matching(values)
            named = [role for role in self.group_roles if role in roles]
            self.count(kept, {role: batch.column(roles[role]) for role in named})
            if kept.any():
                yield batch.filter(pa.array(kept))
        if missing and known:
            name = next(name for name in self.names if name in missing)
            raise self.unknown(name, known, str(path))


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
    return Where(" and ".join(tests), chosen, "--steps", text)


def role_columns(columns: Iterable[str]) -> dict[str, str]:
    """Return the column of each role that one of these names serves."""
    names = {*columns}
    columns_of = {
        name: next((x for x in role.aliases if x in names), "") for name, role in ROLES.items()
    }
    return {role: column for role, column in columns_of.items() if column}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unreadable"])[0]


def _comparable(frame: pl.DataFrame) -> pl.DataFrame:
    """Return columns with nulls in place of NaN, and with whole numbers that do not overflow."""
    floats = [name for name, kind in frame.schema.items() if kind.is_float()]
    whole = {name: pl.Int128 if kind == pl.UInt64 else pl.Int64
             for name, kind in frame.schema.items() if kind in _WHOLE}  # fmt: skip
    return frame.with_columns(
        *(pl.col(name).fill_nan(None) for name in floats),
        *(pl.col(name).cast(kind) for name, kind in whole.items()),
    )
