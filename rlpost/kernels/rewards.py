"""Numbers of whole responses: sample masks, reward shaping, normalisation, sample weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.moments import (
    Moments,
    equal_to_rounding,
    first_values,
    group_moments,
    group_offsets,
    is_constant,
    last_values,
)
from rlpost.kernels.segments import lengths, segment_max, segment_sum, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.kernels.moments import Floats, Integers, Mask


# Sample masks


def within_difficulty(mean: Floats, size: Floats, *, low: float, high: float) -> Mask:
    """Keep groups with low < mean raw reward < high, and single-response groups, [N] bool.

    Args:
        mean: [N] mean raw reward of the response's group.
        size: [N] size of the response's group.
        low: lower bound, exclusive.
        high: upper bound, exclusive.
    """
    kept: Mask = ((mean > low) & (mean < high)) | (size == 1)
    return kept


def without_long_errors(rewards: Floats, tokens: Integers, *, limit: int) -> Mask:
    """Keep reward 1, and reward 0 below `limit` policy tokens; drop the others, [N] bool."""
    kept: Mask = (rewards == 1) | ((rewards == 0) & (tokens < limit))
    return kept


# Reward shaping


def component_sum(components: Floats, weights: Floats) -> Floats:
    """Return Σₖ wₖ·cₖ over the components that are not NaN, [N]; NaN if all are.

    Args:
        components: [N, K] float64; NaN: not scored.
        weights: [K].
    """
    scored = ~np.isnan(components)
    total = np.where(scored, components * weights, 0.0).sum(1)
    return np.where(scored.any(1), total, np.nan)


def rescale(rewards: Floats, *, scale: tuple[float, float, float, float]) -> Floats:
    """Clamp rewards to [low, high] and map that interval linearly onto [to_low, to_high], [N]."""
    low, high, to_low, to_high = scale
    return to_low + (rewards.clip(low, high) - low) / (high - low) * (to_high - to_low)


def overlong_penalty(
    tokens: Integers, *, max_len: int, buffer: int, factor: float, floor: str = "none"
) -> Floats:
    """Return min(0, -(n - (max_len - buffer)) / buffer · factor), [N] float64.

    Source: DAPO, arXiv 2503.14476.

    Args:
        tokens: [N] tokens of each response, n.
        max_len: length at which the penalty is -factor, in tokens.
        buffer: length over which the penalty grows, in tokens.
        factor: absolute value of the penalty at max_len.
        floor: lowest penalty: `none`, it falls further beyond max_len; `factor`, -factor; `one`, -1
            (TRL's soft overlong punishment).

    >>> overlong_penalty(np.array([30, 40]), max_len=20, buffer=10, factor=2.0, floor="one")
    array([-1., -1.])
    """
    over = tokens.astype(np.float64) - (max_len - buffer)
    lowest = {"none": -np.inf, "factor": -factor, "one": -1.0}[floor]
    return (-over / buffer * factor).clip(lowest, 0.0)


def truncation_penalty(rewards: Floats, truncated: Mask, *, penalty: float) -> Floats:
    """Return rewards in which a truncated response has r·penalty, or penalty if negative, [N]."""
    penalised = rewards * penalty if penalty >= 0 else np.full_like(rewards, penalty)
    return np.where(truncated, penalised, rewards)


def group_length_penalty(
    rewards: Floats, lengths: Floats, offsets: Integers, *, weights: tuple[float, ...]
) -> Floats:
    """Return mean(r) · Σₖ wₖ · xₖ / max(xₖ), mean and maximum over the group, [N].

    Args:
        rewards: [N], sorted by group.
        lengths: [N, K] lengths x: output tokens, input tokens, turns.
        offsets: [G+1] of the groups.
        weights: K weights.

    A length that is 0 in the whole group adds nothing.
    """
    share = np.zeros_like(rewards)
    for length, weight in zip(lengths.T, weights, strict=True):
        longest = spread(segment_max(length, offsets), offsets)
        share = share + weight * length / np.where(longest > 0, longest, 1.0)
    mean: Floats = spread(group_moments(rewards, offsets).mean, offsets)
    return mean * share


# Normalisation


def divisor(
    moments: Moments,
    scope: str,
    *,
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: float = 1,
) -> Floats:
    """Return max(std, floor) + ε, by which centred rewards are divided, [K].

    Args:
        moments: [K] of the sets of rewards, with Bessel's correction (ddof 1).
        scope: what the sets are. With `others` the divisor is 1 if std is 0: the other responses
            of the group agree, so their spread has no scale for this response.
        norm_eps: ε.
        norm_floor: smallest standard deviation.
        norm_ddof: 0 converts std to the population's, dividing by n in place of n - 1.

    A deviation beyond float64, of rewards beyond 1e150, has no divisor: NaN.
    """
    std = np.where(np.isinf(moments.std), np.nan, moments.std)
    if norm_ddof == 0:
        std = std * np.sqrt((moments.number - 1).clip(0) / moments.number.clip(1))
    floored = std.clip(norm_floor) + norm_eps
    return np.where(std == 0, 1.0, floored) if scope == "others" else floored


def standardise(values: Floats, moments: Moments, *, eps: float) -> Floats:
    """Return (x - mean) / (std + ε) with the moments of each row's set; 0 if std is 0, [N]."""
    scaled = (values - moments.mean) / divisor(moments, "batch", norm_eps=eps)
    return np.where(moments.std > 0, scaled, 0.0)


def others_moments(values: Floats, offsets: Integers, rounding: float = 0.0) -> Moments:
    """Return the moments of the other values of each row's group, Bessel's correction, [N] each.

    Args:
        values: [N] float64, ascending within each group.
        offsets: [G+1] of the groups.
        rounding: others that differ by this share of the largest are equal.

    Returns:
        Moments of the group without the row. If there are no others, the mean is the row's own
        value and the standard deviation 0. The standard deviation is 0, without rounding noise,
        if there is one other or if the others are equal.
    """
    size, mean = lengths(offsets), group_moments(values, offsets).mean
    others = spread(size - 1, offsets).clip(1).astype(values.dtype)
    deviation = values - spread(mean, offsets)
    squares = spread(segment_sum(deviation**2, offsets), offsets)
    squares = (squares - deviation**2 * (1 + 1 / others)).clip(0)
    lowest, highest = _extremes_of_others(values, offsets)
    equal = equal_to_rounding(lowest, highest, rounding)
    std = np.where(equal, 0.0, np.sqrt(squares / (others - 1).clip(1)))
    single = spread(size == 1, offsets)
    mean = np.where(equal, lowest, values - deviation * (1 + 1 / others))
    return Moments(others, np.where(single, values, mean), np.where(single, 0.0, std))


def _extremes_of_others(values: Floats, offsets: Integers) -> tuple[Floats, Floats]:
    """Return the smallest and the largest other value of each row, [N] each; ascending groups."""
    first, last = (spread(ends, offsets) for ends in (offsets[:-1], offsets[1:] - 1))
    index = np.arange(len(values))
    low = np.where(index == first, np.minimum(first + 1, last), first)
    high = np.where(index == last, np.maximum(last - 1, first), last)
    return values[low], values[high]


def z_scores(
    values: Floats,
    keys: Integers,
    *,
    norm_mean: str = "group",
    norm_std: str = "group",
    **divided_by: float,
) -> Floats:
    """Return (x - mean) / (std + ε) over the rows with the same key, [N], in any order of rows.

    Args:
        values: [N] float64; NaN is left out and gets 0.
        keys: [N] int64 codes.
        norm_mean: mean of the `group`, of the `others` of the group, or `none`.
        norm_std: standard deviation of the same scopes; `others` that agree divide by 1.
        divided_by: norm_eps, norm_floor and norm_ddof of `divisor`.

    With a norm_std, rows that are alone and rows whose group has equal values get 0. Without one,
    rows whose group has values that are equal to rounding get 0.
    """
    finite = np.isfinite(values)
    order = canonical_order(keys[finite], values[finite])
    rows = np.flatnonzero(finite)[order]
    codes = keys[rows]
    offsets = group_offsets(codes, int(codes.max()) + 1 if len(codes) else 0)
    scores = _sorted_scores(values[rows], offsets, norm_mean, norm_std, divided_by)
    return placed(scores, rows, len(values))


def _sorted_scores(
    values: Floats,
    offsets: Integers,
    norm_mean: str,
    norm_std: str,
    divided_by: Mapping[str, float],
) -> Floats:
    group = group_moments(values, offsets)
    moments = {"group": Moments(*(spread(part, offsets) for part in group))}
    if "others" in (norm_mean, norm_std):
        moments["others"] = others_moments(values, offsets)
    centred = values if norm_mean == "none" else values - moments[norm_mean].mean
    if norm_std == "none":
        level = equal_to_rounding(first_values(values, offsets), last_values(values, offsets))
        return np.where(spread(level & (norm_mean != "none"), offsets), 0.0, centred)
    scores = centred / divisor(moments[norm_std], norm_std, **divided_by)
    return np.where(spread(is_constant(values, offsets), offsets), 0.0, scores)


@dataclass(frozen=True)
class RunningMoments:
    """Mean and variance of all rewards so far, updated batch by batch and saved between runs.

    The count starts at 1e-24 in place of 0, with mean 0 and variance 1: the first batch outweighs
    the start by 24 digits, and nothing is divided by 0.
    """

    count: float = 1e-24
    mean: float = 0.0
    variance: float = 1.0

    def merged(self, count: float, mean: float, variance: float) -> RunningMoments:
        """Return these moments with a batch (population variance), by Chan's pairwise update."""
        if count == 0:
            return self
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + variance * count
        squares += delta * delta * self.count * count / total
        return RunningMoments(total, self.mean + delta * count / total, squares / total)

    @property
    def std(self) -> float:
        """Standard deviation with Bessel's correction; 0 for fewer than two rewards."""
        if self.count <= 1:
            return 0.0
        return float((self.variance * self.count / (self.count - 1)) ** 0.5)


def running_statistics(
    batches: Moments, domains: list[int], start: Mapping[int, RunningMoments]
) -> tuple[Floats, Floats, dict[int, RunningMoments]]:
    """Return the running mean and standard deviation that normalise each batch.

    A batch is merged before it is normalised, as ROLL does.

    Args:
        batches: [K] moments of each (batch, domain) set, in batch order.
        domains: the domain of each set.
        start: moments of each domain before the first batch; a missing domain starts anew.

    Returns:
        mean [K], std [K], and the moments of each domain after the last batch.
    """
    state = dict(start)
    mean, std = np.zeros_like(batches.mean), np.zeros_like(batches.std)
    for index, domain in enumerate(domains):
        count, own_mean, own_std = (float(part[index]) for part in batches)
        population = own_std**2 * (count - 1) / count if count > 0 else 0.0
        moments = state.get(domain, RunningMoments()).merged(count, own_mean, population)
        state[domain] = moments
        mean[index], std[index] = moments.mean, moments.std
    return mean, std, state


# Sample weights


def difficulty_weights(difficulty: Floats) -> Floats:
    """Return 0.5 + 1.5·clamp(difficulty, 0, 1), [N]: 0.5 for the easiest, 2 for the hardest."""
    return 0.5 + 1.5 * difficulty.clip(0.0, 1.0)


def length_weights(tokens: Integers | Floats, shortest: Floats, longest: Floats) -> Floats:
    """Return 1.5 - (n - shortest) / (longest - shortest + 1e-8), [N]: at most 1.5.

    Args:
        tokens: [N] policy tokens of each response, n.
        shortest: [N] fewest policy tokens of a response of the batch.
        longest: [N] most policy tokens of a response of the batch.
    """
    return 1.5 - (tokens - shortest) / (longest - shortest + 1e-8)
