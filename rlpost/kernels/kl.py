"""Per-token KL estimates between two policies, and the coefficient that adapts to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


# Each takes d = log π - log π_ref of the sampled token (Schulman, "Approximating KL") and the
# importance ratio of the policy being trained to the one that sampled.
_ESTIMATORS: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
    "k1": lambda d, _: d,
    "abs": lambda d, _: d.abs(),
    "k2": lambda d, _: d.square() / 2,
    # exp(-d) - 1 + d with expm1, which keeps its digits where the policies nearly agree
    "k3": lambda d, _: torch.expm1(-d) + d,
    "k4": lambda d, ratio: ratio * d,
}


def token_kl(
    policy: Tensor,
    ref: Tensor,
    *,
    estimator: str,
    log_ratio_clamp: float = math.inf,
    clamp: float = math.inf,
    clamps: str = "k3",
    ratio: Tensor | float = 1.0,
) -> Tensor:
    """KL of a policy from the reference at each sampled token.

    With d = policy - ref, clamped to ±log_ratio_clamp: k1 d; abs |d|; k2 d²/2;
    k3 exp(-d) + d - 1; k4 ratio·d. With `clamps="k3"` that one alone is
    clamped to ±clamp, with `"all"` every estimate.

    Args:
        policy: [T] log-probabilities of the policy.
        ref: [T] log-probabilities of the reference policy.
        estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, nats.
        clamp: bound on the estimate, nats.
        clamps: k3 or all.
        ratio: [T] of the policy being trained to the one that sampled; 1 before any update.

    Returns:
        [T], in the inputs' dtype.
    """
    distance = policy - ref
    if log_ratio_clamp < math.inf:
        distance.clamp_(-log_ratio_clamp, log_ratio_clamp)
    kl = _ESTIMATORS[estimator](distance, ratio)
    return kl.clamp_(-clamp, clamp) if clamps in (estimator, "all") else kl


def adaptive_coefficients(
    kl: Sequence[float],
    rows: Sequence[int],
    *,
    start: float,
    target: float,
    horizon: float,
) -> list[float]:
    """The KL coefficient used for each batch, in batch order.

    β is used, then multiplied by 1 + clip(kl/target - 1, ±0.2)·rows/horizon
    (Ziegler et al., arXiv 1909.08593, eq. 4).

    Args:
        kl: mean KL of each batch.
        rows: responses of each batch.
        start: β of the first batch.
        target: the KL to hold, > 0.
        horizon: responses over which β moves, > 0.
    """
    coefficients = []
    beta = start
    for value, count in zip(kl, rows, strict=True):
        coefficients.append(beta)
        error = min(max(value / target - 1, -0.2), 0.2)
        beta *= 1 + error * count / horizon
    return coefficients
