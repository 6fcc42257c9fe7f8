"""Findings about columns: missing, of mixed types, of unequal lengths, padded, shifted, masks.

Findings about the lengths of lists: rows whose lists differ, and padding.

Findings about masks: values that are none, and responses without a policy token.

Findings about columns that stand one token apart, in the whole input or in some steps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.case import MOST_SHOWN, counted, share
from rlpost.analysis.inspect.footers import MISSING
from rlpost.analysis.inspect.model import Evidence, Finding
from rlpost.analysis.inspect.token_facts import step_lags
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.case import Case
    from rlpost.analysis.inspect.model import ColumnFacts, Label, Shift, TokenColumn


MOST_OFFERED = 3
SHOWN_FILES = 3
REWARDLIKE = re.compile("reward|score|accura|correct|pass|return|grade")


def no_reward(case: Case) -> Finding | None:
    """No column serves as the reward."""
    if case.rewards is not None or not case.rows or "reward" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_reward", "error", 100,
        f"no column is the reward: it would be called {' or '.join(ROLES['reward'].aliases[:4])}",
        _which(case),
        1, 1,
    )  # fmt: skip


def _which(case: Case) -> str:
    """What to write, with the columns that could be meant: those that are called like a reward."""
    numbers = [
        one.name
        for one in case.input.columns
        if one.role is None and re.match(r"u?int|float|double|halffloat|bool|decimal", one.type)
    ]
    likely = [name for name in numbers if REWARDLIKE.search(name.lower())]
    found = likely or numbers
    if not found:
        return "no column has a number per row; say which one it is: --map reward=COLUMN"
    maps = " or ".join(f"--map reward={name}" for name in found[:MOST_OFFERED])
    return f"say which one it is: {maps}"


def no_rows(case: Case) -> Finding | None:
    """Nothing to train on."""
    if case.rows:
        return None
    return Finding(
        "no_rows", "error", 100,
        f"there are no rows, in {counted(len(case.input.files), 'file')}",
        "did the dump fail, or did a filter leave nothing?",
        1, 1, [Evidence(file.path) for file in case.input.files[:MOST_SHOWN]],
    )  # fmt: skip


def no_groups(case: Case) -> Finding | None:
    """No column tells the prompt of a response."""
    if case.groups is not None or not case.rows or "group" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_groups", "warning", 60,
        "no column says which responses answer one prompt, so there are no group baselines "
        f"(it would be called {' or '.join(ROLES['group'].aliases[:4])})",
        f"say which one it is: --map group={case.reading.wanted.prompt or 'COLUMN'}",
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
        f"`{column}` is {kind}{_where(case, column, kind)}, but {role} needs {NEEDS[kind_of(role)]}"
        for role, (column, kind) in wrong.items()
    ]
    first = next(iter(wrong))
    return Finding(
        "wrong_types", "error", 88,
        f"{'; '.join(kinds)}: not read{' from any file' if len(case.input.files) > 1 else ''}",
        f"name the column that is meant, --map {first}=COLUMN, or none, --map {first}=none",
        len(wrong), len(case.input.columns),
    )  # fmt: skip


def _where(case: Case, column: str, kind: str) -> str:
    """The files in which a column is of a type, where it is another elsewhere."""
    facts = next(one for one in case.input.columns if one.name == column)
    if not facts.other_types:
        return ""
    if kind in facts.other_files:
        return f" in {_named(facts.other_files[kind], facts.other_types[kind])}"
    return f" in {_named([case.input.files[0].path], 1)}"


def _named(files: list[str], count: int) -> str:
    """`b.parquet`, or `b.parquet and 3 more files`."""
    names = ", ".join(path.rpartition("/")[2] for path in files[:SHOWN_FILES])
    more = count - min(len(files), SHOWN_FILES)
    return names + (f" and {counted(more, 'more file')}" if more > 0 else "")


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
    serving = [one for one in mixed if one.role is not None]
    first = (serving or mixed)[0]
    names = ", ".join(f"`{one.name}`" for one in mixed[:6])
    unread = first.role in case.reading.wanted.unusable
    return Finding(
        "mixed_types", "error" if serving else "warning", 85 if serving else 30,
        f"files disagree about {names}: {_kinds(first)}",
        "write all files with one schema; "
        + (
            f"`{first.name}` is not read at all now" if unread
            else "rlpost reads what it can, other readers take the first file's type, or fail"
        ),
        len(mixed), len(case.input.columns),
        [
            Evidence(path, said=f"{one.name}: {kind}")
            for one in (serving or mixed)[:5]
            for kind, files in one.other_files.items()
            if kind == MISSING or _plain(kind) != _plain(one.type)
            for path in files
        ][:MOST_SHOWN],
    )  # fmt: skip


def _kinds(column: ColumnFacts) -> str:
    """What the first file that has a column says it is, and what the others say, by name."""
    kinds = [
        f"{'missing' if kind == MISSING else kind} in "
        f"{_named(column.other_files.get(kind, []), times)}"
        for kind, times in column.other_types.items()
    ]
    return f"`{column.name}` is {column.type}, but {', '.join(kinds)}"


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


MOST = 1 / 2  # of the rows: beyond it a sign is no chance
FEW_TOKENS = 16  # fewer are equal by chance


def is_constant(column: TokenColumn) -> bool:
    """Whether a column holds one value throughout: such zeros are no padding and no filler."""
    return column.tokens >= FEW_TOKENS and column.min == column.max


def unequal_lengths(case: Case) -> Finding | None:
    """Lists of one row that differ in length."""
    if case.tokens is None or case.reading.wanted.lists is None:
        return None
    wrong = {role: one for role, one in case.tokens.columns.items() if one.unequal_rows}
    if not wrong:
        return None
    rows = case.reading.rows
    role, worst = max(wrong.items(), key=lambda item: item[1].unequal_rows)
    lists = case.reading.wanted.lists_column
    by_count: dict[int, list[str]] = {}
    for one in wrong.values():
        by_count.setdefault(one.unequal_rows, []).append(f"`{one.column}`")
    said = "; ".join(f"{', '.join(names)} in {count:,}" for count, names in by_count.items())
    example = _example(case, role, worst)
    one_odd = len(wrong) > 1 and len(wrong) == len(case.tokens.columns)
    odd = f" (or is `{lists}` the odd one?)" if one_odd else ""
    return Finding(
        "unequal_lengths", "error", 96,
        f"lists not as long as `{lists}`: {said} of {case.rows:,} rows, {example}; those rows are "
        "left out of what is said of tokens",
        "give every list of a row one entry per response token: cut the prompt, drop the padding"
        f"{odd}",
        worst.unequal_rows, case.rows, case.rows_where(rows[f"unequal:{role}"], "length"),
    )  # fmt: skip


def _example(case: Case, role: str, column: TokenColumn) -> str:
    """Both lengths of the first row that shows it."""
    rows = case.reading.rows
    row = rows.filter(rows[f"unequal:{role}"]).row(0, named=True)
    own, other = row[f"entries:{role}"], row["length"]
    what = "is null" if own < 0 else f"has {own:,} " + ("entry" if own == 1 else "entries")
    return f"such as row {row['row']}, where `{column.column}` {what} against {other:,}"


def padded_lists(case: Case) -> Finding | None:
    """Zeros at the ends of lists where the mask is 0, or lists that all have one length."""
    role, side, count = _ends(case)
    rows, masks = case.reading.rows, case.masks
    where = "end in" if side == "padded" else "begin with"
    if count > MOST * case.rows:
        flags = rows[f"{side}:{role}"].fill_nan(0) > 0
        said = f"{count:,} of {case.rows:,} rows {where} zeros of `{case.column(role)}`"
        masked = rows["trailing" if side == "padded" else "leading"]
        said += " where the mask is 0" if masks and bool((flags & masked).any()) else ""
    elif masks is not None and masks.equal_lengths and _masked(case) > MOST * case.rows:
        # the ends of most dialogues are the policy's: lists of one length that mask them are padded
        where = "end in" if masks.trailing >= masks.leading else "begin with"
        flags = rows["trailing" if where == "end in" else "leading"]
        count = _masked(case)
        said = (
            f"all lists have one length, and {count:,} of {case.rows:,} {where} masked-out tokens"
        )
    else:
        return None
    left = where == "begin with"
    return Finding(
        "padded_lists", "error", 90,
        f"{said}: the lists are padded{' on the left, or hold the prompt' if left else ''}",
        f"cut each list to its response's {'tokens' if left else 'length'}; padding costs memory, "
        "and lengths, whitening and means over tokens count it where a tool takes no mask",
        count, case.rows, case.rows_where(flags, "length", "tokens"),
    )  # fmt: skip


def _masked(case: Case) -> int:
    assert case.masks is not None
    return max(case.masks.trailing, case.masks.leading)


def _ends(case: Case) -> tuple[str, str, int]:
    """The role and the side (`padded`: the end, `left`) that most rows have zeros at."""
    tokens = case.tokens
    found = [
        (role, side, ends[side])
        for role, ends in (tokens.edges if tokens else {}).items()
        for side in ("padded", "left")
        if tokens
        and not is_constant(tokens.columns[role])
        and (side == "padded" or case.masks or _level(case.reading.rows))
    ]
    return max(found, key=lambda item: item[2], default=("", "", 0))


def _level(rows: pl.DataFrame) -> bool:
    """All lists are of one length.

    Without a mask it takes that, too, to call zeros at the start padding: a model that always
    begins alike is certain of its first tokens.
    """
    return bool(rows["length"].min() == rows["length"].max())


MOST_EMPTY = 1 / 2  # of the rows


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
        "empty_masks", "error" if count > MOST_EMPTY * case.rows else "warning",
        40 + 55 * count / case.rows,
        f"{count:,} of {case.rows:,} rows ({share(count, case.rows)}) have no policy "
        f"token: {what}",
        "they get no advantage but move their group's mean: drop them, or mend the mask",
        count, case.rows, case.rows_where(rows["tokens"] == 0, "length"),
    )  # fmt: skip


MOST_SHIFTED = 1 / 2  # of the rows: beyond it a sign is no chance
FEW_SHIFTED = 64  # fewer tell no shift
BETTER = 2.0  # times better that a shift fits than none
SURE = 4.0  # standard errors


def shifted_lists(case: Case) -> Finding | None:
    """Columns that stand one token apart: they fit better a token to the left or right."""
    if case.tokens is None:
        return None
    shifts = [shift for shift in case.tokens.shifts if _is_shifted(shift)]
    if shifts:
        return _shifted(case, shifts[0], _steps_with(case, shifts[0].columns))
    for shift in case.tokens.shifts:
        steps = _steps_with(case, shift.columns)
        if steps:
            return _shifted(case, next(iter(steps.values())), steps)
    return _filled_ends(case)


def _steps_with(case: Case, columns: tuple[str, str]) -> dict[Label, Shift]:
    """The steps in which these columns are shifted, where steps can be told apart."""
    if columns[0] == "mask":
        return {}
    found = step_lags(case.reading.tally, columns)
    return {step: shift for step, shift in found.items() if _is_shifted(shift)}


def _shifted(case: Case, shift: Shift, steps: dict[Label, Shift]) -> Finding:
    one, other = (f"`{case.column(role)}`" for role in shift.columns)
    way = "later" if shift.lag > 0 else "earlier"
    if shift.columns[0] == "mask":
        how = "log-probs jump there, not where the mask changes"
    else:
        how = f"mean |difference| {shift.there:.3g} instead of {shift.here:.3g} nats"
    rows = case.reading.rows
    some = bool(steps) and len(steps) < case.step_count()
    count = int(rows["batch"].is_in(list(steps)).sum()) if some else case.rows
    evidence = (
        case.rows_of_steps(steps, "tokens")
        if some
        else case.rows_where(rows["tokens"] > 1, "tokens")
    )
    return Finding(
        "shifted_lists", "error", 97,
        f"{other} fits {one} one token {way}{case.in_steps(steps)} ({how})",
        "entry t of every list must be about response token t: shift one of the columns back",
        count, case.rows, evidence,
    )  # fmt: skip


def _is_shifted(shift: Shift) -> bool:
    if not shift.lag or shift.tokens < FEW_SHIFTED:
        return False
    if shift.columns[0] == "mask":
        return shift.there > BETTER * shift.here and shift.there > SURE
    return shift.there * BETTER < shift.here


def _filled_ends(case: Case) -> Finding | None:
    """Most responses begin or end with a policy token of log-prob 0, and few others have it."""
    assert case.tokens is not None
    for role, ends in case.tokens.edges.items():
        column = case.tokens.columns[role]
        if is_constant(column):
            continue
        usual = column.zero / column.tokens if column.tokens else 1.0
        count = ends["shifted"]
        if count > MOST_SHIFTED * case.rows and usual < MOST_SHIFTED * count / case.rows:
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
