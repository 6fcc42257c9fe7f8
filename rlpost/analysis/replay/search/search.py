"""Search for the recipe that made recorded numbers.

Every preset with each of its estimators is computed on a sample. From the nearest recipe on, its
neighbours are: another value of one field that its stages read, one change less, another preset or
estimator with the same changes, and its numbers solved by least squares. When a recipe reproduces
the recorded numbers, changes that it does not need are taken out.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.search.candidates import (
    DETAIL,
    bases,
    flat,
    nested,
    presets_of,
    value_of,
    values_read,
)
from rlpost.analysis.replay.search.fields import FIELDS, components, rank_batches, teachers
from rlpost.analysis.replay.search.sample import sampled, widened
from rlpost.analysis.replay.search.sample_facts import SampleFacts
from rlpost.analysis.replay.search.solve import Step, solved, steps
from rlpost.analysis.replay.search.trials import Trial, Trials
from rlpost.analysis.replay.search.unexplained import differing_rows, unexplained
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.pipeline.resolved import estimator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.analysis.replay.search.candidates import Candidate
    from rlpost.display.reporter import Reporter
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
Changes = dict[str, Any]
RECIPES = 1500
"""Recipes after which no other neighbours are tried: about 10 seconds of 512 short responses."""
EXPANDED = 20
"""Recipes whose neighbours are tried for a stage."""
STARTS = 5
"""Estimators whose neighbours are tried in turn."""
SOLVED = 20
"""Estimators whose numbers are solved at the start."""
KINDS = 3
"""Of these, the ones that are solved on every preset."""
_AS_NEAR = 2.0
"""Scores up to so many times the least are about as near: their neighbours are tried in turn."""
_SOLUTIONS = 5
"""Linear problems that are solved further, with and without an affine map."""
WIDER = 3
"""Samples that are searched, if the best recipe of one differs in other groups of its steps."""
_NEAR_SHARE = 0.45
"""Share of the numbers that are equal, or nothing is near."""
_MANY = 0.1
"""Share of the numbers that a change makes equal, if it stays where nothing reproduces."""
_LATER = ("sample_weight", "is_weight")
"""Stages that no preset computes without an option."""


@dataclass(frozen=True)
class NearestRecipe:
    """The recipe that is nearest to recorded numbers."""

    recipe: Recipe
    named: str
    """As one types it."""
    facts: Json


def search(
    rollouts: Rollouts,
    *,
    tolerance: float,
    given: Mapping[str, Any] | None = None,
    metadata: Candidate | None = None,
    framework: str = "",
    reporter: Reporter | None = None,
) -> NearestRecipe:
    """Return the smallest recipe that reproduces recorded numbers, or the nearest one.

    Args:
        rollouts: the input, with recorded columns.
        tolerance: relative tolerance.
        given: fields of a recipe that the user typed; they stay.
        metadata: the recipe that the metadata of the input names. It is first if it reproduces.
        framework: the framework that the metadata names. Without a recipe in the metadata, its
            presets come before others that reproduce.
        reporter: receives the recipes tried.

    Returns:
        The recipe, and plain facts: `tried`, `skipped` (recipes that do not fit, by reason),
        `seconds`, `sample`, `reproduces`, `best` (`named`, `options`, `preset`, `estimator`,
        `changes`, `toml`, `by_metadata`), `metadata` (the recipe in the metadata: `named`,
        `reproduces`), `near` (about half of the numbers are equal), `largest`, `share_equal`,
        `not_computed`, `same_numbers` (other recipes that reproduce) and `unexplained`.

    Raises:
        DataError: no recipe fits the input.
    """
    started = time.perf_counter()
    reports = reporter or SilentReporter()
    reports.start("search", None)
    sample, tried = sampled(rollouts), 0
    for _ in range(WIDER):
        run = _Search(sample, tolerance, flat(given or {}), reports, metadata, framework)
        best = run.best()
        other = run.differing(best)
        tried += run.trials.count
        if not len(other):
            break
        sample = widened(sample, other[:: -(-len(other) // WIDER)])
    facts = run.facts(best, tried, time.perf_counter() - started)
    return NearestRecipe(best.candidate.recipe, best.candidate.named, facts)


class _Search:
    """A search over a sample."""

    def __init__(
        self,
        sample: Rollouts,
        tolerance: float,
        given: Json,
        reporter: Reporter,
        metadata: Candidate | None,
        framework: str,
    ) -> None:
        self.given, self.framework = given, framework
        self.tolerance, self.reporter = tolerance, reporter
        self.sample = SampleFacts(sample.steps)
        self.trials = Trials(sample, tolerance, lambda: reporter.advance(1))
        self.starts = self._starts()
        self.missing = self._leave_out_uncomputed(sample)
        self.equivalent: list[Trial] = []
        self.of_metadata = None if metadata is None else self._of_metadata(metadata)

    def _of_metadata(self, metadata: Candidate) -> Trial | None:
        """Return the trial of the recipe in the metadata, with the changes that its stages read.

        None if it does not fit the input, or if the user typed another value of a field.
        """
        own = {**metadata.changes, "estimator": metadata.estimator}
        if any(own.get(name, value) != value for name, value in self.given.items()):
            return None
        one = self.trials.of(metadata)
        if one is None:
            return None
        read = values_read(one.resolved)
        return self.trials.of(metadata.without({*metadata.changes} - {*read}))

    def _starts(self) -> list[Trial]:
        """Return the trials of presets and estimators without changes, the nearest first."""
        found = [self.trials.of(one) for one in self._bases()]
        fitting = sorted((one for one in found if one is not None), key=_place)
        if not fitting:
            skipped = self.trials.skipped
            reasons = "; ".join(sorted(skipped, key=lambda reason: -skipped[reason])[:3])
            raise DataError(f"{self.trials.rollouts.name}: no recipe fits this input: {reasons}")
        return fitting

    def _bases(self) -> Iterator[Candidate]:
        """Yield presets and estimators, of both units, with columns without which one is an error.

        Rows that count by themselves need no common reward, as those of a rollout do.
        """
        for one in (each for base in bases(self.given) for each in self._of_units(base)):
            changes: list[Changes] = [{}]
            if one.recipe.estimator == "gdpo":
                changes = [{"reward_components": some} for some in components(self.sample)]
            if one.recipe.estimator == "opd":
                changes = [*teachers(self.sample)]
            yield from (one.changed(some) for some in changes or [{}])

    def _of_units(self, base: Candidate) -> list[Candidate]:
        """Return a candidate, and the one that counts rows if rollouts have ids."""
        joins = estimator_of(base.recipe).joins_rollouts
        rows = self.sample.has("rollout") and not joins
        return [base, *([base.changed({"unit": "row"})] if rows else [])]

    def _leave_out_uncomputed(self, sample: Rollouts) -> list[str]:
        """Leave out recorded stages that no recipe computes from this input; returns them."""
        computed = {name for trial in self.starts for name in trial.wrong}
        missing = [n for n in sample.recorded if n not in computed and n not in _LATER]
        if missing and len(missing) < len(sample.recorded):
            left = sample.without(missing)
            self.trials = Trials(left, self.tolerance, lambda: self.reporter.advance(1))
            self.starts = self._starts()
        return missing

    def best(self) -> Trial:
        """Return the trial of the metadata, or the plainest, if it reproduces, or the nearest."""
        best = self.starts[0]
        if self.of_metadata is not None and self.of_metadata.reproduces:
            best = self.of_metadata
        while not best.reproduces:
            further = self._further(best)
            if further.equal_stages <= best.equal_stages:
                return self._supported(min(best, further, key=_place))
            best = further
        self.equivalent = self._equivalent(self._pruned(best))
        return self._plainest()

    def _pruned(self, trial: Trial) -> Trial:
        """Return a trial that reproduces without the changes that it does not need."""
        names = trial.candidate.changes
        for name in sorted(names, key=lambda name: not name.startswith(DETAIL)):
            plainer = self.trials.of(trial.candidate.without([name]))
            if plainer is not None and plainer.as_exact_as(trial):
                trial = plainer
        return trial

    def _equivalent(self, best: Trial) -> list[Trial]:
        """Return the recipe in the metadata, presets, and presets with a trial's changes.

        All of them reproduce.
        """
        changes = best.candidate.changes
        presets = presets_of(best.resolved.recipe.estimator, self.given)
        changed = [self.trials.of(preset.changed(changes)) for preset in presets]
        pruned = [self._pruned(trial) for trial in changed if trial and trial.reproduces]
        trials = [best, *self.starts, *pruned, *([self.of_metadata] if self.of_metadata else [])]
        return [trial for trial in trials if trial.reproduces]

    def _plainest(self) -> Trial:
        """Return the plainest of the equivalent trials about as exact as the most exact.

        What the metadata name comes first.
        """
        exact = min(self.equivalent, key=lambda one: one.inexact)

        def order(one: Trial) -> tuple[Any, ...]:
            return not self.by_metadata(one), *one.candidate.order

        return min((one for one in self.equivalent if one.as_exact_as(exact)), key=order)

    def by_metadata(self, one: Trial) -> bool:
        """Return whether the metadata name the recipe of a trial, or only its framework."""
        if self.of_metadata is None or not self.of_metadata.reproduces:
            return one.candidate.preset == self.framework
        return one.candidate == self.of_metadata.candidate

    def _further(self, best: Trial) -> Trial:
        """Return a trial with more equal stages than a trial, or the nearest one.

        The next stage is computed with every preset and estimator, and their numbers are solved.
        Then the neighbours of the nearest trials are tried, of several estimators in turn.
        """
        starts, kind = self._starts_from(best), self._kind_of(best)
        found = {_numbers(one): one for one in reversed(starts)}

        def nearest() -> Trial:
            return min(found.values(), key=_place)

        def missing() -> bool:
            return nearest().equal_stages == best.equal_stages

        for variants in (list, self._from_other_values):
            if missing():
                kinds = self._nearest_kinds(kind, starts, variants)
                own = [one for one in starts if kind(one) in kinds]
                self._add(found, self._solved(variants(self._on_presets(own, best))))
        expanded: dict[Any, Any] = {}
        while missing() and self.trials.count < RECIPES and len(expanded) < EXPANDED:
            waiting = [one for key, one in found.items() if key not in expanded]
            first = _first_of_each(kind, sorted(waiting, key=_place))[:STARTS]
            if not first:
                break
            first = [one for one in first if one.score <= _AS_NEAR * first[0].score]
            turns = Counter(expanded.values())
            one = min(first, key=lambda one: turns[kind(one)])
            expanded[_numbers(one)] = kind(one)
            near = [*self._neighbours(one)]
            self._add(found, near)
            if missing():
                self._add(found, self._solved(sorted((one, *near), key=_place)[:_SOLUTIONS]))
        return nearest()

    def _starts_from(self, best: Trial) -> list[Trial]:
        """Return every preset and estimator, plain and with the changes of a trial, sorted."""
        own = best.candidate.changes
        others = [self.trials.of(one.candidate.changed(own)) for one in self.starts] if own else []
        return sorted([best, *self.starts, *(one for one in others if one)], key=_place)

    def _on_presets(self, starts: list[Trial], best: Trial) -> list[Trial]:
        """Return the trials of the estimators of some starts on every preset, of other numbers."""
        names = dict.fromkeys(one.resolved.recipe.estimator for one in starts)
        own = (one for name in names for one in presets_of(name, self.given))
        tried = [self.trials.of(one.changed(best.candidate.changes)) for one in own]
        return [*starts, *(one for one in tried if one is not None)]

    def _from_other_values(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Yield trials with other values from which their numbers are solved."""
        for trial in trials:
            fields = self._fields(trial) - {*self.given}
            for name, value in ((name, FIELDS[name].start) for name in FIELDS if name in fields):
                if value is not None and value_of(trial.resolved.recipe, name) != value:
                    other = self.trials.of(trial.candidate.changed({name: value}))
                    yield from () if other is None else (other,)

    def _nearest_kinds(
        self,
        kind: Callable[[Trial], Any],
        starts: list[Trial],
        variants: Callable[[Iterable[Trial]], Iterable[Trial]],
    ) -> set[Any]:
        """Return the kinds of starts of which the linear problems of some variants leave least."""
        residuals = {}
        for one in _first_of_each(kind, starts)[:SOLVED]:
            steps_of = (step.residual for _, step in self._problems(variants([one])))
            residuals[kind(one)] = min(steps_of, default=math.inf)
        return {*sorted(residuals, key=lambda key: residuals[key])[:KINDS]}

    def _kind_of(self, best: Trial) -> Callable[[Trial], Any]:
        """Return what trials of one kind share: the estimator, or the numbers of a stage before it.

        The neighbours of several kinds are tried in turn.
        """
        stage = best.first_differing
        if "estimator" in self._fields(best):
            return lambda one: one.resolved.recipe.estimator
        return lambda one: round(one.scores[stage], 9)

    @staticmethod
    def _add(found: dict[Any, Trial], trials: Iterable[Trial]) -> None:
        """Add trials, the plainest of those with the same numbers."""
        for one in trials:
            found[_numbers(one)] = min(found.get(_numbers(one), one), one, key=_place)

    def _problems(self, trials: Iterable[Trial]) -> list[tuple[Trial, Step]]:
        """Return the linear problems of trials, those that leave the least first."""
        pairs = [
            (one, step) for one in trials for step in steps(one, self._fields(one), self.trials)
        ]
        return sorted(pairs, key=lambda pair: pair[1].residual)

    def _solved(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return trials with solved numbers, from the linear problems that leave the least."""
        distinct: dict[Any, tuple[Trial, Step]] = {}
        for one, step in self._problems(trials):
            key = _numbers(one), round(step.residual, 6), str(step.changes), step.mapped
            distinct.setdefault(key, (one, step))
        found = []
        for mapped in (False, True):
            own = [pair for pair in distinct.values() if pair[1].mapped == mapped][:_SOLUTIONS]
            found += [solved(one, step, self.trials) for one, step in own]
        return found

    def _neighbours(self, trial: Trial) -> Iterator[Trial]:
        """Yield the trials of single changes of a trial."""
        own, fields = trial.candidate, self._fields(trial)
        tried = [
            own.changed(changes)
            for name in FIELDS
            if name in fields or name == "columns"
            for changes in FIELDS[name].changes(name, trial.resolved, self.sample)
            if self.given.keys().isdisjoint(changes)
        ]
        tried += [own.changed(changes) for changes in rank_batches(self.sample)]
        tried += [own.without([name]) for name in own.changes]
        same = presets_of(trial.resolved.recipe.estimator, self.given)
        tried += [one.changed(own.changes) for one in same]
        yield from (one for one in map(self.trials.of, tried) if one is not None)

    def _fields(self, trial: Trial) -> frozenset[str]:
        """Return the fields that can change the first stage that differs."""
        return self.trials.replayer.fields_behind(trial.candidate.recipe, trial.first_differing)

    def _supported(self, best: Trial) -> Trial:
        """Return a trial without the changes that make few numbers equal."""
        for name in best.candidate.changes:
            one = self.trials.of(best.candidate.without([name]))
            if one is not None and _stages(one) >= _stages(best):
                best = one if one.share_equal > best.share_equal - _MANY else best
        plain = self.starts[0]
        more = len(_stages(best)) > len(_stages(plain))
        return best if more or best.share_equal > plain.share_equal + _MANY else plain

    def _same_numbers(self, best: Trial) -> list[Trial]:
        """Return the plainest other recipe of each framework and estimator that is as exact."""
        plainest: dict[tuple[str, str], Trial] = {best.key: best}
        for trial in sorted(self.equivalent, key=lambda trial: trial.candidate.order):
            if trial.as_exact_as(best) and not len(self.differing(trial)):
                plainest.setdefault(trial.key, trial)
        return [trial for trial in plainest.values() if trial is not best]

    def differing(self, best: Trial) -> Any:
        """Return the rows that differ in the steps of the sample, if none of its own differs."""
        sample = self.trials.rollouts
        if sample.around is None or not best.reproduces:
            return ()
        found = Replayer(sample.steps, self.tolerance).from_start(
            best.candidate.recipe, self.trials.stages
        )
        return differing_rows(found, sample.steps)

    def facts(self, best: Trial, tried: int, seconds: float) -> Json:
        """Return the result of the search as plain data."""
        trials, candidate = self.trials, best.candidate
        sample = trials.rollouts
        return {
            "tried": tried,
            "skipped": dict(sorted(trials.skipped.items(), key=lambda item: -item[1])),
            "seconds": round(seconds, 3),
            "sample": {
                "responses": len(sample),
                "tokens": int(sample.offsets[-1]),
                "scope": sample.scope,
                "of_responses": len(sample.steps),
                "of_tokens": int(sample.steps.offsets[-1]),
            },
            "reproduces": best.reproduces,
            "near": best.reproduces or best.share_equal >= _NEAR_SHARE,
            "best": {
                "named": candidate.named,
                "options": candidate.typed,
                "preset": candidate.preset,
                "estimator": candidate.estimator,
                "changes": nested(candidate.changes),
                "toml": candidate.toml,
                "by_metadata": self.by_metadata(best),
            },
            "metadata": self.of_metadata
            and {
                "named": self.of_metadata.candidate.named,
                "reproduces": self.of_metadata.reproduces,
            },
            "largest": best.largest,
            "share_equal": best.share_equal if best.compared else None,
            "not_computed": sorted({*self.missing, *sample.recorded} - {*best.wrong}),
            "same_numbers": [
                {
                    "named": trial.candidate.named,
                    "preset": trial.candidate.preset,
                    "estimator": trial.candidate.estimator,
                    "changes": len(trial.candidate.changes),
                }
                for trial in self._same_numbers(best)
            ],
            "unexplained": [] if best.reproduces else unexplained(best, sample),
        }


def _first_of_each(kind: Callable[[Trial], Any], trials: Iterable[Trial]) -> list[Trial]:
    """Return the first trial of each kind."""
    first: dict[Any, Trial] = {}
    for one in trials:
        first.setdefault(kind(one), one)
    return [*first.values()]


def _place(one: Trial) -> tuple[Any, ...]:
    return one.place


def _numbers(one: Trial) -> tuple[Any, ...]:
    """Return what is equal for trials with the same numbers."""
    return one.resolved.recipe.estimator, *(round(score, 9) for score in one.scores.values())


def _stages(one: Trial) -> set[str]:
    """Return the recorded stages that are equal."""
    return {name for name, wrong in one.wrong.items() if not wrong}
