"""Further terms of a loss, a KL loss and an entropy bonus: which coefficients reproduce a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.losses import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.fit import Target
    from rlpost.analysis.replay.metrics.kl import KlLoss

    Numbers = NDArray[np.float64]

_DIGITS = 5  # of a coefficient
_WIDE = 0.1  # share of a coefficient that its range may have
_MOST = 0.5  # share of the steps; a coefficient reproduces more of them


class Terms(NamedTuple):
    """Terms that are added to a loss."""

    parts: tuple[tuple[float, Column], ...]
    """Coefficients and columns."""
    low: float
    """The lowest coefficient of the first column that reproduces as much."""
    high: float
    share: float = 1.0
    """Of the steps that are reproduced."""

    @property
    def open(self) -> tuple[float, float] | None:
        """The range of the first coefficient, if it is wide; None if its digits are certain."""
        wide = self.high - self.low > _WIDE * max(abs(self.low), abs(self.high))
        return (self.low, self.high) if wide else None


def term_sets(known: KlLoss, index: Mapping[Column, int]) -> Iterator[tuple[Column, ...]]:
    """Yield the columns of tokens that a trainer may add to the policy loss."""
    kl, entropy = known.columns(index), Column("sum", "entropy")
    yield from ((one,) for one in kl)
    if entropy in index:
        yield (entropy,)
        yield from ((one, entropy) for one in kl)


def fitted(
    target: Target,
    computed: Numbers,
    columns: Mapping[Column, Numbers],
    known: KlLoss,
    tolerance: float,
    magnitude: Numbers,
    *,
    partly: bool = False,
) -> Terms | None:
    """Return the coefficients of terms that reproduce a target; None if nothing does.

    Args:
        target: a loss.
        computed: [s] without the terms.
        columns: [s] each.
        known: the coefficient of a KL loss, if it is set.
        tolerance: relative tolerance.
        magnitude: [s].
        partly: more than half of the steps are enough, of a target that is not rounded.
    """
    present = ~np.isnan(target.recorded)
    names, values = [*columns], [*columns.values()]
    set_: tuple[tuple[float, Column], ...] = ()
    if known.coef is not None and names[0].name != "entropy":
        computed = computed + known.coef * values[0]
        set_, names, values = ((known.coef, names[0]),), names[1:], values[1:]
        if not names:
            share = target.share(computed, tolerance, magnitude)
            enough = share == 1 or (partly and share > _MOST)
            return Terms(set_, known.coef, known.coef, share) if enough else None
    if present.sum() <= len(names) or not any(np.any(one[present]) for one in values):
        return None
    if len(names) > 1:
        scales = target.scales(computed, np.stack(values), tolerance, magnitude)
        if scales is None or scales[0] < 0:
            return None
        return Terms(tuple(zip(scales, names, strict=True)), scales[0], scales[0])
    of_step = _intervals(target, computed, values[0], tolerance, magnitude)[present]
    found = _partly(of_step) if partly else _common(of_step)
    if found is None or (found[0] < 0 and names[0].name != "entropy"):
        return None
    own = Terms((*set_, (found[0], names[0])), *found[1:])
    return own._replace(low=set_[0][0], high=set_[0][0]) if set_ else own


def _intervals(
    target: Target, computed: Numbers, term: Numbers, tolerance: float, magnitude: Numbers
) -> Numbers:
    """Return the lowest and the highest coefficient that reproduces each step, [s, 2]."""
    rest, allowed = target.recorded - computed, target.allowed(tolerance, magnitude)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = np.stack([(rest - allowed) / term, (rest + allowed) / term], axis=-1)
    whole, none = [-np.inf, np.inf], [np.inf, -np.inf]
    fits = (np.abs(rest) <= allowed)[:, None]
    return np.where(term[:, None] == 0, np.where(fits, whole, none), np.sort(both, axis=-1))


def _common(of_step: Numbers) -> tuple[float, float, float, float] | None:
    """Return the shortest coefficient that reproduces all steps, its range, and the share."""
    low, high = float(of_step[:, 0].max()), float(of_step[:, 1].min())
    if not (low <= high and np.isfinite([low, high]).all()):
        return None
    middle = (low + high) / 2
    short = (float(f"{middle:.{digits}g}") for digits in range(1, _DIGITS))
    found = next((one for one in short if low <= one <= high), None)
    return None if found is None else (found, low, high, 1.0)


def _partly(of_step: Numbers) -> tuple[float, float, float, float] | None:
    """Return the coefficient that reproduces the most steps, if it is more than half of them."""
    middles = of_step.mean(axis=-1)
    inside = (of_step[:, :1] <= middles) & (middles <= of_step[:, 1:])
    best = int(inside.sum(axis=0).argmax())
    share = float(inside[:, best].mean())
    found = (
        _common(of_step[inside[:, best]]) if share > _MOST and inside[:, best].sum() > 1 else None
    )
    return None if found is None else (*found[:3], share)


def in_order(
    sets: Sequence[tuple[Column, ...]], first: str | None
) -> list[list[tuple[Column, ...]]]:
    """Return sets of terms in groups: those with the estimator of a logged KL loss come first."""
    own = [one for one in sets if one[0].name == first]
    return [own, [one for one in sets if one not in own]]
