"""PPO's clipped surrogate, with separate bounds and dual clip."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, beyond, limits, states

if TYPE_CHECKING:
    from torch import Tensor

    from rlpost.recipe.loss import DualClip


DEFAULT_CLIP = 0.2


def ppo(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
    dual_clip: DualClip | None = None,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """The pessimistic one of the plain and the clipped surrogate.

        r = exp(new - old)
        L = max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high))
        A < 0, dual clip c: L = min(L, -A·c)

    Args:
        tokens: T of them.
        pg_clip: ε of both sides, > 0; 0.2 where nothing is given.
        pg_clip_low: ε below 1.
        pg_clip_high: ε above 1 (clip-higher, DAPO, arXiv 2503.14476).
        dual_clip: c > 1, or "twice" for 1 + 2ε; None for none.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH are where the clipped branch is the greater one, DUAL
        where c·A is.

    Source: Schulman et al., arXiv 1707.06347, eq. 7; dual clip: Ye et al., arXiv 1912.09729.

    >>> one = torch.ones(3, dtype=torch.bool)
    >>> new, old = torch.tensor([0.5, 0.1, 2.0]), torch.zeros(3)
    >>> gains, ends = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0, 3])
    >>> ppo(Tokens(new, old, gains, one, ends), dual_clip=3.0).values
    tensor([-1.2000, -1.1052,  3.0000])
    """
    bounds = limits(pg_clip_low, pg_clip_high, pg_clip, (DEFAULT_CLIP, DEFAULT_CLIP))
    most = dual_bound(dual_clip, DEFAULT_CLIP if pg_clip is None else pg_clip)
    found = clipped_surrogate(tokens, tokens.ratio(ratio_clamp), bounds, most)
    return found._replace(flat=found.flat | beyond(tokens, ratio_clamp))


def dual_bound(dual_clip: DualClip | None, pg_clip: float) -> float:
    """The greatest ratio that counts where the advantage is negative; inf for none."""
    if dual_clip is None:
        return math.inf
    return 1 + 2 * pg_clip if dual_clip == "twice" else float(dual_clip)


def clipped_surrogate(
    tokens: Tokens, ratio: Tensor, bounds: tuple[float, float], most: float = math.inf
) -> Surrogate:
    """PPO's surrogate for any ratio.

    Args:
        tokens: T of them.
        ratio: [T].
        bounds: the least and the greatest ratio that is left as it is.
        most: the greatest that counts where A < 0.
    """
    up, down = tokens.up, tokens.down
    low, high = down & (ratio < bounds[0]), up & (ratio > bounds[1])
    flat, dual = low | high | tokens.idle, None
    if not math.isinf(most):
        dual = down & (ratio > most)
        flat = flat | dual
    counted = torch.where(up, ratio.clamp(max=bounds[1]), ratio.clamp(bounds[0], most))
    return Surrogate(counted * tokens.cost, states(low, high, dual), flat, ratio)


LOSS = Loss(
    "ppo",
    ppo,
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε))",
    source="arXiv 1707.06347",
    aggregation="token-mean",
)
