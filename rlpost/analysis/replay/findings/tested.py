"""Changes that were tested: those whose numbers are the recorded ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.base import ENOUGH, Explanation, explained
from rlpost.analysis.replay.findings.evidence import numbers_of
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.replay.compute import Replayed, Replayer
    from rlpost.analysis.replay.findings.base import PossibleCause, ReplayCheck, ReplayFinding
    from rlpost.analysis.replay.findings.evidence import Evidence
    from rlpost.recipe.recipe import Recipe


_CLOSER = 0.9


@dataclass
class _TestedCause:
    """A change that reproduces the recorded numbers."""

    finding: ReplayFinding
    left: float
    """Sum of the distances that are left."""
    constants: int = 0
    """Numbers that were solved for."""
    how: tuple[Replayer, Recipe] | None = None
    """The inputs and the recipe that compute all stages; None: only this stage is known."""

    @cached_property
    def stages(self) -> list[Replayed]:
        """All recorded stages with the change; none if only this stage is known."""
        return _stages_of(*self.how) if self.how else []

    def breaks(self, equal: Mapping[str, bool]) -> list[str]:
        """Return the stages that differ with the change alone."""
        return [one.name for one in self.stages if not one.difference.equal and equal[one.name]]

    def described(self, stage: str, equal: Mapping[str, bool]) -> ReplayFinding:
        """Return the finding, with what the change does to each recorded stage.

        Args:
            stage: the stage that it reproduces.
            equal: whether each stage is equal without the change.
        """
        after = {one.name: one.difference.equal for one in self.stages if one.name != stage}
        before = {name: own for name, own in after.items() if not equal[name]}
        return replace(
            self.finding,
            reproduces=(stage, *(name for name, own in before.items() if own)),
            leaves=tuple(name for name, own in before.items() if not own),
            breaks=tuple(self.breaks(equal)),
            recipe=self.how[1] if self.how and self.finding.options else None,
        )


@dataclass
class Causes:
    """The changes that reproduce a stage, the best of each name."""

    seen: Evidence
    found: dict[str, _TestedCause] = field(default_factory=dict)

    def test_all(self, check: ReplayCheck) -> None:
        """Add the causes of a check that reproduce the recorded numbers, the best of each name."""
        for cause in check.run(self.seen):
            self.test(check, cause)

    def test(self, check: ReplayCheck, cause: PossibleCause) -> bool:
        """Add a cause if it reproduces the recorded numbers; return whether it does."""
        seen, numbers, how = self.seen, cause.numbers, None
        if cause.inputs is not None or cause.recipe is not None:
            inputs, recipe = cause.inputs, cause.recipe or seen.recipe
            how = seen.replayer if inputs is None else seen.replayer.reading(inputs), recipe
            numbers = numbers_of(*how, seen.first.name)
        if numbers is None or numbers.shape != seen.computed.shape:
            return False
        share = seen.explains(numbers)
        if share < ENOUGH:
            return False
        own = Explanation(cause.text, share, cause.options, cause.name)
        distance = replace(seen.difference, computed=numbers).distance[seen.chosen]
        finding = explained(check, own, seen.first.name)
        tested = _TestedCause(finding, float(np.nansum(distance)), cause.constants, how)
        other = self.found.get(finding.name)
        if other is None or _is_better(tested, other):
            self.found[finding.name] = tested
        return True

    @property
    def complete(self) -> bool:
        """Whether a change reproduces all recorded stages."""
        whole = [one for one in self.found.values() if one.finding.whole]
        return any(_differing(one.stages) == (0, 0) for one in whole)

    def ranked(self) -> list[ReplayFinding]:
        """Return the changes, those that reproduce the most first.

        Changes that reproduce the stage can differ in other recorded stages, and in the numbers of
        tokens that do not count. One that makes another stage differ is below those that do not.
        """
        if not self.found:
            return []
        replayer, name = self.seen.replayer, self.seen.first.name
        stages = _stages_of(replayer, self.seen.recipe)
        others = _differing([one for one in stages if one.name != name])
        equal = dict.fromkeys(replayer.rollouts.recorded, False)
        equal |= {one.name: one.difference.equal for one in stages}

        def rank(one: _TestedCause) -> tuple[bool, bool, tuple[int, int], int]:
            left = _differing(one.stages) if one.how else others
            return not one.finding.whole, bool(one.breaks(equal)), left, one.constants

        return [one.described(name, equal) for one in sorted(self.found.values(), key=rank)]


def _is_better(own: _TestedCause, other: _TestedCause) -> bool:
    """Return whether a change explains more than another of the same name, or as much, simpler."""
    ranks = [
        (-round(one.finding.explains, 3), one.constants, _differing(one.stages))
        for one in (own, other)
    ]
    return own.left < _CLOSER * other.left if ranks[0] == ranks[1] else ranks[0] < ranks[1]


def _stages_of(replayer: Replayer, recipe: Recipe) -> list[Replayed]:
    """Return all recorded stages by a recipe; none if it does not fit the inputs."""
    with suppress(UsageError, DataError, pa.ArrowException):
        return replayer.from_recorded(recipe)
    return []


def _differing(stages: Sequence[Replayed]) -> tuple[int, int]:
    """Return how many stages differ, and how many do in tokens that do not count."""
    differ = sum(not one.difference.equal for one in stages)
    return differ, sum(one.outside > 0 for one in stages)
