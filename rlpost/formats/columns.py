"""Columns of a dump by field -> canonical columns: numbers, keys, flags, texts, token lists."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_null

from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.fields import column_of
from rlpost.formats.keys import (
    GROUP_OF_TEXT,
    GroupBlocks,
    content_key,
    prompt_key,
    text_key,
)
from rlpost.formats.layout import (
    SEQUENCE_IDS,
    SEQUENCE_LENGTH,
    TokenColumns,
    TokenLists,
    check_begins,
    list_arrays,
    ragged,
    response_columns,
)
from rlpost.formats.records import as_float, describe, rounded_sum
from rlpost.formats.rows import (
    JSON,
    gathered,
    is_flat,
    is_plain,
    nullable,
    shown,
    text_of,
    values_of,
)
from rlpost.io import arrow
from rlpost.io.finish_reasons import plain_reasons
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.errors import DataError
    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.rows import Fields
    from rlpost.io.arrow import CellLocation

MAPPED, KEPT = "map ", "kept "
"""How the names of fields begin that the map names, and of others, beside those of a layout."""
BATCH = "batch"
"""The column of batches that are not integers; `step` is int64."""
FLAGS = ("truncated", "finish_reason")
_NUMBER = "a number (or a list of numbers, which is summed) is needed"
_MASK, _PROMPT = "response_mask", "prompt_token_ids"
_KEYS = ("prompt_id", "rollout_id", "sample_id", "domain")
_ROLE_OF = {role.aliases[0]: name for name, role in ROLES.items()}
"""Column -> the role that has its name."""


class Canonical:
    """Makes canonical batches of the tables of a dump, whose rows have the same token columns.

    Args:
        path: of the dump, for errors.
        layout: its format.
        options: the layout of token lists, blocks of groups, omitted columns.
    """

    def __init__(self, path: str, layout: Format, options: ReadOptions) -> None:
        self.options, self.declared = options, bool(layout.fields)
        self.blocks = GroupBlocks(options, path)
        self._layout = layout.layout if self.declared else options.layout
        self._types, self._fields = layout.types, layout.fields
        self._by_text = not self.declared or GROUP_OF_TEXT in layout.texts.get("prompt_id", "")
        self._tokens = TokenColumns()
        self._names: dict[str, str] = {}
        self._text_batch: bool | None = None

    def batch(
        self, table: Fields, sources: Mapping[str, str], kept: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Return the canonical columns of a table, and its other fields under their names.

        Args:
            table: of the dump.
            sources: role or column -> field; a field that the table lacks is null.
            kept: other fields. A name with another meaning in rlpost becomes `dumped_...`; those of
                a role that is mapped to none are left out, and counted.

        Raises:
            DataError: a value has another type than its role; or lists do not fit each other.
        """
        arrays, lists = self._converted(table, sources)
        omitted, stats = self.options.omitted_columns, self.options.stats
        if not self.declared and self.options.group_size is not None:
            arrays["prompt_id"] = pa.array([self.blocks.next() for _ in range(table.rows)])
        elif self._by_text and "prompt" in arrays and "prompt_id" not in omitted:
            keys_of_texts = _text_keys(arrays["prompt"])
            stored = arrays.get("prompt_id", keys_of_texts)
            arrays["prompt_id"] = pc.coalesce(stored, keys_of_texts)
        if self._layout and lists:
            lists = response_columns(self._layout, lists, arrays, table.location)
        elif _MASK in lists and not self.declared:
            check_begins(lists, arrays, table.location, stats)
        if self.declared:
            self._add_derived(arrays, lists, table.rows)
        arrays |= list_arrays(lists, arrays, table.location, self._tokens, self._types)
        arrays = {name: array for name, array in arrays.items() if name not in omitted}
        return self._with_kept(arrays, kept)

    def _converted(
        self, table: Fields, sources: Mapping[str, str]
    ) -> tuple[dict[str, pa.Array], dict[str, TokenLists]]:
        """Return columns of one value a row, and columns of token lists."""
        arrays: dict[str, pa.Array] = {}
        lists: dict[str, TokenLists] = {}
        for role, name in sources.items():
            array = table.columns.get(name, pa.nulls(table.rows))
            of_layout = self.declared and role == name
            if of_layout and is_null(array.type):
                continue  # some dumps alone have it
            field = self._fields.get(role, role) if of_layout else _plain(name)
            place = replace(table.location, column=field if isinstance(field, str) else role)
            column = column_of(role) if role in ROLES else role
            if self._has_tokens(role, column, array):
                lists[column] = ragged(array, place, mask=column == _MASK)
                continue
            if column == SEQUENCE_LENGTH:
                array = column_values(LENGTH, array, place)
            elif of_layout and column not in CANONICAL:
                array = other_values(array, self._types.get(column), place)
            else:
                column, array = self._column(column, array, place)
            if pa.types.is_floating(array.type):
                _check_one_response(name, table, lists)
            if column in FLAGS:
                arrays = {x: value for x, value in arrays.items() if x not in FLAGS}
            arrays[column] = array
        return arrays, lists

    def _has_tokens(self, role: str, column: str, array: pa.Array) -> bool:
        """Return whether a column has a list in each row, with an entry per token.

        In a layout that says how lists are laid out, all lists of numbers do.
        """
        laid_out = self.declared and self._layout is not None and column not in CANONICAL
        return (
            is_list_role(role)
            or column == SEQUENCE_IDS
            or (laid_out and arrow.is_tokens(array.type))
        )

    def _add_derived(
        self, arrays: dict[str, pa.Array], lists: Mapping[str, TokenLists], rows: int
    ) -> None:
        """Add what the lists of a declared layout say of prompts and responses, and nulls."""
        prompts = lists.get(_PROMPT)
        if prompts is not None:
            arrays["prompt_length"] = nullable(prompts.lengths, prompts.valid, pa.int64())
            keys = arrays.get("prompt_id", pa.nulls(rows, pa.string())).to_pylist()
            keys = [prompt_key(prompts.row(row)) if key is None and prompts.valid[row] else key
                    for row, key in enumerate(keys)]  # fmt: skip
            arrays["prompt_id"] = pa.array(keys, pa.string())
        tokens = lists.get(_MASK, lists.get("response_token_ids"))
        if tokens is not None:
            known = arrays.get(LENGTH, pa.nulls(rows)).to_pylist()
            lengths = [int(length) if valid else value for length, valid, value
                       in zip(tokens.lengths, tokens.valid, known, strict=True)]  # fmt: skip
            arrays[LENGTH] = pa.array(lengths, pa.int64())
        for name, kind in self._types.items():
            if not pa.types.is_nested(kind):
                arrays.setdefault(name, pa.nulls(rows, kind))

    def _with_kept(
        self, arrays: dict[str, pa.Array], kept: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
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
        return pa.record_batch(arrays)

    def _column(self, column: str, array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
        """Return a column of a role, or a canonical one, and its values in its type."""
        if column == "step":
            return self._batch(array, place)
        if column in FLAGS:
            return truncation(array, place)
        kind = CANONICAL.get(column)
        meaning = kind_of(_ROLE_OF.get(column, "")) if kind is None else ""
        if meaning == "flag":
            array = reasons(array)
        elif meaning == "key" or column in _KEYS:
            needed = column == "prompt_id" and not self.declared  # a failed rollout may lack it
            array = keys(array, place, nullable=not needed)
        elif kind is None or pa.types.is_floating(kind):
            array = numbers(array, place)
        else:
            array = column_values(column, array, place)
        return column, array

    def _batch(self, array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
        """Return integers as `step`, and others as texts: those of a dump are of one kind."""
        if pa.types.is_integer(array.type) and (self.declared or not array.null_count):
            return "step", column_values("step", array, place)
        texts = keys(array, place, nullable=self.declared).to_pylist()
        whole = [x is None or x.strip().removeprefix("-").isdecimal() for x in texts]
        if self._text_batch is None:
            self._text_batch = not all(whole)
        if self._text_batch:
            return BATCH, pa.array(texts, pa.string())
        if not all(whole):
            row = whole.index(False)
            raise place.error(row, f"is {describe(texts[row])}", "an integer is needed")
        steps = gathered([None if x is None else int(x) for x in texts])
        return "step", column_values("step", steps, place)


def _plain(name: str) -> str:
    return name.removeprefix(MAPPED).removeprefix(KEPT)


def is_list_role(role: str) -> bool:
    """Return whether a role or canonical column has a list in each row."""
    column = ROLES[role].aliases[0] if role in ROLES else role
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
        else (None if value is None else as_float(value))
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


def _check_one_response(name: str, table: Fields, lists: Mapping[str, TokenLists]) -> None:
    """Raise DataError if a record is a group of responses, whose numbers would be summed.

    Such a record has a list for a role of one number, and a list of as many lists, or of as many
    texts under the name of a response.
    """
    array = table.columns.get(name)
    if array is None or not arrow.is_list(array.type):
        return
    row = int(array.is_valid().index(True).as_py())
    count = len(array[row].as_py() or ()) if row >= 0 else 0
    if count < 2 or any(column.lengths[row] == count for column in lists.values()):  # noqa: PLR2004
        return
    for other, values in table.columns.items():
        value = values_of(values.slice(row, 1))[0] if _may_be_group(values.type) else None
        kind = str if _plain(other).removesuffix("s") in ROLES["response"].aliases else list
        if isinstance(value, list) and len(value) == count and isinstance(value[0], kind):
            place = replace(table.location, column=_plain(name))
            what = "texts" if kind is str else "lists"
            raise place.error(
                row, f"is a list of {count}, and `{_plain(other)}` a list of {count} {what}",
                f"the record is a group of responses: --rows {place.column} reads each as a row",
            )  # fmt: skip


def _may_be_group(kind: pa.DataType) -> bool:
    return kind == JSON or (arrow.is_list(kind) and not arrow.is_number(kind.value_type))


def other_values(array: pa.Array, kind: pa.DataType | None, place: CellLocation) -> pa.Array:
    """Return a column without a canonical type, in a type of its own or that of its values."""
    nested = array.type == JSON or arrow.is_list(array.type)
    if nested and (array.type == JSON or kind == pa.string()):
        return text_of(array)
    try:
        return array if kind is None else array.cast(kind, safe=False)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except pa.ArrowException:
        raise _misfit(array, kind, place) from None


def kept_values(array: pa.Array, *, integers: bool = True) -> pa.Array:
    """Return a field of JSON that has no role: numbers, bools, texts, lists of them, or JSON."""
    kind = array.type
    if kind == JSON:
        return text_of(array)
    if arrow.is_list(kind) and pa.types.is_integer(kind.value_type):
        return array.cast(pa.list_(pa.int64()))
    return array.cast(pa.float64()) if not integers and pa.types.is_integer(kind) else array
