"""Numbers of a recipe solved from recorded ones: Gauss-Newton steps of linear least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.search.candidates import value_of
from rlpost.analysis.replay.search.fields import FIELDS, KL
from rlpost.analysis.replay.search.trials import saturated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.differences import Difference
    from rlpost.analysis.replay.search.trials import Trial, Trials

    Numbers = NDArray[np.float64]

Changes = dict[str, Any]
_STEPS = 4
_DIGITS = (1, 2, 3, 4)
_NEAR_ONE = 2e-3
"""Discounts so near to 1 are probably 1."""
_GAIN = 1e-4
"""Scores that differ by less are as near."""
_MOST = 200_000
"""Elements of a least-squares step."""


class Parameter(NamedTuple):
    """A number of a recipe: a field, or one number of a field that has several."""

    field: str
    part: str | int | None = None

    def value(self, trial: Trial) -> float:
        """Return the number that a trial has."""
        recipe = trial.resolved.recipe
        if self.field == "component_weights":
            return [*recipe.component_weight.values()][int(self.part or 0)]
        value = value_of(recipe, self.field)
        return float(value if self.part is None else value[self.part])

    def put(self, value: float, trial: Trial, changes: Changes) -> None:
        """Set the number in changes of a trial."""
        recipe = trial.resolved.recipe
        if self.part is None:
            changes[self.field] = value
        elif self.field == "teachers":
            changes[self.field] = {**changes.get(self.field, recipe.teachers), self.part: value}
        else:
            own = list(changes.get(self.field) or getattr(recipe, self.field) or ())
            own = own or [*recipe.component_weight.values()]
            whole = self.field == "overlong_penalty" and self.part == 1  # the buffer, in tokens
            own[int(self.part)] = min(max(round(value), 1), own[0] - 1) if whole else value
            changes[self.field] = tuple(own)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and largest value."""
        bounds = FIELDS[self.field].bounds
        assert bounds is not None
        return bounds

    @property
    def discount(self) -> bool:
        """Whether it is between 0 and 1."""
        return self.bounds == (0.0, 1.0)

    def probe(self, value: float) -> float:
        """Return the step with which its slope is measured."""
        if self.discount:
            return -0.01 if value > 0.5 else 0.01  # noqa: PLR2004
        return FIELDS[self.field].step or (0.25 if value else 0.02)

    def bounded(self, value: float) -> float:
        """Return the nearest value within the bounds."""
        low, high = self.bounds
        return min(max(value, low), high)

    def rounded(self, value: float, digits: int) -> float:
        """Return a value with fewer digits; decimals of a discount."""
        return self.bounded(round(value, digits) if self.discount else float(f"{value:.{digits}g}"))


def parameters(trial: Trial, fields: frozenset[str]) -> list[Parameter]:
    """Return the numbers of a candidate that its stages read, and that the user did not type."""
    recipe = trial.resolved.recipe
    names = [
        name
        for name, one in FIELDS.items()
        if name in fields and one.bounds and one.solved in ("together", "alone")
    ]
    found: list[Parameter] = []
    for name in names:
        value = value_of(recipe, name)
        if name in trial.candidate.given:
            continue
        if name == "component_weights":
            count = len(recipe.reward_components or ())
            found += [Parameter(name, n) for n in range(count)] if count > 1 else []
        elif name == "teachers":
            found += [Parameter(name, key) for key in value]
        elif name == "overlong_penalty":
            found += [] if value is None else [Parameter(name, 1), Parameter(name, 2)]
        elif value is not None and not (name == "length_adaptive_alpha" and not value):
            found.append(Parameter(name))
    return found


def changed(trial: Trial, values: Mapping[Parameter, float]) -> Any:
    """Return the candidate of a trial with other numbers."""
    changes: Changes = {}
    for parameter, value in values.items():
        parameter.put(value, trial, changes)
    return trial.candidate.changed(changes)


class Step(NamedTuple):
    """A step of least squares."""

    residual: float
    """The mean size of what the linear problem leaves, of numbers with deviation 1."""
    values: dict[Parameter, float]
    changes: Changes
    """Made with the step: the KL estimator."""
    mapped: bool
    """The numbers of each batch may also be mapped by a factor and a shift."""


def steps(trial: Trial, fields: frozenset[str], trials: Trials) -> list[Step]:
    """Return the first steps to solve a candidate, with and without an affine map of each batch.

    Without a KL penalty there is one for every KL estimator.
    """
    own = parameters(trial, fields)
    if not own or trial.reproduces:
        return []
    kinds: list[Changes] = [{}]
    absent = Parameter("kl_coef") in own and trial.resolved.recipe.kl_coef == 0
    if absent and "kl_estimator" not in trial.candidate.given:
        kinds = [{"kl_estimator": kind} for kind in KL]
    alone: list[tuple[list[Parameter], Changes]] = [
        ([one], {}) for one in own if FIELDS[one.field].solved == "alone"
    ]
    others = [one for one in own if FIELDS[one.field].solved == "together"]
    sets = [(others, kind) for kind in kinds if others] + alone
    found = [
        _step(trial, some, trials, kind, mapped=mapped)
        for some, kind in sets
        for mapped in (False, True)
    ]
    return [one for one in found if one is not None]


def solved(trial: Trial, first: Step, trials: Trials) -> Trial:
    """Return the best of a few Gauss-Newton steps from a candidate, with few digits."""
    best, current, step = trial, trial, first
    for number in range(_STEPS):
        if number:
            following = _step(current, [*first.values], trials, {}, mapped=first.mapped)
            if following is None:
                break
            step = following
        one = trials.of(changed(current, step.values).changed(step.changes))
        if one is None:
            break
        better = one.nearer_than(best, _GAIN)
        more = one.equal_stages > trial.equal_stages
        current, best = one, one if better else best
        if more or not better:
            break
    return best if best is trial else _rounded(best, [*first.values], trials)


def _rounded(trial: Trial, names: Sequence[Parameter], trials: Trials) -> Trial:
    """Return a candidate whose numbers have fewer digits, if it is as near or nearer."""
    best = trial
    weights = [one for one in names if one.field == "component_weights"]
    if weights and (largest := weights[0].value(best)):  # only their ratios may count
        best = _nearer(best, {one: one.value(best) / largest for one in weights}, trials)
    for digits in reversed(_DIGITS):
        best = _nearer(best, {n: n.rounded(n.value(best), digits) for n in names}, trials)
    for name in names:  # some may be plainer than others
        for digits in _DIGITS:
            value = name.rounded(name.value(best), digits)
            if (one := _nearer(best, {name: value}, trials)) is not best:
                best = one
                break
    return _discounts_of_one(best, names, trials)


def _nearer(best: Trial, values: Mapping[Parameter, float], trials: Trials) -> Trial:
    """Return a candidate with other numbers if it is as near as before, else the candidate."""
    one = trials.of(changed(best, values))
    return one if one is not None and not best.nearer_than(one, _GAIN) else best


def _discounts_of_one(best: Trial, names: Sequence[Parameter], trials: Trials) -> Trial:
    """Return a candidate with discounts near 1 set to 1, and the other numbers solved again."""
    for name in names:
        if not name.discount or not 0 < 1 - name.value(best) < _NEAR_ONE:
            continue
        one = trials.of(changed(best, {name: 1.0}))
        others = [other for other in names if other != name]
        step = one and others and _step(one, others, trials, {}, mapped=True)
        if one and step:
            plain = {other: other.rounded(value, 4) for other, value in step.values.items()}
            tried = [one, *(trials.of(changed(one, each)) for each in (step.values, plain))]
            one = min((each for each in tried if each), key=lambda each: each.place)
        if one and not best.nearer_than(one, _GAIN):
            best = one
    return best


def _step(
    trial: Trial, names: Sequence[Parameter], trials: Trials, changes: Changes, *, mapped: bool
) -> Step | None:
    """Return the least-squares step in some numbers of a candidate; None if there is none.

    Args:
        trial: the candidate.
        names: the numbers.
        trials: computes candidates.
        changes: of the KL estimator, which counts once β is not 0.
        mapped: allow an affine map of the numbers of each batch.
    """
    values = {name: name.value(trial) for name in names}
    sizes = {name: name.probe(value) for name, value in values.items()}
    probes = [
        trials.of(
            changed(trial, {name: value + sizes[name]}).changed(
                changes if name.field == "kl_coef" else {}
            )
        )
        for name, value in values.items()
    ]
    found = [one for one in probes if one is not None]
    if len(found) < len(probes):
        return None
    stage = trial.first_differing
    differences = [
        one.difference for each in (trial, *found) for one in each.replayed if one.name == stage
    ]
    if len(differences) <= len(found):
        return None
    problem = _problem(differences, [*sizes.values()], trials, mapped=mapped)
    if problem is None or not len(problem[0]) or not np.isfinite(np.column_stack(problem)).all():
        return None
    matrix, target = problem
    own = np.linalg.lstsq(matrix, target, rcond=1e-8)[0]
    residual = float(np.abs(target - matrix @ own).mean())
    stepped = {
        name: name.bounded(value + float(by))
        for (name, value), by in zip(values.items(), own, strict=True)
    }
    return Step(residual, stepped, changes, mapped)


def _problem(
    differences: Sequence[Difference], sizes: Sequence[float], trials: Trials, *, mapped: bool
) -> tuple[Numbers, Numbers] | None:
    """Return the matrix [n, numbers] and the right side [n] of a stage."""
    first = differences[0]
    rows = np.flatnonzero(first.chosen & np.isfinite(first.computed))
    inside = ~saturated(first.recorded[rows])
    inside &= np.arange(len(inside)) % max(1, len(inside) // _MOST) == 0
    rows = rows[inside]
    if not len(rows):
        return None
    ours, theirs = first.computed[rows], first.recorded[rows]
    scale = theirs.std() + 1e-12
    columns = [(d.computed[rows] - ours) / h for d, h in zip(differences[1:], sizes, strict=True)]
    part = np.stack(columns, axis=1)
    if not mapped:
        return part / scale, (theirs - ours) / scale
    codes = trials.batches_of(first)[np.searchsorted(np.flatnonzero(first.chosen), rows)]
    straight = _without_map(part, ours, theirs, codes)
    return None if straight is None else (straight[0] / scale, straight[1] / scale)


def _without_map(
    part: Numbers, ours: Numbers, theirs: Numbers, codes: NDArray[np.int64]
) -> tuple[Numbers, Numbers] | None:
    """Return a linear problem without the affine map of each batch.

    theirs = a·ours + part·(a·step) + c: solved for a in each batch, then divided by it.
    """
    rows, rights = [], []
    for code in np.unique(codes):
        own = codes == code
        matrix = np.column_stack([ours[own], part[own], np.ones(own.sum())])
        if len(matrix) <= matrix.shape[1]:
            continue
        slope = np.linalg.lstsq(matrix, theirs[own], rcond=1e-8)[0][0]
        if not np.isfinite(slope) or abs(slope) < 1e-6:  # noqa: PLR2004
            continue
        right = theirs[own] / slope - ours[own]
        rows.append(part[own] - part[own].mean(axis=0))
        rights.append(right - right.mean())
    return (np.concatenate(rows), np.concatenate(rights)) if rows else None
