"""Ties of a search: on each preset the fewest changes that compute the same; separating data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.search.candidates import (
    DETAIL,
    Candidate,
    presets_of,
    value_of,
    values_read,
)
from rlpost.analysis.replay.search.fields import FIELDS, data_of
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.presets import DEFAULT, PRESETS, variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlpost.analysis.replay.search.sample_facts import SampleFacts
    from rlpost.analysis.replay.search.trials import Trial, Trials

Json = dict[str, Any]
Values = dict[str, Any]
_MORE = 2
"""Changes that a preset may need beyond those of the best recipe, or it is left out."""
_SCOPES = ("norm_mean", "norm_std", "whiten_advantages")


def pruned(trial: Trial, trials: Trials) -> Trial:
    """Return a trial that reproduces without the changes that it does not need, numerics first."""
    for name in sorted(trial.candidate.changes, key=lambda name: not name.startswith(DETAIL)):
        one = trials.of(trial.candidate.without([name]))
        if one is not None and one.as_exact_as(trial):
            trial = one
    return trial


def equivalent(
    best: Trial, starts: Iterable[Trial], given: Mapping[str, Any], trials: Trials
) -> list[Trial]:
    """Return the plainest trial of each framework and estimator that computes the same as a trial.

    Args:
        best: a trial that reproduces.
        starts: presets and estimators without changes.
        given: fields that the user typed.
        trials: computes candidates.
    """
    found = [best, *(one for one in starts if one.reproduces)]
    values = _values(best)
    estimators = {one.resolved.recipe.estimator: values for one in found}
    if best.candidate.changes:
        estimators |= _other_estimators(best, values, trials)
    needed: dict[str, Values | None] = {}
    for name, own in estimators.items():
        same = name == best.resolved.recipe.estimator
        for target in presets_of(name, given):
            if not (same or _is_native(target)) or _is_superseded(target, best, found):
                continue
            every = target.changed(own).changes
            key = str(sorted((name, value_of(target.recipe, name)) for name in every))
            if (name + key) not in needed:  # presets with the same values need the same changes
                needed[name + key] = fewest(target, every, best, trials)
            changes = needed[name + key]
            one = None if changes is None else trials.of(target.changed(changes))
            found += [one] if one is not None and one.as_exact_as(best) else []
    return plainest(found)


def _values(best: Trial) -> Values:
    """Return the values of a trial that its stages read, besides its estimator and columns."""
    values = values_read(best.resolved)
    own = {name: value for name, value in values.items() if name not in ("estimator", "columns")}
    columns = best.candidate.changes.get("columns")
    return own | ({} if columns is None else {"columns": columns})


def plainest(found: Iterable[Trial]) -> list[Trial]:
    """Return the plainest trial of each framework and estimator, the plainest first."""
    kept: dict[tuple[str, str], Trial] = {}
    for one in sorted(found, key=lambda one: one.candidate.order):
        other = kept.setdefault(one.key, one)
        if not other.as_exact_as(one):
            kept[one.key] = one
    return [*kept.values()]


def _is_native(target: Candidate) -> bool:
    """Return whether a framework can have an estimator: it names it, or no framework does."""
    named = {name for preset in PRESETS for name in variants(preset)}
    listed = variants(target.framework) or NAMES
    native = target.estimator in listed or target.estimator not in named
    return target.framework == DEFAULT or native


def _is_superseded(target: Candidate, best: Trial, found: Sequence[Trial]) -> bool:
    """Return whether the current code of a framework computes the same as its earlier code."""
    own, most = target.recipe.estimator, len(best.candidate.changes)
    return "@" in target.preset and any(
        one.candidate.framework == target.framework
        and one.resolved.recipe.estimator == own
        and len(one.candidate.changes) <= most
        for one in found
    )


def _other_estimators(best: Trial, values: Values, trials: Trials) -> dict[str, Values]:
    """Return the other estimators that compute the same as a trial, each with its values.

    Some estimators normalise rewards themselves, and are tried without scopes, too.
    """
    found: dict[str, Values] = {}
    for name in NAMES:
        own = dict(values)
        if not ESTIMATORS[name].outcome:
            own.pop(f"{DETAIL}outcome", None)
        plain = Candidate(DEFAULT, name, {}, best.candidate.given)
        for left in ((), _SCOPES[:2]):
            some = {n: value for n, value in own.items() if n not in left}
            one = trials.of(plain.changed(some))
            if name not in found and one is not None and one.as_exact_as(best):
                found[name] = some
    found.pop(best.resolved.recipe.estimator, None)
    return found


def fewest(target: Candidate, every: Values, best: Trial, trials: Trials) -> Values | None:
    """Return the fewest changes of a candidate with which it computes the same as a trial.

    Bisection finds the changes without which the numbers differ, one after another.

    Args:
        target: a preset and an estimator.
        every: all its changes that the trial may need.
        best: the trial.
        trials: computes candidates.

    Returns:
        The changes; None if they are many more than those of the trial, or if none suffice.
    """
    kept = {name: every[name] for name in best.candidate.changes if name in every}
    rest = [name for name in every if name not in kept]

    def tried(names: Sequence[str]) -> Trial | None:
        one = trials.of(target.changed(kept | {name: every[name] for name in names}))
        return one if one is not None and one.as_exact_as(best) else None

    added = 0
    while (one := tried(())) is None:
        if not rest or added == _MORE or tried(rest) is None:
            return None
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if tried(rest[:middle]) is None else (low, middle)
        kept[rest[high - 1]] = every[rest[high - 1]]
        rest, added = rest[: high - 1], added + 1
    changes = pruned(one, trials).candidate.changes
    return changes if len(changes) <= len(best.candidate.changes) + _MORE else None


def differing(left: Trial, right: Trial) -> list[str]:
    """Return the fields that one of two recipes reads and in which they differ."""
    one, other = values_read(left.resolved), values_read(right.resolved)
    read = (name for name in dict.fromkeys([*FIELDS, *one, *other]) if name in one | other)
    return [name for name in read if _value(left, name, one) != _value(right, name, other)]


def _value(trial: Trial, name: str, read: Values) -> Any:
    return read[name] if name in read else value_of(trial.resolved.recipe, name)


def ties_of(best: Trial, others: Iterable[Trial], sample: SampleFacts) -> list[Json]:
    """Return the ties of a recipe as plain data; recipes that differ in nothing are one.

    Each has `named`, `preset`, `estimator`, `changes` (their number), `differs` (fields), `kinds`
    (the data that would separate it and that the sample lacks) and `same` (recipes that are the
    same).
    """
    distinct: list[tuple[Trial, list[Json]]] = []
    for one in others:
        same = next((also for other, also in distinct if not differing(other, one)), None)
        if same is None:
            distinct.append((one, []))
        else:
            same.append(_named(one))
    ties = []
    for one, also in distinct:
        fields = differing(best, one)
        kinds = missing_data(fields, sample)
        ties.append({**_named(one), "differs": fields, "kinds": kinds, "same": also})
    return ties


def _named(one: Trial) -> Json:
    own = one.candidate
    return {
        "named": own.named,
        "preset": own.preset,
        "estimator": own.estimator,
        "changes": len(own.changes),
    }


def missing_data(fields: Sequence[str], sample: SampleFacts) -> list[str]:
    """Return the data that the sample lacks and on which values of such fields differ."""
    return [one.text for one in data_of(fields) if one.by_recipe or not one.present(sample)]
