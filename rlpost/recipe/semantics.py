"""The number of the present defaults and formulas, raised when one changes a number of an output.

Outputs and state files have the number of the version that wrote them. Numbers of two semantics
are not comparable.
"""

from __future__ import annotations

SEMANTICS = 1


def describe(number: int) -> str:
    """Return in words which semantics something has, and which this version computes."""
    return f"semantics {number} (this version: {SEMANTICS})"


def parse(value: object) -> int:
    """Return a stored semantics number.

    Raises:
        ValueError: it is not a positive integer.
    """
    number = int(str(value))
    if number < 1:
        raise ValueError(f"semantics {number} is not a positive integer")
    return number
