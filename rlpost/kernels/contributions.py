"""Reward components: correlation, and the share of the advantage, from exact sums."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class PairSums(NamedTuple):
    """Sums over the responses that have two numbers, x and y."""

    number: Fraction
    x: Fraction
    y: Fraction
    xx: Fraction
    yy: Fraction
    xy: Fraction


def correlation(sums: PairSums) -> float | None:
    """Return Pearson's correlation; None with fewer than 2 pairs, or if x or y has one value.

    >>> correlation(PairSums(*map(Fraction, (3, 6, 12, 14, 56, 28))))
    1.0
    """
    n, x, y, xx, yy, xy = sums
    of_x, of_y = n * xx - x * x, n * yy - y * y
    if n < 2 or of_x <= 0 or of_y <= 0:  # noqa: PLR2004
        return None
    return max(-1.0, min(1.0, float(n * xy - x * y) / (sqrt(of_x) * sqrt(of_y))))


def advantage_shares(
    parts: Mapping[str, tuple[Fraction, Fraction]],
    count: Fraction | int,
    advantages: Fraction | int,
) -> dict[str, float | None]:
    """Return the share of the advantage of each reward component; they add up to 1.

        share_k = cov(R_k, A) / cov(sum_j R_j, A)

    R_k is what component k adds to the number that the estimator reads: w_k * c_k; or w_k times the
    component normalised within its group, if the estimator reads components. If A is linear in R,
    that is cov(A_k, A) / var(A) with A_k the part of A that is made of component k. A share is
    negative if the component works against the advantage, and another one is greater than 1 then.

    Args:
        parts: by component, the sums of R_k * A and of R_k over the population.
        count: size of the population: responses, each with the mean A of its tokens.
        advantages: the sum of A over the population.

    Returns:
        None for each component if cov(sum_j R_j, A) is not greater than 0.

    >>> advantage_shares({"a": (Fraction(3), Fraction(0)), "b": (Fraction(1), Fraction(0))}, 4, 0)
    {'a': 0.75, 'b': 0.25}
    """
    covariances = {
        name: count * product - total * advantages for name, (product, total) in parts.items()
    }
    whole = sum(covariances.values(), Fraction(0))
    if whole <= 0:
        return dict.fromkeys(parts)
    return {name: float(one / whole) for name, one in covariances.items()}
