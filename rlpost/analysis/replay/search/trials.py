"""Trials of a search: what candidates compute of the recorded stages, and how near that is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.compute import Replayer, why_not
from rlpost.analysis.replay.differences import finite
from rlpost.analysis.replay.search.candidates import key_of, values_read
from rlpost.analysis.replay.stages import STAGES
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.differences import Difference
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.analysis.replay.search.candidates import Candidate
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

_FAR = 1.2
"""The largest score of an element, and that of a stage that a recipe does not compute."""
_DECADES = 5.0
"""Factors of ten beyond the tolerance at which the score of an element is 1."""
_MAPPED = 0.15
"""What is added to the score of numbers that are equal after an affine map only."""
_UNMAPPED = 0.1
"""The part of a score that counts beside a smaller one after an affine map."""
_KEPT, _FEWEST = 4_000_000, 16
"""Tokens of the trials whose numbers stay in memory, and their least number."""
NOISE = 6e-7
"""Differences that float32 arithmetic in another order makes, as a share of the mean size."""
_AS_EXACT = 4.0
"""Recipes whose differences are so many times the smallest ones are about as exact."""


@dataclass(frozen=True)
class Trial:
    """What a candidate computes of the recorded stages."""

    candidate: Candidate
    resolved: ResolvedRecipe
    numbers: Callable[[], tuple[Replayed, ...]] = field(compare=False, repr=False)
    """Returns the stages, computed again if they are no longer in memory."""
    scores: dict[str, float]
    """By stage: 0 if equal, about 1 if unrelated; less if an affine map would make it equal."""
    wrong: dict[str, int]
    """By stage: recorded values that differ by more than the tolerance."""
    compared: int
    """Recorded values that count."""

    @property
    def key(self) -> tuple[str, str]:
        """The framework and the estimator of rlpost."""
        return self.candidate.preset, self.resolved.recipe.estimator

    @cached_property
    def equal_stages(self) -> int:
        """How many recorded stages are equal before the first that differs."""
        equal = [self.wrong.get(name) == 0 for name in self.scores]
        return [*equal, False].index(False)

    @property
    def first_differing(self) -> str:
        """The first recorded stage that differs; empty if none does."""
        return [*self.scores, ""][self.equal_stages]

    @cached_property
    def score(self) -> float:
        """The score of the first stage that differs; 0 if none does."""
        return [*self.scores.values(), 0.0][self.equal_stages]

    def nearer_than(self, other: Trial, by: float = 0.0) -> bool:
        """Return whether more stages are equal, or the next one is nearer by more than a score."""
        if self.equal_stages != other.equal_stages:
            return self.equal_stages > other.equal_stages
        return self.score < other.score - by

    @property
    def reproduces(self) -> bool:
        """Whether all recorded stages are computed, and equal."""
        return self.equal_stages == len(self.scores)

    @property
    def replayed(self) -> tuple[Replayed, ...]:
        """The recorded stages against the computed ones."""
        return self.numbers()

    @cached_property
    def inexact(self) -> float:
        """The 90th percentile of the differences of a stage, as a share of its mean size."""
        return max((inexact(one.difference) for one in self.replayed), default=0.0)

    def as_exact_as(self, other: Trial) -> bool:
        """Whether it reproduces, with differences about as small as those of another trial."""
        return self.reproduces and self.inexact <= max(NOISE, _AS_EXACT * other.inexact)

    @property
    def share_equal(self) -> float:
        """The share of the recorded values that are equal."""
        return 1.0 - sum(self.wrong.values()) / self.compared if self.compared else 0.0

    @property
    def largest(self) -> float | None:
        """The largest absolute difference."""
        parts = [one.difference.distance[one.difference.chosen] for one in self.replayed]
        return finite(max((part.max(initial=0.0) for part in parts), default=0.0))

    @property
    def place(self) -> tuple[Any, ...]:
        """The nearest first; of those as near, the plainest."""
        later = sum([*self.scores.values()][self.equal_stages + 1 :])
        near = -self.equal_stages, round(self.score, 6), round(later, 6)
        return (*near, *self.candidate.order)


def inexact(difference: Difference) -> float:
    """Return the 90th percentile of differences, as a share of the mean size of the recorded."""
    chosen = difference.chosen & np.isfinite(difference.distance)
    distance, size = difference.distance[chosen], np.abs(difference.recorded[chosen])
    mean = float(size.mean()) if len(size) else 0.0
    return float(np.quantile(distance, 0.9)) / mean if mean > 0 else 0.0


def score_of(distance: Numbers, difference: Difference) -> float:
    """Return the mean of log10(1 + distance / (tolerance · mean size)) / 5, 0 within it.

    The size is that of the whole column, so that small numbers count as little as they are. Equal
    zeros do not count: most tokens have no reward.
    """
    chosen = difference.chosen
    recorded = np.abs(difference.recorded[chosen])
    if not len(recorded):
        return 0.0
    near = difference.slack[chosen] + difference.relative * recorded
    size = recorded[np.isfinite(recorded)].mean() if np.isfinite(recorded).any() else 1.0
    ratio = np.nan_to_num(distance / max(difference.relative * float(size), 1e-30), nan=np.inf)
    scores = np.minimum(np.log10(1.0 + ratio) / _DECADES, _FAR)
    scores = np.where(distance <= near, 0.0, scores)
    counted = (scores > 0) | (recorded > 0)
    return float(scores[counted].mean()) if counted.any() else 0.0


class Trials:
    """Computes candidates on a sample, each different recipe once.

    Args:
        rollouts: the sample.
        tolerance: relative tolerance.
        report: called after each trial.
    """

    def __init__(
        self, rollouts: Rollouts, tolerance: float, report: Callable[[], None] = lambda: None
    ) -> None:
        self.rollouts = rollouts
        self.replayer = Replayer(rollouts, tolerance)
        order = ("sample_mask", "final_response_mask", *STAGES)
        self.stages = tuple(name for name in dict.fromkeys(order) if name in rollouts.recorded)
        self.skipped: dict[str, int] = {}
        """Candidates that do not fit the input, counted by reason."""
        self.count = 0
        self._report = report
        self._trials: dict[str, Trial | None] = {}
        self._distinct: dict[str, Trial | None] = {}
        self._numbers: dict[str, tuple[Replayed, ...]] = {}
        self._most = max(_FEWEST, _KEPT // max(1, int(rollouts.offsets[-1])))
        batches = rollouts.codes("batch")
        self._batches = {"responses": batches, "tokens": np.repeat(batches, rollouts.lengths)}

    def of(self, candidate: Candidate) -> Trial | None:
        """Return the trial of a candidate; None if it does not fit the input."""
        try:
            key = key_of(candidate.recipe)
        except UsageError as error:
            self._skip(error)
            return None
        if key not in self._trials:
            self._trials[key] = self._same(candidate, key)
        trial = self._trials[key]
        return trial and replace(trial, candidate=candidate)

    def _same(self, candidate: Candidate, key: str) -> Trial | None:
        """Return the trial of a candidate; one that computes the same has its numbers."""
        try:
            resolved = self.replayer.resolved(candidate.recipe, self.stages)
        except (UsageError, DataError) as error:
            self._skip(error)
            return None
        same = str(values_read(resolved))
        if same not in self._distinct:
            self._distinct[same] = self._compute(candidate, key)
        trial = self._distinct[same]
        return trial and replace(trial, resolved=resolved)

    def _skip(self, error: UsageError | DataError) -> None:
        reason = why_not(error)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _compute(self, candidate: Candidate, key: str) -> Trial | None:
        self.count += 1
        self._report()
        try:
            replayed, resolved = self.replayer.tried(candidate.recipe, self.stages)
        except (UsageError, DataError) as error:
            self._skip(error)
            return None
        scores = dict.fromkeys(self.stages, _FAR)
        scores |= {one.name: self._score(one.difference) for one in replayed}
        wrong = {one.name: int(one.difference.wrong.sum()) for one in replayed}
        compared = sum(int(one.difference.chosen.sum()) for one in replayed)
        self._keep(key, tuple(replayed))
        numbers = partial(self._replayed, candidate.recipe, key)
        return Trial(candidate, resolved, numbers, scores, wrong, compared)

    def _replayed(self, recipe: Recipe, key: str) -> tuple[Replayed, ...]:
        """Return the stages of a recipe, computed again if they are no longer in memory."""
        if key not in self._numbers:
            self._keep(key, tuple(self.replayer.tried(recipe, self.stages)[0]))
        return self._numbers[key]

    def _keep(self, key: str, replayed: tuple[Replayed, ...]) -> None:
        self._numbers[key] = replayed
        if len(self._numbers) > self._most:
            del self._numbers[next(iter(self._numbers))]

    def batches_of(self, difference: Difference) -> Codes:
        """Return the batch of each element that counts."""
        level = "responses" if len(difference.recorded) == len(self.rollouts) else "tokens"
        return np.asarray(self._batches[level][difference.chosen])

    def _score(self, difference: Difference) -> float:
        """Return the score of a stage, or that after an affine map of each batch, if it is less.

        A whitening, another unit, or a clip of the largest numbers is one step away then.
        """
        chosen = difference.chosen
        score = score_of(difference.distance[chosen], difference)
        theirs, ours = difference.recorded[chosen], difference.computed[chosen]
        finite = np.isfinite(ours).all() and np.isfinite(theirs).all()
        if score == 0 or not len(ours) or not finite:
            return score
        clipped = saturated(theirs)
        near = [np.where(clipped & (np.sign(theirs) * (ours - theirs) > 0), theirs, ours)]
        mapped = affine(theirs, ours, self.batches_of(difference))
        near += [] if mapped is None else [np.where(clipped, theirs, mapped)]
        least = min(score_of(np.abs(theirs - one), difference) for one in near)
        return min(score, least + _MAPPED + _UNMAPPED * score)


def affine(theirs: Numbers, ours: Numbers, codes: Codes) -> Numbers | None:
    """Return the affine map of our numbers that is nearest to theirs, batch by batch.

    None if our numbers have too few values for the map to mean anything.
    """
    inside = ~saturated(theirs)
    counts = np.maximum(np.bincount(codes, inside), 1)

    def mean(values: Numbers) -> Numbers:
        return np.asarray((np.bincount(codes, np.where(inside, values, 0.0)) / counts)[codes])

    x, y = ours - mean(ours), theirs - mean(theirs)
    spread = mean(x * x)
    if np.max(spread, initial=0.0) < 1e-20 or _few_values(ours[inside]):  # noqa: PLR2004
        return None
    slope = np.divide(mean(x * y), spread, out=np.zeros_like(x), where=spread > 1e-20)  # noqa: PLR2004
    return np.asarray(theirs - y + slope * x)


def _few_values(values: Numbers) -> bool:
    """Return whether there are fewer than three different numbers."""
    rest = values[values != values[0]] if len(values) else values
    return not len(rest) or not (rest != rest[0]).any()


def saturated(values: Numbers) -> NDArray[np.bool_]:
    """Return which numbers are the extreme one that several share: those that a clip bounds."""
    size = np.abs(values)
    largest = size.max(initial=0.0)
    at = size >= largest * (1 - 1e-6)
    return at if len(values) > 8 and 3 <= at.sum() < len(values) / 2 else np.zeros_like(at)  # noqa: PLR2004
