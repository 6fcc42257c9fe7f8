"""The KL loss: a penalty on the divergence from the reference policy, added to the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlpost.kernels.kl import kl_slope, token_kl

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens
    from rlpost.recipe.loss import LossOptions


def kl_loss(tokens: Tokens, options: LossOptions) -> Array:
    """Return the KL loss of each token, before its coefficient.

        KL                  the estimate of `rlpost.kernels.kl.token_kl`, clamped
        r·KL                with kl_loss_ratio
        clamp(r·KL)         with a kl_loss_clamp of the product, which clamps it alone

    With the ratio r the gradient of the mean is that of the KL (DeepSeek V3.2's correction).
    kl_loss_ratio_policy is the policy that r divides by; for `current` r is 1, and has the gradient
    of the log-prob, so that only the gradient differs. With the clamp of the product, a token has
    no gradient where its log ratio to the reference is clamped. The estimate k4 has the factor r,
    too.

    Args:
        tokens: T tokens, with `ref`.
        options: the `kl_loss_...` fields, and `behaviour`.

    Returns:
        [T], 0 if masked out; differentiable in `new`.

    Source of the clamp of the product: NeMo-RL; of the ratio of a policy to itself: Tang and Munos,
    arXiv 2506.09477.
    """
    return KlLoss(tokens, options).values


@dataclass(frozen=True)
class KlLoss:
    """The KL losses of T tokens, as of `kl_loss`, with their gradient."""

    tokens: Tokens
    options: LossOptions

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """The bounds on the log ratio, and on the estimate or its product with the ratio."""
        log_ratio, estimate = self.options.kl_loss_log_ratio_clamp, self.options.kl_loss_clamp
        if self.options.kl_loss_estimator == "k3":
            return log_ratio.bound, estimate.bound
        clamps = [math.inf if x.which.startswith("k3") else x.bound for x in (log_ratio, estimate)]
        return clamps[0], clamps[1]

    @cached_property
    def _of_product(self) -> bool:
        options = self.options
        return options.kl_loss_ratio and options.kl_loss_clamp.which.endswith("product")

    @cached_property
    def _pair(self) -> dict[str, Any]:
        """The arguments of an estimate before its clamp."""
        return {
            "policy": self.tokens.masked_log_probs,
            "ref": self.tokens.ref_log_probs,
            "estimator": self.options.kl_loss_estimator,
            "log_ratio_clamp": self._bounds[0],
            "ratio": self._ratio if self.options.kl_loss_estimator == "k4" else 1.0,
        }

    @cached_property
    def _beyond(self) -> Array:
        """Whether the log ratio is clamped, [T] bool."""
        return abs(self.tokens.constant(self._pair["policy"] - self._pair["ref"])) > self._bounds[0]

    @cached_property
    def _ratio(self) -> Array:
        """The ratio of the current policy to that of kl_loss_ratio_policy, [T]."""
        tokens, policy = self.tokens, self.options.kl_loss_ratio_policy
        if policy == "current":
            log_probs = tokens.masked_log_probs
            return tokens.xp.exp(log_probs - tokens.constant(log_probs))
        return tokens.divided_by(
            self.options.behaviour if policy == "behaviour" else policy
        ).ratio()

    @cached_property
    def _estimate(self) -> Array:
        return token_kl(**self._pair)

    @cached_property
    def _clampable(self) -> Array:
        """What the clamp bounds: the estimate, or its product with the ratio, [T]."""
        if not self._of_product:
            return self._estimate
        constant = self.tokens.constant(self._ratio)
        return self._estimate * self.tokens.xp.where(self._beyond, constant, self._ratio)

    @cached_property
    def values(self) -> Array:
        """The loss of each token, [T]."""
        bound = self._bounds[1]
        kl = self._clampable if math.isinf(bound) else self._clampable.clip(-bound, bound)
        return kl * self._ratio if self.options.kl_loss_ratio and not self._of_product else kl

    @cached_property
    def clamped(self) -> Array:
        """Which estimates or products are clamped, [T] bool."""
        return abs(self._clampable) >= self._bounds[1]

    @cached_property
    def gradient(self) -> Array:
        """The derivative of the sum of all values by the log-prob of each token, [T].

        The ratio is its own derivative.
        """
        constant, where = self.tokens.constant, self.tokens.xp.where
        kl, slope = constant(self._estimate), constant(kl_slope(**self._pair))
        if self.options.kl_loss_estimator == "k4":
            slope = slope + kl
        if self._of_product:
            slope = constant(self._ratio) * (slope + where(self._beyond, 0.0, kl))
        slope = where(abs(constant(self._clampable)) > self._bounds[1], 0.0, slope)
        if self.options.kl_loss_ratio and not self._of_product:
            slope = slope * constant(self._ratio) + constant(self.values)
        return where(self.tokens.mask, slope, 0.0)
