"""Live comparison: a preset against the framework that is installed, function by function.

A case computes the same numbers twice: by the framework's own functions on padded tensors, and by
rlpost's pipeline on a table with the preset.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from rlpost.errors import RlpostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

Numbers = dict[str, "Tensor"]
"""What a case computes: a tensor of any shape for each column or number."""

RTOL = ATOL = 1e-5


@dataclass(frozen=True)
class PeerCase:
    """The same numbers, computed twice."""

    name: str
    """Unique in its framework: what is computed, on which rollouts, with which options."""
    ours: Callable[[], Numbers]
    """Computes them by rlpost, with the preset."""
    theirs: Callable[[], Numbers]
    """Computes them by the framework; the same keys and shapes."""
    part: Literal["advantages", "loss"] = "advantages"
    """Which of the preset's options it uses."""
    variant: str = ""
    """The estimator or policy loss whose table of the preset is used."""
    fault: str = ""
    """Why the preset does not reproduce the framework here; empty: the numbers must agree."""


@dataclass(frozen=True)
class Peer:
    """A framework, and how its preset is held against it."""

    preset: str
    package: str
    """Its name on PyPI and in Python."""
    cases: Callable[[], Sequence[PeerCase]]
    uncovered: Callable[[], Sequence[str]] = tuple
    """Returns what the framework has and the preset lacks, such as `policy loss dro`."""


PEERS = ("trl", "verl")
"""Presets with a live comparison."""


def peer_of(name: str) -> Peer:
    """Return the comparison of a preset."""
    peer: Peer = import_module(f"peers.{name}_cases").PEER
    return peer


class PeerDifference(NamedTuple):
    """Where two results differ most."""

    name: str
    """The column or number."""
    different: int
    """How many numbers differ."""
    numbers: int
    """Of how many."""
    largest: float
    """The largest absolute difference; infinite if one side has NaN, or the shapes differ."""
    theirs: float
    ours: float

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.name}: {self.different} of {self.numbers} numbers, most by {self.largest:.3g} "
            f"(framework {self.theirs:.7g}, rlpost {self.ours:.7g})"
        )


class Outcome(NamedTuple):
    """What a case showed."""

    case: str
    difference: PeerDifference | None = None
    error: str = ""
    """The error that the framework's function, or rlpost, raised."""
    fault: str = ""
    """The documented reason of a difference."""
    missing: str = ""
    """The module whose lack kept the framework's function from running."""

    @property
    def equal(self) -> bool:
        """Both computed the same numbers."""
        return self.difference is None and not self.error

    @property
    def passed(self) -> bool:
        """The numbers are equal, or differ as documented, or were not computed."""
        return bool(self.missing) or self.equal != bool(self.fault)

    def __str__(self) -> str:
        """Return what differs, in one line."""
        if self.equal and self.fault:
            return f"equal, although it is documented as a fault: {self.fault}"
        return self.error or str(self.difference or "equal")


def outcome(case: PeerCase) -> Outcome:
    """Compute a case twice, and compare."""
    try:
        theirs = case.theirs()
    except ModuleNotFoundError as error:  # of a part of the framework that has its own extra
        return Outcome(case.name, missing=str(error.name))
    except Exception as error:  # noqa: BLE001 - another version may raise anything
        return Outcome(case.name, error=f"the framework raises {_described(error)}")
    try:
        ours = case.ours()
    except RlpostError as error:
        return Outcome(case.name, error=f"rlpost raises {_described(error)}", fault=case.fault)
    return Outcome(case.name, compare(theirs, ours), fault=case.fault)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def compare(theirs: Numbers, ours: Numbers) -> PeerDifference | None:
    """Return the largest difference; None if all numbers agree to 1e-5, absolute and relative.

    Args:
        theirs: the framework's numbers; NaN equals NaN.
        ours: rlpost's; must have the same keys and shapes.
    """
    differences = (_difference(name, expected, ours[name]) for name, expected in theirs.items())
    return max(filter(None, differences), key=lambda x: x.largest, default=None)


def _difference(name: str, theirs: Tensor, ours: Tensor) -> PeerDifference | None:
    if theirs.shape != ours.shape:
        return PeerDifference(name, 1, 1, torch.inf, float(theirs.numel()), float(ours.numel()))
    expected, came = (x.detach().to(torch.float64).flatten() for x in (theirs, ours))
    wrong = ~torch.isclose(came, expected, rtol=RTOL, atol=ATOL, equal_nan=True)
    if not bool(wrong.any()):
        return None
    gap = torch.where(wrong, (came - expected).abs().nan_to_num(torch.inf), -1.0)
    worst = int(gap.argmax())
    numbers = (float(x[worst]) for x in (gap, expected, came))
    return PeerDifference(name, int(wrong.sum()), wrong.numel(), *numbers)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and log lines of a framework."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
