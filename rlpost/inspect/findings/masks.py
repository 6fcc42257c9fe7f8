"""Findings about masks: values that are none, and responses without a policy token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.inspect.findings.case import counted, share
from rlpost.inspect.model import Finding

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case

MOST = 1 / 2  # of the rows


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
