"""Coefficients of further terms, a KL loss and an entropy bonus, that reproduce a logged loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.intervals import overlap, shortest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_DIGITS = 4
_MOST = 0.5
"""Share of the steps; a coefficient reproduces more of them."""


class FittedTerms(NamedTuple):
    """The coefficients of a loss's further terms."""

    coefficients: Numbers
    """[..., t]."""
    low: Numbers
    """[...]: the lowest first coefficient that reproduces as much."""
    high: Numbers
    """[...]."""
    equal: Flags
    """[..., s]: the step is reproduced."""


def fit_terms(
    rest: Numbers, terms: Numbers, allowed: Numbers, present: Flags, *, positive: Flags
) -> FittedTerms:
    """Return the coefficients with which terms are what a loss lacks.

    Args:
        rest: [..., s] the logged loss less the computed one.
        terms: [..., t, s] of 1 or 2 terms.
        allowed: [..., s] differences that are allowed.
        present: [s]: the log has a number.
        positive: [...] a first coefficient below 0 is none.

    Returns:
        Coefficients of at most 4 digits, which a configuration has. One coefficient reproduces more
        than half of the steps, two all of them; otherwise no step is reproduced.
    """
    count = terms.shape[-2]
    if present.sum() <= count:
        none = np.full((*rest.shape[:-1], count), np.nan)
        return FittedTerms(none, none[..., 0], none[..., 0], np.zeros(rest.shape, np.bool_))
    found = _one(rest, terms[..., 0, :], allowed, present) if count == 1 else _two(
        rest, terms, allowed, present
    )  # fmt: skip
    wrong = ~np.isfinite(found.coefficients).all(-1)
    wrong |= positive & (found.coefficients[..., 0] < 0)
    return found._replace(equal=found.equal & ~wrong[..., None])


def _one(rest: Numbers, term: Numbers, allowed: Numbers, present: Flags) -> FittedTerms:
    """Return the shortest coefficient that the most steps have in common."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (rest - allowed) / term, (rest + allowed) / term
    low, high = np.minimum(low, high), np.maximum(low, high)
    fits = np.abs(rest) <= allowed
    low = np.where(term == 0, np.where(fits, -np.inf, np.inf), low)
    high = np.where(term == 0, np.where(fits, np.inf, -np.inf), high)
    common = overlap(np.where(present, low, np.inf), np.where(present, high, -np.inf))
    most = common.inside.sum(-1) > max(1, _MOST * present.sum())
    coefficients = np.full(rest.shape[:-1], np.nan)
    for place in zip(*np.nonzero(most), strict=True):
        number = shortest(common.low[place], common.high[place])
        coefficients[place] = np.nan if number is None else number
    return FittedTerms(coefficients[..., None], common.low, common.high, common.inside)


def _two(rest: Numbers, terms: Numbers, allowed: Numbers, present: Flags) -> FittedTerms:
    """Return two coefficients by least squares, with the fewest digits that reproduce all steps."""
    own = terms[..., present]
    exact = (np.linalg.pinv(np.swapaxes(own, -1, -2)) @ rest[..., present, None])[..., 0]
    coefficients, equal = np.full_like(exact, np.nan), np.zeros(rest.shape, bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** np.floor(np.log10(np.abs(exact)))
        for digits in range(_DIGITS):
            rounded = np.nan_to_num(np.round(exact / scale, digits) * scale)
            gaps = np.abs(rest - (rounded[..., None, :] @ terms)[..., 0, :])
            fits = np.asarray(((gaps <= allowed) | ~present).all(-1) & ~equal.any(-1))
            coefficients[fits] = rounded[fits]
            equal |= fits[..., None] & present
    return FittedTerms(coefficients, coefficients[..., 0], coefficients[..., 0], equal)
