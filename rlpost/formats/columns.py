"""Columns of a dump by field -> canonical columns: numbers, keys, flags, texts, token lists."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError
from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.fields import GROUP_OF_TEXT, column_of, content_key, prompt_key
from rlpost.formats.layout import (
    IDS,
    MASK,
    PROMPT,
    SEQUENCE_IDS,
    SEQUENCE_LENGTH,
    TokenLists,
    list_arrays,
    of_responses,
    ragged,
)
from rlpost.formats.records import as_float, describe, first_names, rounded_sum
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
from rlpost.recipe.roles import ROLES, kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.formats.base import Format, ReadOptions
    from rlpost.formats.rows import DumpTable
    from rlpost.io.arrow import CellLocation


BATCH = "batch"
"""The column of batches that are not integers; `step` is int64."""
FLAGS = ("truncated", "finish_reason")
_KEYS = ("prompt_id", "rollout_id", "sample_id", "domain")
_ROLE_OF = {role.aliases[0]: name for name, role in ROLES.items()}
"""Column -> the role that has its name."""
# `rlpost advantages` writes these columns; no canonical column exists for them, so they stay.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}


class Binding:
    """Makes canonical batches of the tables of a dump.

    A declared layout says what its columns are read from; of others, names, aliases and the
    user's map do, as fields are found.

    Args:
        path: of the dump, for errors.
        layout: its format.
        options: `map` has precedence; a dotted path names a nested field.

    Raises:
        UsageError: the map names an unknown role or column.
    """

    def __init__(self, path: str, layout: Format, options: ReadOptions) -> None:
        self.path, self.layout, self.options = path, layout, options
        self.mapped = {role: path for role, path in options.map.items() if path != "none"}
        self.replaced = {
            *map(column_of, self.mapped),
            *(FLAGS if "truncated" in self.mapped else ()),
        }
        self._seen: dict[str, None] = {}
        self._fields: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def batch(self, table: DumpTable) -> pa.RecordBatch:
        """Return the canonical columns of a table, and its other fields under their names.

        A field whose name has another meaning in rlpost becomes `dumped_...`; those of a role that
        is mapped to none are left out, and counted.

        Raises:
            DataError: a value has another type than its role; lists do not fit each other; or no
                field of the first table has a known name.
        """
        sources, none = self._sources(table), pa.nulls(table.rows)
        arrays: dict[str, pa.Array] = {}
        lists: dict[str, TokenLists] = {}
        for column, array in table.values.items():
            text = self.layout.fields.get(column, column)
            place = replace(table.location, column=text if isinstance(text, str) else column)
            if not pa.types.is_null(array.type):  # some dumps alone have it
                self._add(column, array, place, arrays, lists, declared=True)
        for role, path in sources.items():
            array = table.fields.get(path, none)
            place = replace(table.location, column=path)
            self._add(column_of(role), array, place, arrays, lists, declared=False)
        for role, path in sources.items():
            number = pa.types.is_floating(arrays.get(column_of(role), none).type)
            if number and arrow.is_list(table.fields.get(path, none).type):
                _check_one_response(path, table, lists)
        if self.layout.layout is not None and lists:
            lists = of_responses(self.layout.layout, lists, arrays, table.location)
        arrays.pop(SEQUENCE_LENGTH, None)
        if self.layout.fields:
            self._add_derived(arrays, lists, table.rows)
        if "prompt" in arrays and self._groups_by_text:
            stored = arrays.get("prompt_id", pa.nulls(table.rows, pa.string()))
            arrays["prompt_id"] = pc.coalesce(stored, _text_keys(arrays["prompt"]))
        arrays |= list_arrays(lists, arrays, table.location, self.layout.types)
        return self._with_kept(arrays, table)

    @property
    def _groups_by_text(self) -> bool:
        return not self.layout.fields or GROUP_OF_TEXT in self.layout.texts.get("prompt_id", "")

    def _sources(self, table: DumpTable) -> dict[str, str]:
        """Return role or column -> field, of those of earlier tables, too."""
        sources = self.options.stats.sources
        first = not self._seen
        if not self.layout.fields and (first or table.fields.keys() - self._seen.keys()):
            self._seen |= dict.fromkeys(table.fields)
            self._fields = {**self._named(), **self._fields}
            if first and not {**self._fields, **self.mapped}:
                raise DataError(
                    f"{self.path}: no field has a known name; name them with --map reward=FIELD, "
                    f"--map group=FIELD and so on; fields: {first_names(sorted(self._seen))}"
                )
            fields = {**self._fields, **self.mapped}
            texts = {column_of(role): path for role, path in fields.items()}
            if "prompt" in fields and "prompt_id" not in {*texts, *self.options.omitted_columns}:
                texts["prompt_id"] = f"{fields['prompt']} ({GROUP_OF_TEXT})"
            sources |= texts
        if self.options.group_size is not None:
            sources["prompt_id"] = f"blocks of {self.options.group_size} records"
        chosen = {**self._fields, **self.mapped}
        return {role: path for role, path in chosen.items() if column_of(role) not in table.values}

    def _named(self) -> dict[str, str]:
        """Return role or column -> field, by names and aliases."""
        names = [name for name in self._seen if name not in self.options.omitted_columns]
        roles = resolve(names, {}, self.path).columns
        if any(is_list_role(role) for role in roles.keys() | self.mapped.keys()):
            roles.pop(LENGTH, None)  # tokens set it; under its own name it is checked
        fields = {role: name for role, name in roles.items()
                  if role not in _WRITTEN and column_of(role) not in self.replaced}  # fmt: skip
        used = {column_of(role) for role in fields} | {*fields.values()} | self.replaced
        used |= {*FLAGS} if "truncated" in fields else set()
        return fields | {name: name for name in CANONICAL if name in names and name not in used}

    def _add(
        self,
        column: str,
        array: pa.Array,
        place: CellLocation,
        arrays: dict[str, pa.Array],
        lists: dict[str, TokenLists],
        *,
        declared: bool,
    ) -> None:
        """Add a column in its type to those of one value a row, or of lists."""
        kind = CANONICAL.get(column)
        meaning = kind_of(_ROLE_OF[column]) if kind is None and column in _ROLE_OF else ""
        own_type = declared and kind is None
        # A failed rollout of a declared layout may lack its group.
        nullable = column != "prompt_id" or bool(self.layout.fields)
        if (
            is_list_role(column)
            or column == SEQUENCE_IDS
            or (own_type and self.layout.layout is not None and arrow.is_tokens(array.type))
        ):
            lists[column] = ragged(array, place, mask=column == MASK)
        elif column == SEQUENCE_LENGTH:
            arrays[column] = in_type(array, pa.int64(), place)
        elif own_type:
            plain = pa.string() if array.type == JSON else array.type
            arrays[column] = in_type(array, self.layout.types.get(column, plain), place)
        elif column == "step":
            array = _batches(array, place, nullable=declared)
            arrays["step" if pa.types.is_integer(array.type) else BATCH] = array
        elif column in FLAGS:
            array = flags(array, place)
            arrays["finish_reason" if pa.types.is_string(array.type) else "truncated"] = array
        elif meaning == "flag":
            arrays[column] = flags(array, place)
        elif meaning == "key" or column in _KEYS:
            arrays[column] = keys(array, place, nullable=nullable)
        elif kind is None or pa.types.is_floating(kind):
            arrays[column] = numbers(array, place)
        else:
            arrays[column] = in_type(array, kind, place)

    def _add_derived(
        self, arrays: dict[str, pa.Array], lists: dict[str, TokenLists], rows: int
    ) -> None:
        """Add what the lists of a declared layout say of prompts and responses, and nulls."""
        if prompts := lists.get(PROMPT):
            given = prompts.valid
            arrays["prompt_length"] = nullable(prompts.lengths, given)
            stored = arrays.get("prompt_id", pa.nulls(rows, pa.string()))
            hashed = [prompt_key(prompts.row(row)) if given[row] else None for row in range(rows)]
            arrays["prompt_id"] = pc.coalesce(stored, gathered(hashed).cast(pa.string()))
        if tokens := lists.get(MASK, lists.get(IDS)):
            counted = nullable(tokens.lengths, tokens.valid)
            arrays[LENGTH] = pc.coalesce(counted, arrays.get(LENGTH, pa.nulls(rows, pa.int64())))
        for name, kind in self.layout.types.items():
            if not pa.types.is_nested(kind):
                arrays.setdefault(name, pa.nulls(rows, kind))

    def _with_kept(self, arrays: dict[str, pa.Array], table: DumpTable) -> pa.RecordBatch:
        omitted = self.options.omitted_columns
        used = {*self._fields.values(), *self.mapped.values()}
        arrays = {name: array for name, array in arrays.items() if name not in omitted}
        taken = {*CANONICAL, *arrays, *self._names.values()}
        for name, array in table.fields.items():
            if name in used:
                continue
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
            if array.type == JSON:
                array = text_of(array)  # noqa: PLW2901
            elif table.of_records and array.type == pa.list_(pa.uint8()):
                array = array.cast(pa.list_(pa.int64()))  # noqa: PLW2901
            elif not self.layout.integers and pa.types.is_integer(array.type):
                array = array.cast(pa.float64())  # noqa: PLW2901
            arrays[self._names[name]] = array
        return pa.record_batch(arrays)


def is_list_role(role: str) -> bool:
    """Return whether a role or canonical column has a list in each row."""
    column = ROLES[role].aliases[0] if role in ROLES else role
    if column in CANONICAL:
        return bool(pa.types.is_list(CANONICAL[column]))
    return role in ROLES and kind_of(role) == "tokens"


def _text_keys(prompts: pa.Array) -> pa.Array:
    """Return the keys of prompt texts; each distinct text is hashed once."""
    texts = prompts.dictionary_encode()
    hashed = [content_key(text) for text in texts.dictionary.to_pylist()]
    return gathered(hashed).cast(pa.string()).take(texts.indices)


def _checked(
    array: pa.Array, place: CellLocation, needed: str, convert: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Return a column converted; raise DataError with the first value that is refused."""
    try:
        return convert(array)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (pa.ArrowException, TypeError, OverflowError):
        parts = []  # values of several types, which fit each for itself
        for row in range(len(array)):
            cell = array.slice(row, 1)
            try:
                parts.append(convert(cell))
            except (pa.ArrowException, TypeError, OverflowError):
                came = f"is {shown(values_of(cell)[0])}"
                raise place.error(row, came, f"{needed} is needed") from None
        return pa.concat_arrays(parts)


def numbers(array: pa.Array, place: CellLocation) -> pa.Array:
    """Return one float64 per row, lists summed; null is null.

    Raises:
        DataError: a value is neither a number nor a list of numbers.
    """

    def number(value: Any) -> float | None:
        if is_flat(value):
            return rounded_sum([float("nan") if x is None else as_float(x) for x in value])
        if not is_plain(value):
            raise TypeError
        return None if value is None else as_float(value)

    if arrow.is_number(array.type):
        return array.cast(pa.float64(), safe=False)
    needed = "a number (or a list of numbers, which is summed)"
    return _checked(array, place, needed, lambda cells: gathered(
        [number(value) for value in values_of(cells)]).cast(pa.float64()))  # fmt: skip


def in_type(array: pa.Array, kind: pa.DataType, place: CellLocation) -> pa.Array:
    """Return a column in a type; objects and lists as text are JSON.

    Raises:
        DataError: a value does not fit.
    """
    array = arrow.without_dictionary(array)
    if array.type == kind:
        return array
    if kind == pa.string() and (array.type == JSON or pa.types.is_nested(array.type)):
        return text_of(array)
    return _checked(array, place, str(kind), lambda cells: (
        gathered(values_of(cells)) if cells.type == JSON else cells).cast(kind))  # fmt: skip


def _batches(array: pa.Array, place: CellLocation, *, nullable: bool) -> pa.Array:
    """Return batches as integers, if all are, or else as texts."""
    texts = keys(array, place, nullable=nullable)
    known = (text.strip().removeprefix("-") for text in texts.drop_null().to_pylist())
    return in_type(texts, pa.int64(), place) if all(x.isdecimal() for x in known) else texts


def keys(array: pa.Array, place: CellLocation, *, nullable: bool = False) -> pa.Array:
    """Return keys as text: 3, 3.0 and "3" are the same, and so are equal objects or lists.

    Raises:
        DataError: a key is null (unless that is allowed), a bool, or a float that is not exact.
    """
    if nullable and array.null_count:
        known = array.drop_null()
        texts = keys(known, place) if len(known) else pa.nulls(0, pa.string())
        return pc.replace_with_mask(pa.nulls(len(array), pa.string()), array.is_valid(), texts)
    if array.type != JSON or array.null_count:
        return arrow.key(array, place).cast(pa.string())
    texts = []
    for row, value in enumerate(values_of(array)):
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise place.error(row, f"is {describe(value)}", "text or an integer is needed")
        whole = int(value) if isinstance(value, float) else value
        texts.append(content_key(value) if isinstance(value, (list, dict)) else str(whole))
    return gathered(texts)


def flags(array: pa.Array, place: CellLocation) -> pa.Array:
    """Return flags as bools, or what they say as texts; of an object its `type`.

    Raises:
        DataError: a value is neither.
    """
    array = arrow.without_dictionary(array)
    if pa.types.is_null(array.type) or pa.types.is_boolean(array.type):
        return array
    if arrow.is_string(array.type):
        return array.cast(pa.string())
    values = [x.get("type") or x if isinstance(x, dict) else x for x in values_of(array)]
    if any(isinstance(x, (str, dict)) for x in values):
        return text_of(gathered([None if x is False else x for x in values]))
    wrong = next((row for row, x in enumerate(values) if x not in (None, 0, 1)), None)
    if wrong is not None:
        raise place.error(wrong, f"is {shown(values[wrong])}", "a bool or a reason is needed")
    return gathered([None if x is None else bool(x) for x in values])


def _check_one_response(path: str, table: DumpTable, lists: Mapping[str, TokenLists]) -> None:
    """Raise DataError if a record is a group of responses, whose numbers would be summed.

    Such a record has a list for a role of one number, and a list of as many lists, or of as many
    texts under the name of a response.
    """
    array = table.fields[path]
    row = int(array.is_valid().index(True).as_py())
    count = len(array[row].as_py()) if row >= 0 else 0
    if count < 2 or any(column.lengths[row] == count for column in lists.values()):  # noqa: PLR2004
        return
    for name, other in table.fields.items():
        value = values_of(other.slice(row, 1))[0]
        if not isinstance(value, list) or len(value) != count or name == path:
            continue
        texts = name.removesuffix("s") in ROLES["response"].aliases and isinstance(value[0], str)
        if texts or isinstance(value[0], list):
            place, what = replace(table.location, column=path), "texts" if texts else "lists"
            raise place.error(
                row, f"is a list of {count}, and `{name}` a list of {count} {what}",
                f"the record is a group of responses: --rows {path} reads each as a row",
            )  # fmt: skip
