"""Numbers that a dtype, a file of few decimals or a bound changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.evidence import ENOUGH, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence, Json

    Numbers = NDArray[np.float64]

_REPRESENTABLE = 0.98
_SAMPLE = 6
_DECIMALS = (0, 1, 2, 3, 4)
_AT_BOUND = 8
"""Elements that share a bound, from so many distinct numbers beyond it."""


def to_float16(values: Numbers) -> Numbers:
    """Round to float16, to the nearest."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float16).astype(np.float64)


def to_bfloat16(values: Numbers) -> Numbers:
    """Round to bfloat16, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    out = rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(np.isfinite(values), out, values)


ROUNDINGS: dict[str, tuple[Callable[[Numbers], Numbers], int]] = {
    "bfloat16": (to_bfloat16, 8),
    "float16": (to_float16, 11),
}
"""Rounding to each dtype, and the bits of its significand."""


def roundings(seen: Evidence) -> Iterator[Json]:
    """Yield the dtype, or the number of decimals, that the recorded numbers were rounded to."""
    size = np.abs(seen.recorded)
    float16 = 2.0**-25  # half of the smallest number
    found: list[tuple[str, str, Callable[[Numbers], Numbers], Numbers]] = [
        (name, name, rounded, size * 2.0**-bits + (float16 if name == "float16" else 0.0))
        for name, (rounded, bits) in ROUNDINGS.items()
    ]
    for digits in _DECIMALS:
        half = np.full_like(size, 0.5 * 10.0**-digits)
        found.append(("decimals", f"{digits} decimals", _to_decimals(digits), half))
    elements = seen.chosen & np.isfinite(seen.recorded) & (seen.recorded != 0)
    for name, title, rounded, half in found:
        same = rounded(seen.recorded)[elements] == seen.recorded[elements].astype(np.float32)
        if not elements.any() or same.mean() < _REPRESENTABLE:
            continue
        near = np.where(
            seen.difference.distance <= half * 1.01 + seen.tolerance, seen.recorded, seen.computed
        )
        share = seen.explains(near)
        moved = seen.wrong & (rounded(seen.computed) != seen.computed)
        if share >= ENOUGH and seen.distinct(moved) >= _SAMPLE:
            yield finding(
                name, f"the recorded numbers are the computed ones rounded to {title}", share
            )
            return


def _to_decimals(digits: int) -> Callable[[Numbers], Numbers]:
    return lambda values: np.round(values, digits).astype(np.float32).astype(np.float64)


def clips(seen: Evidence) -> Iterator[Json]:
    """Yield the bounds to which the computed numbers were clipped."""
    known = seen.recorded[seen.chosen]
    low, high = (float(one) for one in (known.min(initial=np.inf), known.max(initial=-np.inf)))
    if not low < high:
        return
    for some, text in (
        ((low, np.inf), f"{low:.6g} or more"),
        ((-np.inf, high), f"{high:.6g} or less"),
        ((low, high), f"{low:.6g} to {high:.6g}"),
    ):
        beyond = seen.wrong & ((seen.computed < some[0]) | (seen.computed > some[1]))
        share = seen.explains(np.clip(seen.computed, *some))
        if share >= ENOUGH and seen.distinct(beyond) >= _AT_BOUND:
            what = f"the recorded numbers are the computed ones clipped to {text}"
            yield finding("clipped", what, share)
            return
