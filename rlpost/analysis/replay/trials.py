"""Trials of a search: what recipes compute of the recorded stages, and how near that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.candidates import values_read
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.stages import STAGES, ordered
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.analysis.difference import Difference
    from rlpost.analysis.replay.candidates import Candidate
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.pipeline.resolved import ResolvedRecipe

    Numbers = NDArray[np.float64]

FAR = 10.0
"""The distance of a stage that a recipe does not compute."""
MAPPED = 0.05
"""What an affine map adds to a distance."""
_LEAST_SPREAD = 1e-20
NOISE = 6e-7
"""Differences that float32 arithmetic in another order makes, as a share of the mean size."""
_MASKS = ("sample_mask", "final_response_mask")
_AS_EXACT = 4.0
"""Recipes whose differences are so many times the smallest ones are about as exact."""


@dataclass(frozen=True)
class Nearness:
    """How near a stage is to the recorded one."""

    wrong: int
    """Recorded numbers that differ by more than the tolerance."""
    compared: int
    distance: float
    """Mean |difference| as a share of the mean |recorded number|, at most FAR; that after an affine
    map of each batch and MAPPED, if it is less: a whitening or another unit is one change away."""
    inexact: float
    """The 90th percentile of |difference|, as a share of the same."""

    @classmethod
    def of(cls, difference: Difference, batches: NDArray[np.int64]) -> Nearness:
        """Return the nearness of computed numbers, with the batch of each element."""
        chosen = difference.chosen
        wrong, compared = int(difference.wrong.sum()), int(chosen.sum())
        distance = np.nan_to_num(difference.distance[chosen], nan=np.inf)
        size = float(np.abs(difference.recorded[chosen]).mean()) if compared else 0.0
        if not compared or size == 0:
            return cls(wrong, compared, FAR * bool(wrong), 0.0)
        relative = distance / size
        near, exact = float(relative.mean()), float(np.quantile(relative, 0.9))
        if wrong:
            left = _left_by_map(
                difference.computed[chosen], difference.recorded[chosen], batches[chosen]
            )
            near = min(near, MAPPED + left / size, FAR)
        return cls(wrong, compared, near, exact)

    @property
    def share(self) -> float:
        """The share of the numbers that are equal."""
        return 1.0 - self.wrong / self.compared if self.compared else 1.0


def _left_by_map(ours: Numbers, theirs: Numbers, batches: NDArray[np.int64]) -> float:
    """Return the mean |difference| after the affine map of each batch that is nearest to theirs."""
    counts = np.maximum(np.bincount(batches), 1)

    def centred(values: Numbers) -> Numbers:
        return np.asarray(values - (np.bincount(batches, values) / counts)[batches])

    x, y = centred(ours), centred(theirs)
    spread, both = np.bincount(batches, x * x), np.bincount(batches, x * y)
    slope = np.divide(both, spread, out=np.zeros_like(both), where=spread > _LEAST_SPREAD)
    left = float(np.abs(y - slope[batches] * x).mean())
    return left if np.isfinite(left) else np.inf


@dataclass(frozen=True)
class Trial:
    """What a candidate computes of the recorded stages."""

    candidate: Candidate
    resolved: ResolvedRecipe
    stages: dict[str, Nearness]
    """The stages that it computes."""
    recorded: tuple[str, ...]
    """All recorded stages, in the order of the recipe; masks first."""

    @property
    def key(self) -> tuple[str, str]:
        """The framework and the estimator of rlpost."""
        return self.candidate.preset, self.resolved.recipe.estimator

    @cached_property
    def equal_stages(self) -> int:
        """How many recorded stages are equal before the first that differs."""
        equal = [name in self.stages and not self.stages[name].wrong for name in self.recorded]
        return [*equal, False].index(False)

    @property
    def first_differing(self) -> str:
        """The first recorded stage that differs; empty if none does."""
        return [*self.recorded, ""][self.equal_stages]

    @property
    def reproduces(self) -> bool:
        """Whether all recorded stages are computed, and equal."""
        return self.equal_stages == len(self.recorded)

    @cached_property
    def share(self) -> float:
        """The mean share of equal numbers over the recorded stages."""
        shares = [self.stages[n].share if n in self.stages else 0.0 for n in self.recorded]
        return sum(shares) / len(shares)

    @cached_property
    def distance(self) -> float:
        """The distance of the first stage that differs; 0 if none does."""
        if self.reproduces:
            return 0.0
        stage = self.stages.get(self.first_differing)
        return FAR if stage is None else stage.distance

    @property
    def share_equal(self) -> float | None:
        """The share of all recorded numbers that are equal; None if none is computed."""
        compared = sum(stage.compared for stage in self.stages.values())
        wrong = sum(stage.wrong for stage in self.stages.values())
        return 1.0 - wrong / compared if compared else None

    @property
    def inexact(self) -> float:
        """The largest `inexact` of a stage."""
        return max((stage.inexact for stage in self.stages.values()), default=0.0)

    def as_exact_as(self, other: Trial) -> bool:
        """Whether it reproduces, with differences about as small as those of another trial."""
        return self.reproduces and self.inexact <= max(NOISE, _AS_EXACT * other.inexact)

    @property
    def by_share(self) -> tuple[Any, ...]:
        """The order by equal numbers; of as many, the nearest, then the plainest."""
        near = round(self.share, 4), -round(self.distance, 6)
        return (-self.equal_stages, *(-x for x in near), *self.candidate.order)

    @property
    def by_distance(self) -> tuple[Any, ...]:
        """The order by the distance of the first stage that differs."""
        return (-self.equal_stages, round(self.distance, 6), *self.candidate.order)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What is equal for trials with the same numbers, also with a KL penalty."""
        distances = (round(stage.distance, 9) for stage in self.stages.values())
        recipe = self.resolved.recipe
        return recipe.estimator, recipe.numerics.kl_credit, self.equal_stages, *distances


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
        self.stages = tuple(name for name in STAGES if name in rollouts.recorded)
        self.skipped: Counter[str] = Counter()
        """Candidates that do not fit the input, counted by reason."""
        self.count = 0
        self._report = report
        self._trials: dict[str, Trial | None] = {}
        batches = rollouts.codes("batch")
        self._batches = {len(rollouts): batches}
        self._batches.setdefault(int(rollouts.offsets[-1]), np.repeat(batches, rollouts.lengths))

    def of(self, candidate: Candidate) -> Trial | None:
        """Return the trial of a candidate; None if it does not fit the input."""
        try:
            resolved = self.replayer.resolved(candidate.recipe, self.stages)
            key = str(values_read(resolved))
            if key not in self._trials:
                self._trials[key] = None
                self._trials[key] = self._compute(candidate)
        except (UsageError, DataError) as error:
            self.skipped[str(error).splitlines()[0]] += 1
            return None
        trial = self._trials[key]
        return trial and replace(trial, candidate=candidate, resolved=resolved)

    def _compute(self, candidate: Candidate) -> Trial:
        self.count += 1
        self._report()
        replayed, resolved = self.replayer.tried(candidate.recipe, self.stages)
        near = {}
        for stage in replayed:
            batches = self._batches[len(stage.difference.recorded)]
            near[stage.name] = Nearness.of(stage.difference, batches)
        order = dict.fromkeys([*_MASKS, *ordered(resolved.recipe, self.stages)])
        recorded = tuple(name for name in order if name in self.stages)
        return Trial(candidate, resolved, near, recorded)

    def difference(self, trial: Trial, stage: str) -> Difference | None:
        """Return the numbers of a stage of a trial; None if it does not compute the stage."""
        replayed, _ = self.replayer.tried(trial.candidate.recipe, [stage])
        return next((result.difference for result in replayed if result.name == stage), None)
