"""Reward shaping and normalisation, one number per response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlpost.kernels.moments import Moments


def overlong_penalty(tokens: Tensor, *, max_len: int, buffer: int, factor: float) -> Tensor:
    """min(0, -(n - (max_len - buffer)) / buffer · factor), [N] float64 (DAPO, arXiv 2503.14476).

    Args:
        tokens: [N] policy tokens of each response.
        max_len: length at which the penalty reaches -factor; it goes on falling beyond.
        buffer: tokens over which it grows.
        factor: penalty at max_len.
    """
    over = tokens.to(torch.float64) - (max_len - buffer)
    return (-over / buffer * factor).clamp(max=0.0)


def normalised(rewards: Tensor, mean: Tensor | None, std: Tensor | None, *, eps: float) -> Tensor:
    """(r - mean) / (std + eps), [N]; a None is left out."""
    centred = rewards if mean is None else rewards - mean
    return centred if std is None else centred / (std + eps)


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
