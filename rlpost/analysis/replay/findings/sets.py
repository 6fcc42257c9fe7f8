"""Relations within sets of responses: each value of a column, each step, or each share of a step.

A trainer that whitens on each of its ranks alone scales and moves the numbers of each rank by
constants of its own: recorded = c x computed + d, with c and d of each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.changes import Change
from rlpost.analysis.replay.findings.evidence import ENOUGH, finding
from rlpost.analysis.replay.findings.inputs import positions_in
from rlpost.analysis.replay.findings.tested import numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence, Json

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_SPARE = 6
"""Distinct numbers that each set needs, of which two are for its constants."""
_MOST = 64
"""Sets of a step."""
_SHARES = (2, 4, 8, 16, 32, 64)
_NEAR = 1e-3
_TRIMMED = 0.9
"""Share of the elements that a second fit of a set has, without those that differ the most."""


def set_relations(seen: Evidence) -> list[Json]:
    """Return the first relation that holds within sets of responses; none if none does.

    Args:
        seen: the numbers of a stage.
    """
    return next(([one] for one in (*_divisors(seen), *_affine(seen))), [])


def smallest_deviation(seen: Evidence) -> float | None:
    """Return the number by which the differing rewards are divided, if it is one number."""
    divisor = _divisor(seen)
    if divisor is None:
        return None
    own = divisor[seen.wrong & np.isfinite(divisor)]
    if not len(own) or not seen.enough(seen.wrong):
        return None
    value = float(np.median(own))
    near = np.abs(own - value) <= _NEAR * abs(value)
    floor = value - seen.recipe.numerics.norm_eps
    return floor if floor > 0 and near.mean() >= ENOUGH else None


def _divisor(seen: Evidence) -> Numbers | None:
    """Return by what each element is divided, if rewards are; NaN where it is 0."""
    base = _undivided(seen)
    if base is None:
        return None
    use = seen.chosen & (np.abs(base) > seen.tolerance) & (np.abs(seen.recorded) > seen.tolerance)
    return np.divide(base, seen.recorded, out=np.full_like(base, np.nan), where=use)


def _undivided(seen: Evidence) -> Numbers | None:
    """Return the stage without the division by a standard deviation; None if there is none."""
    if seen.resolved.norm[1] == "none":
        return None
    recipe = Change((("norm_std", "none"),)).recipe(seen.recipe)
    base = None if recipe is None else numbers_of(seen.replayer, recipe, seen.first.name)
    if base is None or base.shape != seen.computed.shape or np.array_equal(base, seen.computed):
        return None
    return base


def _divisors(seen: Evidence) -> Iterator[Json]:
    """Yield that rewards are divided by one number in each step, and which it is."""
    base, divisor = _undivided(seen), _divisor(seen)
    if base is None or divisor is None or not seen.enough(seen.wrong):
        return
    steps = seen.replayer.rollouts.codes("batch")
    count = int(steps.max()) + 1
    own = np.array([_median(divisor[seen.steps == step]) for step in range(count)])
    if (
        not np.isfinite(own).all()
        or (own <= 0).any()
        or seen.spare(seen.steps, seen.wrong) < _SPARE
    ):
        return
    share = seen.explains(base / own[seen.steps])
    if share < ENOUGH:
        return
    sizes = f"{own.min():.4g} to {own.max():.4g}" if count > 1 else f"{own[0]:.4g}"
    text = f"the recorded numbers are divided by one number in each step ({sizes})"
    scope = seen.resolved.norm[1]
    yield finding("step-divisor", f"{text}, not by the standard deviation of each {scope}", share)


def _median(values: Numbers) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan


def _affine(seen: Evidence) -> Iterator[Json]:
    """Yield recorded = c x computed + d, with c and d of each set, the fewest sets first."""
    for title, codes in _sets(seen):
        fitted = _fitted(seen, seen.on_elements(codes))
        if fitted is None:
            continue
        predicted, scales, offsets = fitted
        share = seen.explains(predicted)
        if share < ENOUGH:
            continue
        constants = f"c {_range(scales)} and d {_range(offsets)}"
        text = f"recorded = c x computed + d, {constants}"
        yield finding("within-sets", f"whitened, or normalised, within {title}: {text}", share)
        return


def _range(values: Numbers) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def _fitted(seen: Evidence, codes: Codes) -> tuple[Numbers, Numbers, Numbers] | None:
    """Return the prediction of an affine relation in each set, and its constants.

    None if a set has too few distinct numbers.
    """
    predicted, constants = seen.computed.copy(), []
    use = seen.chosen & np.isfinite(seen.recorded) & np.isfinite(seen.computed)
    for code in np.unique(codes[use]):
        own = use & (codes == code)
        x, y = seen.computed[own], seen.recorded[own]
        if seen.distinct(own) < _SPARE or np.ptp(x) == 0:
            return None
        scale, offset = _line(x, y)
        apart = np.abs(y - scale * x - offset)
        near = apart <= np.quantile(apart, _TRIMMED)
        if np.ptp(x[near]) > 0:
            scale, offset = _line(x[near], y[near])
        predicted[own] = scale * x + offset
        constants.append((scale, offset))
    if not constants:
        return None
    scales, offsets = np.array(constants).T
    return predicted, scales, offsets


def _line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """Return scale and offset of least squares."""
    middle = x - x.mean()
    scale = float(middle @ y) / float(middle @ middle)
    return scale, float(y.mean()) - scale * float(x.mean())


def _sets(seen: Evidence) -> Iterator[tuple[str, Codes]]:
    """Yield sets of responses: steps, values of columns in each step, shares of it."""
    rollouts = seen.replayer.rollouts
    steps = rollouts.codes("batch")
    yield "each step", steps
    for name, codes in rollouts.sets.items():
        yield f"each `{name}`", _combined(steps, codes)
    sizes = np.bincount(steps)
    within = positions_in(steps)
    for count in _SHARES:
        if not (sizes % count).any() and (sizes >= _SPARE * count).all():
            yield f"every {_ordinal(count)} response of a step", _combined(steps, within % count)
            blocks = within // (sizes[steps] // count)
            yield f"{count} blocks of consecutive responses of a step", _combined(steps, blocks)


def _ordinal(count: int) -> str:
    return {2: "second", 32: "32nd"}.get(count, f"{count}th")


def _combined(steps: Codes, codes: Codes) -> Codes:
    """Return the number of each combination."""
    both = steps * (int(codes.max(initial=0)) + 1) + codes
    return np.asarray(np.unique(both, return_inverse=True)[1])
