"""Recorded numbers that are not compared, and numbers that differ and count as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.replay.findings.base import Explanation, check
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import Rollouts

_EXAMPLES = 3


@check("not compared")
def not_finite(stage: Replayed, rollouts: Rollouts) -> Iterator[Explanation]:
    """Recorded numbers are NaN, null or infinite.

    One such number makes the loss of its batch NaN. Look for a division by 0, and for tokens that
    the sampler excludes, whose log-prob is -inf.
    """
    rows = rollouts.not_finite(stage.name)
    if len(rows):
        first = ", ".join(str(row) for row in rollouts.rows[rows[:_EXAMPLES]])
        more = ", ..." if len(rows) > _EXAMPLES else ""
        text = (
            f"recorded numbers of `{stage.column}` are NaN, null or infinite in {len(rows):,} of "
            f"{counted(len(rollouts), 'response')} (rows {first}{more})"
        )
        yield Explanation(text, 1.0)


@check("note")
def constant_groups(stage: Replayed, _: Rollouts) -> Iterator[Explanation]:
    """Only prompt groups of equal rewards differ, by the rounding of their mean, divided by ε.

    A float32 mean of equal numbers can miss them by a rounding, so that a group without a signal
    has advantages near 0, or near 1 if ε is small. They are noise: drop such groups, or take a
    larger ε.
    """
    if stage.rounding:
        text = (
            f"only groups of equal rewards differ, in {counted(stage.rounding, 'number')}: "
            "recorded is the rounding of their float32 mean, divided by ε, where computed is 0"
        )
        yield Explanation(text, 1.0)


@check("note")
def masked_tokens(stage: Replayed, _: Rollouts) -> Iterator[Explanation]:
    """Only tokens outside of the mask differ: observation tokens, or those of dropped responses.

    They do not count if the loss reads the mask. If it does not, set them to 0.
    """
    if stage.outside:
        text = (
            f"only {counted(stage.outside, 'token')} outside the mask differ: observation tokens, "
            "or those of dropped responses; they do not count"
        )
        yield Explanation(text, 1.0)
