"""Numbers of a recipe solved from recorded ones: β, γ, λ and weights, by Gauss-Newton steps.

The recorded numbers are nearly linear in such a number p near its value, A(p + h) ≈ A(p) + h·A'(p),
and linear in β. So a few least-squares steps with numerical derivatives find several at once; with
an unknown affine map of each batch beside them, they are found below whitening too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.search.moves import KL, students
from rlpost.analysis.replay.search.trials import saturated
from rlpost.recipe.estimators import READERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.differences import Difference
    from rlpost.analysis.replay.search.moves import Facts
    from rlpost.analysis.replay.search.trials import Trial, Trials

    Numbers = NDArray[np.float64]

Changes = dict[str, Any]
_STEPS = 4
_UNITS = ("gamma", "lam", "lambda_policy", "lambda_value", "step_gamma", "ema_decay")
_PROBES = {"overlong_penalty.1": 2.0, "kl_coef": 0.05, "f_norm": 0.5, "length_adaptive_alpha": 0.02}
_DIGITS = (1, 2, 3, 4)
_AT_BOUND = 2e-3
"""Discounts so near to 1 are probably 1."""
_FURTHER = 3
"""Linear problems that are solved further."""
_REWARDS = (
    "overlong_penalty",
    "truncation_penalty",
    "component_weights",
    "step_gamma",
    "episode_weight",
    "step_weight",
)
_ONLY: dict[str, tuple[str, ...]] = {
    "response_level_rewards": _REWARDS,
    "token_level_rewards": (*_REWARDS, "kl_coef"),
    **dict.fromkeys(("sample_mask", "final_response_mask", "kl", "sample_weight", "is_weight"), ()),
}
"""By stage: the numbers on which it depends, if these are not all."""
_RETURNED = ("gamma", "lam", "kl_coef", "length_adaptive_alpha", "f_norm")
_EARLIER = {
    "response_level_rewards": _REWARDS,
    "token_level_rewards": ("kl_coef",),
    "raw_advantages": (*_RETURNED, "teachers"),
    "returns": _RETURNED,
}
"""By stage: numbers that stay once it is equal."""
_MAPPED = ("advantages", "returns")
_MOST = 200_000
"""Elements of a least-squares step."""


def solvable(trial: Trial, facts: Facts) -> list[str]:
    """Return the numbers of a candidate that change its results, and that the user did not type."""
    resolved, recipe = trial.resolved, trial.resolved.recipe
    names = [n for n in ("gamma", "lam", "step_gamma", "ema_decay") if _reads(recipe.estimator, n)]
    if recipe.length_adaptive_alpha > 0 and "lam" in names:
        names.append("length_adaptive_alpha")
    if recipe.estimator == "gigpo":
        names += ["episode_weight", "step_weight"]
    if recipe.estimator == "gpg":
        names.append("f_norm")
    if recipe.truncation_penalty is not None:
        names.append("truncation_penalty")
    if recipe.overlong_penalty is not None:
        names += ["overlong_penalty.1", "overlong_penalty.2"]
    if resolved.kl and recipe.numerics.kl_credit != "none":
        names.append("kl_coef")
    names += [f"teachers.{name}" for name in recipe.teachers]
    if len(recipe.reward_components or ()) > 1:
        names += [f"component_weights.{n}" for n in range(len(recipe.reward_components or ()))]
    if resolved.rows_only or facts.rollouts.columns.rows_only:
        names = [n for n in names if n not in ("gamma", "lam")]
    only = _ONLY.get(trial.focus[-1])
    names = [name for name in names if only is None or name.partition(".")[0] in only]
    known = {*trial.candidate.given}
    for stage, numbers in _EARLIER.items():
        known |= {*numbers} if stage in trial.focus[:-1] else set()
    return [name for name in names if name.partition(".")[0] not in known]


def _reads(estimator: str, name: str) -> bool:
    return estimator in READERS[name]


@dataclass(frozen=True)
class Problem:
    """A linear problem: the first step in the numbers of a candidate."""

    start: Trial
    changes: Changes
    """Made with the step: the KL estimator."""
    names: list[str]
    mapped: bool
    step: Step


def problems(trial: Trial, facts: Facts, trials: Trials) -> list[Problem]:
    """Return the linear problems of a candidate, with and without an affine map of each batch.

    Without a KL penalty there is one for every KL estimator, with teachers one for every student.
    """
    names = solvable(trial, facts)
    if not names or trial.reproduces:
        return []
    recipe, kinds, starts = trial.resolved.recipe, [dict[str, Any]()], [trial]
    if recipe.teachers:
        own = (trials.of(trial.candidate.changed(one)) for one in students(facts))
        starts = [one for one in own if one is not None]
    elif "kl_coef" in names and recipe.kl_coef == 0:
        typed = trial.candidate.given.get("kl_estimator")
        kinds = [{"kl_estimator": kind} for kind in ((typed,) if typed else KL)]
    found = []
    for start, changes, mapped in product(starts, kinds, (False, True)):
        step = _step(start, names, trials, changes, mapped=mapped)
        if step is not None:
            found.append(Problem(start, changes, names, mapped, step))
    return found


def solved(trial: Trial, found: Sequence[Problem], trials: Trials) -> Trial:
    """Return the best solution of the linear problems with the smallest residuals, or a trial."""
    best = trial
    ordered = sorted(found, key=lambda one: one.step.residual)
    for mapped in (False, True):
        for one in [one for one in ordered if one.mapped == mapped][:_FURTHER]:
            last = _iterated(one, trials)
            best = min(best, last, key=lambda each: each.place)
            if best.reproduces:
                return best
    return best


def _iterated(problem: Problem, trials: Trials) -> Trial:
    """Return the best of a few Gauss-Newton steps."""
    best = current = problem.start
    names, step = problem.names, problem.step
    for number in range(_STEPS):
        last = _step(current, names, trials, {}, mapped=problem.mapped) if number else step
        if last is None:
            break
        values = [_value(current, name) + s for name, s in zip(names, last.step, strict=True)]
        found = trials.of(_with(current, names, values).changed({} if number else problem.changes))
        if found is None:
            break
        better = found.score < best.score - 1e-4
        current, best = found, min(best, found, key=_quality)
        if best.reproduces or not better:
            break
    return snapped(best, names, trials) if best is not problem.start else best


def _quality(trial: Trial) -> float:
    return trial.score


def snapped(trial: Trial, names: Sequence[str], trials: Trials) -> Trial:
    """Return a candidate with fewer digits, if it is as near or nearer."""
    best = _relative(trial, names, trials)
    for digits in reversed(_DIGITS):
        values = [_rounded(_value(best, name), digits, name) for name in names]
        found = trials.of(_with(best, names, values))
        if found is not None and _as_near(found, best):
            best = found
    for name in names:  # some may be plainer than others
        for digits in _DIGITS:
            value = _rounded(_value(best, name), digits, name)
            found = trials.of(_with(best, [name], [value]))
            if found is not None and _as_near(found, best):
                best = found
                break
    return _at_bounds(best, names, trials)


def _relative(trial: Trial, names: Sequence[str], trials: Trials) -> Trial:
    """Return a candidate whose first weight of components is 1, if only their ratios count."""
    own = [name for name in names if name.startswith("component_weights.")]
    weights = [_value(trial, name) for name in own]
    if not own or not weights[0]:
        return trial
    found = trials.of(_with(trial, own, [weight / weights[0] for weight in weights]))
    return found if found is not None and _as_near(found, trial) else trial


def _as_near(found: Trial, best: Trial) -> bool:
    """Return whether a candidate is as near as another, and reproduces what that one does."""
    return found.reproduces or (not best.reproduces and found.score <= best.score + 1e-4)


def _at_bounds(best: Trial, names: Sequence[str], trials: Trials) -> Trial:
    """Return a candidate with discounts near 1 set to 1, and the other numbers solved again."""
    for name in names:
        value = _value(best, name)
        if name not in _UNITS or not 0 < 1 - value < _AT_BOUND:
            continue
        found = trials.of(_with(best, [name], [1.0]))
        others = [other for other in names if other != name]
        step = (
            None if found is None or not others else _step(found, others, trials, {}, mapped=True)
        )
        if found is not None and step is not None:
            values = [_value(found, n) + s for n, s in zip(others, step.step, strict=True)]
            rounded = [_rounded(v, 4, n) for n, v in zip(others, values, strict=True)]
            tried = (trials.of(_with(found, others, each)) for each in (values, rounded))
            found = min([found, *(one for one in tried if one is not None)], key=_quality)
        if found is not None and _as_near(found, best):
            best = found
    return best


def _rounded(value: float, digits: int, name: str) -> float:
    if name in _UNITS:
        return round(value, digits)
    return float(f"{value:.{digits}g}")


class Step(NamedTuple):
    """A least-squares step in some numbers."""

    step: list[float]
    residual: float
    """The mean size of what the linear problem leaves, of numbers with deviation 1."""


def _step(
    trial: Trial, names: Sequence[str], trials: Trials, changes: Changes, *, mapped: bool
) -> Step | None:
    """Return the least-squares step in some numbers of a candidate; None if there is none.

    Args:
        trial: the candidate.
        names: of `solvable`.
        trials: computes candidates.
        changes: of the KL penalty, which matter once β is not 0.
        mapped: allow an affine map of the advantages of each batch.
    """
    values = [_value(trial, name) for name in names]
    sizes = [_probe(name, value) for name, value in zip(names, values, strict=True)]
    probes = [
        trials.of(_with(trial, [n], [v + h]).changed(changes if n == "kl_coef" else {}))
        for n, v, h in zip(names, values, sizes, strict=True)
    ]
    if any(one is None for one in probes):
        return None
    by_stage = [
        {one.name: one.difference for one in each.replayed} for each in (trial, *probes) if each
    ]
    parts = [
        _part([each[stage] for each in by_stage], sizes, trials, mapped=mapped and stage in _MAPPED)
        for stage, difference in by_stage[0].items()
        if stage in trial.focus and all(stage in each for each in by_stage) and not difference.equal
    ]
    found = [part for part in parts if part is not None]
    if not found:
        return None
    matrix = np.concatenate([part for part, _ in found])
    target = np.concatenate([right for _, right in found])
    if not len(matrix) or not np.isfinite(matrix).all() or not np.isfinite(target).all():
        return None
    step = np.linalg.lstsq(matrix, target, rcond=1e-8)[0]
    residual = float(np.abs(target - matrix @ step).mean())
    bounded = [_bounded(n, v, float(s)) for n, v, s in zip(names, values, step, strict=True)]
    return Step(bounded, residual)


def _part(
    differences: Sequence[Difference], sizes: Sequence[float], trials: Trials, *, mapped: bool
) -> tuple[Numbers, Numbers] | None:
    """Return the matrix [n, numbers] and the right side [n] of a stage."""
    first = differences[0]
    rows = np.flatnonzero(first.chosen & np.isfinite(first.computed))
    kept = ~saturated(first.recorded[rows])
    kept &= np.arange(len(kept)) % max(1, len(kept) // _MOST) == 0
    rows = rows[kept]
    if not len(rows):
        return None
    ours, theirs = first.computed[rows], first.recorded[rows]
    scale = theirs.std() + 1e-12
    columns = [(d.computed[rows] - ours) / h for d, h in zip(differences[1:], sizes, strict=True)]
    part = np.stack(columns, axis=1)
    if not mapped:
        return part / scale, (theirs - ours) / scale
    codes = trials.batches_of(first)[np.searchsorted(np.flatnonzero(first.chosen), rows)]
    straight = _unmapped(part, ours, theirs, codes)
    return None if straight is None else (straight[0] / scale, straight[1] / scale)


def _unmapped(
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


def _bounded(name: str, value: float, step: float) -> float:
    """Return a step that stays in the range of a number."""
    if name in _UNITS:
        return min(max(value + step, 0.0), 1.0) - value
    if name in ("kl_coef", "length_adaptive_alpha", "overlong_penalty.2"):
        return max(value + step, 0.0) - value
    if name == "f_norm":
        return max(value + step, value / 10) - value
    return step


def _probe(name: str, value: float) -> float:
    if name in _UNITS:
        return -0.01 if value > 0.5 else 0.01  # noqa: PLR2004
    return _PROBES.get(name, 0.25)


def _value(trial: Trial, name: str) -> float:
    field, _, part = name.partition(".")
    recipe = trial.resolved.recipe
    if field == "teachers":
        return recipe.teachers[part]
    if field == "component_weights":
        return [*recipe.component_weight.values()][int(part)]
    if field == "overlong_penalty" and recipe.overlong_penalty is not None:
        return float(recipe.overlong_penalty[int(part)])
    return float(getattr(recipe, field))


def _with(trial: Trial, names: Sequence[str], values: Sequence[float]) -> Any:
    """Return the candidate with other numbers."""
    recipe, changes = trial.resolved.recipe, dict[str, Any]()
    for name, value in zip(names, values, strict=True):
        field, _, part = name.partition(".")
        if field == "teachers":
            changes[field] = {**changes.get(field, recipe.teachers), part: value}
        elif field == "component_weights":
            weights = list(changes.get(field, [*recipe.component_weight.values()]))
            weights[int(part)] = value
            changes[field] = tuple(weights)
        elif field == "overlong_penalty" and recipe.overlong_penalty is not None:
            penalty = [*changes.get(field, recipe.overlong_penalty)]
            most = penalty[0] - 1
            penalty[int(part)] = value if part == "2" else min(max(round(value), 1), most)
            changes[field] = tuple(penalty)
        else:
            changes[field] = value
    return trial.candidate.changed(changes)
