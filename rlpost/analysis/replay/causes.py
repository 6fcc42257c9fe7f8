"""Single changes of a recipe, or of the inputs, that reproduce the recorded numbers of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay import places
from rlpost.analysis.replay.changes import (
    SOLVED,
    Change,
    bounds,
    current,
    scope_changes,
    single_changes,
    solvable,
    typed,
    valid,
)
from rlpost.analysis.replay.inputs import input_changes
from rlpost.analysis.replay.tested import WHOLE, Causes, numbers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.evidence import Evidence, Json

    Numbers = NDArray[np.float64]

_FEW = 2
_ROUNDS = 6


def causes(seen: Evidence) -> list[Json]:
    """Return the single changes that reproduce the recorded numbers of a stage, best first.

    Args:
        seen: the numbers of the stage.
    """
    if int(seen.wrong.sum()) < _FEW:
        return []
    found = Causes(seen)
    places.groups(found)
    _options(found)
    _inputs(found)
    places.rewards(found)
    places.kl_sign(found)
    places.padding(found)
    if not any(one.json["explains"] >= WHOLE for one in found.found.values()):
        _solved(found)
    return found.ranked()


def _options(found: Causes) -> None:
    seen = found.seen
    for change in single_changes(seen.recipe, seen.resolved):
        _test(found, change)
    for change in bounds(seen.first.name, seen.recorded[seen.chosen]):
        _test(found, change, constants=1)
    if not found.found:
        for change in scope_changes(seen.resolved):
            _test(found, change)


def _test(found: Causes, change: Change, constants: int = 0) -> bool:
    seen = found.seen
    recipe = valid(change, seen.recipe)
    if recipe is None:
        return False
    return found.test(
        change.finding,
        option_text(change, seen),
        *change.options,
        recipe=recipe,
        constants=constants,
    )


def option_text(change: Change, seen: Evidence) -> str:
    """Return the sentence of a change of options."""
    options = " ".join(f"`{option}`" for option in change.options)
    if not change.options:
        before = " ".join(
            f"`{typed(name, current(seen.recipe, name))}`" for name, _ in change.fields
        )
        return f"the recorded numbers are reproduced without {before}"
    own = [current(seen.recipe, name) for name, _ in change.fields]
    if len(own) == 1 and own[0] is not None:
        before = typed(change.fields[0][0], own[0])
        return f"{options} reproduces the recorded numbers, in place of `{before}`"
    return f"{options} reproduces the recorded numbers"


def _inputs(found: Causes) -> None:
    seen = found.seen
    for change in input_changes(seen.replayer, seen.resolved):
        text = f"the recorded numbers are reproduced {change.text}"
        found.test(change.finding, text, replayer=seen.replayer.reading(change.table))


def _solved(found: Causes) -> None:
    """Solve for the value of an option."""
    seen = found.seen
    if not seen.enough(seen.wrong):
        return
    for name in solvable(seen.resolved):
        value = _solve(seen, name)
        if value is None:
            continue
        for digits in (1, 2, 3, 4, 6):
            rounded = float(f"{value:.{digits}g}")
            if _test(found, Change(((name, rounded),)), constants=1):
                break


def _solve(seen: Evidence, name: str) -> float | None:
    """Return the value of an option by Gauss-Newton from the best of some starts."""
    low, high = SOLVED[name]

    def numbers(value: float) -> Numbers | None:
        recipe = valid(Change(((name, value),)), seen.recipe)
        values = None if recipe is None else numbers_of(seen.replayer, recipe, seen.first.name)
        if values is None or values.shape != seen.recorded.shape:
            return None
        return values[seen.chosen]

    recorded = seen.recorded[seen.chosen]
    starts = _starts(seen, name)
    tried = [(x, own) for x in starts if (own := numbers(x)) is not None]
    if not tried:
        return None
    x, own = min(tried, key=lambda one: float(np.nanmean(np.abs(one[1] - recorded))))
    if all(np.array_equal(own, other) for _, other in tried):
        return None  # the option does not matter
    for _ in range(_ROUNDS):
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
        if abs(moved) < 1e-7 * max(abs(x), 1e-3):
            break
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
    own: Any = current(seen.recipe, name)
    if name in ("gamma", "step_gamma"):
        starts = [1.0, 0.999, 0.99, 0.95, 0.9, 0.5]
    elif name.startswith("la"):
        starts = [1.0, 0.99, 0.95, 0.9, 0.5, 0.0]
    elif name == "kl_coef":
        starts = [0.0, 1e-3, 0.01, 0.1, 1.0]
    elif name.startswith("numerics."):
        starts = [1e-6, 1e-3, 0.01, 0.1, 1.0]
    else:
        starts = [1.0, 0.5, 2.0]
    return list(dict.fromkeys([*([] if own is None else [float(own)]), *starts]))
