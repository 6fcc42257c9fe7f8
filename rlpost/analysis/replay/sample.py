"""The sample of a search: prompt groups that separate recipes, and the whole steps around them.

Recipes are compared on the groups of the sample. One that couples prompt groups at most is computed
on them alone, and has the same numbers as on the whole step. One that couples a batch, such as by
whitening, is computed on the whole steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.codes import keyed_extremes
from rlpost.kernels.segments import count_true

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.replay.rollouts import Rollouts

    Codes = NDArray[np.int64]
    Flags = NDArray[np.bool_]

SAMPLE = 50_000
"""Tokens of a sample."""
LARGEST = 2_000_000
"""Tokens of a step that is taken whole: its batch statistics need all of it."""
GROUPS = 8
"""Groups that a sample has at least, if they have room in so many times its tokens."""
PROMPT_GROUPS = "whole prompt groups"
"""Scope of rows that are not whole steps."""
_KINDS = 8
"""Values of a column that are kinds of rows, at most."""


def sampled(
    rollouts: Rollouts, tokens: int = SAMPLE, more: Mapping[str, Flags] | None = None
) -> Rollouts:
    """Return the groups of a sample: the first ones, and those with rare rows.

    Rare are groups of one, groups of equal rewards, observation tokens, responses without policy
    tokens, truncated and longest ones, those of each domain, and those that recorded masks drop.

    Args:
        rollouts: whole steps or groups.
        tokens: of the sample.
        more: [N] flags of other rare rows, by kind.
    """
    if rollouts.offsets[-1] <= tokens:
        return rollouts
    kinds = kinds_of(rollouts) | dict(more or {})
    steps = rollouts.codes("batch")
    sizes = np.bincount(steps, rollouts.lengths)
    if rollouts.scope == PROMPT_GROUPS or sizes.min() > max(tokens, LARGEST):
        return _groups(rollouts, kinds, tokens)
    rows = _covering(steps, sizes, kinds, tokens, 1)
    whole = rollouts.take(rows, "whole steps")
    if whole.offsets[-1] <= tokens:
        return whole
    kinds = {name: flags[rows] for name, flags in kinds.items()}
    return _groups(whole, kinds, tokens).within(whole)


def _groups(rollouts: Rollouts, kinds: Mapping[str, Flags], tokens: int) -> Rollouts:
    sizes = np.bincount(rollouts.groups, rollouts.lengths)
    rows = _covering(rollouts.groups, sizes, kinds, tokens, GROUPS)
    return rollouts.take(rows, PROMPT_GROUPS)


def _covering(
    units: Codes, sizes: Codes, kinds: Mapping[str, Flags], tokens: int, least: int
) -> Codes:
    """Return the rows of the first unit, of those that add a rare kind of row, then of more.

    Args:
        units: [N] codes of steps or groups.
        sizes: [U] their tokens.
        kinds: [N] flags of rows by kind.
        tokens: of the result, but for rare units and the first `least` of several rows, which may
            have as many times the tokens.
        least: units.
    """
    order = np.argsort(keyed_extremes(np.arange(len(units)), units, len(sizes))[0])
    small = order[sizes[order] <= tokens * least]
    small = small if len(small) else np.argsort(sizes)[:1]
    has = (np.bincount(units, flags, len(sizes))[small] > 0 for flags in kinds.values())
    several = small[np.bincount(units)[small] > 1]
    wanted = [*small[:1], *(unit for flags in has for unit in small[flags][:1]), *several[:least]]
    chosen, used = np.zeros(len(sizes), np.bool_), 0.0
    for number, unit in enumerate([*wanted, *small]):
        room = tokens * (least if number < len(wanted) else 1)
        if not chosen[unit] and (used + sizes[unit] <= room or not chosen.any()):
            chosen[unit] = True
            used += sizes[unit]
    return np.flatnonzero(chosen[units])


def kinds_of(rollouts: Rollouts) -> dict[str, Flags]:
    """Return the rows of each kind for which recipes differ, [N] each."""
    groups, reward = rollouts.groups, np.nan_to_num(rollouts.reward)
    counts, policy = np.bincount(groups), rollouts.policy_lengths
    low, high = keyed_extremes(reward, groups, len(counts))
    single = counts[groups] == 1
    kept = count_true(rollouts.kept, rollouts.offsets)
    kinds = {
        "groups of one": single,
        "groups of equal rewards": (low == high)[groups] & ~single,
        "responses with observation tokens": (policy < rollouts.lengths) & (policy > 0),
        "responses without policy tokens": policy == 0,
        "longest responses": rollouts.lengths == rollouts.lengths.max(initial=0),
        "dropped responses": (kept == 0) & (rollouts.lengths > 0),
    }
    for role in ("truncated", "domain"):
        codes = rollouts.codes(role)
        several = range(min(_KINDS, int(codes.max(initial=0)) + 1))
        kinds |= {f"{role} {code}": codes == code for code in several}
    return kinds
