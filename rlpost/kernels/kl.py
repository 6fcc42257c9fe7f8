"""Per-token KL estimates between two policies, and the coefficient that adapts to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

# Each takes d = log π_old - log π_ref of the sampled token (Schulman, "Approximating KL").
_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "abs": torch.abs,
    "k2": lambda d: d.square() / 2,
    # exp(-d) - 1 + d with expm1, which keeps its digits where the policies nearly agree
    "k3": lambda d: torch.expm1(-d) + d,
    "k4": lambda d: d.exp() * d,
}


def token_kl(
    old: Tensor, ref: Tensor, *, estimator: str, log_ratio_clamp: float, clamp: float
) -> Tensor:
    """KL of the old policy from the reference at each sampled token.

    With d = old - ref, clamped to ±log_ratio_clamp: k1 d; abs |d|; k2 d²/2;
    k3 exp(-d) + d - 1, clamped to ±clamp; k4 exp(d)·d.

    Args:
        old: [T] log-probabilities of the policy that sampled.
        ref: [T] log-probabilities of the reference policy.
        estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, nats.
        clamp: bound on |k3|, nats.

    Returns:
        [T], in the inputs' dtype.
    """
    distance = (old - ref).clamp(-log_ratio_clamp, log_ratio_clamp)
    kl = _ESTIMATORS[estimator](distance)
    return kl.clamp(-clamp, clamp) if estimator == "k3" else kl


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
