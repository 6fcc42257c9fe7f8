"""Changes that were tested: those whose numbers are the recorded ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.evidence import ENOUGH, Evidence, finding
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed, Replayer
    from rlpost.analysis.replay.findings.evidence import Json
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]

WHOLE = 0.999
"""A change that explains so much reproduces everything, but for rounding."""
_CLOSER = 0.9
_SAME = 1e-3


@dataclass
class _Found:
    """A change that reproduces the recorded numbers."""

    json: Json
    left: float
    """Sum of the distances that are left."""
    constants: int = 0
    """Numbers that were solved for."""
    how: tuple[Replayer, Recipe] | None = None
    """The inputs and the recipe that compute all stages; None: only this stage is known."""

    @cached_property
    def stages(self) -> list[Replayed] | None:
        """All recorded stages with the change; None if only this stage is known."""
        return stages_of(*self.how) if self.how else None

    @property
    def parting(self) -> int:
        """How many recorded stages differ, and how many in tokens that do not count."""
        return 0 if self.stages is None else parting(self.stages)

    def broken(self, own: Mapping[str, bool]) -> list[str]:
        """Return the stages that differ with the change alone."""
        return [one.name for one in self.stages or () if not one.difference.equal and own[one.name]]

    def described(self, stage: str, own: Mapping[str, bool]) -> Json:
        """Return the finding, whose text has what the change does to each recorded stage.

        Args:
            stage: the stage that it reproduces.
            own: whether each stage is equal without the change.
        """
        after = {one.name: one.difference.equal for one in self.stages or () if one.name != stage}
        also = [name for name, equal in after.items() if equal and not own[name]]
        part = [name for name, equal in after.items() if not equal and not own[name]]
        names = listed([stage, *also]) + (f", but not {listed(part)}," if part else "")
        text = self.json["text"].replace("the recorded numbers", f"the recorded {names}")
        text = text.replace(",,", ",").removesuffix(",")
        broken = self.broken(own)
        if broken:
            text += f"; but {listed(broken)}, equal without it, would differ"
        recipe = self.how[1] if self.how and self.json["options"] else None
        return self.json | {"text": text, "reproduces": [stage, *also], "recipe": recipe}


@dataclass
class Causes:
    """The changes that reproduce a stage, the best of each ID."""

    seen: Evidence
    found: dict[str, _Found] = field(default_factory=dict)

    def test(
        self,
        name: str,
        text: str,
        *options: str,
        replayer: Replayer | None = None,
        recipe: Recipe | None = None,
        constants: int = 0,
    ) -> bool:
        """Add a change of the inputs or of the recipe if it reproduces the recorded numbers."""
        how = replayer or self.seen.replayer, recipe or self.seen.recipe
        values = numbers_of(*how, self.seen.first.name)
        return self.add(name, text, values, *options, constants=constants, how=how)

    def add(
        self,
        name: str,
        text: str,
        computed: Numbers | None,
        *options: str,
        constants: int = 0,
        how: tuple[Replayer, Recipe] | None = None,
    ) -> bool:
        """Add a change if its numbers are the recorded ones; returns whether they are."""
        difference = self.seen.difference
        if computed is None or computed.shape != difference.computed.shape:
            return False
        share = self.seen.explains(computed)
        if share < ENOUGH:
            return False
        left = replace(difference, computed=computed).distance[difference.chosen]
        own = _Found(finding(name, text, share, *options), float(np.nansum(left)), constants, how)
        other = self.found.get(name)
        if other is None or self._closer(own, other):
            self.found[name] = own
        return True

    def _closer(self, own: _Found, other: _Found) -> bool:
        """Return whether a change explains more than another of the same ID."""
        if abs(own.json["explains"] - other.json["explains"]) > _SAME:
            return bool(own.json["explains"] > other.json["explains"])
        if own.constants != other.constants:
            return own.constants < other.constants
        if own.how and other.how and own.parting != other.parting:
            return own.parting < other.parting
        return own.left < _CLOSER * other.left

    @property
    def complete(self) -> bool:
        """Whether a change reproduces all recorded stages."""
        whole = [one for one in self.found.values() if one.json["explains"] >= WHOLE]
        return any(not one.parting for one in whole)

    def ranked(self) -> list[Json]:
        """Return the changes, those that reproduce the most first.

        Changes that reproduce the stage can differ in other recorded stages, and in the numbers of
        tokens that do not count. One that makes another stage differ is below those that do not.
        """
        if not self.found:
            return []
        replayer, name = self.seen.replayer, self.seen.first.name
        stages = stages_of(replayer, self.seen.recipe)
        known = {one.name: one.difference.equal for one in stages}
        own = dict.fromkeys(replayer.rollouts.recorded, False) | known

        def rank(one: _Found) -> tuple[bool, bool, int, int]:
            left = one.parting if one.how else parting(stages) - 1
            return one.json["explains"] < WHOLE, bool(one.broken(own)), left, one.constants

        return [one.described(name, own) for one in sorted(self.found.values(), key=rank)]


def listed(names: Sequence[str]) -> str:
    """Return names in backticks, with commas and a last `and`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


def stages_of(replayer: Replayer, recipe: Recipe) -> list[Replayed]:
    """Return all recorded stages by a recipe; none if it does not fit the inputs."""
    with suppress(UsageError, DataError, pa.ArrowException):
        return replayer.from_recorded(recipe)
    return []


def parting(stages: Sequence[Replayed]) -> int:
    """Return how many stages differ, and how many in tokens that do not count."""
    return sum((not one.difference.equal) + (one.outside > 0) for one in stages)


def numbers_of(replayer: Replayer, recipe: Recipe, name: str) -> Numbers | None:
    """Return a stage by a recipe, [T] or [N]; None if the recipe does not fit the inputs."""
    with suppress(UsageError, DataError, pa.ArrowException):
        stage = replayer.stage(recipe, name)
        return None if stage is None else stage.difference.computed
    return None
