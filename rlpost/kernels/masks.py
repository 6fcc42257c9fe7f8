"""Which responses are kept, one bool per response."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def under_max_length(tokens: Tensor, *, max_response_length: int) -> Tensor:
    """Keeps responses whose policy tokens are not exactly the limit, [N] bool."""
    return tokens != max_response_length


def within_difficulty(mean: Tensor, size: Tensor, *, low: float, high: float) -> Tensor:
    """Keeps groups with low < mean raw reward < high, both strict, and groups of one.

    Args:
        mean: [N] mean raw reward of each response's group.
        size: [N] size of each response's group.
        low: lower bound.
        high: upper bound.

    Returns:
        [N] bool.
    """
    return ((mean > low) & (mean < high)) | (size == 1)


def error_max_len_clip(rewards: Tensor, tokens: Tensor, *, threshold: int) -> Tensor:
    """Keeps reward 1, and reward 0 under `threshold` policy tokens; drops the rest, [N] bool."""
    return (rewards == 1) | ((rewards == 0) & (tokens < threshold))
