"""Numbers in another order: those of other tokens, or of other responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.base import ENOUGH, Explanation, check
from rlpost.analysis.replay.findings.evidence import neighbours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_ROWS = 8
"""Distinct numbers, and differing responses, that another order needs."""


@check("relation", exact=True)
def shift(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are those of the next or the previous token.

    Each token is trained with the number of its neighbour. Check where the trainer cuts prompts
    off, and where it pairs logits with the tokens that follow them.
    """
    if not seen.by_token:
        return
    sets = {"token": np.arange(len(seen.rows)), "policy token": np.flatnonzero(seen.chosen)}
    for by, which in ((1, "next"), (-1, "previous")):
        for token, among in sets.items():
            predicted = np.full_like(seen.computed, np.nan)
            own, other = neighbours(seen.rows, by, among)
            predicted[own] = seen.computed[other]
            share = _explained_inside(seen, predicted)
            if share >= ENOUGH:
                text = f"each recorded number is the computed one of the {which} {token}"
                yield Explanation(text, share)
                return


def _explained_inside(seen: Evidence, predicted: Numbers) -> float:
    """Return the share that predictions explain of the elements that have one; 0 for too few."""
    inside = np.isfinite(predicted)
    if not seen.enough(seen.wrong & inside):
        return 0.0
    wrong = seen.wrong & inside
    near = np.abs(seen.recorded - predicted) <= (
        seen.difference.slack + seen.difference.relative * np.abs(predicted)
    )
    share = 1.0 - float((inside & seen.chosen & ~near).sum()) / max(1, int(wrong.sum()))
    if share < ENOUGH:
        return 0.0
    return min(share, seen.explains(np.where(inside, predicted, seen.recorded)))


@check("second relation", exact=True)
def other_rows(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are those of other responses: rows are in another order.

    Responses are trained with the rewards of others. Check where the trainer sorts, shuffles or
    gathers rows, and match them by an id.
    """
    numbers = _by_row(seen)
    if numbers is None:
        return
    rows, theirs, ours, elements = numbers
    if len(np.unique(np.round(theirs, 4))) < _ROWS or not np.isfinite(theirs).all():
        return
    whose = "computed numbers" if elements is None else "rewards"
    for where, source in _sources(seen, rows, theirs, ours):
        moved = _spread(ours[source], rows, seen)
        if elements is None:
            predicted = np.where(seen.chosen, moved, seen.computed)
        else:
            change = moved - _spread(ours, rows, seen)
            predicted = np.where(elements, seen.computed + change, seen.computed)
        share = seen.explains(predicted)
        if share >= ENOUGH:
            yield Explanation(f"each response has the {whose} of {where}", share)
            return


def _sources(
    seen: Evidence, rows: Codes, theirs: Numbers, ours: Numbers
) -> Iterator[tuple[str, Codes]]:
    """Yield the response from which each may have its number: of equal rank, or some rows away."""
    steps = seen.replayer.rollouts.codes("batch")
    order = "the rows are in another order"
    for title, codes in (
        (f"another one of its group: {order}", seen.replayer.rollouts.groups[rows]),
        (f"another one of its step: {order}", steps[rows]),
        (f"another one of the file: {order}", 0 * rows),
    ):
        here, there = (np.lexsort((values, codes)) for values in (theirs, ours))
        source = np.empty_like(rows)
        source[here] = there
        yield title, source
    size = int(np.bincount(steps).max())
    place = np.full(len(steps), -1)
    place[rows] = np.arange(len(rows))
    for by, title in ((1, "a row"), (size, f"{size:,} rows")):
        for sign, where in ((1, "before"), (-1, "after")):
            other = rows - sign * by
            inside = (other >= 0) & (other < len(steps))
            source = np.where(inside, place[np.where(inside, other, 0)], -1)
            source = np.where(source >= 0, source, np.arange(len(rows)))
            yield f"the one {title} {where} it", source


def _by_row(seen: Evidence) -> tuple[Codes, Numbers, Numbers, Mask | None] | None:
    """Return responses, a recorded and a computed number of each, and the elements that have it.

    The number is that of all tokens of a response (None); or, of token rewards that differ in one
    token of a response at most, its reward.
    """
    rows, where = np.unique(seen.rows[seen.chosen], return_index=True)
    first = np.flatnonzero(seen.chosen)[where]
    theirs, ours = seen.recorded[first], seen.computed[first]
    varies = seen.chosen & (np.abs(seen.recorded - _spread(theirs, rows, seen)) > seen.tolerance)
    if not varies.any():
        return (rows, theirs, ours, None) if seen.wrong[first].sum() >= _ROWS else None
    counts = np.bincount(seen.rows[seen.wrong], minlength=len(seen.replayer.rollouts))
    raw = seen.resolved.norm == ("none", "none") and seen.first.name == "token_level_rewards"
    if not raw or counts.max(initial=0) > 1 or counts.sum() < _ROWS:
        return None
    differences = np.where(seen.wrong, seen.recorded - seen.computed, 0.0)
    ours = seen.replayer.rollouts.reward[rows]
    change = np.bincount(seen.rows, differences, len(seen.replayer.rollouts))[rows]
    return rows, ours + change, ours, seen.wrong


def _spread(values: Numbers, rows: Codes, seen: Evidence) -> Numbers:
    """Return a number of some responses for each of their elements."""
    out = np.zeros(len(seen.replayer.rollouts))
    out[rows] = values
    return np.asarray(seen.on_elements(out))


@check("second relation", exact=True)
def other_tokens(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers of each response are the computed ones in reverse.

    The first tokens have the credit of the last ones. Reverse the result of a scan that runs from
    the last token to the first.
    """
    distinct = seen.distinct_beyond_one_per_set(seen.rows, seen.wrong)
    if not seen.by_token or distinct < _ROWS * _ROWS:
        return
    where = np.flatnonzero(seen.chosen)
    predicted = seen.computed.copy()
    predicted[where] = seen.computed[where[np.lexsort((-where, seen.rows[where]))]]
    share = seen.explains(predicted)
    if share >= ENOUGH:
        text = "the recorded numbers of each response are the computed ones in reverse"
        yield Explanation(text, share)
