"""PPO's clipped surrogate of the ratio of a token, and of a whole response (GSPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss
from rlpost.losses.composition import Composition, clipped_along, token_ratio

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


def response_ratio(
    tokens: Tokens, *, ratio_clamp: float, ratio_cap: float
) -> tuple[Array, Array | bool]:
    """Return s = exp(mean over the response of new - old), for each of its tokens.

    The gradient reaches a token through its own log-prob alone (GSPO-token): s·∇new. If all
    advantages of a response are equal, as in the paper, that is the gradient of the mean.
    Importance weights w of tokens count as advantages do: the gradient of a token is w·A·s·∇new
    with its own w and A, where that of s itself has the response's mean of w·A at each token.

    Args:
        tokens: T tokens.
        ratio_clamp: bound on |log s|, nats.
        ratio_cap: bound on log s from above, nats.
    """
    mean, high = tokens.mean_log_ratio, min(ratio_clamp, ratio_cap)
    log_probs = tokens.masked_log_probs
    own_gradient = log_probs - tokens.constant(log_probs)  # its value is 0
    ratio = tokens.xp.exp((mean + own_gradient).clip(-ratio_clamp, high))
    return ratio, (mean < -ratio_clamp) | (mean > high)


PPO = Loss(
    "ppo",
    Composition("ratio", clipped_along, token_ratio),
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε))",
    source="arXiv:1707.06347",
)
"""Eq. 7; clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv 1912.09729."""
GSPO = Loss(
    "gspo",
    Composition("ratio", clipped_along, response_ratio),
    formula="max(-A·s, -A·clip(s, 1-ε, 1+ε)), s = exp(mean log r)",
    source="arXiv:2507.18071",
    of_responses=True,
)
"""GSPO-token, with the clip range of its experiments."""
