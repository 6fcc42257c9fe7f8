"""The gradient of an aggregated policy loss in the log-prob of each token."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from rlpost.losses.kl import kl_loss

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.config import LossConfig
    from rlpost.losses.tokens import Tokens


def loss_gradient(config: LossConfig, tokens: Tokens, weights: Array, kl_weights: Array) -> Array:
    """Return the gradient of Σ weight · loss + coefficient · Σ KL weight · KL loss, [T] float64.

    It is differentiated by torch, in the log-probs of the current policy.

    Args:
        config: the loss; its KL loss counts if its coefficient is above 0.
        tokens: of whole responses.
        weights: [T] of the policy loss.
        kl_weights: [T] of the KL loss.
    """
    import torch  # noqa: PLC0415 - slow to import

    host = not isinstance(tokens.new, torch.Tensor)
    new = torch.as_tensor(tokens.new, dtype=torch.float64).detach().clone().requires_grad_()
    own = replace(_tensors(tokens), new=new)
    coefficient = config.options.kl_loss_coef
    with torch.enable_grad():
        total = (config.loss(own, config.options).values * torch.as_tensor(weights)).sum()
        if coefficient > 0:
            total = (
                total
                + coefficient * (kl_loss(own, config.options) * torch.as_tensor(kl_weights)).sum()
            )
    if not total.requires_grad:
        slope = torch.zeros_like(new)
    else:
        (slope,) = torch.autograd.grad(total, new)
    return slope.numpy() if host else slope


def _tensors(value: Any) -> Any:
    """Return tokens, or a part of them, with tensors in place of arrays of numpy."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    if isinstance(value, np.ndarray):
        return torch.tensor(value)
    if isinstance(value, dict):
        return {name: _tensors(x) for name, x in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*map(_tensors, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{x.name: _tensors(getattr(value, x.name)) for x in fields(value)})
    return value
