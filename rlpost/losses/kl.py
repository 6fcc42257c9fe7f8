"""The KL loss: a penalty on the divergence from the reference policy, added to the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.kl import token_kl

if TYPE_CHECKING:
    from rlpost.losses.base import Tokens
    from rlpost.recipe.loss import LossOptions


def kl_loss(tokens: Tokens, options: LossOptions) -> Array:
    """Return the KL loss of each token, before its coefficient.

        KL                  the estimate of `estimated`, clamped
        r·KL                with kl_loss_ratio
        clamp(r·KL)         with kl_loss_clamp_at = product, which clamps the product alone

    With the ratio r the gradient of the mean is that of the KL (DeepSeek V3.2's correction).
    kl_loss_ratio_policy is the policy that r divides by; for `current` r is 1, and has the gradient
    of the log-prob, so that only the gradient differs. With the clamp of the product, a token has
    no gradient where its log ratio to the reference is clamped.

    Args:
        tokens: T tokens, with `ref`.
        options: the `kl_loss_...` fields, and `behaviour`.

    Returns:
        [T], 0 if masked out; differentiable in `new`.

    Source of the clamp of the product: NeMo-RL; of the ratio of a policy to itself: Tang and Munos,
    arXiv 2506.09477.
    """
    kl = estimated(tokens, options)
    if options.kl_loss_ratio and not _clamps_product(options):
        kl = kl * _weight(tokens, options)
    return kl


def clamped(kl: Array, options: LossOptions) -> Array:
    """Return which of these estimates, from `estimated`, were clamped, [T] bool."""
    if options.kl_loss_clamps not in (options.kl_loss_estimator, "all"):
        xp = namespace(kl)
        return xp.zeros_like(xp.isnan(kl))
    return abs(kl) >= options.kl_loss_clamp


def estimated(tokens: Tokens, options: LossOptions) -> Array:
    """Return `rlpost.kernels.kl.token_kl` of `new` and `ref`, [T]; k4 has the importance ratio.

    If kl_loss_clamp bounds the product with the ratio, it is that product.
    """
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    estimator = options.kl_loss_estimator
    bounded = options.kl_loss_log_ratio_clamps in (estimator, "all")
    bound = options.kl_loss_log_ratio_clamp if bounded else math.inf
    reference = tokens.xp.where(tokens.mask, tokens.ref, 0.0)
    product = _clamps_product(options)
    kl = token_kl(
        tokens.masked_log_probs,
        reference,
        estimator=estimator,
        log_ratio_clamp=bound,
        clamp=math.inf if product else options.kl_loss_clamp,
        clamps=options.kl_loss_clamps,
        ratio=_weight(tokens, options) if estimator == "k4" else 1.0,
    )
    if not product:
        return kl
    weight = _weight(tokens, options)
    beyond = abs(tokens.constant(tokens.masked_log_probs - reference)) > bound
    kl = kl * tokens.xp.where(beyond, tokens.constant(weight), weight)
    if options.kl_loss_clamps in (estimator, "all"):
        kl = kl.clip(-options.kl_loss_clamp, options.kl_loss_clamp)
    return kl


def _clamps_product(options: LossOptions) -> bool:
    return options.kl_loss_ratio and options.kl_loss_clamp_at == "product"


def _weight(tokens: Tokens, options: LossOptions) -> Array:
    """Return the ratio of the current policy to that of kl_loss_ratio_policy, [T]."""
    policy = options.kl_loss_ratio_policy
    if policy == "current":
        log_probs = tokens.masked_log_probs
        return tokens.xp.exp(log_probs - tokens.constant(log_probs))
    return tokens.divided_by(options.behaviour if policy == "behaviour" else policy).ratio()
