"""The sample of a search: whole steps, or groups, that tell recipes apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.rollouts import Rollouts

    Codes = NDArray[np.int64]
    Flags = NDArray[np.bool_]

SAMPLE = 50_000
"""Tokens of a sample."""
LARGEST = 500_000
"""Tokens of a step that is taken whole: its batch statistics need all of it."""
FEW = 3
"""Steps that a sample has at least, if it has room: recipes can depend on their order."""


def sampled(rollouts: Rollouts, tokens: int = SAMPLE) -> Rollouts:
    """Return the steps, or groups, of a sample: the first ones, and those with rare rows.

    Rare are groups of one, groups of equal rewards, observation tokens, responses without policy
    tokens, and those that the recorded numbers drop. A step is taken whole up to 500,000 tokens.
    """
    if rollouts.offsets[-1] <= tokens:
        return rollouts
    steps = rollouts.codes("batch")
    sizes = np.bincount(steps, rollouts.lengths)
    if sizes.min() <= max(tokens, LARGEST):
        chosen = _covering(rollouts, steps, sizes, tokens)
        return rollouts.take(np.flatnonzero(chosen[steps]), "whole steps")
    groups = rollouts.groups
    sizes = np.bincount(groups, rollouts.lengths)
    chosen = _covering(rollouts, groups, sizes, tokens)
    return rollouts.take(np.flatnonzero(chosen[groups]), "whole prompt groups")


def _covering(rollouts: Rollouts, units: Codes, sizes: Codes, tokens: int) -> Flags:
    """Return which units to take: the first, those that add a rare kind of row, then more."""
    kinds = kinds_of(rollouts)
    has = {name: np.bincount(units, flags, len(sizes)) > 0 for name, flags in kinds.items()}
    first = np.full(len(sizes), len(units))
    np.minimum.at(first, units, np.arange(len(units)))
    order = np.argsort(first)
    chosen, used = np.zeros(len(sizes), np.bool_), 0.0
    small = order[sizes[order] <= tokens]
    start = small[:1] if len(small) else np.argsort(sizes)[:1]
    wanted = [*start]
    for flags in has.values():
        wanted += [*small[flags[small]][:1]]
    for unit in (*wanted, *small):
        if not chosen[unit] and (used + sizes[unit] <= tokens or not chosen.any()):
            chosen[unit] = True
            used += sizes[unit]
    return chosen


def kinds_of(rollouts: Rollouts) -> dict[str, Flags]:
    """Return the rows of each kind for which recipes differ, [N] each."""
    groups, reward = rollouts.groups, np.nan_to_num(rollouts.reward)
    counts = np.bincount(groups)
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, groups, reward)
    np.maximum.at(high, groups, reward)
    rows = np.repeat(np.arange(len(rollouts)), rollouts.lengths)
    policy = np.bincount(rows, rollouts.mask, len(rollouts))
    single = counts[groups] == 1
    return {
        "groups of one": single,
        "groups of equal rewards": (low == high)[groups] & ~single,
        "responses with observation tokens": (policy < rollouts.lengths) & (policy > 0),
        "responses without policy tokens": policy == 0,
    }
