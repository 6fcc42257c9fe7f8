"""Recorded numbers that are not compared, and numbers that differ and count as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.replay.findings.base import Explanation, check
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import Rollouts

_EXAMPLES = 3


@check("not compared")
def not_finite(stages: Sequence[Replayed], rollouts: Rollouts) -> Iterator[Explanation]:
    """Recorded numbers are NaN, null or infinite.

    One such number makes the loss of its batch NaN. Look for a division by 0, and log-probs of
    tokens that the sampler excludes.
    """
    for one in stages:
        rows = rollouts.not_finite(one.name)
        if len(rows):
            first = ", ".join(str(row) for row in rollouts.rows[rows[:_EXAMPLES]])
            text = (
                f"recorded numbers of `{one.column}` are NaN, null or infinite in {len(rows):,} of "
                f"{counted(len(rollouts), 'response')} (rows {first}"
                f"{', ...' * (len(rows) > _EXAMPLES)})"
            )
            yield Explanation(text, 1.0, (one.name,))


@check("note")
def constant_groups(stages: Sequence[Replayed], _: Rollouts) -> Iterator[Explanation]:
    """Only prompt groups of equal rewards differ, by the rounding of their mean, divided by ε.

    A float32 mean of equal numbers can miss them by a rounding, so that a group without a signal
    has advantages near 0, or near 1 with a small ε. It is harmless with ε of 1e-6 or more.
    """
    rounded = [one for one in stages if one.rounding]
    if rounded:
        text = (
            f"only groups of equal rewards differ, in {_most([one.rounding for one in rounded])} "
            "numbers: recorded is the rounding of their float32 mean, divided by ε, where computed "
            "is 0"
        )
        yield Explanation(text, 1.0, tuple(one.name for one in rounded))


@check("note")
def masked_tokens(stages: Sequence[Replayed], _: Rollouts) -> Iterator[Explanation]:
    """Only tokens outside of the mask differ: observation tokens, or those of dropped responses.

    They do not count if the loss reads the mask. If it does not, set them to 0.
    """
    outside = [one for one in stages if one.outside]
    if outside:
        text = (
            f"only {_most([one.outside for one in outside])} tokens outside the mask differ: "
            "observation tokens, or those of dropped responses; they do not count"
        )
        yield Explanation(text, 1.0, tuple(one.name for one in outside))


def _most(counts: Sequence[int]) -> str:
    """Return the one count of several stages, or the largest."""
    return f"{max(counts):,}" if len({*counts}) == 1 else f"up to {max(counts):,}"
