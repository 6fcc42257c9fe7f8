"""Estimates of how far two policies are apart, from tokens that one of them sampled.

d = log π - log π_s at a token that π_s sampled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from rlpost.kernels.arrays import Array

    Number = float | Fraction

LIKELY = math.log(0.5)
FAR = 2.0
"""Log-prob of a token that the engine was confident of, and the nats of a large disagreement."""


def kl_terms(log_ratio: Array, excess: Array) -> dict[str, Array]:
    """Return the terms of KL(π_s ‖ π) at each token, in nats: `k1` is -d, `k3` is exp(d) - 1 - d.

    Args:
        log_ratio: d.
        excess: exp(d) - 1, by expm1, which keeps its digits if the policies nearly agree.

    Source: Schulman, "Approximating KL divergence", 2020.
    """
    return {"k1": -log_ratio, "k3": excess - log_ratio}


def chi_square(excess: Array) -> Array:
    """Return exp(2d) - 1 for exp(d) - 1; its mean over tokens of π_s estimates χ²(π ‖ π_s)."""
    return excess * (excess + 2)


def effective_sample_size(number: Number, total: Number, squares: Number) -> float | None:
    """Return (Σw)² / (nΣw²) of weights, a share of their number; None if Σw² is 0.

    Args:
        number: n.
        total: Σw.
        squares: Σw².
    """
    return float(total * total / (number * squares)) if squares else None


def confident_disagreement(infer: Array, distance: Array) -> Array:
    """Return tokens that the engine gave at least 0.5 and the trainer's log-prob misses by 2 nats.

    Args:
        infer: log-probs of the rollout engine.
        distance: |d|.
    """
    return (infer >= LIKELY) & (distance > FAR)
