"""The same functions for padded tensors: [B, T] and a mask that is 0 on padding and observations.

Padding may be left, right or between; what stands on it is never looked at. Names, knobs and
errors are those of rlpost.functional. Functions of rewards and groups have no padded twin: they
take one number per response as it is. `whiten` and `kl` take any shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlpost.errors import UsageError
from rlpost.estimators import Credit
from rlpost.functional import policy, scans, tokens
from rlpost.functional.policy import PolicyLoss
from rlpost.functional.tokens import kl, whiten
from rlpost.kernels.corrections import Weights

if TYPE_CHECKING:
    from torch import Tensor


MATRIX = 2

__all__ = [
    "aggregate",
    "discounted_returns",
    "gae",
    "importance_weights",
    "kl",
    "place_rewards",
    "policy_loss",
    "to_tokens",
    "whiten",
]


def gae(rewards: Tensor, values: Tensor, mask: Tensor, **knobs: float) -> Credit:
    """`rlpost.functional.gae` of [B, T] tensors: advantages and returns, [B, T] each.

    >>> rewards, values = torch.tensor([[0.0, 1.0, 7.0]]), torch.tensor([[0.5, 0.5, 7.0]])
    >>> gae(rewards, values, torch.tensor([[1, 1, 0]]), lam=1.0).returns
    tensor([[1., 1., 0.]])
    """
    offsets = _offsets(mask, rewards=rewards, values=values)
    found = scans.gae(rewards.flatten(), values.flatten(), offsets, mask.flatten(), **knobs)
    return Credit(*(one.view(mask.shape) for one in found))


def discounted_returns(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """`rlpost.functional.discounted_returns` of [B, T] rewards, [B, T]."""
    offsets = _offsets(mask, rewards=rewards)
    found = scans.discounted_returns(rewards.flatten(), offsets, mask.flatten(), gamma=gamma)
    return found.view(mask.shape)


def place_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """`rlpost.functional.place_rewards` of [B] rewards, [B, T]."""
    return scans.place_rewards(rewards, _offsets(mask), mask.flatten()).view(mask.shape)


def to_tokens(numbers: Tensor, mask: Tensor) -> Tensor:
    """`rlpost.functional.to_tokens` of [B] numbers, [B, T].

    >>> to_tokens(torch.tensor([1.0, 2.0]), torch.tensor([[1, 1], [1, 0]]))
    tensor([[1., 1.],
            [2., 0.]])
    """
    return scans.to_tokens(numbers, _offsets(mask), mask.flatten()).view(mask.shape)


def importance_weights(
    old_log_probs: Tensor, infer_log_probs: Tensor, mask: Tensor, **knobs: Any
) -> Weights:
    """`rlpost.functional.importance_weights` of [B, T] log-probs, [B, T] each."""
    offsets = _offsets(mask, old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    old, infer = old_log_probs.flatten(), infer_log_probs.flatten()
    found = tokens.importance_weights(old, infer, offsets, mask.flatten(), **knobs)
    return Weights(*(one.view(mask.shape) for one in found))


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    infer_log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    is_weight: Tensor | None = None,
    **options: Any,
) -> PolicyLoss:
    """`rlpost.functional.policy_loss` of [B, T] tensors; its tokens and clip are [B, T].

    The longest response, by which seq-mean-token-sum-norm divides, is T long: give `agg_length`
    where batches are padded to widths of their own.
    """
    optional = {"infer_log_probs": infer_log_probs, "ref_log_probs": ref_log_probs}
    optional["is_weight"] = is_weight
    given = {name: one for name, one in optional.items() if one is not None}
    named = {"log_probs": log_probs, "old_log_probs": old_log_probs, "advantages": advantages}
    offsets = _offsets(mask, **named, **given)
    flat: dict[str, Any] = {name: one.flatten() for name, one in (named | given).items()}
    found = policy.policy_loss(**flat, offsets=offsets, mask=mask.flatten(), **options)
    return PolicyLoss(found.loss, found.tokens.view(mask.shape), found.clip.view(mask.shape))


def aggregate(values: Tensor, mask: Tensor, **knobs: Any) -> Tensor:
    """`rlpost.functional.aggregate` of [B, T] values; the longest response is T long."""
    offsets = _offsets(mask, values=values)
    return policy.aggregate(values.flatten(), offsets, mask.flatten(), **knobs)


def _offsets(mask: Tensor, **columns: Tensor) -> Tensor:
    """Offsets [B+1] of rows of T tokens; raises UsageError where a shape is another than [B, T]."""
    if mask.dim() != MATRIX:
        raise UsageError(f"mask of shape {tuple(mask.shape)}: [B, T] is needed")
    for name, column in columns.items():
        if column.shape != mask.shape:
            raise UsageError(
                f"{name} of shape {tuple(column.shape)} beside a mask of {tuple(mask.shape)}: "
                "they must be the same"
            )
    rows, width = mask.shape
    return torch.arange(rows + 1, device=mask.device) * width
