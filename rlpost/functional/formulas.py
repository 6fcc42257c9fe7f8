"""Formulas in the terms of their public forms, and the table of all public functions."""
# Lines of columns that many formulas have are those of derived.py; types of options are evaluated.
# ruff: noqa: D417, TC003

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlpost.errors import UsageError
from rlpost.estimators import ESTIMATORS, Credit
from rlpost.functional.arguments import finite, finite_tokens
from rlpost.functional.derived import checked
from rlpost.functional.policy import aggregate, policy_loss
from rlpost.kernels import corrections, segments
from rlpost.kernels import values as of_values
from rlpost.kernels.arrays import Array, all_true, like, namespace, on_host
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import keyed_moments
from rlpost.kernels.rewards import divisor, z_scores
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.trimming import top_share
from rlpost.recipe.base import Bound, Parsed, Share
from rlpost.recipe.numerics import EstimateClamp, Numerics
from rlpost.recipe.recipe import Filter, Level

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers

_NUMERICS = Numerics()


def place_rewards(rewards: Array, offsets: Array, mask: Array = None) -> Array:
    """Return token rewards: the reward of each response on its last policy token, 0 elsewhere.

    Args:
        rewards: [N] reward of each response.

    Returns:
        [T]; differentiable. The reward of a response without policy tokens is lost.

    verl and ROLL use the last token, even if it is an observation (`terminal_reward`).

    >>> place_rewards(torch.tensor([1.0]), torch.tensor([0, 3]), torch.tensor([1, 1, 0]))
    tensor([0., 1., 0.])
    """
    start = namespace(rewards).zeros(len(mask), rewards)
    return segments.add_at(start, segments.last_true(mask, offsets), rewards)


def to_tokens(numbers: Array, offsets: Array, mask: Array = None) -> Array:
    """Return the number of each response on all its policy tokens, 0 on observation tokens.

    Args:
        numbers: [N] number of each response, such as the advantages of `grpo`.

    Returns:
        [T]; differentiable.

    >>> to_tokens(torch.tensor([1.0, 2.0]), torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]))
    tensor([1., 0., 2.])
    """
    return namespace(numbers).where(mask, segments.spread(numbers, offsets), 0.0)


def response_rewards(rewards: Array, token_rewards: Array, offsets: Array) -> Array:
    """Return the reward of each response plus the sum of its process rewards.

        Sᵢ = rᵢ + Σₜ pᵢₜ over all tokens of the response, observation tokens too

    It is what a baseline per response, such as that of `grpo`, has to see.

    Args:
        rewards: [N] reward of each response.
        token_rewards: [T] process reward of each token, in units of reward.

    Returns:
        [N]; differentiable. A response without tokens keeps its reward.

    Source: verl, compute_grpo_outcome_advantage, which sums token rewards without a mask.

    >>> offsets = torch.tensor([0, 2, 3])
    >>> response_rewards(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0, 2.0]), offsets)
    tensor([1.5000, 2.0000])
    """
    xp = namespace(rewards)
    wide = any(x.dtype == xp.float64 for x in (rewards, token_rewards))
    rewards, more = (
        xp.astype(x, xp.float64 if wide else xp.float32) for x in (rewards, token_rewards)
    )
    return segments.add_segment_sums(rewards, more, offsets)


def whiten(
    values: Array,
    mask: Array = None,
    *,
    whiten_eps: float = 1e-8,
    whiten_ddof: int = 1,
    shift_mean: bool = True,
) -> Array:
    """Return values with mean 0 and variance 1 over the elements whose mask is not 0.

        yₜ = (xₜ - mean) / √(var + ε)

    Args:
        values: any shape, ragged or padded; elements whose mask is 0 may have any value.
        whiten_eps: ε, added to the variance inside the square root.
        whiten_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.
        shift_mean: if false, the mean is added again, so that only the scale changes.

    Returns:
        The same shape; 0 where the mask is 0. Mean and variance are computed in float64. Fewer than
        two elements are returned unchanged. Differentiable.

    OpenRLHF divides by n and uses ε as the lower bound of the variance.

    >>> whiten(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([1, 1, 0]))
    tensor([-0.7071,  0.7071,  0.0000])
    """
    xp = namespace(values)
    finite_tokens(mask, values=xp.constant(values))
    inside = xp.astype(values[mask], xp.float64)
    if len(inside) <= 1:
        return xp.where(mask, values, 0.0)
    mean = inside.mean()
    variance = ((inside - mean) ** 2).sum() / (len(inside) - whiten_ddof)
    whitened = (inside - mean) * (1 / xp.sqrt(variance + whiten_eps))
    whitened = xp.astype(whitened if shift_mean else whitened + mean, values.dtype)
    size = math.prod(mask.shape)
    return xp.placed(whitened, xp.flatnonzero(mask.reshape(-1)), size).reshape(mask.shape)


def kl(
    log_probs: Array,
    ref_log_probs: Array,
    *,
    kl_estimator: str = "k1",
    log_ratio_clamp: Parsed[EstimateClamp] = _NUMERICS.log_ratio_clamp,
    kl_clamp: Parsed[EstimateClamp] = _NUMERICS.kl_clamp,
    ratio: Array | float = 1.0,
) -> Array:
    """Return the estimated KL of a policy from a reference at each sampled token, in nats.

    With d = log π - log π_ref, clamped to ±40, and k3 to ±10:

        k1   d
        abs  |d|
        k2   d²/2
        k3   exp(-d) + d - 1
        k4   ratio·d

    Args:
        log_probs: log-probs of the policy; any shape, ragged or padded.
        ref_log_probs: log-probs of the reference; the same shape.
        kl_estimator: k1, abs, k2, k3 or k4.
        log_ratio_clamp: bound on |d|, in nats; `k3:BOUND` for k3 alone, `never` for none.
        kl_clamp: bound on the absolute value of the estimate, in nats, in the same way.
        ratio: for k4, the importance ratio of the current to the sampling policy.

    Returns:
        The same shape; 0 where the mask is 0, NaN there or not. Differentiable.

    Source: Schulman, "Approximating KL divergence", 2020.

    >>> kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]), kl_estimator="k2")
    tensor([0.1250, 0.0000])
    """
    bounded, bound = log_ratio_clamp
    clamps: Any = {"log_ratio_clamp": bound if bounded in ("all", kl_estimator) else math.inf}
    clamps |= {"clamps": kl_clamp.which, "clamp": kl_clamp.bound, "ratio": ratio}
    return token_kl(log_probs, ref_log_probs, estimator=kl_estimator, **clamps)


def proximal_log_probs(
    log_probs: Array,
    infer_log_probs: Array,
    age: Array,
    *,
    how: Literal["loglinear", "linear"] = "loglinear",
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
        how: loglinear or linear.

    Returns:
        The same shape; 0 where the mask is 0. A constant: no gradient flows through it.

    Source: areal 1.0.4, areal/trainer/ppo/actor.py:604.

    >>> new, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -2.0])
    >>> proximal_log_probs(new, infer, torch.tensor([1.0, 4.0]))
    tensor([-2.0000, -1.2500])
    """
    xp = namespace(age)
    wide = (xp.astype(xp.constant(x), xp.float64) for x in (log_probs, infer_log_probs, age))
    return xp.astype(corrections.proximal_log_probs(*wide, how=how), log_probs.dtype)


def importance_weights(
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    mask: Array = None,
    *,
    level: Level = "token",
    clamp: Bound = 40.0,
    **options: Any,
) -> corrections.Weights:
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
        level: token, segment, geometric or sequence.
        cap: largest weight.
        floor: smallest weight.
        bounds: smallest and largest ratio whose weight is not 0, inclusive.
        clamp: bound on the absolute log ratio at the level, in nats.

    Returns:
        Weights: `values`, and whether they were `truncated` or `masked`, [T] each; 0 and false on
        observation tokens. Constants: no gradient flows through them.

    >>> old, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> importance_weights(old, infer, torch.tensor([0, 2]), cap=2.0).values
    tensor([1., 2.])
    """
    xp = namespace(old_log_probs)
    both = (xp.where(mask, x, 0.0) for x in (old_log_probs, infer_log_probs))
    old, infer = (xp.astype(x, xp.float64) for x in both)
    logs = corrections.log_weights(old, infer, mask, offsets, level=level, clamp=clamp)
    weights = corrections.importance_weights(logs, **options)
    values = xp.astype(xp.where(mask, weights.values, 0.0), old_log_probs.dtype)
    return corrections.Weights(values, weights.truncated & mask, weights.masked & mask)


def accepted_tokens(
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    mask: Array = None,
    *,
    filters: Sequence[str] = (),
    age: Array | None = None,
    clamp: Bound = 40.0,
) -> Array:
    """Return the policy tokens that all off-policy filters accept.

    Filters are those of `--is-filter`, LEVEL:MEASURE:LOW:HIGH.

    Args:
        old_log_probs: [T] log-probs of the trainer; of the current policy for OPSM.
        infer_log_probs: [T] log-probs of the rollout engine.
        filters: such as `geometric:k3::0.01`; none accepts all policy tokens.
        age: [T] versions from the policy that sampled to the current one, for the measure age.
        clamp: bound on the absolute log ratio of a token, in nats.

    Returns:
        [T] bool, false on observation tokens.

    >>> old, infer = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0])
    >>> accepted_tokens(old, infer, torch.tensor([0, 2]), filters=["token:ratio:0.5:2"])
    tensor([ True, False])
    """
    xp, accepted = namespace(old_log_probs), mask
    columns = (old_log_probs, infer_log_probs, *([] if age is None else [age]))
    old, infer, *ages = (xp.astype(xp.where(mask, x, 0.0), xp.float64) for x in columns)
    for text in filters:
        try:
            chosen = Filter.of(text)
        except ValueError as error:
            raise UsageError(str(error).replace("--is-filter", "filters", 1)) from None
        if chosen.measure != "age":
            how = {"measure": chosen.measure, "level": chosen.level}
            values = corrections.divergence(old, infer, mask, offsets, clamp=clamp, **how)
        elif age is None:
            raise UsageError(f"{chosen}: the measure age needs age=, [T] versions")
        else:
            values = corrections.values_at(ages[0], mask, offsets, level=chosen.level)
        inside = (values >= chosen.low) & (values <= chosen.high)
        inside = segments.spread(inside, offsets) if chosen.by_response else inside
        accepted = accepted & inside
    return accepted


def top_entropy(entropy: Array, mask: Array = None, *, quantile: Share) -> Array:
    """Return the policy tokens with the highest entropy, whose loss counts.

        Hₜ at or above the quantile 1 - q of the n policy tokens, which is between two of them if
        (1 - q)·(n - 1) is no whole number

    Equal entropies stay together. Multiply the loss of a token by it; the frameworks leave the
    other tokens in the denominator.

    Args:
        entropy: entropy of the distribution of each token, in nats; any shape, ragged or padded.
            It is compared as float32, and as 0 if it is below.
        quantile: q, the share of the policy tokens, over 0 and at most 1.

    Returns:
        The same shape, bool; false where the mask is 0.

    Source: TRL 1.16, trl/trainer/grpo_trainer.py:1380, get_high_entropy_mask; ms-swift 4.6,
    swift/rlhf_trainers/grpo_trainer.py:960; Wang et al., arXiv 2506.01939.

    >>> top_entropy(torch.tensor([0.1, 0.9, 0.4, 0.2, 0.3]), quantile=0.5)
    tensor([False,  True,  True, False,  True])
    """
    values = namespace(entropy).where(mask, entropy, 0.0).reshape(-1)
    return mask & top_share(values, mask.reshape(-1), quantile).reshape(mask.shape)


def value_loss(
    values: Array,
    old_values: Array,
    returns: Array,
    *,
    clip: float = math.inf,
    delta: Bound = math.inf,
) -> of_values.ValueLoss:
    """Return the loss of a critic's values against returns, plain or clipped.

        d = V - R,  d' = clip(V, V_old ± clip) - R
        loss = max(h(d), h(d')),  h(d) = d²/2 if |d| < delta, else delta·(|d| - delta/2)

    `aggregate` makes one number of it.

    Args:
        values: values V of the critic that is trained; any shape, ragged or padded.
        old_values: values of the critic before the update; the same shape.
        returns: returns R, which the values estimate, such as those of `gae`; the same shape.
        clip: half-width of the range around the old value, 0 or more; inf for no clip.
        delta: of the Huber loss h, over 0; inf for d²/2.

    Returns:
        ValueLoss: `loss`, its `gradient` by V, and whether the loss is that of the `clipped` value,
        each of the same shape; 0 and false where the mask is 0. The loss is differentiable.

    Source: verl 0.9.1, compute_value_loss (clip 0.5); areal 1.0.4, ppo_critic_loss_fn (clip 0.5;
    its `huber` has delta 10); xtuner, value_loss (clip 0.2). torchrl's `smooth_l1` has delta 1.

    >>> values, old = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.5])
    >>> value_loss(values, old, torch.tensor([2.0, 0.0]), clip=0.5).loss
    tensor([1.1250, 0.1250])
    """
    if clip < 0:
        raise UsageError(f"clip={clip}: 0 or more is needed")
    return of_values.value_loss(values, old_values, returns, clip=clip, delta=delta)


def grpo(rewards: Floats, group: Integers, **options: Any) -> Floats:
    """Return rewards normalised within their group.

        Aᵢ = (rᵢ - mean) / (std + ε)

    Args:
        rewards: [N] reward of each response.
        norm_mean: mean of the `group`, of the `others` of the group (leave-one-out), or `none`.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.

    Returns:
        [N]. With a norm_std, a single-response group and a group of equal rewards get 0. With
        `others`, a response whose others have equal rewards is not divided.

    Source: GRPO, arXiv 2402.03300. TRL has ε = 1e-4; open-instruct divides by n (ddof 0); NeMo-RL
    uses `others` for both.

    >>> grpo(np.array([0.0, 1.0, 5.0]), ["a", "a", "b"]).round(4)
    array([-0.7071,  0.7071,  0.    ])
    """
    return z_scores(rewards, group, **options)


def gdpo(
    components: Floats,
    offsets: Integers,
    batch: Integers,
    **options: Any,
) -> Floats:
    """Return the weighted sum of group-normalised reward components, normalised over the batch.

        sᵢ = Σₖ wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) over the group
        Aᵢ = (sᵢ - mean) / (std + ε_batch) over the batch

    Args:
        components: [N, K] reward components; NaN: not scored, left out.

    Returns:
        [N]; all 0 in a batch whose sums are equal.

    Source: Liu et al., arXiv 2601.05242. NeMo-RL has ε_batch = 0, TRL 1e-4.

    >>> gdpo(np.array([[0.0, 5.0], [2.0, 5.0]]), [7] * 2).round(4)
    array([-0.7071,  0.7071])
    """
    formula, normalise = _GDPO
    over = {x: options.pop(x) for x in [*options] if x in signature(normalise).parameters}
    sums = formula(components, offsets, **options).advantages
    moments = keyed_moments(sums, batch, int(batch.max(initial=-1)) + 1).at(batch)
    result: Floats = normalise(sums, moments, **over)
    return result


def step_reinforce(
    step_score: Floats,
    rollout_order: Integers,
    rollout: Integers,
    group: Integers,
    *,
    step_gamma: float = 1.0,
    **options: Any,
) -> Floats:
    """Return the discounted return of each turn over the rest of its rollout, normalised by group.

        Aₖ = (Gₖ - mean) / (std + ε) over the group,  Gₖ = sₖ + γ·Gₖ₊₁ over the turns k of a rollout

    Args:
        step_score: [N] score s of each turn.
        rollout: N ids of the rollouts, unique within a group.
        norm_mean: as of `grpo`.
        step_gamma: discount γ per turn, in [0, 1].

    Returns:
        [N]; `to_tokens` puts it on the tokens.

    Source: ROLL, compute_discounted_returns.

    >>> step_reinforce(np.array([1.0, 4.0]), np.array([0, 1]), [5] * 2, [7] * 2, norm_std="none")
    array([ 0.5, -0.5])
    """
    order = rollout_order, rollout, group
    return grpo(_step_returns(step_score, *order, step_gamma=step_gamma), group, **options)


def optimal_token_baseline(
    token_rewards: Array,
    old_log_probs: Array,
    sum_pi_squared: Array,
    group: Integers,
    offsets: Array,
    mask: Array = None,
    infer_log_probs: Array = None,
    *,
    gamma: float = 1.0,
    **options: Any,
) -> Credit:
    """Return the return-to-go minus the baseline of the token's group and position.

        Gₜ = rₜ + γ·Gₜ₊₁;  Aₜ = Gₜ - Bₜ;  returns = G
        Bₜ = Σ G·W / (Σ W + ε) over the group's policy tokens at position t
        Wₜ = Σₛ≤ₜ (1 - 2πₛ + Σπₛ²)·ρₛ²

    Args:
        token_rewards: [T] reward of each token.
        old_log_probs: [T] log π of the sampled tokens.
        sum_pi_squared: [T] Σπ² over the vocabulary, in [0, 1].
        infer_log_probs: [T] log-probs of the rollout engine; None for ρ = 1.
        gamma: discount γ per policy token, in [0, 1].

    Returns:
        Credit of advantages and returns, [T] each; 0 on observation tokens. Constants: no gradient
        flows through them.

    Source: verl, compute_optimal_token_baseline_advantage.

    >>> rewards, half = np.array([1.0, 0.0]), np.log([0.5, 0.5])
    >>> credit = optimal_token_baseline(rewards, half, np.exp(half), [7, 7], np.array([0, 1, 2]))
    >>> credit.advantages.round(4)
    array([ 0.5, -0.5])
    """
    xp, policy = namespace(token_rewards), segments.positions_of(mask)
    columns = xp.constant(token_rewards), old_log_probs, sum_pi_squared
    rewards, *others = (x[policy] for x in columns)
    inner = segments.compact_offsets(mask, offsets)
    infer = None if infer_log_probs is None else infer_log_probs[policy]
    chosen = [{x: options[x] for x in options if x in signature(f).parameters} for f in _OTB]
    weights = _OTB[0](*others, inner, infer, **chosen[0])
    positions = on_host(_OTB[1](mask, offsets, **chosen[1])[policy])
    slot = joint_codes(segments.spread(group, on_host(inner)), positions)
    returns = reverse_scan(rewards, inner, gamma)
    above, below = (np.bincount(slot, on_host(x)) for x in (returns * weights, weights))
    baselines = _OTB[2](above, below, np.bincount(slot), **chosen[2])
    baseline = xp.astype(like(baselines[slot], rewards), rewards.dtype)
    credit = ESTIMATORS["optimal_token_baseline"].function(rewards, baseline, inner, gamma=gamma)
    return Credit(*(xp.placed(part, policy, len(mask)) for part in credit))


def reinforce_pp(
    token_rewards: Array, offsets: Array, *, gamma: float = 1.0, **options: Any
) -> Array:
    """Return the discounted return-to-go of the token rewards, whitened over the policy tokens.

        Aₜ = (Gₜ - mean) / √(var + ε),  Gₜ = rₜ + γ·Gₜ₊₁

    Args:
        token_rewards: [T] reward of each token.

    Returns:
        [T]; differentiable.

    Source: REINFORCE++, arXiv 2501.03262.

    >>> reinforce_pp(np.array([0.0, 1.0, 0.0]), np.array([0, 2, 3])).round(4)
    array([ 0.5774,  0.5774, -1.1547])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    return whiten(returns, all_true(len(returns), returns), **options)


def reinforce_pp_baseline(
    rewards: Array, group: Integers, offsets: Array, mask: Array = None, **options: Any
) -> Array:
    """Return rewards minus the mean of their group, whitened over the policy tokens.

        Aₜ = (aₜ - mean) / √(var + ε),  a = r - mean of the group, on all policy tokens

    Args:
        rewards: [N] reward of each response.

    Returns:
        [T]; 0 on observation tokens. Long responses weigh more.

    Source: REINFORCE++, arXiv 2501.03262.

    >>> reinforce_pp_baseline(np.array([0.0, 1.0]), [7, 7], np.array([0, 1, 2])).round(4)
    array([-0.7071,  0.7071])
    """
    centred = like(z_scores(finite("rewards", rewards), group, norm_std="none"), rewards)
    numbers = namespace(rewards).astype(centred, rewards.dtype)
    return whiten(to_tokens(numbers, offsets, mask), mask, **options)


_step_returns: Any = ESTIMATORS["step_reinforce"].rewards
_GDPO: Any = ESTIMATORS["gdpo"].function, ESTIMATORS["gdpo"].over_batch
_OTB_ENTRY: Any = ESTIMATORS["optimal_token_baseline"]
_OTB = _OTB_ENTRY.token_weights, _OTB_ENTRY.token_positions, _OTB_ENTRY.position_baselines
# Formulas, and those whose options they take, too.
_FORMULAS: tuple[tuple[Callable[..., Any], ...], ...] = (
    (place_rewards,), (to_tokens,), (whiten,), (kl,), (proximal_log_probs,), (value_loss,),
    (importance_weights, corrections.importance_weights), (accepted_tokens,), (top_entropy,),
    (policy_loss,), (aggregate,), (grpo, z_scores, divisor), (gdpo, *_GDPO),
    (step_reinforce, z_scores, divisor), (reinforce_pp, whiten), (reinforce_pp_baseline, whiten),
    (optimal_token_baseline, *_OTB),
)  # fmt: skip
_PUBLIC: dict[str, Callable[..., Any]] = {
    name: checked(
        estimator.rewards or estimator.function,
        name=name,
        returns="Credit" if estimator.returns == "own" else "Array",
    )
    for name, estimator in ESTIMATORS.items()
}
_PUBLIC |= {formula.__name__: checked(formula, *parts) for formula, *parts in _FORMULAS}
_PUBLIC["response_rewards"] = checked(response_rewards, mask=False)
FUNCTIONS = dict(sorted(_PUBLIC.items()))
"""All public functions by name."""
