"""Relations of recorded and computed numbers: a rounding, a factor, a column that was added.

Each is a prediction of the recorded numbers from the computed ones, and the share of the differing
elements that it explains. A few numbers fit anything, so that each relation needs more distinct
numbers than it has constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.base import ENOUGH, Explanation, check
from rlpost.analysis.replay.findings.evidence import BEYOND_CONSTANTS
from rlpost.analysis.replay.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence

    Numbers = NDArray[np.float64]

_REPRESENTABLE = 0.98
_ROUNDED = 6
"""Distinct numbers that a rounding moves."""
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


@check("relation", exact=True)
def bfloat16(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones, rounded to bfloat16.

    It has 8 significant bits, so that near numbers become equal. Compute and store them in float32.
    """
    half = np.abs(seen.recorded) * 2.0**-8
    yield from _rounded(seen, "bfloat16", to_bfloat16, half)


@check("relation", exact=True)
def float16(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones, rounded to float16.

    It has 11 significant bits, and no number above 65,504. Compute and store them in float32.
    """
    half = np.abs(seen.recorded) * 2.0**-11 + 2.0**-25  # half of the smallest number
    yield from _rounded(seen, "float16", to_float16, half)


@check("relation", exact=True)
def decimals(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones, rounded to a few decimals.

    The file has fewer digits than the trainer; what is computed from it is as inexact. Record
    float32.
    """
    for digits in range(5):

        def rounded(values: Numbers, digits: int = digits) -> Numbers:
            return np.round(values, digits).astype(np.float32).astype(np.float64)

        half = np.full_like(seen.recorded, 0.5 * 10.0**-digits)
        yield from _rounded(seen, f"{digits} decimals", rounded, half)


def _rounded(
    seen: Evidence, title: str, rounded: Callable[[Numbers], Numbers], half: Numbers
) -> Iterator[Explanation]:
    """Yield that numbers were rounded, each by half a step at most."""
    elements = seen.chosen & np.isfinite(seen.recorded) & (seen.recorded != 0)
    same = rounded(seen.recorded)[elements] == seen.recorded[elements].astype(np.float32)
    if not elements.any() or same.mean() < _REPRESENTABLE:
        return
    near = seen.difference.distance <= half * 1.01 + seen.tolerance
    share = seen.explains(np.where(near, seen.recorded, seen.computed))
    moved = seen.wrong & (rounded(seen.computed) != seen.computed)
    if share >= ENOUGH and seen.distinct(moved) >= _ROUNDED:
        yield Explanation(f"recorded = computed, rounded to {title}", share)


@check("relation")
def factor(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones times a constant.

    It acts as another learning rate, and a negative one as the other sign. Look for a mean in place
    of a sum, or a division too much.
    """
    use = seen.wrong & (np.abs(seen.computed) > 10 * seen.tolerance)
    if not use.any() or not seen.enough(seen.wrong):
        return
    times = float(np.median(seen.recorded[use] / seen.computed[use]))
    share = seen.explains(seen.computed * times)
    if share >= ENOUGH and times != 0:
        inverse = round(1 / abs(times))
        known = inverse > 1 and np.isclose(1 / times, inverse, rtol=1e-4)
        text = f"recorded = computed x {times:.5g}"
        yield Explanation(f"{text}, which is 1/{inverse}" if known else text, share)


@check("second relation", exact=True)
def eps_inside_root(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are divided by √(variance + ε), not by standard deviation + ε.

    Groups of nearly equal rewards get other advantages. Divide by what the method has.
    """
    for title, codes, by_row in seen.groups_and_steps():
        scope = "group" if title == "group" else "batch"
        distinct = seen.distinct_beyond_one_per_set(codes, seen.wrong)
        if seen.resolved.norm[1] != scope or distinct < BEYOND_CONSTANTS:
            continue
        std = seen.deviation(by_row)
        use = seen.chosen & (np.abs(seen.computed) > 10 * seen.tolerance) & (std > 0)
        use &= np.isfinite(seen.recorded) & (seen.recorded != 0)
        if not use.any():
            continue
        own, safe = std + seen.recipe.numerics.norm_eps, np.where(std > 0, std, 1.0)
        divisor = np.divide(own * seen.computed, seen.recorded, out=np.zeros_like(own), where=use)
        epsilon = float(np.median((divisor**2 - std**2)[use]))
        root = np.sqrt(np.maximum(safe**2 + epsilon, 0.0))
        if not root.all():
            continue
        share = seen.explains(np.where(std > 0, seen.computed * own / root, seen.computed))
        plain = seen.explains(np.where(std > 0, seen.computed * own / safe, seen.computed))
        if share >= ENOUGH > plain:  # else there is no ε
            text = f"recorded = computed x (std + ε) / sqrt(var + {epsilon:.3g}) of the {title}"
            yield Explanation(f"{text}: ε is inside the root", share)
            return


@check("second relation")
def column_added(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers have a column of the input, or the KL, added, times a constant.

    A term is there twice, or with another coefficient or sign: the value in a return, the KL
    penalty in a reward. Check where the trainer adds it.
    """
    differences = seen.recorded - seen.computed
    for name, values in seen.columns().items():
        use = seen.wrong & (np.abs(values) > seen.tolerance)
        if not use.any() or len(np.unique(values[use])) < BEYOND_CONSTANTS:
            continue
        times = float(np.median(differences[use] / values[use]))
        share = seen.explains(seen.computed + times * values)
        if share >= ENOUGH:
            sign = "-" if times < 0 else "+"
            size = "" if np.isclose(abs(times), 1.0, rtol=1e-3) else f"{abs(times):.5g} x "
            yield Explanation(f"recorded = computed {sign} {size}`{name}`", share)
            return


@check("last relation")
def clipped(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones, clipped to bounds that no option has.

    Numbers beyond the bounds are lost; without negative numbers, a mean KL is too large. Remove the
    clip.
    """
    known = seen.recorded[seen.chosen]
    low, high = (float(one) for one in (known.min(initial=np.inf), known.max(initial=-np.inf)))
    if not low < high:
        return
    for bounds, text in (
        ((low, np.inf), f"{low:.6g} or more"),
        ((-np.inf, high), f"{high:.6g} or less"),
        ((low, high), f"{low:.6g} to {high:.6g}"),
    ):
        beyond = seen.wrong & ((seen.computed < bounds[0]) | (seen.computed > bounds[1]))
        share = seen.explains(np.clip(seen.computed, *bounds))
        if share >= ENOUGH and seen.distinct(beyond) >= _AT_BOUND:
            yield Explanation(f"recorded = computed, clipped to {text}", share)
            return


@check("last relation")
def other_stage(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are those of another recorded stage, or these with a column added.

    The trainer reads one tensor in place of another, such as whitened advantages in a return. Check
    which one it passes.
    """
    rollouts = seen.replayer.rollouts
    columns = {"": np.zeros_like(seen.recorded), **(seen.columns() if seen.by_token else {})}
    for stage in rollouts.recorded if seen.by_token else ():
        if stage == seen.first.name or STAGES[stage].level != "tokens":
            continue
        base = rollouts.column(stage).on_tokens(rollouts.offsets)
        own = seen.replayer.stage(seen.recipe, stage)
        if own is not None and np.allclose(own.difference.computed, seen.computed, equal_nan=True):
            continue  # by the recipe they are the same, too
        for name, values in columns.items():
            for sign, times in ("+", 1.0), ("-", -1.0):
                share = seen.explains(base + times * values)
                if share >= ENOUGH and seen.enough(seen.wrong):
                    added = f" {sign} `{name}`" if name else ""
                    yield Explanation(f"recorded = recorded `{stage}`{added}", share)
                    return
