"""Which columns `inspect` reads, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.inspect.tokens import ROLES as TOKEN_ROLES
from rlpost.parquet.ragged import is_list, is_number
from rlpost.schema import ColumnMap, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
# What is asked, as text or as tokens: rows of one group share it.
PROMPTS = (
    "prompt", "prompt_text", "input_prompt", "question", "query", "problem", "instruction",
    "prompts", "input", "prompt_tokens", "prompt_ids", "prompt_token_ids", "input_tokens",
)  # fmt: skip
# Columns of dialogues dumped turn by turn: the prompt of a later turn holds what was said before.
TURNS = (
    "turn", "turn_id", "turn_index", "turn_idx", "traj_id", "trajectory_id", "rollout_id",
    "episode_id", "traj_uid",
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
    prompt: str | None = None
    """The column of prompts, text or tokens; None also where rows are turns of dialogues."""
    advantages: str | None = None
    """The column of advantages, a list or a number per row."""
    kept: str | None = None
    """The column that is 0 for responses that sample masks dropped; read with advantages."""

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
        others = (self.lists_column, self.text, self.prompt, self.advantages, self.kept)
        return list(dict.fromkeys(x for x in (*served, *others) if x))


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
    telling = _telling(source, TEXTS)
    ids = next((name for name in telling if all(map(is_list, _types(source, name)))), None)
    lists = "mask" if "mask" in columns else next(iter(there), ids)
    if not with_tokens:
        return Wanted(columns, lists, (), None, unusable)
    advantages = _advantages(source, columns)
    return Wanted(
        columns,
        lists,
        there,
        next(iter(telling), None),
        unusable,
        prompt=_prompt(source, columns),
        advantages=advantages,
        kept=_kept(source, columns) if advantages else None,
    )


def _telling(source: Source, names: Sequence[str]) -> list[str]:
    """Those of some columns that are there, and are texts or lists of numbers."""
    return [
        name
        for name in names
        if name in source.columns and all(map(_is_telling, _types(source, name)))
    ]


def _prompt(source: Source, columns: ColumnMap) -> str | None:
    """The column that groups are checked against: not the key itself, and of first turns."""
    group = columns.columns.get("group")
    if any(name in source.columns for name in TURNS if name != group):
        return None
    return next((name for name in _telling(source, PROMPTS) if name != group), None)


def _advantages(source: Source, columns: ColumnMap) -> str | None:
    """The column of advantages, where it holds numbers or lists of them."""
    name = columns.columns.get("advantages")
    if name is None or not all(
        is_number(kind) or _is_numbers(kind) for kind in _types(source, name)
    ):
        return None
    return name


def _kept(source: Source, columns: ColumnMap) -> str | None:
    """The column of the sample mask, where it holds numbers."""
    name = columns.columns.get("sample_mask")
    return name if name and all(map(is_number, _types(source, name))) else None


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
