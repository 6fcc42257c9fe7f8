"""Functions of tokens: whitening, KL, importance weights, placement of rewards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

from rlpost.errors import UsageError
from rlpost.functional.arguments import (
    finite_tokens,
    floats,
    mask_of,
    numbers,
    of_any_library,
    one_of,
    per_response,
    ragged,
)
from rlpost.kernels.arrays import namespace
from rlpost.kernels.corrections import Weights, log_weights
from rlpost.kernels.corrections import importance_weights as _importance_weights
from rlpost.kernels.corrections import proximal_log_probs as _proximal_log_probs
from rlpost.kernels.kl import token_kl
from rlpost.kernels.segments import add_at, add_segment_sums, last_true, spread
from rlpost.kernels.values import ValueLoss
from rlpost.kernels.values import value_loss as _value_loss
from rlpost.recipe.recipe import PROXIMAL, Level

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


KL_ESTIMATORS = ("k1", "abs", "k2", "k3", "k4")
LEVELS = get_args(Level)


@of_any_library
def response_rewards(rewards: Array, token_rewards: Array, offsets: Array) -> Array:
    """Return the reward of each response plus the sum of its process rewards.

        Sᵢ = rᵢ + Σₜ pᵢₜ over all tokens of the response, observation tokens too

    It is what a baseline per response, such as that of `grpo`, has to see.

    Args:
        rewards: [N] reward of each response.
        token_rewards: [T] process reward of each token, in units of reward.
        offsets: [N+1] first token of each response; the last element is T.

    Returns:
        [N]; differentiable. A response without tokens keeps its reward.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: verl, compute_grpo_outcome_advantage, which sums token rewards without a mask.

    >>> offsets = torch.tensor([0, 2, 3])
    >>> response_rewards(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0, 2.0]), offsets)
    tensor([1.5000, 2.0000])
    """
    (rewards,), (token_rewards,) = floats(rewards=rewards), floats(token_rewards=token_rewards)
    responses = ragged(offsets, None, token_rewards)
    per_response("rewards", rewards, len(responses.offsets) - 1)
    xp = namespace(rewards)
    wide = xp.float64 in (rewards.dtype, token_rewards.dtype)
    widest = xp.float64 if wide else xp.float32
    own, more = (xp.astype(one, widest) for one in (rewards, token_rewards))
    return add_segment_sums(own, more, responses.offsets)


@of_any_library
def place_rewards(rewards: Array, offsets: Array, mask: Array | None = None) -> Array:
    """Return token rewards: the reward of each response on its last policy token, 0 elsewhere.

    Args:
        rewards: [N] reward of each response.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.

    Returns:
        [T]; differentiable. The reward of a response without policy tokens is lost.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    verl and ROLL use the last token, even if it is an observation (`terminal_reward`).

    >>> place_rewards(torch.tensor([1.0]), torch.tensor([0, 3]), torch.tensor([1, 1, 0]))
    tensor([0., 1., 0.])
    """
    (rewards,) = floats(rewards=rewards)
    tokens = namespace(rewards).zeros(int(offsets[-1]) if len(offsets) else 0, rewards)
    responses = ragged(offsets, mask, tokens)
    per_response("rewards", rewards, len(responses.offsets) - 1)
    return add_at(tokens, last_true(responses.mask, responses.offsets), rewards)


@of_any_library
def to_tokens(numbers: Array, offsets: Array, mask: Array | None = None) -> Array:
    """Return the number of each response on all its policy tokens, 0 on observation tokens.

    Args:
        numbers: [N] number of each response, such as the advantages of `grpo`.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.

    Returns:
        [T]; differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    >>> to_tokens(torch.tensor([1.0, 2.0]), torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]))
    tensor([1., 0., 2.])
    """
    (numbers,) = floats(numbers=numbers)
    tokens = namespace(numbers).zeros(int(offsets[-1]) if len(offsets) else 0, numbers)
    responses = ragged(offsets, mask, tokens)
    per_response("numbers", numbers, len(responses.offsets) - 1)
    on_tokens = spread(numbers, responses.offsets)
    return namespace(numbers).where(responses.mask, on_tokens, 0.0)


@of_any_library
def whiten(
    values: Array,
    mask: Array | None = None,
    *,
    whiten_eps: float = 1e-8,
    whiten_ddof: int = 1,
    shift_mean: bool = True,
) -> Array:
    """Return values with mean 0 and variance 1 over the elements whose mask is not 0.

        yₜ = (xₜ - mean) / √(var + ε)

    Args:
        values: any shape, ragged or padded; elements whose mask is 0 may have any value.
        mask: the same shape; None for all elements.
        whiten_eps: ε, added to the variance inside the square root.
        whiten_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.
        shift_mean: if false, the mean is added again, so that only the scale changes.

    Returns:
        The same shape; 0 where the mask is 0. Mean and variance are computed in float64. Fewer than
        two elements are returned unchanged. Differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.
        DataError: a value is NaN or infinite where the mask is not 0; its mean would make all NaN.

    OpenRLHF divides by n and uses ε as the lower bound of the variance.

    >>> whiten(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([1, 1, 0]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    numbers(whiten_eps=whiten_eps, whiten_ddof=whiten_ddof)
    (values,) = floats(values=values)
    xp, kept = namespace(values), mask_of(values, mask)
    finite_tokens(kept, values=xp.constant(values))
    inside = xp.astype(values[kept], xp.float64)
    if len(inside) <= 1:
        return xp.where(kept, values, 0.0)
    mean = inside.mean()
    variance = ((inside - mean) ** 2).sum() / (len(inside) - whiten_ddof)
    whitened = (inside - mean) * (1 / xp.sqrt(variance + whiten_eps))
    whitened = xp.astype(whitened if shift_mean else whitened + mean, values.dtype)
    size = math.prod(kept.shape)
    return xp.placed(whitened, xp.flatnonzero(kept.reshape(-1)), size).reshape(kept.shape)


@of_any_library
def kl(
    log_probs: Array,
    ref_log_probs: Array,
    mask: Array | None = None,
    *,
    kl_estimator: str = "k1",
    log_ratio_clamp: float = 40.0,
    kl_clamp: float = 10.0,
    kl_clamps: str = "k3",
    ratio: Array | float = 1.0,
) -> Array:
    """Return the estimated KL of a policy from a reference at each sampled token, in nats.

    With d = log π - log π_ref, clamped to ±log_ratio_clamp:

        k1   d
        abs  |d|
        k2   d²/2
        k3   exp(-d) + d - 1
        k4   ratio·d

    Args:
        log_probs: log-probs of the policy; any shape, ragged or padded.
        ref_log_probs: log-probs of the reference; the same shape.
        mask: the same shape; None for all tokens.
        kl_estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, in nats.
        kl_clamp: bound on the absolute value of the estimate, in nats.
        kl_clamps: estimators that are clamped: `k3`, which grows exponentially, or `all`.
        ratio: for k4, the importance ratio of the current to the sampling policy.

    Returns:
        The same shape; 0 where the mask is 0, NaN there or not. Differentiable.

    Raises:
        UsageError: a shape, a dtype, a number or the name of the estimator is wrong.
        DataError: a log-prob is NaN or infinite where the mask is not 0.

    Source: Schulman, "Approximating KL divergence", 2020.

    >>> kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]), kl_estimator="k2")
    tensor([0.1250, 0.0000])
    """
    one_of("kl_estimator", kl_estimator, KL_ESTIMATORS)
    numbers(log_ratio_clamp=log_ratio_clamp, kl_clamp=kl_clamp)
    policy, ref = floats(log_probs=log_probs, ref_log_probs=ref_log_probs)
    kept = mask_of(policy, mask)
    finite_tokens(kept, log_probs=policy, ref_log_probs=ref)
    xp = namespace(policy)
    # Masked elements may be NaN, which a product with 0 would pass on to the gradient.
    estimate = token_kl(
        xp.where(kept, policy, 0.0),
        xp.where(kept, ref, 0.0),
        estimator=kl_estimator,
        log_ratio_clamp=log_ratio_clamp,
        clamp=kl_clamp,
        clamps=kl_clamps,
        ratio=ratio,
    )
    return xp.where(kept, estimate, 0.0)


@of_any_library
def proximal_log_probs(
    log_probs: Array,
    infer_log_probs: Array,
    age: Array,
    mask: Array | None = None,
    *,
    how: str = "loglinear",
) -> Array:
    """Return log-probs of the policy one version before the current one, interpolated.

    Of a token that a policy of age a sampled, with α = max(0, 1 - 1/a), and 0 if a is 0:

        loglinear  (1-α)·infer + α·new
        linear     log((1-α)·exp(infer) + α·exp(new) + 1e-10)

    They are the `old_log_probs` of `policy_loss` and of weights and filters.

    Args:
        log_probs: log-probs of the current policy; any shape, ragged or padded.
        infer_log_probs: log-probs of the policy that sampled; the same shape.
        age: versions from that policy to the current one, 0 or above; the same shape.
        mask: the same shape; None for all tokens.
        how: loglinear or linear.

    Returns:
        The same shape; 0 where the mask is 0. A constant: no gradient flows through it.

    Raises:
        UsageError: a shape, a dtype or the name is wrong.
        DataError: a number is NaN or infinite where the mask is not 0.

    Source: areal 1.0.4, areal/trainer/ppo/actor.py:604.

    >>> new, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -2.0])
    >>> proximal_log_probs(new, infer, torch.tensor([1.0, 4.0]))
    tensor([-2.0000, -1.2500])
    """
    one_of("how", how, PROXIMAL)
    every = floats(log_probs=log_probs, infer_log_probs=infer_log_probs, age=age)
    kept, xp = mask_of(every[0], mask), namespace(every[0])
    named = dict(zip(("log_probs", "infer_log_probs", "age"), every, strict=True))
    finite_tokens(kept, **named)
    inside = (xp.astype(xp.where(kept, xp.constant(x), 0.0), xp.float64) for x in every)
    values = _proximal_log_probs(*inside, how=how)
    return xp.astype(xp.where(kept, values, 0.0), log_probs.dtype)


@of_any_library
def importance_weights(
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    level: str = "token",
    cap: float = math.inf,
    floor: float = 0.0,
    bounds: tuple[float, float] = (0.0, math.inf),
    clamp: float = 40.0,
) -> Weights:
    """Return importance weights of the trainer's over the rollout engine's probabilities.

    With d = old - infer, the ratio of a token is the exponential of:

        token      d
        segment    mean of d over the run of policy tokens that contains it
        geometric  mean of d over the response's policy tokens
        sequence   sum of d over the response's policy tokens

    The weight is min(max(ratio, floor), cap) (truncated importance sampling), and 0 if the ratio is
    outside `bounds` (IcePop, arXiv 2510.18855).

    Args:
        old_log_probs: [T] log-probs of the trainer before the update.
        infer_log_probs: [T] log-probs of the rollout engine.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        level: token, segment, geometric or sequence.
        cap: largest weight.
        floor: smallest weight.
        bounds: smallest and largest ratio whose weight is not 0, inclusive.
        clamp: bound on the absolute log ratio at the level, in nats.

    Returns:
        Weights: `values`, and whether they were `truncated` or `masked`, [T] each; 0 and false on
        observation tokens. Constants: no gradient flows through them.

    Raises:
        UsageError: a shape, a dtype, a number or the level is wrong.
        DataError: a log-prob is NaN or infinite where the mask is not 0.

    >>> old, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> importance_weights(old, infer, torch.tensor([0, 2]), cap=2.0).values
    tensor([1., 2.])
    """
    one_of("level", level, LEVELS)
    numbers(cap=cap, floor=floor, bounds=bounds, clamp=clamp)
    old, infer = floats(old_log_probs=old_log_probs, infer_log_probs=infer_log_probs)
    responses = ragged(offsets, mask, old)
    kept = responses.mask
    finite_tokens(kept, responses.offsets, old_log_probs=old, infer_log_probs=infer)
    xp = namespace(old)
    both = (xp.where(kept, xp.constant(x), 0.0) for x in (old, infer))
    old, infer = (xp.astype(x, xp.float64) for x in both)
    logs = log_weights(old, infer, kept, responses.offsets, level=level, clamp=clamp)
    weights = _importance_weights(logs, cap=cap, floor=floor, bounds=bounds)
    values = xp.astype(xp.where(kept, weights.values, 0.0), old_log_probs.dtype)
    return Weights(values, weights.truncated & kept, weights.masked & kept)


@of_any_library
def value_loss(
    values: Array,
    old_values: Array,
    returns: Array,
    mask: Array | None = None,
    *,
    clip: float = math.inf,
    delta: float = math.inf,
) -> ValueLoss:
    """Return the loss of a critic's values against returns, plain or clipped.

        d = V - R,  d' = clip(V, V_old ± clip) - R
        loss = max(h(d), h(d')),  h(d) = d²/2 if |d| < delta, else delta·(|d| - delta/2)

    `aggregate` makes one number of it.

    Args:
        values: values V of the critic that is trained; any shape, ragged or padded.
        old_values: values of the critic before the update; the same shape.
        returns: returns R, which the values estimate, such as those of `gae`; the same shape.
        mask: the same shape; None for all tokens.
        clip: half-width of the range around the old value, 0 or more; inf for no clip.
        delta: of the Huber loss h, over 0; inf for d²/2.

    Returns:
        ValueLoss: `loss`, its `gradient` by V, and whether the loss is that of the `clipped` value,
        each of the same shape; 0 and false where the mask is 0. The loss is differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: verl 0.9.1, compute_value_loss (clip 0.5); areal 1.0.4, ppo_critic_loss_fn (clip 0.5;
    its `huber` has delta 10); xtuner, value_loss (clip 0.2). torchrl's `smooth_l1` has delta 1.

    >>> values, old = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.5])
    >>> value_loss(values, old, torch.tensor([2.0, 0.0]), clip=0.5).loss
    tensor([1.1250, 0.1250])
    """
    numbers(clip=clip, delta=delta)
    if clip < 0 or delta <= 0:
        raise UsageError(f"clip={clip}, delta={delta}: clip is 0 or more, delta is over 0")
    every = floats(values=values, old_values=old_values, returns=returns)
    kept, xp = mask_of(every[0], mask), namespace(every[0])
    # Masked elements may be NaN, which a product with 0 would pass on to the gradient.
    inside = (xp.where(kept, one, 0.0) for one in every)
    return _value_loss(*inside, clip=clip, delta=delta)
