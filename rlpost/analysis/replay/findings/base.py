"""The checks of a replay: how one is declared, what it returns, and the finding that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rlpost.analysis.findings import Check, Finding, Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
ENOUGH = 0.95
"""Share of the differing elements that a finding must explain; the others are outliers."""
WHOLE = 0.999
"""A finding that explains so much explains everything, but for rounding."""


@dataclass(frozen=True)
class Explanation:
    """What a check returns if it explains numbers; with its name it is a `ReplayFinding`."""

    text: str
    """What the numbers look like."""
    explains: float
    """Share of the differing elements."""
    options: tuple[str, ...] = ()
    """Options that reproduce the recorded numbers, as typed."""
    name: str = ""
    """The name of the finding, if the check has several: `option:FIELD`."""


@dataclass(frozen=True)
class PossibleCause:
    """Another recipe, other inputs, or other numbers of the stage, which may be the trainer's."""

    text: str
    """How the recorded numbers are reproduced, if they are these."""
    inputs: pa.Table | None = None
    """Inputs from which the stage is computed; None: those of the replay."""
    recipe: Recipe | None = None
    """Computes the stage; None: that of the replay."""
    numbers: NDArray[np.float64] | None = None
    """Without inputs and recipe: the numbers of the stage; None if it cannot be computed."""
    options: tuple[str, ...] = ()
    """The recipe as options, as typed."""
    constants: int = 0
    """Numbers that were solved for."""
    name: str = ""
    """As of `Explanation`."""


@dataclass(frozen=True)
class DifferingPart:
    """A part of the elements that has all differences."""

    text: str
    explains: float
    """Share of the differing elements that are in it."""
    inside: Evidence | None = None
    """Its numbers, which may have an explanation of their own."""
    alone: bool = False
    """Whether these are computed without the other responses, so that changes can be tested."""


Phase = Literal[
    "first change",
    "option",
    "change",
    "relation",
    "second relation",
    "part",
    "last relation",
    "note",
    "not compared",
]
"""When a check is tested, and what it is called with and yields:

- first change, change: the evidence of a stage; possible causes. The first ones come before
  options, some of which have the same effect. The others are tested until one reproduces all
  recorded stages.
- option: the one check of all options, whose findings are named `option:FIELD`.
- relation: the evidence; explanations, of which the first counts.
- second relation: the same, if no relation holds.
- part: the evidence; parts. Tested if nothing explains everything; the first counts.
- last relation: as a relation, if nothing else was found; the first relation that holds counts.
- note: a recorded stage, and the input; explanations. Tested if no stage differs: the numbers that
  it is of count as equal.
- not compared: the same, always.
"""
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@dataclass(frozen=True)
class ReplayCheck(Check[Callable[..., Any]]):
    """A check of recorded numbers."""

    phase: str
    prefix: str = ""
    """Of the name: `input:` if the trainer read, or placed, something else."""
    exact: bool = False
    """Of a relation: no change of options or inputs makes such numbers, so none is tested."""

    @property
    def name(self) -> str:
        """The name of the finding; `option` is that of all options, whose field follows it."""
        return self.prefix + super().name.replace("_", "-")


class ReplayChecks(Registry[ReplayCheck]):
    """Checks by the name of their finding, each with a phase."""

    def check(self, phase: str, **fields: Any) -> Callable[[AnyFunction], AnyFunction]:
        """Return a decorator that adds a function; the fields are those of `ReplayCheck`."""

        def add(function: AnyFunction) -> AnyFunction:
            self.add(ReplayCheck(function, phase, **fields))
            return function

        return add

    def of(self, phase: str) -> list[ReplayCheck]:
        """Return the checks of a phase, in the order in which they are declared."""
        return [one for one in self.values() if one.phase == phase]


FINDINGS = ReplayChecks()
"""Every check of recorded stages, by the name of its finding."""


def check(phase: Phase, **fields: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that adds a check of a phase to FINDINGS."""
    return FINDINGS.check(phase, **fields)


@dataclass(frozen=True)
class ReplayFinding(Finding):
    """What explains the recorded numbers of a stage."""

    explains: float
    """Share of the differing elements; of large inputs, of those in a sample."""
    options: tuple[str, ...] = ()
    """Options as typed, which reproduce the numbers; none if it is no change of options."""
    stage: str = ""
    """The stage that it is of."""
    reproduces: tuple[str, ...] = ()
    """The stages that a change makes equal."""
    leaves: tuple[str, ...] = ()
    """The stages that differ with and without the change."""
    breaks: tuple[str, ...] = ()
    """The stages that differ with the change alone."""
    recipe: Recipe | None = None
    """The recipe with these options."""
    after: tuple[str, ...] = ()
    """Options as typed, which an earlier stage needs."""
    note: bool = False
    """Whether the numbers count as equal."""

    @property
    def whole(self) -> bool:
        """Whether it explains everything, but for rounding."""
        return self.explains >= WHOLE

    @property
    def sentence(self) -> str:
        """The text, with the stages that it is of and those that it makes equal or not."""
        of = listed(self.reproduces or (self.stage,))
        of += f", but not {listed(self.leaves)}" if self.leaves else ""
        of = f"with `{' '.join(self.after)}`, {of}" if self.after else of
        text = f"{of}: {self.text}"
        if self.breaks:
            text += f"; but {listed(self.breaks)}, equal without it, would differ"
        return text

    def as_json(self) -> Json:
        """Return the finding as plain data."""
        return {
            "name": self.name,
            "text": self.sentence,
            "advice": self.advice,
            "stage": self.stage,
            "options": [*self.options],
            "reproduces": [*self.reproduces],
            "explains": float(min(1.0, max(0.0, self.explains))),
            "note": self.note,
        }


def explained(check: ReplayCheck, one: Explanation, stage: str) -> ReplayFinding:
    """Return what a check returned for a stage as its finding."""
    own = (one.name or check.name, one.text, check.advice, one.explains, one.options, stage)
    return ReplayFinding(*own, note=check.phase == "note")


def listed(names: Sequence[str]) -> str:
    """Return names in backticks, with commas and a last `and`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)
