"""The columns of a bundle: numbers stay, ids become numbers, texts and token ids are left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses.columns import NAMES
from rlpost.io.arrow import content_kind, fill_nulls, string_array
from rlpost.io.keys import encode_keys
from rlpost.pipeline.turns import TURN_ROLES
from rlpost.recipe.roles import ROLES, TOKEN_IDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


LETTERS = {
    "group": "g",
    "batch": "b",
    "domain": "d",
    "state_id": "s",
    "rollout": "r",
}
"""The letter before the number of an id, by role; other ids have i."""
FINISH_REASONS = frozenset(
    {
        *("stop", "length", "max_tokens", "max_length", "truncated", "abort", "aborted", "eos"),
        *("completed", "pending", "failed", "error", "timeout", "tool_calls", "content_filter"),
    }
)
"""Finish reasons that stay; others become `other`."""
_ID_NAMES = re.compile(r"(^|_)(id|ids|idx|index|indices|uid|uuid|guid|hash|key)$")
_TOKEN_NAMES = {
    *(name for names in TOKEN_IDS.values() for name in names),
    *NAMES["tokens"],
    *NAMES["prompt_tokens"],
}


class BundledColumn(NamedTuple):
    """What a bundle has of a column."""

    column: str
    what: str
    """How the column is kept, or why it is left out; empty: as it is."""
    bytes: int
    """In memory, of these rows: as the column is in the bundle, or was if it is left out."""
    kept: bool


@dataclass(frozen=True)
class BundledTable:
    """The table of a bundle, and what became of each column of the input."""

    table: pa.Table
    columns: list[BundledColumn]
    labels: dict[str, dict[str, str]]
    """By role, the number of each id."""


def contents_of(
    table: pa.Table, roles: Mapping[str, str], recorded: Collection[str], *, with_texts: bool
) -> BundledTable:
    """Return what a bundle has of some rows.

    Args:
        table: the rows, all columns.
        roles: role to column; roles of the recipe's own columns, too.
        recorded: columns of recorded numbers.
        with_texts: keep all columns as they are.
    """
    if with_texts:
        kept = [
            BundledColumn(name, "", table.column(name).nbytes, kept=True)
            for name in table.column_names
        ]
        return BundledTable(table, kept, {})
    serves = {alias: role for role, one in ROLES.items() for alias in one.aliases}
    serves |= {column: role for role, column in roles.items() if role not in TURN_ROLES}
    columns: dict[str, pa.Array] = {}
    entries: list[BundledColumn] = []
    labels: dict[str, dict[str, str]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        role = serves.get(name)
        kind = None if role is None else kind_of(role)
        if kind == "key" and role is not None and content_kind(column.type) in ("text", "number"):
            column, what, numbered = _as_ids(column, role)
            labels |= {role: numbered} if roles.get(role) == name else {}
        elif kind == "flag" and content_kind(column.type) == "text":
            column, what = _as_reasons(column), "unusual reasons are `other`"
        elif why := _left_out(name, column, role, recorded):
            entries.append(BundledColumn(name, why, column.nbytes, kept=False))
            continue
        else:
            what = ""
        columns[name] = column
        entries.append(BundledColumn(name, what, column.nbytes, kept=True))
    return BundledTable(pa.table(columns), entries, labels)


def _left_out(name: str, column: pa.Array, role: str | None, recorded: Collection[str]) -> str:
    """Return why a column is left out; empty for one that is kept."""
    content = content_kind(column.type)
    if content == "text":
        return "text"
    if content == "other":
        return "nested values" if pa.types.is_nested(column.type) else f"type {column.type}"
    if name in recorded or (role is not None and kind_of(role) not in ("text", "ids")):
        return ""
    named = bool(_ID_NAMES.search(name))
    reasons = {
        "token ids": name in _TOKEN_NAMES,
        "ids, by its name": named and content == "number",
        "lists of whole numbers, as token ids are": content != "number"
        and (named or _are_whole(column)),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _are_whole(column: pa.Array) -> bool:
    """Return whether lists have whole numbers alone, and others than 0 and 1."""
    flat = column.flatten()
    values = fill_nulls(flat.cast(pa.float64(), safe=False), 0.0)
    whole = bool(np.all(np.floor(values) == values))
    return whole and not bool(np.isin(values, (0, 1)).all())


def _as_ids(column: pa.Array, role: str) -> tuple[pa.Array, str, dict[str, str]]:
    """Return ids as a letter and a number, how they read, and the new id of each.

    Steps that are whole numbers stay: their order matters, and they identify nothing.
    """
    keys = encode_keys(column.cast(pa.string()))
    texts = keys.dictionary.to_pylist()
    if role == "batch" and all(re.fullmatch(r"-?\d+(\.0)?", text) for text in texts):
        return column, "", {}
    letter = LETTERS.get(role, "i")
    new = {text: f"{letter}{number}" for number, text in enumerate(texts)}
    values = string_array([*new.values()])
    return values.take(keys.indices), f"numbered: {letter}0, {letter}1, ...", new


def _as_reasons(column: pa.Array) -> pa.Array:
    """Return finish reasons without unusual ones; a null stays."""
    texts = column.cast(pa.string())
    usual = pc.is_in(texts, value_set=string_array(sorted(FINISH_REASONS)))
    other = string_array(["other"])[0]
    return pc.if_else(pc.or_(usual, pc.is_null(texts)), texts, other)
