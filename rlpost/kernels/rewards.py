"""Reward shaping and normalisation, one number per response.

Rewards against the mean and deviation of their group, or of the others of their group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels.moments import (
    Moments,
    canonical_order,
    group_moments,
    group_offsets,
    is_constant,
)
from rlpost.kernels.segments import lengths, segment_max, segment_sum, spread

if TYPE_CHECKING:
    from collections.abc import Mapping


def others_moments(values: Tensor, offsets: Tensor) -> Moments:
    """Number, mean and Bessel deviation of the others of each row's group, [N] each.

    Args:
        values: [N] float64, ascending within each group.
        offsets: [G+1].

    Returns:
        Moments over the group without the row itself. Without others the mean is the row's own
        value; with one other, or equal ones, the deviation is 0, without rounding noise.
    """
    size, mean = lengths(offsets), group_moments(values, offsets).mean
    others = spread(size - 1, offsets).clamp(min=1).to(values.dtype)
    away = values - spread(mean, offsets)
    squares = spread(segment_sum(away.square(), offsets), offsets)
    squares = (squares - away.square() * (1 + 1 / others)).clamp(min=0)
    lowest, highest = _ends_of_others(values, offsets)
    equal = lowest == highest
    std = torch.where(equal, 0.0, (squares / (others - 1).clamp(min=1)).sqrt())
    single = spread(size == 1, offsets)
    centre = torch.where(equal, lowest, values - away * (1 + 1 / others))
    return Moments(others, torch.where(single, values, centre), torch.where(single, 0.0, std))


def _ends_of_others(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of the others of each row, [N] each, of ascending groups."""
    first, last = (spread(at, offsets) for at in (offsets[:-1], offsets[1:] - 1))
    place = torch.arange(values.numel(), device=values.device)
    low = torch.where(place == first, torch.minimum(first + 1, last), first)
    high = torch.where(place == last, torch.maximum(last - 1, first), last)
    return values[low], values[high]


def joint_codes(*codes: Tensor) -> Tensor:
    """One code for each tuple of codes that occurs, from 0 without gaps, [N]."""
    found: tuple[Tensor, Tensor] = torch.unique(torch.stack(codes), dim=1, return_inverse=True)
    return found[1]


def z_scores(
    values: Tensor,
    keys: Tensor,
    *,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
) -> Tensor:
    """(x - mean) / (std + ε) among the rows of equal key, [N], whatever their order.

    Args:
        values: [N] float64; NaN takes no part and gets 0.
        keys: [N] int64 codes.
        norm_mean: mean of the `group`, of the `others` of it, or `none`.
        norm_std: deviation (Bessel) of the same; a row whose others agree is not divided.
        norm_eps: ε.

    Rows that are alone, or whose group is constant, get 0 where anything is divided.
    """
    there = values.isfinite()
    order = canonical_order(keys[there], values[there])
    rows = there.nonzero().squeeze(1)[order]
    sorted_values, codes = values[rows], keys[rows]
    offsets = group_offsets(codes, int(codes.max()) + 1 if codes.numel() else 0)
    found = _sorted_scores(sorted_values, offsets, norm_mean, norm_std, norm_eps)
    return torch.zeros_like(values).index_copy(0, rows, found)


def _sorted_scores(
    values: Tensor, offsets: Tensor, norm_mean: str, norm_std: str, eps: float
) -> Tensor:
    group = group_moments(values, offsets)
    moments = {"group": Moments(*(spread(part, offsets) for part in group))}
    if "others" in (norm_mean, norm_std):
        moments["others"] = others_moments(values, offsets)
    out = values if norm_mean == "none" else values - moments[norm_mean].mean
    if norm_std == "none":
        return out
    std = moments[norm_std].std
    divided = out / torch.where((std == 0) & (norm_std == "others"), 1.0, std + eps)
    return torch.where(spread(is_constant(values, offsets), offsets), 0.0, divided)


def component_sum(components: Tensor, weights: Tensor) -> Tensor:
    """Σₖ wₖ·cₖ of the components that are there, [N]; NaN where none is.

    Args:
        components: [N, K] float64; NaN: not scored.
        weights: [K].
    """
    there = ~components.isnan()
    total = torch.where(there, components * weights, 0.0).sum(1)
    return torch.where(there.any(1), total, torch.nan)


def rescaled(rewards: Tensor, *, scale: tuple[float, float, float, float]) -> Tensor:
    """Rewards clamped to [low, high], and that interval mapped onto [to_low, to_high], [N]."""
    low, high, to_low, to_high = scale
    return to_low + (rewards.clamp(low, high) - low) / (high - low) * (to_high - to_low)


def overlong_penalty(
    tokens: Tensor, *, max_len: int, buffer: int, factor: float, floor: str = "none"
) -> Tensor:
    """min(0, -(n - (max_len - buffer)) / buffer · factor), [N] float64 (DAPO, arXiv 2503.14476).

    Args:
        tokens: [N] tokens of each response.
        max_len: length at which the penalty reaches -factor.
        buffer: tokens over which it grows.
        factor: penalty at max_len.
        floor: `none` lets it go on falling beyond max_len, `factor` stops it at -factor.
    """
    over = tokens.to(torch.float64) - (max_len - buffer)
    lowest = -factor if floor == "factor" else -torch.inf
    return (-over / buffer * factor).clamp(min=lowest, max=0.0)


def truncation_penalty(rewards: Tensor, truncated: Tensor, *, penalty: float) -> Tensor:
    """Truncated responses: their reward times the penalty, or a negative penalty itself, [N]."""
    instead = rewards * penalty if penalty >= 0 else torch.full_like(rewards, penalty)
    return torch.where(truncated, instead, rewards)


def group_length_penalty(
    rewards: Tensor, lengths: Tensor, offsets: Tensor, *, weights: tuple[float, ...]
) -> Tensor:
    """mean(r) · Σₖ wₖ · xₖ / max(xₖ) over the response's group, [N]; to be taken from rewards.

    Args:
        rewards: [N] sorted by group.
        lengths: [N, K] what is penalised: output tokens, input tokens, turns.
        offsets: [G+1] of the groups.
        weights: K of them.

    A length that is 0 throughout a group costs nothing.
    """
    share = torch.zeros_like(rewards)
    for length, weight in zip(lengths.unbind(1), weights, strict=True):
        longest = spread(segment_max(length, offsets), offsets)
        share = share + weight * length / torch.where(longest > 0, longest, 1.0)
    return spread(group_moments(rewards, offsets).mean, offsets) * share


@dataclass(frozen=True)
class RunningMoments:
    """Mean and variance of all rewards seen, in batches, that can be carried over calls.

    The count starts at 1e-24 instead of 0, with mean 0 and variance 1: the first batch then
    outweighs the start by 24 digits and no division by zero can happen.
    """

    count: float = 1e-24
    mean: float = 0.0
    variance: float = 1.0

    def merged(self, count: float, mean: float, variance: float) -> RunningMoments:
        """These moments and a batch's (population variance), by Chan's pairwise update."""
        if count == 0:
            return self
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + variance * count
        squares += delta * delta * self.count * count / total
        return RunningMoments(total, self.mean + delta * count / total, squares / total)

    @property
    def std(self) -> float:
        """Standard deviation with Bessel's correction; 0 until two rewards were seen."""
        if self.count <= 1:
            return 0.0
        return float((self.variance * self.count / (self.count - 1)) ** 0.5)


def running_statistics(
    batches: Moments, domains: list[int], start: Mapping[int, RunningMoments]
) -> tuple[Tensor, Tensor, dict[int, RunningMoments]]:
    """Running mean and deviation as each batch is normalised with them.

    A batch is folded in before it is normalised, as the reference pipeline does.

    Args:
        batches: moments of each (batch, domain) set, [K], in batch order.
        domains: the domain of each set.
        start: where each domain's moments stand; absent ones begin anew.

    Returns:
        mean [K], std [K], and the moments of each domain after the last batch.
    """
    state = dict(start)
    mean, std = torch.zeros_like(batches.mean), torch.zeros_like(batches.std)
    for place, domain in enumerate(domains):
        count, own_mean, own_std = (float(part[place]) for part in batches)
        population = own_std**2 * (count - 1) / count if count > 0 else 0.0
        moments = state.get(domain, RunningMoments()).merged(count, own_mean, population)
        state[domain] = moments
        mean[place], std[place] = moments.mean, moments.std
    return mean, std, state
