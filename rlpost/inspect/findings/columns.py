"""Findings about columns: missing, of mixed types, of unequal lengths, padded, shifted, masks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from rlpost.inspect.findings.case import counted, share
from rlpost.inspect.model import Evidence, Finding
from rlpost.schema import ROLES, kind_of

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case
    from rlpost.inspect.model import ColumnFacts, Shift

MOST = 1 / 2  # of the rows: beyond it a sign is no chance
FEW_TOKENS = 64  # fewer tell no shift
BETTER = 2.0  # times better that a shift fits than none
SURE = 4.0  # standard errors


def no_reward(case: Case) -> Finding | None:
    """No column serves as the reward."""
    if case.rewards is not None or not case.rows or "reward" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_reward", "error", 100,
        f"no column is the reward: it would be called {' or '.join(ROLES['reward'].aliases[:4])}",
        "say which one it is: --map reward=COLUMN",
        1, 1,
    )  # fmt: skip


def no_groups(case: Case) -> Finding | None:
    """No column tells the prompt of a response."""
    if case.groups is not None or not case.rows or "group" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_groups", "warning", 60,
        "no column says which responses answer one prompt, so there are no group baselines "
        f"(it would be called {' or '.join(ROLES['group'].aliases[:4])})",
        "say which one it is: --map group=COLUMN",
        1, 1,
    )  # fmt: skip


NEEDS = {
    "tokens": "a list of numbers per row",
    "number": "a number per row",
    "key": "a name or a whole number per row",
    "flag": "a bool or a finish reason per row",
}


def wrong_types(case: Case) -> Finding | None:
    """Columns that serve a role by their name, but can't by their type."""
    wrong = case.reading.wanted.unusable
    if not wrong:
        return None
    kinds = [
        f"`{column}` is {kind}, but {role} needs {NEEDS[kind_of(role)]}"
        for role, (column, kind) in wrong.items()
    ]
    first = next(iter(wrong))
    return Finding(
        "wrong_types", "error", 88,
        f"{'; '.join(kinds)}: not read",
        f"name the column that is meant, --map {first}=COLUMN, or none, --map {first}=none",
        len(wrong), len(case.input.columns),
    )  # fmt: skip


def null_keys(case: Case) -> Finding | None:
    """Rows without a prompt, a step or a domain."""
    rows = case.reading.rows
    keys = [role for role in ("group", "batch", "domain") if role in rows]
    lacking = [role for role in keys if rows[role].null_count()]
    if not lacking:
        return None
    flags = rows.select(pl.any_horizontal(pl.col(role).is_null() for role in lacking)).to_series()
    count = int(flags.sum())
    names = ", ".join(f"`{case.column(role)}`" for role in lacking)
    return Finding(
        "null_keys", "error", 91,
        f"{count:,} of {case.rows:,} rows have no {names}",
        "fill or drop these rows; `rlpost advantages` refuses them",
        count, case.rows, case.rows_where(flags),
    )  # fmt: skip


def mixed_types(case: Case) -> Finding | None:
    """Files disagree about a column's type, or some lack it."""
    mixed = [column for column in case.input.columns if _other_kinds(column)]
    if not mixed:
        return None
    aliases = {alias for role in ROLES.values() for alias in role.aliases}
    serving = [one for one in mixed if one.role is not None or one.name in aliases]
    first = (serving or mixed)[0]
    kinds = ", ".join(
        f"missing in {times} of {len(case.input.files)} files"
        if kind == "missing"
        else f"{kind} in {times}"
        for kind, times in first.other_types.items()
    )
    names = ", ".join(f"`{one.name}`" for one in mixed[:6])
    return Finding(
        "mixed_types", "error" if serving else "warning", 85 if serving else 30,
        f"files disagree about {names}: `{first.name}` is {first.type}, but {kinds}",
        "write all files with one schema; readers take the first file's type, or fail",
        len(mixed), len(case.input.columns),
        [Evidence(case.input.files[0].path, said=f"{one.name}: {one.type}") for one in mixed[:5]],
    )  # fmt: skip


def _other_kinds(column: ColumnFacts) -> bool:
    """Whether types differ in more than how a list or a string is stored."""
    return any(_plain(kind) != _plain(column.type) for kind in column.other_types)


def _plain(kind: str) -> str:
    kind = re.sub(r"fixed_size_list<(.*)>\[\d+\]", r"list<\1>", kind)
    kind = re.sub(r"\b(?:large_)?list(?:_view)?<\w+: ", "list<", kind)
    kind = re.sub(r"dictionary<values=(\w+),.*>", r"\1", kind)
    return re.sub(r"\blarge_(string|binary)\b|\b(string)_view\b", r"\1\2", kind).removesuffix(
        " not null"
    )


def unequal_lengths(case: Case) -> Finding | None:
    """Lists of one row that differ in length."""
    if case.tokens is None or case.reading.wanted.lists is None:
        return None
    rows = case.reading.rows
    wrong = {role: one for role, one in case.tokens.columns.items() if one.unequal_rows}
    if not wrong:
        return None
    role, worst = max(wrong.items(), key=lambda item: item[1].unequal_rows)
    lists = case.reading.wanted.lists_column
    names = ", ".join(f"`{one.column}`" for one in wrong.values())
    return Finding(
        "unequal_lengths", "error", 96,
        f"{names}: not as long as `{lists}`, `{worst.column}` in {worst.unequal_rows:,} of "
        f"{case.rows:,} rows; those rows are left out of what is said of tokens",
        "give every list of a row one entry per response token: cut the prompt, drop the padding",
        worst.unequal_rows, case.rows, case.rows_where(rows[f"unequal:{role}"], "length"),
    )  # fmt: skip


def padded_lists(case: Case) -> Finding | None:
    """Trailing zeros where the mask is 0, or lists that all have one length."""
    rows, tokens = case.reading.rows, case.tokens
    role, count = max(
        ((role, ends["padded"]) for role, ends in (tokens.edges if tokens else {}).items()),
        key=lambda item: item[1],
        default=("", 0),
    )
    masks = case.masks
    # the ends of most dialogues are the policy's: lists of one length that end in 0 are padded
    level = masks is not None and masks.equal_lengths and masks.trailing > MOST * case.rows
    if count > MOST * case.rows:
        flags = rows[f"padded:{role}"].fill_nan(0) > 0
        said = f"{count:,} of {case.rows:,} rows end in zeros of `{case.column(role)}`"
        said += " where the mask is 0" if masks else ""
    elif level and masks is not None:
        flags, count = rows["trailing"], masks.trailing
        said = f"all lists have one length, and {count:,} of {case.rows:,} end in masked-out tokens"
    else:
        return None
    return Finding(
        "padded_lists", "error", 90,
        f"{said}: the lists are padded",
        "cut each list to its response's length; padding costs memory, and lengths, whitening "
        "and means over tokens count it where a tool takes no mask",
        count, case.rows, case.rows_where(flags, "length", "tokens"),
    )  # fmt: skip


def shifted_lists(case: Case) -> Finding | None:
    """Columns that stand one token apart: they fit better a token to the left or right."""
    if case.tokens is None:
        return None
    shifts = [shift for shift in case.tokens.shifts if _is_shifted(shift)]
    shift = next(iter(shifts), None)
    if shift is None:
        return _filled_ends(case)
    one, other = (f"`{case.column(role)}`" for role in shift.columns)
    way = "later" if shift.lag > 0 else "earlier"
    if shift.columns[0] == "mask":
        how = "log-probs jump there, not where the mask changes"
    else:
        how = f"mean |difference| {shift.there:.3g} instead of {shift.here:.3g} nats"
    return Finding(
        "shifted_lists", "error", 97,
        f"{other} fits {one} one token {way} ({how})",
        "entry t of every list must be about response token t: shift one of the columns back",
        case.rows, case.rows,
    )  # fmt: skip


def _is_shifted(shift: Shift) -> bool:
    if not shift.lag or shift.tokens < FEW_TOKENS:
        return False
    if shift.columns[0] == "mask":
        return shift.there > BETTER * shift.here and shift.there > SURE
    return shift.there * BETTER < shift.here


def _filled_ends(case: Case) -> Finding | None:
    """Most responses begin or end with a policy token of log-prob 0, and few others have it."""
    assert case.tokens is not None
    for role, ends in case.tokens.edges.items():
        column = case.tokens.columns[role]
        usual = column.zero / column.tokens if column.tokens else 1.0
        count = ends["shifted"]
        if count > MOST * case.rows and usual < MOST * count / case.rows:
            flags = case.reading.rows[f"shifted:{role}"].fill_nan(0) > 0
            return Finding(
                "shifted_lists", "error", 97,
                f"{count:,} of {case.rows:,} rows begin or end with a policy token whose "
                f"`{column.column}` is exactly 0, as a filler is; "
                f"{share(column.zero, column.tokens)} of all tokens are 0",
                "entry t of every list must be about response token t: is the column shifted "
                "against the mask, or the last token without a log-prob?",
                count, case.rows, case.rows_where(flags, "length"),
            )  # fmt: skip
    return None


def mask_not_binary(case: Case) -> Finding | None:
    """A mask with other values than 0 and 1."""
    if case.masks is None or not case.masks.not_binary:
        return None
    count = case.masks.not_binary
    return Finding(
        "mask_not_binary", "error", 92,
        f"`{case.masks.column}` holds other values than 0 and 1 in {counted(count, 'row')}",
        "1 where the policy produced the token, 0 elsewhere: is this the mask? (--map mask=COLUMN)",
        count, case.rows, case.rows_where(case.reading.rows["not_binary"]),
    )  # fmt: skip


def empty_masks(case: Case) -> Finding | None:
    """Responses without a single policy token."""
    rows = case.reading.rows
    count = int((rows["tokens"] == 0).sum()) if "tokens" in rows else 0
    if not count:
        return None
    what = f"`{case.masks.column}` is 0 throughout" if case.masks else "no tokens"
    return Finding(
        "empty_masks", "error" if count > MOST * case.rows else "warning",
        40 + 55 * count / case.rows,
        f"{count:,} of {case.rows:,} rows ({share(count, case.rows)}) have no policy "
        f"token: {what}",
        "they get no advantage but move their group's mean: drop them, or mend the mask",
        count, case.rows, case.rows_where(rows["tokens"] == 0, "length"),
    )  # fmt: skip
