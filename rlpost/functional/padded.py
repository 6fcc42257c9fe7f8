"""The functions of tokens for padded arrays [N, T], with a mask that is 0 on padding.

The mask is 0 on observation tokens too. Padding may be at the left, at the right or in between, and
may have any value. Names, options and errors are those of rlpost.functional. The functions of
rewards and groups are not here: their numbers are [N] for padded arrays, too.
"""

from __future__ import annotations

from inspect import signature

from rlpost.functional.derived import TOKENS, padded
from rlpost.functional.formulas import FUNCTIONS

_PADDED = {
    name: padded(function)
    for name, function in FUNCTIONS.items()
    if not {"offsets", *TOKENS}.isdisjoint(signature(function).parameters)
}
globals().update(_PADDED)
__all__ = list(_PADDED)
