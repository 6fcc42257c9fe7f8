"""Recipes that give the same numbers: on every preset, the fewest changes that do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.candidates import DETAIL, Candidate, presets_of, value_of
from rlpost.analysis.replay.search.ties import NEVER, matters
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import DEFAULT, PRESETS, variants
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.replay.search.trials import Trial, Trials

Values = dict[str, Any]
_MORE = 3
"""Changes that a preset may need beyond those of a recipe, or it is left out."""
_CARRIED = ("gamma", "lam", "kl_coef", "kl_estimator", "whiten_advantages")
"""Options for which presets have values of their own, set with a recipe that has changes."""
_SCOPES = ("norm_mean", "norm_std", "whiten_advantages")
"""Options that estimators set."""
_DEFINING = ("estimator", "numerics", *NEVER)


def carried(trial: Trial) -> Values:
    """Return the numbers of a trial for which presets have values of their own."""
    recipe, names = trial.candidate.recipe, _CARRIED[:-1]
    return {n: value_of(recipe, n) for n in names if matters(trial.resolved, n, trial.focus)}


def pruned(trial: Trial, trials: Trials) -> Trial:
    """Return a trial without the changes that the recorded numbers do not need."""
    for name in sorted(trial.candidate.changes, key=lambda n: not n.startswith(DETAIL)):
        one = trials.of(trial.candidate.without([name]))
        if one is not None and _same(one, trial):
            trial = one
    return trial


def alike(
    best: Trial, starts: Sequence[Trial], given: Mapping[str, Any], trials: Trials
) -> list[Trial]:
    """Return a trial that reproduces, and those of other presets and estimators that do, too.

    Each preset gets as few options of the trial as give its numbers, and keeps its own values of
    the others; so do the estimators that compute the same with all its options.
    """
    values, changes = _values(best), best.candidate.changes
    likely = {*changes, *(_CARRIED if changes else ())}
    found = [best, *(one for one in map(trials.again, starts) if one.reproduces)]
    own = best.resolved.recipe.estimator
    same = dict.fromkeys({one.resolved.recipe.estimator for one in found}, values)
    same |= _others(best, values, trials)
    for name in sorted(same, key=lambda name: (name != own, name)):
        for target in presets_of(name, given):
            if name != own and not _further(target, best, found):
                continue
            if not _known(target, best, found):
                one = _fewest(target, best, same[name], likely, trials)
                found += [one] if one is not None else []
        likely |= {*_SCOPES}
    return smallest(found)


def smallest(found: Sequence[Trial]) -> list[Trial]:
    """Return the plainest trial of each framework and estimator, as exact as its others.

    That of each framework comes first.
    """
    kept: dict[tuple[str, str], Trial] = {}
    for one in sorted(found, key=_plainness):
        other = kept.setdefault(_framework(one.candidate), one)
        if not other.about_as_exact(one):
            kept[_framework(one.candidate)] = one
    first: dict[str, tuple[str, str]] = {}
    for key in kept:
        first.setdefault(key[0], key)
    return [kept[key] for key in dict.fromkeys((*first.values(), *kept))]


def _plainness(one: Trial) -> tuple[Any, ...]:
    return one.candidate.order


def _framework(one: Candidate) -> tuple[str, str]:
    """Return the framework and the estimator, as rlpost calls it."""
    return one.framework, one.recipe.estimator


@cache
def _named() -> set[str]:
    """Return the estimators that some preset names."""
    return {name for preset in PRESETS for name in variants(preset)}


def _own(target: Candidate) -> bool:
    """Return whether a framework can have an estimator: it names it, or no framework does."""
    name = target.framework
    listed = variants(name) or NAMES
    return name != DEFAULT and (target.estimator in listed or target.estimator not in _named())


def _further(target: Candidate, best: Trial, found: Sequence[Trial]) -> bool:
    """Return whether another estimator is tried: not beside a recipe without changes."""
    name, *_ = _framework(target)
    has = any(_framework(one.candidate)[0] == name for one in found)
    return _own(target) and not (has and not best.candidate.changes)


def _known(target: Candidate, best: Trial, found: Sequence[Trial]) -> bool:
    """Return whether the current code of a framework gives the numbers of earlier code."""
    own, most = _framework(target), len(best.candidate.changes)
    return "@" in target.preset and any(
        _framework(one.candidate) == own and len(one.candidate.changes) <= most for one in found
    )


def _same(one: Trial | None, other: Trial) -> bool:
    """Return whether a trial reproduces, about as exactly as another."""
    return one is not None and one.reproduces and one.about_as_exact(other)


def _values(best: Trial) -> Values:
    """Return the options of a trial by name, as its input resolves them."""
    recipe, resolved = best.candidate.recipe, best.resolved
    names = [name for name in Recipe.model_fields if name not in _DEFINING]
    names += [DETAIL + name for name in Numerics.model_fields]
    names = [name for name in names if matters(resolved, name, best.focus)]
    values = {name: value_of(recipe, name) for name in (*best.candidate.changes, *names)}
    scopes = dict(zip(("norm_mean", "norm_std"), resolved.norm, strict=True))
    return values | scopes | {"whiten_advantages": resolved.whiten}


def _others(best: Trial, values: Values, trials: Trials) -> dict[str, Values]:
    """Return the other estimators that give the numbers of a trial, each with its options.

    Some estimators normalise rewards themselves, and are tried without scopes, too.
    """
    found: dict[str, Values] = {}
    outcome = f"{DETAIL}outcome"
    for name in NAMES:
        own = values if ESTIMATORS[name].outcome else {**values, outcome: "return"}
        plain = Candidate(DEFAULT, name, {}, best.candidate.given)
        for left in ((), _SCOPES[:2]):
            some = {n: value for n, value in own.items() if n not in left}
            if name not in found and _same(trials.of(plain.changed(some)), best):
                found[name] = some
    return {name: found[name] for name in found if name != best.resolved.recipe.estimator}


def _fewest(
    target: Candidate, best: Trial, values: Values, likely: set[str], trials: Trials
) -> Trial | None:
    """Return a candidate with the fewest options of a trial that give its numbers.

    Bisection finds the options without which the numbers differ, one after another.

    Args:
        target: a preset and an estimator.
        best: the trial.
        values: its options.
        likely: names of options to begin with; those found are added.
        trials: computes candidates.
    """
    every = target.changed(values).changes
    kept = {name: value for name, value in every.items() if name in likely}
    rest = [name for name in every if name not in likely]
    most, needed = len(best.candidate.changes) + _MORE, 0

    if "@" in target.preset or target.recipe.estimator != best.resolved.recipe.estimator:
        rest = []

    def tried(names: Sequence[str]) -> Trial | None:
        one = trials.of(target.changed(kept | {name: every[name] for name in names}))
        return one if _same(one, best) else None

    while (one := tried(())) is None:
        if not rest or needed == _MORE or tried(rest) is None:
            return None
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if tried(rest[:middle]) is None else (low, middle)
        name = rest[high - 1]
        kept[name] = every[name]
        likely.add(name)
        needed += 1
        rest = rest[: high - 1]
    one = pruned(one, trials)
    return one if len(one.candidate.changes) <= most else None
