"""The sample of a search: prompt groups that separate recipes, and the whole steps around them.

Recipes are compared on the groups of the sample. One that couples prompt groups at most is computed
on them alone, and has the same numbers as on the whole step. One that couples a batch, such as by
whitening, is computed on the whole steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.segments import segment_counts
from rlpost.kernels.codes import keyed_extremes

if TYPE_CHECKING:
    from collections.abc import Iterable

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
_KINDS = 8
"""Values of a column that are kinds of rows, at most."""


def sampled(rollouts: Rollouts, tokens: int = SAMPLE) -> Rollouts:
    """Return the groups of a sample: the first ones, and those with rare rows.

    Rare are groups of one, groups of equal rewards, observation tokens, responses without policy
    tokens, truncated and longest ones, those of each domain, and those that recorded masks drop.
    """
    if rollouts.offsets[-1] <= tokens:
        return rollouts
    steps = rollouts.codes("batch")
    sizes = np.bincount(steps, rollouts.lengths)
    if rollouts.scope not in ("everything", "whole steps") or sizes.min() > max(tokens, LARGEST):
        rollouts.warnings.append(
            f"every step has more tokens than --sample, or than {LARGEST:,}: the search computed "
            "recipes on prompt groups alone, so one with statistics of a batch, such as whitening, "
            "is not found; --preset and --estimator compare it"
        )
        return _groups(rollouts, tokens)
    chosen = _covering(steps, sizes, kinds_of(rollouts), tokens)
    whole = rollouts.take(np.flatnonzero(chosen[steps]), "whole steps")
    return whole if whole.offsets[-1] <= tokens else _groups(whole, tokens).within(whole)


def _groups(rollouts: Rollouts, tokens: int) -> Rollouts:
    groups = rollouts.groups
    sizes = np.bincount(groups, rollouts.lengths)
    kinds = kinds_of(rollouts) | dict(_rare(rollouts))
    chosen = _covering(groups, sizes, kinds, tokens, GROUPS)
    return rollouts.take(np.flatnonzero(chosen[groups]), "whole prompt groups")


def _covering(
    units: Codes, sizes: Codes, kinds: dict[str, Flags], tokens: int, least: int = 1
) -> Flags:
    """Return which units to take: the first, those that add a rare kind of row, then more.

    Args:
        units: [N] codes of steps or groups.
        sizes: [U] their tokens.
        kinds: [N] flags of rows by kind.
        tokens: of the result, but for `least` units of several rows, which may have as many times
            the tokens.
        least: units.
    """
    has = [np.bincount(units, flags, len(sizes)) > 0 for flags in kinds.values()]
    order = np.argsort(keyed_extremes(np.arange(len(units)), units, len(sizes))[0])
    room = tokens * least
    small = order[sizes[order] <= room]
    wanted = [*(small[:1] if len(small) else np.argsort(sizes)[:1])]
    for flags in has:
        wanted += [*small[flags[small]][:1]]
    many = small[np.bincount(units, minlength=len(sizes))[small] > 1][:least]
    chosen, used = np.zeros(len(sizes), np.bool_), 0.0
    for most, units_of in ((room, wanted), (room if least > 1 else tokens, many), (tokens, small)):
        for unit in units_of:
            if not chosen[unit] and (used + sizes[unit] <= most or not chosen.any()):
                chosen[unit] = True
                used += sizes[unit]
    return chosen


def kinds_of(rollouts: Rollouts) -> dict[str, Flags]:
    """Return the rows of each kind for which recipes differ, [N] each."""
    groups, reward = rollouts.groups, np.nan_to_num(rollouts.reward)
    counts, policy = np.bincount(groups), rollouts.policy_lengths
    low, high = keyed_extremes(reward, groups, len(counts))
    single = counts[groups] == 1
    return {
        "groups of one": single,
        "groups of equal rewards": (low == high)[groups] & ~single,
        "responses with observation tokens": (policy < rollouts.lengths) & (policy > 0),
        "responses without policy tokens": policy == 0,
    }


def _rare(rollouts: Rollouts) -> Iterable[tuple[str, Flags]]:
    """Yield more kinds of rows that a sample has, [N] each."""
    yield "longest responses", rollouts.lengths == rollouts.lengths.max(initial=0)
    kept = segment_counts(rollouts.kept, rollouts.offsets)
    yield "dropped responses", (kept == 0) & (rollouts.lengths > 0)
    for role in ("truncated", "domain"):
        codes = rollouts.codes(role)
        for code in range(min(_KINDS, int(codes.max(initial=0)) + 1)):
            yield f"{role} {code}", codes == code
