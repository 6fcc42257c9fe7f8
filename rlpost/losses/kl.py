"""The KL loss: a penalty on the divergence from the reference policy, added to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.kernels.kl import token_kl

if TYPE_CHECKING:
    from torch import Tensor

    from rlpost.losses.base import Tokens
    from rlpost.recipe.loss import LossOptions


def kl_loss(tokens: Tokens, options: LossOptions) -> Tensor:
    """Return the KL loss of each token, before its coefficient.

    The estimate is that of `estimated`. With kl_loss_ratio it is multiplied by the importance
    ratio, so that the gradient of its mean is that of the KL (DeepSeek V3.2's correction).

    Args:
        tokens: T tokens, with `ref`.
        options: the `kl_loss_...` fields, and `behaviour`, which the ratio divides by.

    Returns:
        [T], 0 if masked out; differentiable in `new`.
    """
    kl = estimated(tokens, options)
    return kl * _ratio(tokens, options) if options.kl_loss_ratio else kl


def clamped(kl: Tensor, options: LossOptions) -> Tensor:
    """Return which of these estimates, from `estimated`, were clamped, [T] bool."""
    if options.kl_loss_clamps not in (options.kl_loss_estimator, "all"):
        return torch.zeros_like(kl, dtype=torch.bool)
    return kl.abs() >= options.kl_loss_clamp


def estimated(tokens: Tokens, options: LossOptions) -> Tensor:
    """Return `rlpost.kernels.kl.token_kl` of `new` and `ref`, [T]; k4 has the importance ratio."""
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    estimator = options.kl_loss_estimator
    bounded = options.kl_loss_log_ratio_clamps in (estimator, "all")
    return token_kl(
        tokens.masked_log_probs,
        torch.where(tokens.mask, tokens.ref, 0.0),
        estimator=estimator,
        log_ratio_clamp=options.kl_loss_log_ratio_clamp if bounded else torch.inf,
        clamp=options.kl_loss_clamp,
        clamps=options.kl_loss_clamps,
        ratio=_ratio(tokens, options) if estimator == "k4" else 1.0,
    )


def _ratio(tokens: Tokens, options: LossOptions) -> Tensor:
    return tokens.divided_by(options.behaviour).ratio()
