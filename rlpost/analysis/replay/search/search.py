"""Search for the recipe that made recorded numbers.

Every preset with every estimator is computed on a sample; then changes of one option at a time
around the nearest, with β, γ, λ and weights solved from the numbers; then the smallest set of
changes that still gives the numbers, on every preset. Nearness is the mean number of decades beyond
the tolerance, so that a step in the right direction counts before all numbers are equal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.search.alike import alike, carried, pruned, smallest
from rlpost.analysis.replay.search.candidates import (
    DETAIL,
    bases,
    flat,
    key_of,
    nested,
    presets_of,
)
from rlpost.analysis.replay.search.moves import EPSILONS, UNSCALED, Facts, moves, needed, shapes
from rlpost.analysis.replay.search.nearest import CONSTANTS, is_near, nearest
from rlpost.analysis.replay.search.sample import sampled, widened
from rlpost.analysis.replay.search.solve import Problem, problems, solvable, solved
from rlpost.analysis.replay.search.ties import ties_of
from rlpost.analysis.replay.search.trials import NOISE, Trial, Trials, differing_rows, unexplained
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.recipe.estimators import READERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.display.reporter import Reporter
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
SOLVED = 12
"""Estimators whose numbers are solved before changes are tried."""
_SHAPED = 4
"""Estimators whose numbers are solved with other rewards."""
STARTS = 5
"""Estimators around which changes are tried."""
ROUNDS = 6
"""Changes that are made one after another."""
RECIPES = 1500
"""Recipes after which no other start is tried: about 10 seconds of 512 short responses."""
WIDER = 3
"""Samples that are searched, if the best recipe of one differs in other groups of its steps."""
_SPREAD = 5
"""Estimators whose numbers are solved on every preset."""
_GAIN = 0.98
"""A change is kept if it brings the score below this share."""
_NEAR_SCORE = 0.06
"""The score below which no other estimator is tried before changes: a stage is whitened, say."""
_PAIRED = 0.3
"""The score below which pairs of changes are tried."""
_TOGETHER = 8
"""Changes that are tried on top of each other."""
_NEAR = 12
"""Changes of which pairs are tried."""
TIES = 12
"""Ties that are listed."""
_BEFORE = ("sample_mask", "final_response_mask", "kl")
"""Stages before the estimator, which have nothing to solve."""
_SHARED = (*_BEFORE, "response_level_rewards")
"""Stages that do not depend on most estimators."""
_LATER = ("sample_weight", "is_weight")
"""Stages that no preset computes without an option."""
_FINE = (f"{DETAIL}norm_eps", f"{DETAIL}whiten_eps")
"""Details that differ by little, tried on a recipe that is not exact."""


def _plainest(found: list[Trial], framework: str) -> Trial:
    """Return the plainest of the trials about as exact as the most exact.

    Of several with as many changes it is that of a framework.
    """
    most = min(found, key=lambda one: one.inexact)

    def order(one: Trial) -> tuple[Any, ...]:
        changes, *rest = one.candidate.order
        return changes, one.candidate.framework != framework, *rest

    return min((one for one in found if one.about_as_exact(most)), key=order)


def _exact(trial: Trial) -> bool:
    return trial.inexact <= NOISE


def _by_residual(found: list[Problem]) -> list[Problem]:
    return sorted(found, key=lambda one: one.step.residual)


def _place(one: Trial) -> tuple[Any, ...]:
    return one.place


@dataclass(frozen=True)
class Found:
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
    framework: str = "",
    reporter: Reporter | None = None,
) -> Found:
    """Return the smallest recipe that reproduces recorded numbers, or the nearest one.

    Args:
        rollouts: the input, with recorded columns.
        tolerance: relative tolerance of equal numbers.
        given: fields of a recipe that the user typed; they stay.
        framework: the preset that is named first of equally small recipes.
        reporter: receives the recipes tried.

    Returns:
        The recipe, and plain facts: `tried`, `skipped` (recipes that do not fit, by reason),
        `seconds`, `sample`, `reproduces`, `best` (`named`, `options`, `preset`, `estimator`,
        `changes`, `toml`), `near` (about half of the numbers are equal),
        `largest`, `share_equal`, `not_computed`, `ties` and `unexplained`.

    Raises:
        DataError: no recipe fits the input.
    """
    started = time.perf_counter()
    reports = reporter or SilentReporter()
    reports.start("search", None)
    sample, before = sampled(rollouts), None
    for _ in range(WIDER):
        run = _Search(sample, tolerance, flat(given or {}), reports, framework, before)
        best, before = run.best(), run.trials
        other = run.differing(best)
        if not len(other):
            break
        sample = widened(sample, other[:: -(-len(other) // WIDER)])
    ties = run.ties(best) if best.reproduces else []
    seconds = time.perf_counter() - started
    return Found(best.candidate.recipe, best.candidate.named, run.facts(best, ties, seconds))


class _Search:
    """A search over a sample."""

    def __init__(
        self,
        sample: Rollouts,
        tolerance: float,
        given: Json,
        reporter: Reporter,
        framework: str,
        before: Trials | None = None,
    ) -> None:
        self.given, self.framework = given, framework
        self.tolerance, self.reporter = tolerance, reporter
        self.trials = Trials(sample, tolerance, lambda: reporter.advance(1))
        self.before = 0 if before is None else before.count
        """Recipes that were tried on smaller samples."""
        self.starts = self._bases()
        self.missing = self._drop_uncomputed(sample)
        self.stage = self.trials.stages[-1]
        self.alike: list[Trial] = []

    def _bases(self) -> list[Trial]:
        self.known = Facts(self.trials.rollouts.steps)
        found = []
        for one in bases(self.given):
            extra = needed(one.recipe.estimator, self.known)
            found += [self.trials.of(one.changed(changes)) for changes in extra or [{}]]
        fitting = sorted((one for one in found if one is not None), key=_place)
        if not fitting:
            skipped = self.trials.skipped
            reasons = "; ".join(sorted(skipped, key=lambda reason: -skipped[reason])[:3])
            raise DataError(f"{self.trials.rollouts.name}: no recipe fits this input: {reasons}")
        return fitting

    def _drop_uncomputed(self, sample: Rollouts) -> list[str]:
        """Leave out recorded stages that no recipe computes from this input; returns them."""
        computed = {name for trial in self.starts for name in trial.wrong}
        missing = [n for n in sample.recorded if n not in computed and n not in _LATER]
        if missing and len(missing) < len(sample.recorded):
            before, report = self.trials, lambda: self.reporter.advance(1)
            self.trials = Trials(sample.without(missing), self.tolerance, report)
            self.starts = self._bases()
            self.trials.count += before.count
            self.trials.skipped = before.skipped
        return missing

    @property
    def late(self) -> bool:
        """Whether enough recipes were tried; the same on every machine."""
        return self.trials.count > RECIPES

    def best(self) -> Trial:
        """Return the best trial: one recorded stage after another, in the order of the pipeline."""
        best, stages = self.starts[0], self.trials.stages
        if not best.reproduces:
            for number, self.stage in enumerate(stages):
                self.trials.focus = stages[: number + 1]
                best = self._focused(self.trials.again(best))
            if not best.reproduces and len(stages) > 1:
                best = min(best, self._focused(self.starts[0]), key=_place)
        if best.reproduces:
            return self._smallest(best)
        self.trials.focus = stages
        return nearest(best, self.starts, self.trials, self.framework)

    def _focused(self, before: Trial) -> Trial:
        """Return the best trial for the stages that count at present.

        Args:
            before: the best for the stages before; its changes are tried with all estimators.
        """
        if before.reproduces:
            return before
        changes = before.candidate.changes
        *earlier, _ = self.trials.focus
        further = earlier and all(before.wrong.get(name) == 0 for name in earlier)
        sets = [{}, changes, *([carried(before) | changes] if further else [])]
        tried = [self.trials.of(one.candidate.changed(s)) for s in sets for one in self.starts]
        tried.append(before)
        fitting = sorted((one for one in tried if one is not None), key=_place)
        best = fitting[0]
        if not best.reproduces and (further or best.score < _PAIRED):
            best = self._descent(best)
        if not best.reproduces:
            best, starts = self._estimated(fitting)
            for start in starts:
                if best.reproduces or self.late:
                    break
                best = min(best, self._descent(start), key=_place)
        return best

    def _estimated(self, fitting: list[Trial]) -> tuple[Trial, list[Trial]]:
        """Return the best trial with solved numbers, and the estimators to begin changes with.

        The linear problems of all estimators are solved, then those of the best ones on every
        preset.
        """
        starts = self._best_of_each(fitting, SOLVED)
        solved_before = self.stage == "advantages" and "raw_advantages" in self.trials.focus
        if self.stage in _BEFORE or solved_before:
            return fitting[0], starts[:1]
        nearest = self._problems(starts, whitened=False)
        best = solved(fitting[0], nearest, self.trials)
        changes = fitting[0].candidate.changes
        names = (one.start.resolved.recipe.estimator for one in _by_residual(nearest))
        for name in [*dict.fromkeys(names)][:_SPREAD]:
            if best.score < _NEAR_SCORE or self.late:
                break
            found = self._problems(self._everywhere([name], changes), whitened=True)
            best = solved(best, found, self.trials)
            nearest += found
        if best.score >= _NEAR_SCORE and not self.late:
            shaped = [fitting[0], *(one.start for one in _by_residual(nearest))]
            best = solved(best, self._shaped(shaped), self.trials)
        return best, self._best_of_each(
            [best, *starts, *(one.start for one in _by_residual(nearest))]
        )

    def _best_of_each(self, trials: list[Trial], count: int = STARTS) -> list[Trial]:
        """Return the first trial of each estimator; of each result, where numbers are shared."""
        seen: dict[Any, Trial] = {}
        for one in trials:
            numbers = tuple(round(one.scores[name], 9) for name in self.trials.focus)
            shared = self.stage in _SHARED and not solvable(one, self.known)
            seen.setdefault(numbers if shared else one.resolved.recipe.estimator, one)
        return [*seen.values()][:count]

    def _problems(self, starts: list[Trial], *, whitened: bool) -> list[Problem]:
        """Return linear problems of trials as they are, at γ = 0.9, and with whitened rewards."""
        variants: list[Json] = [{}, {"gamma": 0.9}, {"lam": 0.0}, {"whiten_rewards": True}]
        if "token_level_rewards" in self.trials.focus[:-1] or not whitened:
            del variants[-1]
        if self.stage in (*_SHARED, "token_level_rewards"):
            del variants[1:]
        found = []
        for one in starts:
            estimator = one.resolved.recipe.estimator
            plain = estimator not in READERS["gamma"] or one.resolved.rows_only
            own = variants[:1] if plain else variants
            own = [changes for changes in own if "lam" not in changes or estimator == "gae"]
            own += UNSCALED if one.resolved.estimator.normalises else []
            for changes in own:
                if not any(name in self.given for name in changes):
                    start = self.trials.of(one.candidate.changed(changes))
                    found += [] if start is None else problems(start, self.known, self.trials)
        return found

    def _shaped(self, nearest: list[Trial]) -> list[Problem]:
        """Return linear problems with other rewards, of the estimators that come nearest."""
        found: list[Problem] = []
        for changes, start in product(shapes(self.known), self._best_of_each(nearest, _SHAPED)):
            if self.late or any(name in self.given for name in changes):
                continue
            one = self.trials.of(start.candidate.changed(changes))
            found += [] if one is None else problems(one, self.known, self.trials)
        return found

    def _everywhere(self, names: list[str], changes: Json) -> list[Trial]:
        """Return some estimators with every preset and some changes, those of different numbers."""
        own = (one for name in names for one in presets_of(name, self.given))
        found = [self.trials.of(one.changed(changes)) for one in own]
        numbers: dict[Any, Trial] = {}
        for one in found:
            if one is not None:
                key = one.resolved.recipe.estimator, *(round(x, 9) for x in one.scores.values())
                numbers.setdefault(key, one)
        return [*numbers.values()]

    def _descent(self, start: Trial) -> Trial:
        """Return the result of the best changes, one after another, from a start."""
        current = start
        for _ in range(ROUNDS):
            before = current
            current = self._stepped(self._on_presets(current))
            if not current.reproduces:
                current = self._solved(current)
            if current.reproduces or current.score > before.score * _GAIN or self.late:
                break
        near = not current.reproduces and not self.late and current.score < _PAIRED
        return self._paired(current) if near else current

    def _solved(self, current: Trial) -> Trial:
        return solved(current, problems(current, self.known, self.trials), self.trials)

    def _on_presets(self, current: Trial) -> Trial:
        """Return the same changes on the preset on which they come nearest."""
        changes, own = current.candidate.changes, current.resolved.recipe.estimator
        found = [self.trials.of(one.changed(changes)) for one in presets_of(own, self.given)]
        return min([current, *(one for one in found if one is not None)], key=_place)

    def _stepped(self, current: Trial) -> Trial:
        """Return a trial with the single changes that bring it nearer, the best first."""
        if current.reproduces:
            return current
        for one, changes in self._around(current)[:_TOGETHER]:
            removed = [name for name in changes if name in current.candidate.changes]
            tried = self.trials.of(current.candidate.without(removed).changed(changes))
            if not removed and tried is not None and tried.score < current.score * _GAIN:
                current = tried
            elif one.score < current.score * _GAIN:
                current = one
            if current.reproduces:
                break
        return current

    def _around(self, current: Trial) -> list[tuple[Trial, Json]]:
        """Return the trials of all single changes of a candidate, the nearest first."""
        own = current.candidate
        found, seen = list[tuple[Trial, Json]](), {key_of(own.recipe)}
        tried = [(own.changed(changes), changes) for changes in moves(current, self.known)]
        tried += [(own.without([name]), {name: None}) for name in own.changes]
        for candidate, changes in tried:
            if any(name in self.given for name in changes):
                continue
            one = self.trials.of(candidate)
            if one is not None and (key := key_of(one.candidate.recipe)) not in seen:
                seen.add(key)
                found.append((one, changes))
        return sorted(found, key=lambda pair: pair[0].place)

    def _paired(self, current: Trial) -> Trial:
        """Return the best trial of two changes that bring it nearer only together."""
        best = current
        near = self._around(current)[:_NEAR]
        for (_, first), (_, second) in combinations(near, 2):
            one = self.trials.of(current.candidate.changed({**first, **second}))
            if one is not None:
                best = min(best, one, key=_place)
            if best.reproduces or self.late:
                break
        return best

    def _smallest(self, best: Trial) -> Trial:
        """Return the plainest recipe of those about as exact as the most exact, on any preset."""
        best = self._solved_again(pruned(best, self.trials))
        self.alike = alike(best, self.starts, self.given, self.trials)
        best = _plainest(self.alike, self.framework)
        finer = [{name: one} for name in _FINE for one in EPSILONS if name not in self.given]
        if not _exact(best):
            tried = [self.trials.of(best.candidate.changed(changes)) for changes in finer]
            found = [best, *(one for one in tried if one is not None and one.reproduces)]
            if (finest := _plainest(found, self.framework)) is not best:
                self.alike = alike(finest, self.starts, self.given, self.trials)
            best = finest
        return best

    def _solved_again(self, best: Trial) -> Trial:
        """Return a trial without the changes that other solved numbers make up for."""
        own = best.candidate.changes
        if not {*own} & {*solvable(best, self.known)}:
            return best
        for name in (name for name in own if name not in CONSTANTS):
            one = self.trials.of(best.candidate.without([name]))
            if name in best.candidate.changes and one is not None:
                one = self._solved(one)
                if one.reproduces and one.place < best.place:
                    best = pruned(one, self.trials)
        return best

    def ties(self, best: Trial) -> list[Json]:
        """Return the plainest recipes of other frameworks and estimators that are as exact.

        Those that differ in no option that is read are one tie.
        """
        found = smallest([one for one in self.alike if one.about_as_exact(best)])
        found = [one for one in found if one.candidate.named != best.candidate.named]
        found = [one for one in found if not len(self.differing(one))]
        return ties_of(best, found, self.known, self.trials.stages)

    def differing(self, best: Trial) -> Any:
        """Return the rows that differ in the steps of the sample, if none of its own differs."""
        sample = self.trials.rollouts
        if sample.around is None or not best.reproduces:
            return ()
        found = Replayer(sample.steps, self.tolerance).from_start(
            best.candidate.recipe, self.trials.stages
        )
        return differing_rows(found, sample.steps)

    def facts(self, best: Trial, ties: list[Json], seconds: float) -> Json:
        """Return the result of the search as plain data."""
        trials, candidate = self.trials, best.candidate
        recorded = trials.rollouts.recorded
        computed = {*best.wrong}
        return {
            "tried": self.before + trials.count,
            "skipped": dict(sorted(trials.skipped.items(), key=lambda item: -item[1])),
            "seconds": round(seconds, 3),
            "sample": {
                "responses": len(trials.rollouts),
                "tokens": int(trials.rollouts.offsets[-1]),
                "scope": trials.rollouts.scope,
                "of_responses": len(trials.rollouts.steps),
                "of_tokens": int(trials.rollouts.steps.offsets[-1]),
            },
            "reproduces": best.reproduces,
            "near": best.reproduces or is_near(best),
            "best": {
                "named": candidate.named,
                "options": candidate.typed,
                "preset": candidate.preset,
                "estimator": candidate.estimator,
                "changes": nested(candidate.changes),
                "toml": candidate.toml,
            },
            "largest": best.largest,
            "median_relative": best.error,
            "share_equal": best.share_equal if best.compared else None,
            "not_computed": sorted({*self.missing, *recorded} - computed),
            "ties": ties[:TIES],
            "tie_count": len(ties),
            "unexplained": [] if best.reproduces else unexplained(best, trials.rollouts),
        }
