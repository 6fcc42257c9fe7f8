"""Subsets that have all differences: of groups, or of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.evidence import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence, Json

    Mask = NDArray[np.bool_]

OUTLIERS = 0.02
"""Share of the differing elements that may lie outside of the subset that a finding names."""


def subsets(seen: Evidence) -> Iterator[Json]:
    """Yield the subset that has all differences, the most specific first."""
    wrong, chosen = seen.wrong, seen.chosen
    tests: list[tuple[str, Mask, str]] = []
    if "group" in seen.replayer.rollouts.columns:
        tests.append(("single-groups", seen.group_size == 1, "groups of one response"))
    tests += _ends(seen)
    for name, inside, title in tests:
        share = float((wrong & inside).sum()) / int(wrong.sum())
        others = chosen & ~inside
        if share >= 1 - OUTLIERS and others.any() and _matter(seen, others):
            yield finding(name, f"only {title} differ{_example(seen, wrong & inside)}", share)


def _matter(seen: Evidence, others: Mask) -> bool:
    """Return whether elements outside of a subset have numbers other than 0."""
    return bool((np.abs(seen.recorded[others]) > seen.tolerance[others]).any())


def _example(seen: Evidence, elements: Mask) -> str:
    """Return the numbers of a subset, if they are constant."""
    recorded, own = seen.recorded[elements], seen.computed[elements]
    if np.ptp(own) <= seen.tolerance[elements].max():
        return f": computed {own[0]:.5g}, recorded {recorded.min():.5g} to {recorded.max():.5g}"
    if np.ptp(recorded) <= seen.tolerance[elements].max():
        return f": recorded {recorded[0]:.5g}, computed {own.min():.5g} to {own.max():.5g}"
    return ""


def _ends(seen: Evidence) -> list[tuple[str, Mask, str]]:
    if not seen.by_token:
        return []
    last_token = np.diff(seen.rows, append=-1) != 0
    return [
        ("last-tokens", seen.last, "the last policy tokens of responses"),
        ("last-tokens", last_token, "the last tokens of responses"),
    ]
