"""Columns of a dump by field -> canonical columns: numbers, keys, flags, texts, token lists."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.types import is_null

from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.fields import column_of
from rlpost.formats.keys import GroupBlocks, content_key, text_key
from rlpost.formats.layout import TokenColumns, checked_lists, list_columns, ragged
from rlpost.formats.records import as_float, describe, rounded_sum
from rlpost.formats.rows import (
    JSON,
    check_finite,
    gathered,
    is_flat,
    is_plain,
    shown,
    tables,
    text_of,
    values_of,
)
from rlpost.io import arrow
from rlpost.io.finish_reasons import plain_reasons
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from rlpost.errors import DataError
    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Row
    from rlpost.formats.rows import Fields
    from rlpost.io.arrow import CellLocation

BATCH = "batch"
"""The column of batches that are not integers; `step` is int64."""
_FLAGS = ("truncated", "finish_reason")
_NUMBER = "a number (or a list of numbers, which is summed) is needed"


@dataclass
class Canonical:
    """Makes canonical batches of the tables of a dump, whose rows have the same token columns."""

    path: str
    options: ReadOptions
    by_prompt: bool = False
    """Whether equal prompts are a group."""
    of_layout: bool = False
    """Whether the lists are of the response already, since the code of a layout cut them."""
    tokens: TokenColumns = field(default_factory=TokenColumns)
    _names: dict[str, str] = field(default_factory=dict)
    _text_batch: bool | None = None

    def __post_init__(self) -> None:
        self._blocks = GroupBlocks(self.options, self.path)

    def batch(
        self, table: Fields, roles: Mapping[str, str], columns: Collection[str] = ()
    ) -> dict[str, pa.Array]:
        """Return the canonical columns of a table.

        Args:
            table: of the dump.
            roles: role or canonical column -> field; a field that the table lacks is null.
            columns: the fields that are canonical columns already, some of which may be null.

        Raises:
            DataError: a value has another type than its role; or lists do not fit each other.
        """
        arrays: dict[str, pa.Array] = {}
        lists = {}
        sources = {**{name: name for name in columns}, **roles}
        for role, name in sources.items():
            place = replace(table.location, column=name)
            array = table.columns.get(name, pa.nulls(table.rows))
            column = column_of(role) if role in roles else role
            if is_null(array.type) and role not in roles:
                continue
            if is_list_role(role) if role in roles else pa.types.is_list(CANONICAL[column]):
                lists[column] = ragged(array, place, mask=column == "response_mask")
                continue
            if role in roles and role in ROLES:
                column, array = self._role(role, array, place)
                _check_one_response(role, name, table, lists)
                if column in _FLAGS:
                    arrays = {x: value for x, value in arrays.items() if x not in _FLAGS}
            else:
                array = column_values(column, array, place)
            arrays[column] = array
        omitted = self.options.omitted_columns
        arrays = {name: array for name, array in arrays.items() if name not in omitted}
        lists = {name: array for name, array in lists.items() if name not in omitted}
        if self.options.group_size is not None:
            arrays["prompt_id"] = pa.array([self._blocks.next() for _ in range(table.rows)])
        elif self.by_prompt and "prompt_id" not in omitted:
            arrays["prompt_id"] = _text_keys(arrays["prompt"])
        if self.of_layout:
            return arrays | checked_lists(lists, arrays, table.location, self.tokens)
        return arrays | list_columns(lists, arrays, self.options, table.location, self.tokens)

    def with_kept(
        self,
        arrays: dict[str, pa.Array],
        kept: Mapping[str, pa.Array],
        table: Fields,
    ) -> pa.RecordBatch:
        """Return canonical columns and fields that are kept under their names as a batch.

        A name with another meaning in rlpost becomes `dumped_...`. Those of a role that is mapped
        to none are left out.

        Raises:
            DataError: a number is not finite and must be.
        """
        omitted = self.options.omitted_columns
        taken = {*CANONICAL, *arrays, *self._names.values()}
        for name, array in kept.items():
            if name in omitted:
                what = f"without their `{name}`, since its role is mapped to none"
                if array.null_count < len(array):
                    self.options.stats.counts["row", what] += len(array) - array.null_count
                continue
            if name not in self._names:
                column = f"dumped_{name}" if name in CANONICAL else name
                while column in taken:
                    column += "_"
                self._names[name] = column
                taken.add(column)
            arrays[self._names[name]] = array
        batch = pa.record_batch(arrays)
        if self.options.nonfinite == "error":
            check_finite(batch, table.location.where)
        return batch

    def _role(self, role: str, array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
        """Return the column of a role, and its values."""
        column = column_of(role)
        kind = kind_of(role) if role != LENGTH else ""
        if role == "batch":
            return self._batch(array, place)
        if kind == "number":
            return column, numbers(array, place)
        if role == "truncated":
            return truncation(array, place)
        if kind == "flag":
            return column, reasons(array)
        if kind == "key":
            needed = column == "prompt_id" and not self.of_layout  # a failed rollout may lack it
            return column, keys(array, place, nullable=not needed)
        return column, column_values(column, array, place)

    def _batch(self, array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
        """Return integers as `step`, and others as texts: those of a dump are of one kind."""
        array = keys(array, place)
        texts = array.to_pylist()
        whole = [x.strip().removeprefix("-").isdecimal() for x in texts]
        if self._text_batch is None:
            self._text_batch = not all(whole)
        if self._text_batch:
            return BATCH, array
        if not all(whole):
            row = whole.index(False)
            raise place.error(row, f"is {describe(texts[row])}", "an integer is needed")
        return "step", column_values("step", gathered([*map(int, texts)]), place)

    def close(self) -> None:
        """End the dump.

        Raises:
            UsageError: the last block of a group is incomplete.
        """
        self._blocks.close()


def is_list_role(role: str) -> bool:
    """Return whether a role or canonical column has a list in each row."""
    column = column_of(role)
    if column in CANONICAL:
        return bool(pa.types.is_list(CANONICAL[column]))
    return role in ROLES and kind_of(role) == "tokens"


def _text_keys(prompts: pa.Array) -> pa.Array:
    """Return the keys of prompt texts; each distinct text is hashed once."""
    texts = prompts.dictionary_encode()
    hashed = gathered([text_key(text) for text in texts.dictionary.to_pylist()])
    return hashed.take(texts.indices) if len(hashed) else prompts


def numbers(array: pa.Array, place: CellLocation) -> pa.Array:
    """Return one float64 per row, lists summed; null is null.

    Raises:
        DataError: a value is neither a number nor a list of numbers.
    """
    kind = array.type
    if is_null(kind) or arrow.is_number(kind):
        return array.cast(pa.float64(), safe=False)
    values = values_of(array)
    for row, value in enumerate(values):
        if not (is_plain(value) or is_flat(value)):
            raise place.error(row, f"is {shown(value)}", _NUMBER)
    sums = (
        rounded_sum([float("nan") if x is None else as_float(x) for x in value])
        if isinstance(value, list)
        else value and as_float(value)
        for value in values
    )
    return gathered([*sums]).cast(pa.float64())


def keys(array: pa.Array, place: CellLocation, *, nullable: bool = False) -> pa.Array:
    """Return keys as text: 3, 3.0 and "3" are the same, and so are equal objects or lists.

    Raises:
        DataError: a key is null (unless that is allowed), a bool, or a float that is not exact.
    """
    if nullable and array.null_count:
        known = keys(array.filter(array.is_valid()), place) if array.null_count < len(array) else ()
        rest = iter([x.as_py() for x in known])
        return gathered([next(rest) if x else None for x in array.is_valid().to_pylist()])
    if array.type != JSON:
        return arrow.key(array, place).cast(pa.string())
    if array.null_count:
        row = array.is_null().to_pylist().index(True)
        raise place.error(row, "is null", "every row needs a value: fill or drop the row")
    texts = []
    for row, value in enumerate(values_of(array)):
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise place.error(row, f"is {describe(value)}", "text or an integer is needed")
        texts.append(content_key(value) if isinstance(value, (list, dict)) else key_text(value))
    return gathered(texts)


def key_text(value: object) -> str:
    """Return a key as text: 3 and 3.0 are the same key."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def truncation(array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
    """Return `truncated` and bools (or 0 and 1), or `finish_reason` and texts.

    Raises:
        DataError: a value is neither.
    """
    kind = array.type
    if kind == JSON:  # as SGLang returns it
        values = values_of(array)
        array = gathered([x["type"] if isinstance(x, dict) and "type" in x else x for x in values])
    elif pa.types.is_struct(kind) and kind.get_field_index("type") >= 0:
        array = plain_reasons(array)
    array = arrow.without_dictionary(array)
    if is_null(array.type) or pa.types.is_boolean(array.type):
        return "truncated", array
    if arrow.is_string(array.type):
        return "finish_reason", array.cast(pa.string())
    for row, value in enumerate(values_of(array)):
        if value not in (None, 0, 1) or isinstance(value, str):
            needed = "a bool or a finish reason is needed"
            raise place.error(row, f"is {shown(values_of(array)[row])}", needed)
    return "truncated", gathered([None if x is None else bool(x) for x in values_of(array)])


def reasons(array: pa.Array) -> pa.Array:
    """Return flags as bools, or what they say as texts; of an object its `type`."""
    array = arrow.without_dictionary(array)
    if pa.types.is_boolean(array.type) or arrow.is_string(array.type):
        return array
    if arrow.is_number(array.type):
        return array.cast(pa.bool_())
    values = values_of(array)
    typed = [x.get("type") or x if isinstance(x, dict) else x for x in values]
    plain = gathered([None if x is False else x for x in typed])
    return text_of(plain) if plain.type == JSON or pa.types.is_nested(plain.type) else plain


def column_values(column: str, array: pa.Array, place: CellLocation) -> pa.Array:
    """Return a column in its canonical type; keys and the messages of a chat become text.

    Raises:
        DataError: a value does not fit.
    """
    kind = CANONICAL[column]
    array = arrow.without_dictionary(array)
    if array.type == kind or is_null(array.type):
        return array.cast(kind)
    if kind == pa.string():
        if array.type == JSON or pa.types.is_floating(array.type):
            return text_of(gathered([key_text(x) if isinstance(x, (int, float)) else x
                                     for x in values_of(array)]))  # fmt: skip
        return text_of(array) if pa.types.is_nested(array.type) else array.cast(kind)
    text = arrow.is_string(array.type)
    try:
        if not text:
            return gathered(values_of(array)).cast(kind) if array.type == JSON else array.cast(kind)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except pa.ArrowException:
        pass
    raise _misfit(array, kind, place)


def _misfit(array: pa.Array, kind: pa.DataType, place: CellLocation) -> DataError:
    """Return the error for the first value that does not fit a type."""
    for row, value in enumerate(values_of(array)):
        with suppress(pa.ArrowException):
            gathered([value]).cast(kind)
            if not isinstance(value, str):
                continue
        return place.error(row, f"is {shown(value)}", f"{kind} is needed")
    raise AssertionError


def _check_one_response(role: str, name: str, table: Fields, lists: Mapping[str, Any]) -> None:
    """Raise DataError if a record is a group of responses, whose numbers would be summed.

    Such a record has a list for a role of one number, and a list of as many lists, or of as many
    texts under the name of a response.
    """
    array = table.columns.get(name)
    if array is None or kind_of(role) != "number" or not arrow.is_list(array.type):
        return
    row = int(array.is_valid().index(True).as_py())
    count = len(array[row].as_py() or ()) if row >= 0 else 0
    if count < 2 or any(one.lengths[row] == count for one in lists.values()):  # noqa: PLR2004
        return
    for other, values in table.columns.items():
        value = values_of(values.slice(row, 1))[0] if _may_be_group(values.type) else None
        kind = str if other.removesuffix("s") in ROLES["response"].aliases else list
        if isinstance(value, list) and len(value) == count and isinstance(value[0], kind):
            place = replace(table.location, column=name)
            what = "texts" if kind is str else "lists"
            raise place.error(
                row, f"is a list of {count}, and `{other}` a list of {count} {what}",
                f"the record is a group of responses: --rows {name} reads each as a row",
            )  # fmt: skip


def _may_be_group(kind: pa.DataType) -> bool:
    return kind == JSON or (arrow.is_list(kind) and not arrow.is_number(kind.value_type))


def record_batches(
    rows: Iterable[Row],
    options: ReadOptions,
    types: Mapping[str, pa.DataType] | None = None,
    *,
    path: str = "",
    own: Collection[str] | None = None,
    integers: bool = True,
    stored: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a layout as record batches, with the user's map applied to their records.

    Args:
        rows: canonical columns, and others under their own names.
        options: the map, the omitted columns, and whether numbers must be finite.
        types: column that is not canonical -> its type; all rows have those that are not lists.
        path: of the dump.
        own: fields of the records that are not kept under their names; None: none is kept.
        integers: whether kept fields may be integers; otherwise their numbers are float64.
        stored: the types of kept fields in a table.

    Raises:
        DataError: a value does not fit its column, a row's token lists differ in length, or a row
            has other token lists than earlier rows.
    """
    omitted = options.omitted_columns
    types = {name: kind for name, kind in (types or {}).items() if name not in omitted}
    mapped = {role: field for role, field in options.map.items() if field != "none"}
    canonical = Canonical(path, replace(options, layout=None, group_size=None), of_layout=True)
    for table in tables(_with_fields(rows, mapped, own), path):
        names = [name for name in table.columns if name in CANONICAL]
        arrays = canonical.batch(table, {role: _MAPPED + x for role, x in mapped.items()}, names)
        known = {*CANONICAL, *arrays, *omitted}
        for name, array in table.columns.items():
            if not (name.startswith((_MAPPED, _KEPT)) or name in known or is_null(array.type)):
                arrays[name] = other_values(array, types.get(name), name, table)
        arrays |= {name: pa.nulls(table.rows, kind) for name, kind in types.items()
                 if name not in arrays and not pa.types.is_nested(kind)}  # fmt: skip
        kept = {name.removeprefix(_KEPT): kept_values(array, integers=integers)
                for name, array in table.columns.items() if name.startswith(_KEPT)}  # fmt: skip
        if stored is not None:
            kept = {name: as_stored(table.columns[_KEPT + name], stored.field(name).type)
                    for name in kept}  # fmt: skip
        yield canonical.with_kept(arrays, kept, table)


_MAPPED, _KEPT = "map ", "kept "
"""How the names of the fields of a record begin, beside the columns of a layout."""


def _with_fields(
    rows: Iterable[Row], mapped: Mapping[str, str], own: Collection[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the values of each row, with mapped and kept fields of its record."""
    replaced = {*map(column_of, mapped), *(_FLAGS if "truncated" in mapped else ())}
    missing, last = {*mapped.values()}, None
    for row in rows:
        values = {name: x for name, x in row.values.items() if name not in replaced}
        values |= {_MAPPED + path: row.record.find(path) for path in mapped.values()}
        if missing:
            missing -= {path for path in missing if row.record.has_path(path)}
        if own is not None:
            kept = row.record.columns.items()
            values |= {_KEPT + name: x for name, x in kept if name not in own}
        last = row.record
        yield row.where, values
    if missing and last is not None:
        last.get(min(missing))


def other_values(array: pa.Array, kind: pa.DataType | None, name: str, table: Fields) -> pa.Array:
    """Return a column without a canonical type, in a type of its own or that of its values."""
    nested = array.type == JSON or arrow.is_list(array.type)
    if nested and (array.type == JSON or kind == pa.string()):
        return text_of(array)
    try:
        return array if kind is None else array.cast(kind, safe=False)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except pa.ArrowException:
        raise _misfit(array, kind, replace(table.location, column=name)) from None


def as_stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of a table in their type there."""
    nested = array.type == JSON or pa.types.is_nested(kind)
    return pa.array(values_of(array), kind) if nested else array.cast(kind)


def kept_values(array: pa.Array, *, integers: bool = True) -> pa.Array:
    """Return a field of JSON that has no role: numbers, bools, texts, lists of them, or JSON."""
    kind = array.type
    if kind == JSON:
        return text_of(array)
    if arrow.is_list(kind) and pa.types.is_integer(kind.value_type):
        return array.cast(pa.list_(pa.int64()))
    return array.cast(pa.float64()) if not integers and pa.types.is_integer(kind) else array
