"""Exact sums of rlpost as fractions, which tests compare with sums of `fractions.Fraction`."""

from __future__ import annotations

from fractions import Fraction

from rlpost.kernels import moments


def fractions_of(digits):
    """Sums [n, digits] as fractions."""
    used = moments.used_digits(digits)
    unit = 1 << moments.scale_of(used.start)
    return [Fraction(number, unit) for number in moments.integers_of(digits[:, used])]
