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
    """Count groups by what the picture may show: passes, pass rate and mean reward.

    Args:
        size: [G] responses of each group.
        passed: [G] those that pass.
        mean: [G] their mean reward.
        signal: [G] groups with signal.
    """
    passes = np.zeros((MOST_RESPONSES + 1, MOST_RESPONSES + 1, 2), np.int64)
    small = size <= MOST_RESPONSES
    np.add.at(passes, (size[small], passed[small], signal[small].astype(int)), 1)
    rates = np.zeros((len(RATES), 2), np.int64)
    rate = 1 + (4 * passed // np.maximum(size, 1)).clip(max=3)
    rate = np.where(passed == 0, 0, np.where(passed == size, len(RATES) - 1, rate))
    np.add.at(rates, (rate, signal.astype(int)), 1)
    means = np.stack([tally(mean[x], bits=_BITS) for x in (~signal, signal)])
    return passes, rates, means


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
        `edges` of the bins, and the responses of two kinds by their name. Empty without any.
    """
    if not tallies:
        return {"groups": {}, "length": {}}
    passes, rates, means, rewards, lengths = tallies
    graded = np.count_nonzero(rewards) > FEW_REWARDS and not chosen
    names, pairs = (("above", "below"), lengths[2:]) if graded else (("pass", "fail"), lengths[:2])
    if not rewards.any():
        return {"groups": {}, "length": _lengths(("all",), lengths[:2].sum(0, keepdims=True))}
    return {
        "groups": _groups(passes, rates, means, graded=bool(graded)),
        "length": _lengths(names, pairs),
    }


def _groups(
    passes: NDArray[np.int64], rates: NDArray[np.int64], means: NDArray[np.int64], *, graded: bool
) -> Json:
    if not rates.sum():
        return {}
    sizes = np.flatnonzero(passes.sum((1, 2)))
    if graded:
        by, (labels, counts) = "mean reward", _bins_of_means(means)
    elif len(sizes) == 1 and passes.sum() == rates.sum():
        (size,) = sizes
        by, labels = f"passes of {size}", [str(k) for k in range(size + 1)]
        counts = passes[size, : size + 1]
    else:
        by, labels, counts = "pass rate", [*RATES], rates
    without, with_signal = counts.T.tolist()
    return {"by": by, "labels": labels, "with": with_signal, "without": without}


def _bins_of_means(means: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return ten bins of equal width of mean rewards: their lower ends, and groups by signal."""
    codes = np.flatnonzero(means.sum(0))
    values = _value_of(codes)
    low, high = float(values.min()), float(values.max())
    width = (high - low) / _MEANS or 1.0
    place = ((values - low) / width).astype(int).clip(0, _MEANS - 1)
    counts = np.zeros((_MEANS, 2), np.int64)
    np.add.at(counts, place, means[:, codes].T)
    return [f"{low + width * i:.2g}" for i in range(_MEANS)], counts


def _lengths(names: tuple[str, ...], pairs: NDArray[np.int64]) -> Json:
    codes = np.flatnonzero(pairs.sum(0))
    if not len(codes):
        return {}
    values = _value_of(codes)
    width = max(float(values.max()), 1.0) / _BINS
    place = (values / width).astype(int).clip(0, _BINS - 1)
    counts = np.zeros((len(names), _BINS), np.int64)
    for row, pair in zip(counts, pairs, strict=True):
        np.add.at(row, place, pair[codes])
    edges = [width * i for i in range(_BINS + 1)]
    return {"edges": edges, **dict(zip(names, counts.tolist(), strict=True))}


def _value_of(codes: Integers) -> Floats:
    """Return the number nearest to 0 of each code of `tally`."""
    bits = (codes.astype(np.uint32) << (32 - _BITS)).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)
