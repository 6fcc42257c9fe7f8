"""Single changes of a recipe, or of the inputs, that reproduce the recorded numbers of a stage."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.findings.base import FINDINGS, PossibleCause, check
from rlpost.analysis.replay.findings.changes import Change, single_changes, solvable
from rlpost.analysis.replay.findings.evidence import numbers_of
from rlpost.analysis.replay.findings.scans import scan_of
from rlpost.analysis.replay.findings.sets import smallest_deviation
from rlpost.analysis.replay.findings.tested import Causes
from rlpost.analysis.replay.search.candidates import DETAIL, value_of
from rlpost.analysis.replay.search.fields import FIELDS
from rlpost.analysis.replay.search.sample_facts import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.base import ReplayFinding
    from rlpost.analysis.replay.findings.evidence import Evidence
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]

_FEW = 2
_ROUNDS = 6
_NEARER = 0.9
"""Each round must leave less than this share of the differences."""
_DISCOUNTS = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.0)
_SIZES = (1.0, 0.5, 2.0, 0.1, 0.01, 1e-3, 1e-6, 0.0)
_NEAR = 1e-5
"""Relative step at which a number is solved."""


def causes(seen: Evidence) -> list[ReplayFinding]:
    """Return the single changes that reproduce the recorded numbers of a stage, best first.

    Args:
        seen: the numbers of the stage.
    """
    if int(seen.wrong.sum()) < _FEW:
        return []
    found = Causes(seen)
    scan = scan_of(seen)
    values = scan.options(seen.recipe, seen.first.name) if scan else {}
    if values:  # exactly these, so that nothing else differs in the scan
        if all(low <= values[name] <= high for name, (low, high) in _bounds(values)):
            _plainest(found, values)
        return found.ranked()
    known = scan.known if scan else set()
    for one in FINDINGS.of("first change"):
        found.test_all(one)
    FINDINGS["option"].run(found, known)
    for one in FINDINGS.of("change"):
        if not found.complete:
            found.test_all(one)
    if not found.complete:
        _solved(found, known)
    return found.ranked()


def _bounds(names: Iterable[str]) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the bounds of the fields that have some."""
    yield from ((name, bounds) for name in names if (bounds := FIELDS[name].bounds))


@check("option")
def option(found: Causes, known: Collection[str]) -> None:
    """The recorded numbers are those of the recipe with another value of an option.

    The trainer has another setting. Add the option to the recipe if the trainer is right, else
    change the trainer.
    """
    seen = found.seen
    for change in sorted(single_changes(seen), key=_plainness):
        tested = {name for name, _ in change.fields} <= {*known}
        if not tested and (len(change.fields) == 1 or not found.found):
            _test(found, change)


def _plainness(change: Change) -> tuple[int, bool]:
    """Return the number of fields, and whether they are numerics: the least is tested first."""
    return len(change.fields), change.fields[0][0].startswith(DETAIL)


def _test(found: Causes, change: Change, constants: int = 0) -> bool:
    recipe = change.recipe(found.seen.recipe)
    if recipe is None:
        return False
    text, options = option_text(change, found.seen.recipe), tuple(change.options)
    cause = PossibleCause(
        text, recipe=recipe, options=options, constants=constants, name=change.finding
    )
    return found.test(FINDINGS["option"], cause)


def option_text(change: Change, recipe: Recipe) -> str:
    """Return which options reproduce the recorded numbers, and in place of which."""
    options, before = (" ".join(some) for some in (change.options, change.before(recipe)))
    if not options:
        return f"reproduced without `{before}`"
    return f"reproduced by `{options}`" + (f", in place of `{before}`" if before else "")


def _solved(found: Causes, known: Collection[str]) -> None:
    """Solve for the value of an option that is not known."""
    seen = found.seen
    if not seen.enough(seen.wrong):
        return
    for name in solvable(seen):
        if name in known:
            continue
        floor = FIELDS[name].solved == "floor"
        value = smallest_deviation(seen) if floor else _solve(seen, name)
        if value is not None:
            _plainest(found, {name: value})
        if found.complete:
            return


def _plainest(found: Causes, values: Mapping[str, float]) -> None:
    """Add the options with the fewest digits that reproduce the recorded numbers."""
    for digits in (1, 2, 3, 4, 6):
        rounded = {name: plain(value, digits) for name, value in values.items()}
        if _test(found, Change((*rounded.items(),)), constants=len(values)):
            return


def _solve(seen: Evidence, name: str) -> float | None:
    """Return the value of an option by Gauss-Newton from the best of some starts."""
    (_, (low, high)), *_ = _bounds([name])

    @cache
    def numbers(value: float) -> Numbers | None:
        recipe = Change(((name, value),)).recipe(seen.recipe)
        values = None if recipe is None else numbers_of(seen.replayer, recipe, seen.first.name)
        if values is None or values.shape != seen.recorded.shape:
            return None
        return values[seen.chosen]

    recorded = seen.recorded[seen.chosen]
    starts = _starts(seen, name)
    two = [numbers(x) for x in (starts[0], starts[-1])]
    if two[0] is None or two[1] is None or np.array_equal(two[0], two[1]):
        return None  # the option does not matter
    tried = [(x, own) for x in starts if (own := numbers(x)) is not None]
    x, own = min(tried, key=lambda one: float(np.nanmean(np.abs(one[1] - recorded))))
    for _ in range(_ROUNDS):
        before = float(np.nanmean(np.abs(own - recorded)))
        step = max(abs(x) * 0.01, 1e-3)
        step = -step if x + step > high else step
        other = numbers(x + step)
        if other is None:
            return None
        moved = _gauss_newton(recorded, own, (other - own) / step)
        if moved is None:
            return None
        x = float(np.clip(x + moved, low, high))
        new = numbers(x)
        if new is None:
            return None
        own = new
        if abs(moved) < _NEAR * max(abs(x), 1e-3):
            break
        if float(np.nanmean(np.abs(own - recorded))) > _NEARER * before:
            return None  # another value does not explain it
    return x


def _gauss_newton(recorded: Numbers, own: Numbers, slope: Numbers) -> float | None:
    """Return the step of least squares, without the worst tenth of the elements."""
    apart = recorded - own
    use = np.isfinite(apart) & np.isfinite(slope)
    if not use.any() or not np.any(slope[use]):
        return None
    size = np.abs(apart[use])
    near = size <= np.quantile(size, 0.9)
    top, bottom = apart[use][near], slope[use][near]
    square = float(bottom @ bottom)
    return None if square == 0 else float(top @ bottom) / square


def _starts(seen: Evidence, name: str) -> list[float]:
    """Return values to begin with: that of the recipe, and usual ones within the bounds."""
    own: Any = value_of(seen.recipe, name)
    (_, (low, high)), *_ = _bounds([name])
    usual = _DISCOUNTS if (low, high) == (0.0, 1.0) else _SIZES
    starts = [one for one in usual if low <= one <= high]
    return list(dict.fromkeys([*([] if own is None else [float(own)]), *starts]))
