"""Trials of a search: a candidate's numbers against the recorded ones, and how near they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.compute import Replayer, why_not
from rlpost.analysis.replay.search.candidates import key_of
from rlpost.analysis.replay.search.sample import kinds_of
from rlpost.analysis.replay.stages import STAGES
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
_RELAXED = 0.15
"""What is added to the score of numbers that are equal after whitening only."""
_CLIPPED = 0.05
"""What is added to the score of numbers that are equal after a clip only."""
_DIRECT = 0.1
"""The part of a score that counts beside a smaller one after whitening or a clip."""
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
    """By stage: 0 if equal, about 1 if unrelated."""
    relaxed: dict[str, float]
    """The same, after a clip or the best affine map of each batch, with what these cost."""
    wrong: dict[str, int]
    """By stage: recorded values that differ by more than the tolerance."""
    compared: int
    """Recorded values that count."""
    focus: tuple[str, ...]
    """The stages that count at present."""

    @cached_property
    def score(self) -> float:
        """The mean score of stages, those that whitening would explain counted as near."""
        near = []
        for name in self.focus:
            own = self.scores[name]
            near.append(min(own, self.relaxed.get(name, _FAR) + _DIRECT * own))
        return float(np.mean(near)) if near else _FAR

    @property
    def reproduces(self) -> bool:
        """Whether all stages that count are computed, and equal."""
        return all(self.wrong.get(name) == 0 for name in self.focus)

    @property
    def replayed(self) -> tuple[Replayed, ...]:
        """The recorded stages against the computed ones."""
        return self.numbers()

    @cached_property
    def error(self) -> float:
        """The median relative error of the recorded values that count."""
        parts = [relative_errors(one.difference) for one in self.replayed]
        every = np.concatenate(parts) if parts else np.zeros(0)
        return float(np.median(every)) if len(every) else 0.0

    @cached_property
    def inexact(self) -> float:
        """The 90th percentile of the differences of a stage, as a share of its mean size."""
        return max((inexact(one.difference) for one in self.replayed), default=0.0)

    def about_as_exact(self, other: Trial) -> bool:
        """Whether its differences are about as small as those of another trial, or smaller."""
        return self.inexact <= max(NOISE, _AS_EXACT * other.inexact)

    @cached_property
    def equal_stages(self) -> tuple[str, ...]:
        """The recorded stages that are equal."""
        return tuple(name for name, wrong in self.wrong.items() if not wrong)

    @property
    def share_equal(self) -> float:
        """The share of the recorded values that are equal."""
        return 1.0 - sum(self.wrong.values()) / self.compared if self.compared else 0.0

    @property
    def largest(self) -> float | None:
        """The largest absolute difference."""
        parts = [one.difference.distance[one.difference.chosen] for one in self.replayed]
        largest = max((float(part.max(initial=0.0)) for part in parts), default=0.0)
        return largest if np.isfinite(largest) else None

    @property
    def place(self) -> tuple[Any, ...]:
        """The best first."""
        return (not self.reproduces, round(self.score, 6), *self.candidate.order)


def inexact(difference: Difference) -> float:
    """Return the 90th percentile of differences, as a share of the mean size of the recorded."""
    chosen = difference.chosen & np.isfinite(difference.distance)
    distance, size = difference.distance[chosen], np.abs(difference.recorded[chosen])
    mean = float(size.mean()) if len(size) else 0.0
    return float(np.quantile(distance, 0.9)) / mean if mean > 0 else 0.0


def relative_errors(difference: Difference) -> Numbers:
    """Return |recorded - computed| / |recorded| of the elements that count, 0 for two zeros."""
    chosen = difference.chosen
    distance, size = difference.distance[chosen], np.abs(difference.recorded[chosen])
    errors = np.divide(distance, size, out=np.ones_like(distance), where=size > 0)
    return np.where(distance <= difference.slack[chosen], 0.0, np.nan_to_num(errors, nan=1.0))


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
        self.focus = self.stages
        """The stages that count at present."""
        self.count = 0
        self._report = report
        self._known: dict[str, Trial | None] = {}
        self._kept: dict[str, tuple[Replayed, ...]] = {}
        self._most = max(_FEWEST, _KEPT // max(1, int(rollouts.offsets[-1])))
        batches = rollouts.codes("batch")
        self._batches = {"responses": batches, "tokens": np.repeat(batches, rollouts.lengths)}

    def of(self, candidate: Candidate) -> Trial | None:
        """Return the trial of a candidate; None if it does not fit the input."""
        try:
            key = key_of(candidate.recipe)
        except UsageError as error:
            self._skip(why_not(error))
            return None
        known = self._known.get(key)
        if known is None and key not in self._known:
            known = self._known[key] = self._compute(candidate)
        if known is not None and (known.candidate != candidate or known.focus != self.focus):
            return replace(known, candidate=candidate, focus=self.focus)
        return known

    def again(self, trial: Trial) -> Trial:
        """Return a trial with the stages that count at present."""
        return replace(trial, focus=self.focus)

    def _skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _compute(self, candidate: Candidate) -> Trial | None:
        self.count += 1
        self._report()
        try:
            replayed, resolved = self.replayer.tried(candidate.recipe, self.stages)
        except (UsageError, DataError) as error:
            self._skip(why_not(error))
            return None
        return self._scored(candidate, resolved, tuple(replayed))

    def _scored(
        self, candidate: Candidate, resolved: ResolvedRecipe, replayed: tuple[Replayed, ...]
    ) -> Trial:
        scores, relaxed = dict.fromkeys(self.stages, _FAR), {}
        for one in replayed:
            difference = one.difference
            distance = difference.distance[difference.chosen]
            scores[one.name] = score_of(distance, difference)
            if one.name in ("advantages", "returns") and scores[one.name] > 0:
                relaxed[one.name] = self._relaxed(difference)
        wrong = {one.name: int(one.difference.wrong.sum()) for one in replayed}
        compared = sum(int(one.difference.chosen.sum()) for one in replayed)
        self._keep(key_of(candidate.recipe), replayed)
        numbers = partial(self._numbers, candidate.recipe)
        return Trial(candidate, resolved, numbers, scores, relaxed, wrong, compared, self.focus)

    def _numbers(self, recipe: Recipe) -> tuple[Replayed, ...]:
        """Return the stages of a recipe, computed again if they are no longer in memory."""
        key = key_of(recipe)
        if key not in self._kept:
            self._keep(key, tuple(self.replayer.tried(recipe, self.stages)[0]))
        return self._kept[key]

    def _keep(self, key: str, replayed: tuple[Replayed, ...]) -> None:
        self._kept[key] = replayed
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def batches_of(self, difference: Difference) -> Codes:
        """Return the batch of each element that counts."""
        level = "responses" if len(difference.recorded) == len(self.rollouts) else "tokens"
        return np.asarray(self._batches[level][difference.chosen])

    def _relaxed(self, difference: Difference) -> float:
        """Return the score after a clip or the best affine map of each batch, with its cost."""
        theirs, ours = (
            difference.recorded[difference.chosen],
            difference.computed[difference.chosen],
        )
        if not len(ours) or not np.isfinite(ours).all() or not np.isfinite(theirs).all():
            return _FAR
        bound, found = saturated(theirs), _FAR
        if bound.any():
            beyond = bound & (np.sign(theirs) * (ours - theirs) > 0)
            residual = np.where(beyond, 0.0, np.abs(theirs - ours))
            found = score_of(residual, difference) + _CLIPPED
        mapped = affine(theirs, ours, self.batches_of(difference))
        if mapped is None:
            return found
        residual = np.where(bound, 0.0, np.abs(theirs - mapped))
        return min(found, score_of(residual, difference) + _RELAXED)


def differing_rows(found: Sequence[Replayed], rollouts: Rollouts) -> Codes:
    """Return the responses that differ in a stage, [n] positions."""
    differs = np.zeros(len(rollouts), np.bool_)
    for one in found:
        rows = np.flatnonzero(one.difference.wrong)
        if len(one.difference.wrong) != len(rollouts):
            rows = np.searchsorted(rollouts.offsets, rows, "right") - 1
        differs[rows] = True
    return np.flatnonzero(differs)


def unexplained(trial: Trial, rollouts: Rollouts) -> list[dict[str, Any]]:
    """Return what a recipe leaves open: by stage, the share and the rows that differ."""
    found, rows_of_tokens = [], np.repeat(np.arange(len(rollouts)), rollouts.lengths)
    kinds, steps = kinds_of(rollouts), rollouts.codes("batch")
    computed = {one.name: one for one in trial.replayed}
    for name in (name for name in STAGES if name in trial.scores):
        if name not in computed:
            found.append({"stage": name, "computed": False, "share": 1.0})
            continue
        difference = computed[name].difference
        wrong = difference.wrong
        if not wrong.any():
            continue
        rows = np.flatnonzero(wrong)
        rows = np.unique(rows if len(wrong) == len(rollouts) else rows_of_tokens[rows])
        part = np.zeros(len(rollouts), np.bool_)
        part[rows] = True
        found.append(
            {
                "stage": name,
                "computed": True,
                "share": float(wrong.sum() / difference.chosen.sum()),
                "responses": len(rows),
                "rows": [int(row) for row in rollouts.rows[rows[:5]]],
                "groups": len(np.unique(rollouts.groups[rows])),
                "steps": len(np.unique(steps[rows])),
                "of_steps": len(np.unique(steps)),
                "kinds": [kind for kind, flags in kinds.items() if flags[part].all()],
            }
        )
    return found


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
