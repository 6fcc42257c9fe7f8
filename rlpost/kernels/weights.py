"""Sample weights, one number per response."""

from __future__ import annotations

import torch
from torch import Tensor


def difficulty_weights(difficulty: Tensor) -> Tensor:
    """0.5 + 1.5·clamp(difficulty, 0, 1), [N]: 0.5 for the easiest, 2 for the hardest."""
    return 0.5 + 1.5 * difficulty.clamp(0.0, 1.0)


def length_weights(tokens: Tensor, shortest: Tensor, longest: Tensor) -> Tensor:
    """1.5 - (n - shortest) / (longest - shortest + 1e-8), [N]: 1.5 for the batch's shortest.

    Args:
        tokens: [N] policy tokens of each response.
        shortest: [N] fewest policy tokens in the response's batch.
        longest: [N] most policy tokens in the response's batch.
    """
    return 1.5 - (tokens - shortest) / (longest - shortest + 1e-8)


def keyed_extremes(values: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each key, [count]; inf and -inf where there is none."""
    low = torch.full((count,), torch.inf, dtype=values.dtype)
    high = torch.full((count,), -torch.inf, dtype=values.dtype)
    low = low.scatter_reduce(0, keys, values, "amin")
    return low, high.scatter_reduce(0, keys, values, "amax")
