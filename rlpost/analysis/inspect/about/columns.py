"""The topic `columns`: the column of each role, and the roles that no column has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, RoleFacts
    from rlpost.display.page import Page


EXPECTED = ("group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch")


@topic
def columns(facts: Facts) -> Page:
    """The column of each role, how it was found, and roles without a column."""
    made = ("reward",) if facts.components else ()
    missing = [role for role in EXPECTED if role not in facts.roles and role not in made]
    lines = [f"no column for {', '.join(missing)} (set with --map ROLE=COLUMN)"] if missing else []
    lacks: dict[str, str] = {}
    for file in facts.input.files:
        lacks |= (file.rlpost or {}).get("missing_roles") or {}
    reasons: dict[str, list[str]] = {}
    for role in missing:
        if role in lacks:
            reasons.setdefault(lacks[role], []).append(role)
    lines += [f"{', '.join(roles)}: {reason}" for reason, roles in reasons.items()]
    table = roles_table(facts.roles, [*lines, *ignored_lines(facts)])
    return page_of(facts, "columns", [table], "")


def roles_table(roles: dict[str, RoleFacts], lines: Sequence[str] = ()) -> TextTable:
    """Return a row for each role."""
    rows = [(role, one.column, one.found_by, kind(one.type)) for role, one in roles.items()]
    headings = ("role", "column", "found by", "type")
    return TextTable(headings, rows, "Columns by role", lines, text=range(4))


def ignored_lines(facts: Facts) -> list[str]:
    """Return the columns that have the name of a role which another column serves."""
    return [
        f"{' and '.join(f'`{name}`' for name in one.ignored)} ignored: {role} is read from "
        f"`{one.column}` (--map {role}=COLUMN)"
        for role, one in facts.roles.items()
        if one.ignored
    ]


def kind(text: str) -> str:
    """Return a type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", text)
