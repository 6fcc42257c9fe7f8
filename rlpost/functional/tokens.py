"""Numbers of tokens: whitening, KL estimates, and weights for a policy that is not the sampler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlpost.errors import UsageError
from rlpost.functional.arguments import floats, ragged
from rlpost.kernels.corrections import Weights, log_weights
from rlpost.kernels.corrections import importance_weights as _importance_weights
from rlpost.kernels.kl import token_kl

if TYPE_CHECKING:
    from torch import Tensor


KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k4")
LEVELS = ("token", "segment", "geometric", "sequence")


def whiten(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    whiten_eps: float = 1e-8,
    whiten_ddof: int = 1,
    shift_mean: bool = True,
) -> Tensor:
    """(x - mean) / √(var + ε) over all that the mask keeps.

    Args:
        values: any shape, ragged or padded; what the mask drops is never looked at.
        mask: the same shape; None keeps everything.
        whiten_eps: ε, added to the variance.
        whiten_ddof: 1 is Bessel's correction, 0 the population's variance.
        shift_mean: without it the mean is added again, so that the scale alone changes.

    Returns:
        The same shape, 0 where the mask is 0; moments are taken in float64. Under two values are
        left as they are. Differentiable.

    Raises:
        UsageError: shapes or types do not fit.

    >>> whiten(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([1, 1, 0]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    (values,) = floats(values=values)
    kept = _kept(values, mask)
    inside = values[kept].to(torch.float64)
    if inside.numel() <= 1:
        return torch.where(kept, values, 0.0)
    mean = inside.mean()
    variance = (inside - mean).square().sum() / (inside.numel() - whiten_ddof)
    found = (inside - mean) * (variance + whiten_eps).rsqrt()
    found = found if shift_mean else found + mean
    return torch.zeros_like(values).masked_scatter(kept, found.to(values.dtype))


def kl(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor | None = None,
    *,
    kl_estimator: str = "k1",
    log_ratio_clamp: float = 40.0,
    kl_clamp: float = 10.0,
    kl_clamps: str = "k3",
    ratio: Tensor | float = 1.0,
) -> Tensor:
    """KL of a policy from a reference at each sampled token.

    With d = log π - log π_ref: k1 d; abs |d|; k2 d²/2; k3 exp(-d) + d - 1; k4 ratio·d.

    Args:
        log_probs: any shape, ragged or padded: of the policy.
        ref_log_probs: the same shape: of the reference.
        mask: the same shape; None keeps everything.
        kl_estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, nats.
        kl_clamp: bound on the estimate, nats.
        kl_clamps: what that binds: `k3`, which alone explodes, or `all`.
        ratio: for k4, of the policy being trained to the one that sampled.

    Returns:
        The same shape, 0 where the mask is 0. Differentiable.

    Raises:
        UsageError: shapes, types or the estimator's name do not fit.

    Source: Schulman, "Approximating KL divergence", 2020.

    >>> kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]), kl_estimator="k2")
    tensor([0.1250, 0.0000])
    """
    if kl_estimator not in KL_ESTIMATORS:
        raise UsageError(f"kl_estimator {kl_estimator!r} is none of {', '.join(KL_ESTIMATORS)}")
    policy, ref = floats(log_probs=log_probs, ref_log_probs=ref_log_probs)
    kept = _kept(policy, mask)
    # What is masked out may be NaN, and would reach the gradient through a product with 0.
    found = token_kl(
        torch.where(kept, policy, 0.0),
        torch.where(kept, ref, 0.0),
        estimator=kl_estimator,
        log_ratio_clamp=log_ratio_clamp,
        clamp=kl_clamp,
        clamps=kl_clamps,
        ratio=ratio,
    )
    return torch.where(kept, found, 0.0)


def importance_weights(
    old_log_probs: Tensor,
    infer_log_probs: Tensor,
    offsets: Tensor,
    mask: Tensor | None = None,
    *,
    level: str = "token",
    cap: float = math.inf,
    floor: float = 0.0,
    bounds: tuple[float, float] = (0.0, math.inf),
    clamp: float = 40.0,
) -> Weights:
    """Weights for tokens that the rollout engine sampled and the trainer scores.

    With d = old - infer, exp of: token d; segment the mean of d over the run of policy tokens;
    geometric its mean over the response; sequence its sum. Then at least `floor`, at most `cap`
    (truncated importance sampling), and 0 where the ratio is outside `bounds` (IcePop).

    Args:
        old_log_probs: [T] of the trainer, before its update.
        infer_log_probs: [T] of the rollout engine.
        offsets: [N+1] where responses begin.
        mask: [T], 0 on tokens that are not the policy's; None for none.
        level: token, segment, geometric or sequence.
        cap: largest weight.
        floor: smallest weight.
        bounds: smallest and largest ratio whose weight is not 0.
        clamp: bound on |log| of a ratio, nats.

    Returns:
        Weights: `values`, and where they were `truncated` or `masked`, [T] each; 0 and false on
        observations. Constants for gradients.

    Raises:
        UsageError: shapes, types or the level do not fit.

    >>> old, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> importance_weights(old, infer, torch.tensor([0, 2]), cap=2.0).values
    tensor([1., 2.])
    """
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is none of {', '.join(LEVELS)}")
    old, infer = floats(old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    where = ragged(offsets, mask, old)
    kept = where.mask
    old, infer = (torch.where(kept, x.detach(), 0.0).to(torch.float64) for x in (old, infer))
    logs = log_weights(old, infer, kept, where.offsets, level=level, clamp=clamp)
    found = _importance_weights(logs, cap=cap, floor=floor, bounds=bounds)
    values = torch.where(kept, found.values, 0.0).to(old_log_probs.dtype)
    return Weights(values, found.truncated & kept, found.masked & kept)


def _kept(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mask as bool, in the shape of the values; raises UsageError where it has another."""
    if mask is None:
        return torch.ones_like(values, dtype=torch.bool)
    if mask.shape != values.shape:
        raise UsageError(f"mask of shape {tuple(mask.shape)} for values of {tuple(values.shape)}")
    return mask.to(values.device) != 0
