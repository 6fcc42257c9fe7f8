"""KL estimates per token, and the adaptive KL coefficient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.kernels.arrays import Array, namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Functions of d = log π - log π_ref of the sampled token (Schulman, "Approximating KL divergence",
# 2020) and of the importance ratio of the current to the sampling policy.
_ESTIMATORS: dict[str, Callable[[Array, Array | float], Array]] = {
    "k1": lambda d, _: d,
    "abs": lambda d, _: abs(d),
    "k2": lambda d, _: d * d / 2,
    # exp(-d) - 1 + d with expm1, which keeps its digits if the policies nearly agree
    "k3": lambda d, _: namespace(d).expm1(-d) + d,
    "k4": lambda d, ratio: ratio * d,
}
_SLOPES: dict[str, Callable[[Array, Array | float], Array]] = {
    "k1": lambda d, _: namespace(d).ones_like(d),
    "abs": lambda d, _: namespace(d).sign(d),
    "k2": lambda d, _: d,
    "k3": lambda d, _: -namespace(d).expm1(-d),
    "k4": lambda d, ratio: ratio * namespace(d).ones_like(d),
}
"""Their derivatives by d, at a constant ratio."""


def token_kl(
    policy: Array,
    ref: Array,
    *,
    estimator: str,
    log_ratio_clamp: float = math.inf,
    clamp: float = math.inf,
    clamps: str = "k3",
    ratio: Array | float = 1.0,
) -> Array:
    """Return the estimated KL of a policy from the reference at each sampled token.

    With d = policy - ref, clamped to ±log_ratio_clamp:

        k1   d
        abs  |d|
        k2   d²/2
        k3   exp(-d) + d - 1
        k4   ratio·d

    The estimate is clamped to ±clamp: with `clamps="k3"` only that of k3, with `"all"` every one.

    Args:
        policy: [T] log-probs of the policy.
        ref: [T] log-probs of the reference policy.
        estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, in nats.
        clamp: bound on the absolute value of the estimate, in nats.
        clamps: k3 or all.
        ratio: [T] importance ratio of the current to the sampling policy; 1 before any update.

    Returns:
        [T], in the type of the inputs.
    """
    log_ratio = policy - ref
    if log_ratio_clamp < math.inf:
        log_ratio = log_ratio.clip(-log_ratio_clamp, log_ratio_clamp)
    kl = _ESTIMATORS[estimator](log_ratio, ratio)
    return kl.clip(-clamp, clamp) if clamps in (estimator, "all") else kl


def kl_slope(
    policy: Array, ref: Array, *, estimator: str, log_ratio_clamp: float, ratio: Array | float
) -> Array:
    """Return the derivative of `token_kl` without its clamp by `policy`, at a constant ratio, [T].

    It is 0 where the log ratio is clamped.
    """
    log_ratio = policy - ref
    slope = _SLOPES[estimator](log_ratio, ratio)
    return namespace(slope).where(abs(log_ratio) > log_ratio_clamp, 0.0, slope)


def adaptive_coefficients(
    kl: Sequence[float],
    rows: Sequence[int],
    *,
    start: float,
    target: float,
    horizon: float,
) -> list[float]:
    """Return the KL coefficient β of each batch, in batch order.

        βₖ₊₁ = βₖ · (1 + clip(KLₖ / target - 1, ±0.2) · responsesₖ / horizon)

    Args:
        kl: mean KL of each batch: the mean over its responses of the mean KL of each one's
            policy tokens, in nats.
        rows: number of responses of each batch.
        start: β of the first batch.
        target: of the same mean, above 0, in nats.
        horizon: number of responses over which β adapts, above 0.

    Source: Ziegler et al., arXiv 1909.08593, eq. 4, where the KL of a response is the sum over its
    tokens; ROLL and verl use the mean.
    """
    coefficients = []
    beta = start
    for value, count in zip(kl, rows, strict=True):
        coefficients.append(beta)
        error = min(max(value / target - 1, -0.2), 0.2)
        beta *= 1 + error * count / horizon
    return coefficients
