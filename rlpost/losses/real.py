"""REAL: a classification of the responses of a prompt group by their log ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import UsageError
from rlpost.kernels.arrays import like, on_host
from rlpost.kernels.segments import count_true, segment_sum, spread
from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array

_MOST = 500.0  # its exponential, and the sum of many, is finite in float64


def real(tokens: Tokens, *, real_tau: float) -> Surrogate:
    """One loss for a prompt group, from the scores s = mean(log r)/τ of its responses.

        L = log(1 + Σ e^s over A ≤ 0) + log(1 + Σ e^-s over A > 0)

    A is the mean advantage of a response, and |s| is bounded by 500. A group whose responses are
    all on one side has L = 0; responses without policy tokens are in no sum. Every token has its
    group's L, so that the aggregation prompt-mean is the mean over groups, those with L = 0
    included. The sum over a group is the gradient of the formula.

    Raises:
        UsageError: the tokens have no groups.
    """
    if tokens.group is None:
        raise UsageError("loss real: the prompt group of each response is needed: units=")
    counts = on_host(count_true(tokens.mask, tokens.offsets))
    score, advantage = (
        on_host(segment_sum(tokens.constant(x), tokens.offsets)) / counts.clip(1)
        for x in (tokens.log_ratio, tokens.masked_advantages)
    )
    score, positive = (score / real_tau).clip(-_MOST, _MOST), advantage > 0
    codes = np.unique(on_host(tokens.group), return_inverse=True)[1]
    terms = np.where(counts > 0, np.exp(np.where(positive, -score, score)), 0.0)
    high, low = (np.bincount(codes, terms * side) for side in (positive, ~positive))
    losses = np.where((high > 0) & (low > 0), np.log1p(high) + np.log1p(low), 0.0)[codes]
    share = terms / (1 + np.where(positive, high[codes], low[codes])) * np.where(positive, -1, 1)
    slopes = share * np.bincount(codes, counts)[codes] / (real_tau * counts.clip(1))

    def of_tokens(values: Array) -> Array:
        values = like(np.where(losses > 0, values, 0.0), tokens.mask)
        return tokens.xp.astype(spread(values, tokens.offsets), tokens.new.dtype)

    gradient, log_probs = of_tokens(slopes), tokens.masked_log_probs
    values = of_tokens(losses) + gradient * (log_probs - tokens.constant(log_probs))
    none = tokens.xp.zeros_like(tokens.mask)
    return Surrogate(
        values, clip_states(none, none), gradient, tokens.xp.exp(tokens.mean_log_ratio)
    )


REAL = Loss(
    "real",
    real,
    formula="log(1 + Σ e^s over A ≤ 0) + log(1 + Σ e^-s over A > 0), s = mean(log r)/τ",
    source="arXiv:2602.05630",
    of_responses=True,
    grouped=True,
)
"""As in ms-swift 4.6.0 (swift/rlhf_trainers/grpo_trainer.py:1090), where responses without policy
tokens have s = 0 and A = 0."""
