"""Profiles of an input, for its picture: groups by their passes or rewards, and lengths.

They are counted as tallies, which add: those of a file with those of the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.kernels.histogram import tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask

Json = dict[str, Any]
Tallies = tuple[Any, ...]
"""Arrays of int64."""
MOST_RESPONSES = 16
"""Of groups that are listed by how many of their responses pass."""
FEW_REWARDS = 3
"""Different rewards up to which a response passes or fails."""
RATES = ("0 %", "<25 %", "<50 %", "<75 %", "<100 %", "100 %")
_BITS = 16  # of a number: sign, exponent and seven bits of the mantissa
_BINS, _MEANS = 24, 10


def group_tallies(size: Integers, passed: Integers, mean: Floats, signal: Mask) -> Tallies:
    """Count groups by size, and by pass rate and mean reward, each without and with signal.

    Args:
        size: [G] responses of each group.
        passed: [G] those that pass.
        mean: [G] their mean reward.
        signal: [G] groups with signal.
    """
    sizes = np.bincount(size.clip(max=MOST_RESPONSES + 1), minlength=MOST_RESPONSES + 2)
    rate = passed / size.clip(1)
    return sizes, *(
        np.stack([tally(x[flags], bits=_BITS) for flags in (~signal, signal)]) for x in (rate, mean)
    )


def response_tallies(
    rewards: Floats, tokens: Integers, passed: Mask, mean: Floats, counted: Mask
) -> Tallies:
    """Count rewards, and lengths by what the response did.

    Args:
        rewards: [N] rewards.
        tokens: [N] policy tokens.
        passed: [N] whether the response passes.
        mean: [N] the mean reward of its group.
        counted: [N] the responses that count.
    """
    kinds = (passed, ~passed, rewards > mean, rewards < mean)
    sizes = tokens.astype(np.float64)
    lengths = np.stack([tally(sizes[x & counted], bits=_BITS) for x in kinds])
    return tally(rewards[counted & np.isfinite(rewards)], bits=_BITS), lengths


def profiles(tallies: Tallies, *, chosen: bool) -> Json:
    """Return the profiles of an input as plain data: `groups` and `length`.

    Args:
        tallies: of `group_tallies` and `response_tallies`.
        chosen: the user set the threshold of passing.

    Returns:
        `groups`: what they are `by`, `labels`, and groups `with` and `without` signal. `length`:
        `edges` of the bins, each with its upper edge and the first with 0, and the responses of two
        kinds by their name. Empty without any.
    """
    if not tallies:
        return {"groups": {}, "length": {}}
    sizes, rates, means, rewards, lengths = tallies
    graded = np.count_nonzero(rewards) > FEW_REWARDS and not chosen
    names, pairs = (("above", "below"), lengths[2:]) if graded else (("pass", "fail"), lengths[:2])
    if not rewards.any():
        return {"groups": {}, "length": _lengths(("all",), lengths[:2].sum(0, keepdims=True))}
    return {
        "groups": _groups(sizes, rates, means, graded=bool(graded)),
        "length": _lengths(names, pairs),
    }


def _groups(
    sizes: NDArray[np.int64],
    rates: NDArray[np.int64],
    means: NDArray[np.int64],
    *,
    graded: bool,
) -> Json:
    if not sizes.any():
        return {}
    pairs = means if graded else rates
    codes, (size, *others) = np.flatnonzero(pairs.sum(0)), np.flatnonzero(sizes).tolist()
    values = _value_of(codes)
    if graded:
        low, high = float(values.min()), float(values.max())
        bins = _MEANS if high > low else 1
        width = (high - low) / bins or 1.0
        by, labels = "mean reward", [f"{low + width * i:.2g}" for i in range(bins)]
        place = ((values - low) / width).astype(int).clip(0, bins - 1)
    elif others or size > MOST_RESPONSES:
        by, labels = "pass rate", [*RATES]
        place = np.ceil(values).astype(int) + (4 * values).astype(int)  # 0, 1 to 4, and 5 for all
    else:
        by, labels = f"passes of {size}", [str(k) for k in range(size + 1)]
        place = np.rint(values * size).astype(int)
    counts = np.zeros((len(labels), 2), np.int64)
    np.add.at(counts, place, pairs[:, codes].T)
    without, with_signal = counts.T.tolist()
    return {"by": by, "labels": labels, "with": with_signal, "without": without}


def _lengths(names: tuple[str, ...], pairs: NDArray[np.int64]) -> Json:
    codes = np.flatnonzero(pairs.sum(0))
    if not len(codes):
        return {}
    values = _value_of(codes)
    longest = max(int(values.max()), 1)
    width = -(-longest // _BINS)
    bins = -(-longest // width)
    place = (np.ceil(values / width).astype(int) - 1).clip(0, bins - 1)
    counts = np.zeros((len(names), bins), np.int64)
    for row, pair in zip(counts, pairs, strict=True):
        np.add.at(row, place, pair[codes])
    edges = [width * i for i in range(bins + 1)]
    return {"edges": edges, **dict(zip(names, counts.tolist(), strict=True))}


def _value_of(codes: Integers) -> Floats:
    """Return the number nearest to 0 of each code of `tally`."""
    bits = (codes.astype(np.uint32) << (32 - _BITS)).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)
