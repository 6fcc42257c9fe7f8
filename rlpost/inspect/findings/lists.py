"""Findings about the lengths of lists: rows whose lists differ, and padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.inspect.model import Finding

if TYPE_CHECKING:
    import polars as pl

    from rlpost.inspect.findings.case import Case
    from rlpost.inspect.model import TokenColumn

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
