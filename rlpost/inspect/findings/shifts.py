"""Findings about columns that stand one token apart, in the whole input or in some steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.inspect.findings.case import share
from rlpost.inspect.findings.lists import is_constant
from rlpost.inspect.model import Finding
from rlpost.inspect.token_facts import step_lags

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case
    from rlpost.inspect.model import Label, Shift

MOST = 1 / 2  # of the rows: beyond it a sign is no chance
FEW_TOKENS = 64  # fewer tell no shift
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
        if is_constant(column):
            continue
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
