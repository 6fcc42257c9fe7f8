"""Losses of a critic's values against returns, plain and clipped."""

from __future__ import annotations

import math
from typing import NamedTuple

from rlpost.kernels.arrays import Array, namespace


class ValueLoss(NamedTuple):
    """The value loss of each token, [T] each; 0 and false on observation tokens."""

    loss: Array
    gradient: Array
    """∂loss/∂V."""
    clipped: Array
    """Bool: the loss of the clipped value is the larger one, so the gradient is 0."""


def value_loss(
    values: Array,
    old_values: Array,
    returns: Array,
    *,
    clip: float = math.inf,
    delta: float = math.inf,
) -> ValueLoss:
    """Return the larger loss of a value and of the value clipped around the old one.

        d = V - R,  d' = clip(V, V_old ± clip) - R
        loss = max(h(d), h(d')),  h(d) = d²/2 if |d| < delta, else delta·(|d| - delta/2)

    Args:
        values: [T] values V of the critic that is trained.
        old_values: [T] values V_old of the critic before the update.
        returns: [T] returns R, which the values estimate.
        clip: half-width of the range around the old value, 0 or more; inf for no clip.
        delta: of the Huber loss h, over 0; inf for d²/2.

    Returns:
        ValueLoss. If both losses are equal, the gradient is that of the value itself.

    Source: PPO2 of OpenAI's baselines. verl 0.9.1 `compute_value_loss` (clip 0.5), areal 1.0.4
    `ppo_critic_loss_fn` (clip 0.5; its `huber` has delta 10), xtuner `value_loss` (clip 0.2).
    torchrl's `smooth_l1` has delta 1, its `l2` is twice this.
    """
    xp = namespace(values)
    error = values - returns
    loss = huber(error, delta)
    near = values.clip(old_values - clip, old_values + clip)
    other = huber(near - returns, delta)
    clipped = other > loss
    gradient = xp.where(clipped, 0.0, error.clip(-delta, delta))
    return ValueLoss(xp.where(clipped, other, loss), gradient, clipped)


def huber(error: Array, delta: float) -> Array:
    """Return d²/2 if |d| < delta, else delta·(|d| - delta/2), of errors [T]."""
    if delta == math.inf:
        return 0.5 * error**2
    size = abs(error)
    return namespace(error).where(size < delta, 0.5 * error**2, delta * (size - 0.5 * delta))
