"""The KL loss: a penalty on the distance from the reference policy, beside the policy loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.kernels.kl import token_kl

if TYPE_CHECKING:
    from torch import Tensor

    from rlpost.loss_options import LossOptions
    from rlpost.losses.base import Tokens


def kl_loss(tokens: Tokens, options: LossOptions) -> Tensor:
    """The KL of the current policy from the reference at each token, before its coefficient.

    The estimate is that of `rlpost.kernels.kl.token_kl` of `new` and `ref`; with kl_loss_ratio it
    is multiplied by new over old, which makes the gradient of its mean that of the KL (DeepSeek
    V3.2's correction). k4 has that ratio in any case.

    Args:
        tokens: T of them, with `ref`.
        options: the `kl_loss_...` fields.

    Returns:
        [T], 0 where the mask is 0; differentiable in `new`.
    """
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    ratio, estimator = tokens.ratio(), options.kl_loss_estimator
    bounded = options.kl_loss_log_ratio_clamps in (estimator, "all")
    kl = token_kl(
        tokens.log_prob,
        torch.where(tokens.mask, tokens.ref, 0.0),
        estimator=estimator,
        log_ratio_clamp=options.kl_loss_log_ratio_clamp if bounded else torch.inf,
        clamp=options.kl_loss_clamp,
        clamps=options.kl_loss_clamps,
        ratio=ratio,
    )
    return kl * ratio if options.kl_loss_ratio else kl
