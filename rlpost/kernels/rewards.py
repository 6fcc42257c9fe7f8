"""Reward shaping and normalisation, one number per response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import segment_max, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlpost.kernels.moments import Moments


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
