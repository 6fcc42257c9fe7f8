"""Rows that are no answers: rollouts that failed, rows that a later attempt of a run replaced."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.display.text import most_frequent
from rlpost.io import arrow
from rlpost.io.finish_reasons import is_readable, plain_reasons
from rlpost.pipeline.data import ATTEMPTS, FAILURE, LEFT_OUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.io.arrow import CellLocation
    from rlpost.kernels.rollouts import RolloutOrder
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.roles import ColumnMap

    Codes = NDArray[np.int64]
    Flags = NDArray[np.bool_]


UNNAMED = "failed"
"""The reason of a failure that a bool says, without a text."""
_MOST_REASONS = 20  # in the summary
_LONGEST = 60  # characters of a reason: of a traceback, its first line


def failure_reasons(array: pa.Array, location: CellLocation) -> pa.Array:
    """Return why each response failed, [n] text; empty for a response that did not.

    A text, or an object with a text in `type`, is a reason: its first line, up to 60 characters. A
    null, an empty text and false are no failure; true, and 1, are one without a reason.

    Raises:
        DataError: another type, or another number.
    """
    if not is_readable(array.type):
        raise location.error(0, f"is {array.type}", "a text with the reason, or a bool, is needed")
    array = plain_reasons(array)
    if pa.types.is_null(array.type):
        return arrow.string_array([""] * len(array))
    if arrow.is_number(array.type):
        numbers = arrow.numbers(array, location)
        wrong = np.flatnonzero((numbers != 0) & (numbers != 1) & ~np.isnan(numbers))
        if len(wrong):
            row = int(wrong[0])
            needed = "a text with the reason, or 1 for a failure and 0 for none, is needed"
            raise location.error(row, f"is {numbers[row]:g}", needed)
        return arrow.string_array(np.where(numbers == 1, UNNAMED, "").tolist())
    encoded = array.dictionary_encode()
    texts = [_short(text) for text in encoded.dictionary.to_pylist()]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts))
    return arrow.string_array([*texts, ""]).take(codes)


def _short(text: str) -> str:
    """Return the first line of a reason, up to 60 characters; empty if there is none."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def attempts(array: pa.Array, location: CellLocation) -> Codes:
    """Return the attempt that each row is of, [n]; null is before all others.

    Raises:
        DataError: one is not whole.
    """
    nulls = arrow.is_true(array.is_null())
    numbers = np.where(nulls, -np.inf, arrow.numbers(array, location))
    wrong = np.flatnonzero(~nulls & ~(np.isfinite(numbers) & (numbers % 1 == 0)))
    if len(wrong):
        row = int(wrong[0])
        needed = "a whole number is needed, larger for a later attempt"
        raise location.error(row, f"is {numbers[row]:g}", needed)
    return np.where(nulls, np.iinfo(np.int64).min, numbers).astype(np.int64)


def failed_units(failed: Flags, order: RolloutOrder, *places: NDArray[Any] | None) -> Flags:
    """Return which rows are of a rollout that failed, [N].

    A rollout failed if a row of its last turn did. A failure before is one that the agent went on
    after: the rollout has an answer. Without turns, any row that failed is the end of its rollout.

    Args:
        failed: [N], by row.
        order: of the rows of rollouts.
        places: [N] each, what all rows of a turn have in common: turn and agent; None: unknown.
    """
    for column in places:
        if column is not None:
            failed = failed & (column == column[order.last][order.rollout])
    return np.bincount(order.rollout[failed], minlength=len(order.last))[order.rollout] > 0


def failure_entries(
    counts: Counter[str], reasons: Counter[str], resolved: ResolvedRecipe, columns: ColumnMap
) -> dict[str, Any]:
    """Return the entries of the summary, of an input that has the roles.

    Args:
        counts: how many responses have each of `failure_flags`.
        reasons: of `reasons_of_failures`.
        resolved: the recipe.
        columns: of the input.
    """
    entries: dict[str, Any] = {}
    if resolved.failures:
        entries["failures"] = {
            "column": columns.column(FAILURE),
            "treatment": resolved.recipe.failures,
            "responses": counts["failed"],
            "survived": counts["survived"],
            "reasons": most_frequent(reasons, _MOST_REASONS),
        }
    if resolved.attempts:
        entries["attempts"] = {
            "column": attempt_columns(columns),
            "kept": resolved.recipe.attempts,
            "superseded": counts["superseded"],
        }
    return entries


def attempt_columns(columns: ColumnMap) -> str:
    """Return the columns of attempts, as text."""
    return " and ".join(columns.column(role) for role in ATTEMPTS if role in columns)


def named_failures(responses: Responses) -> Flags:
    """Return which rows have a reason why they failed, [N]."""
    return np.array([label != "" for label in responses.labels[FAILURE]])[responses[FAILURE]]


def failure_flags(responses: Responses) -> dict[str, Flags]:
    """Return which responses failed, and which rows a later attempt replaced, [N] each.

    Of a rollout that failed all rows are `failed`; `survived` are rows with a failure after which
    their rollout went on; `superseded` are those of whose step, or rollout, a later attempt has
    rows.
    """
    flags = {x: responses[x] for x in ("failed", "superseded") if x in responses}
    if "failed" in flags:
        flags["survived"] = named_failures(responses) & ~flags["failed"]
    return flags


def reasons_of_failures(responses: Responses) -> Counter[str]:
    """Return how many rollouts, or rows, failed for each reason, of those not left out before."""
    if "failure:end" not in responses:
        return Counter()
    left_out = responses["left_out"]
    own = (left_out == 0) | (left_out == LEFT_OUT.index("failure") + 1)
    codes = responses[FAILURE][responses["failure:end"] & own]
    labels = responses.labels[FAILURE]
    counts = np.bincount(codes, minlength=len(labels)).tolist()
    return Counter({str(x): n for x, n in zip(labels, counts, strict=True) if n})


def failure_ends(responses: Responses, failed: Flags, order: RolloutOrder | None) -> Flags:
    """Return the last row with a reason of each rollout that failed, [N].

    Without rollouts, all rows that failed.
    """
    ends = failed & named_failures(responses)
    if order is None:
        return ends
    flags = np.zeros(len(failed), bool)
    flags[order.last_of(ends)] = True
    return flags
