"""Which columns `inspect` reads, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.inspect.tokens import ROLES as TOKEN_ROLES
from rlpost.parquet.ragged import is_list, is_number
from rlpost.schema import ColumnMap, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.parquet.source import Source
    from rlpost.schema import Kind

KEYS = ("group", "batch", "domain")
ROWS = (*KEYS, "reward", "truncated")
# What responses are told apart by, to find copies: a text, else tokens.
TEXTS = (
    "response", "completion", "output", "responses", "output_response", "response_text",
    "completions", "response_tokens", "response_ids", "completion_ids", "output_tokens",
    "output_ids",
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """Which columns are read, and what for."""

    columns: ColumnMap
    lists: str | None
    """The role, or else the column, whose lists tell how long a response is."""
    tokens: tuple[str, ...]
    """Roles of token numbers."""
    text: str | None
    """The column that copies are told by."""
    unusable: dict[str, tuple[str, str]]
    """Roles whose column is of a type that they can't have, with both; not in `columns`."""

    @property
    def lists_column(self) -> str | None:
        """The column whose lists tell how long a response is."""
        return None if self.lists is None else self.columns.columns.get(self.lists, self.lists)

    @property
    def copies_role(self) -> str | None:
        """The role that tells copies where no text does."""
        found = (role for role in ("infer_log_probs", "old_log_probs") if role in self.tokens)
        return None if self.text else next(found, None)

    @property
    def names(self) -> list[str]:
        """Every column, once."""
        rows = [role for role in (*KEYS, "reward", "truncated") if role in self.columns]
        served = [self.columns.column(role) for role in (*rows, *self.tokens)]
        return list(dict.fromkeys(x for x in (*served, self.lists_column, self.text) if x))


def wanted_of(source: Source, columns: ColumnMap, *, with_tokens: bool) -> Wanted:
    """Choose what to read; without tokens the mask, or another list, is read for its lengths."""
    unusable = {
        role: (columns.column(role), str(kind))
        for role in (*ROWS, "mask", *TOKEN_ROLES)
        if role in columns
        for kind in _types(source, columns.column(role))
        if not _usable(kind_of(role), kind)
    }
    columns = ColumnMap(
        {role: column for role, column in columns.columns.items() if role not in unusable},
        columns.how,
    )
    there = tuple(role for role in TOKEN_ROLES if role in columns)
    telling = [
        name
        for name in TEXTS
        if name in source.columns and all(map(_is_telling, _types(source, name)))
    ]
    ids = next((name for name in telling if all(map(is_list, _types(source, name)))), None)
    lists = "mask" if "mask" in columns else next(iter(there), ids)
    if not with_tokens:
        return Wanted(columns, lists, (), None, unusable)
    return Wanted(columns, lists, there, next(iter(telling), None), unusable)


def _types(source: Source, column: str) -> Iterator[pa.DataType]:
    """The types of a column; a hive partition has none."""
    for schema in source.schemas:
        if column in schema.names:
            yield schema.field(column).type


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_numbers(kind: pa.DataType) -> bool:
    """Lists of numbers; those of a column of empty lists may have no type."""
    return is_list(kind) and (is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def _is_telling(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_numbers(kind)


def _usable(meaning: Kind, kind: pa.DataType) -> bool:
    """Whether a column of this type can have the meaning; an empty one can have any."""
    if pa.types.is_null(kind):
        return True
    if meaning == "tokens":
        return _is_numbers(kind)
    if meaning == "number":
        return is_number(kind) or _is_numbers(kind)
    return is_number(kind) or _is_text(kind)
