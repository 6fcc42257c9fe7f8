"""The plain policy gradient."""

from __future__ import annotations

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, states


def pg(tokens: Tokens) -> Surrogate:
    """L = -A·log π, with no ratio to an older policy, and so nothing to clip.

    Args:
        tokens: T of them; `old` is not read.

    Returns:
        Surrogate of [T].

    Source: Williams, "Simple statistical gradient-following algorithms", 1992.
    """
    none = torch.zeros_like(tokens.mask)
    flat = tokens.gain == 0
    ratio = torch.ones_like(tokens.gain)
    return Surrogate(-tokens.gain * tokens.log_prob, states(none, none), flat, ratio)


LOSS = Loss("pg", pg, formula="-A·log π", source="Williams 1992", aggregation="seq-mean-token-sum")
