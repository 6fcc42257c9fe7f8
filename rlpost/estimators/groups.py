"""Estimators of responses: rewards against their group, batch or domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.estimators.returns import reinforce
from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.moments import first_values, group_moments, group_offsets
from rlpost.kernels.rewards import divisor, standardise, z_scores
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import lengths, segment_min, segment_sum, spread
from rlpost.recipe.base import NonNegative, Positive, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask, Moments


def raw(rewards: Floats) -> Credit:
    """Return the rewards as advantages.

        Aᵢ = rᵢ

    Args:
        rewards: [N] reward of each response.

    Returns:
        Credit of [N], the same array twice.

    >>> raw(np.array([0.0, 1.0])).advantages
    array([0., 1.])
    """
    return Credit(rewards, rewards)


def dr_grpo(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards minus the mean of their group.

        Aᵢ = rᵢ - mean of the group

    Args:
        rewards: [N] reward of each response.
        offsets: [G+1] of the groups, by which rows are sorted.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0.

    Source: Liu et al., arXiv 2503.20783.

    >>> dr_grpo(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-0.5,  0.5])
    """
    advantages = rewards - spread(group_moments(rewards, offsets).mean, offsets)
    return Credit(advantages, advantages)


def rloo(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards minus the mean of the other rewards of their group.

        Aᵢ = rᵢ - Σⱼ≠ᵢ rⱼ / (n - 1) = (rᵢ - mean) · n / (n - 1)

    Args:
        rewards: [N] reward of each response.
        offsets: [G+1] of the groups, by which rows are sorted.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0.

    Source: Ahmadian et al., arXiv 2402.14740. verl's `rloo` gives a single-response group its raw
    reward.

    >>> rloo(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    count, mean, _ = group_moments(rewards, offsets)
    factor = count / (count - 1).clip(1)
    advantages = (rewards - spread(mean, offsets)) * spread(factor, offsets)
    return Credit(advantages, advantages)


def opo(rewards: Floats, tokens: Integers, offsets: Integers) -> Credit:
    """Return rewards minus the optimal baseline if gradients grow with length.

        Aᵢ = rᵢ - Σⱼ nⱼ·rⱼ / Σⱼ nⱼ over the group

    Args:
        rewards: [N] reward of each response.
        tokens: [N] number of policy tokens of each response, n.
        offsets: [G+1] of the groups, by which rows are sorted.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0. In a group without policy tokens the baseline is 0.

    Source: Hao et al., arXiv 2505.23585. verl gives a single-response group its raw reward.

    >>> rewards = np.array([0.0, 1.0])
    >>> opo(rewards, np.array([3, 1]), np.array([0, 2])).advantages
    array([-0.25,  0.75])
    """
    weights = tokens.astype(rewards.dtype)
    # Relative to one reward of the group, so that equal rewards give exactly 0.
    first = spread(first_values(rewards, offsets), offsets)
    total = segment_sum(weights, offsets).clip(1)
    shift = segment_sum(weights * (rewards - first), offsets) / total
    empty = spread(segment_sum(weights, offsets) == 0, offsets)
    baseline = np.where(empty, 0.0, first + spread(shift, offsets))
    advantages = rewards - baseline
    return Credit(advantages, advantages)


def gpg(
    rewards: Floats,
    batch: Integers,
    offsets: Integers,
    *,
    f_norm: Positive = 1.0,
    single: str = "zero",
) -> Credit:
    """Return centred rewards, divided by the share of non-zero rewards in the batch.

        Aᵢ = α·(rᵢ - mean of the group) / f,  α = responses of the batch / responses with r ≠ 0

    Args:
        rewards: [N] reward of each response.
        batch: [N] codes of the batches.
        offsets: [G+1] of the groups, by which rows are sorted.
        f_norm: divisor f of the advantages, above 0.
        single: `raw` does not centre a single-response group, which otherwise gets 0.

    Returns:
        Credit of [N], the same array twice. A group of equal rewards and a batch whose rewards are
        all 0 get 0.

    Source: Chu et al., arXiv 2504.02546, eq. 7.

    >>> rewards = np.array([0.0, 1.0])
    >>> gpg(rewards, np.array([0, 0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    codes = batch.astype(np.int64)
    responses = np.bincount(codes)
    rewarded = np.bincount(codes[rewards != 0], minlength=len(responses))
    alpha = (responses / rewarded.clip(1)).astype(rewards.dtype)
    mean = spread(group_moments(rewards, offsets).mean, offsets)
    if single == "raw":
        mean = np.where(spread(lengths(offsets) == 1, offsets), 0.0, mean)
    advantages = alpha[codes] * (rewards - mean) / f_norm
    return Credit(advantages, advantages)


def grpo_passk(
    rewards: Floats,
    offsets: Integers,
    *,
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
) -> Credit:
    """Return the lead of the best response of each group over the second best.

        Aᵢ = (rᵢ - second best reward) / (std + ε) for the best of the group, 0 for the others

    Args:
        rewards: [N] reward of each response.
        offsets: [G+1] of the groups, by which rows are sorted, then by reward.
        norm_std: `none` does not divide.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.

    Returns:
        Credit of [N], the same array twice. A group whose best reward is a tie and a
        single-response group get 0.

    Source: Walder and Karkhanis, arXiv 2503.19595. verl raises an error for a single response.

    >>> rewards = np.array([0.0, 1.0, 3.0])
    >>> grpo_passk(rewards, np.array([0, 3]), norm_std="none").advantages
    array([0., 0., 2.])
    """
    several = lengths(offsets) > 1
    best = (offsets[1:] - 1)[several]
    lead = rewards[best] - rewards[best - 1]
    if norm_std != "none":
        divided_by = {"norm_eps": norm_eps, "norm_floor": norm_floor, "norm_ddof": norm_ddof}
        lead = lead / divisor(group_moments(rewards, offsets), "group", **divided_by)[several]
    advantages = placed(lead, best, len(rewards))
    return Credit(advantages, advantages)


def max_rl(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards relative to the mean of their group.

        Aᵢ = (rᵢ - mean) / mean of the group

    With rewards of 0 and 1 the mean is the pass rate.

    Args:
        rewards: [N] reward of each response, 0 or more.
        offsets: [G+1] of the groups, by which rows are sorted.

    Returns:
        Credit of [N], the same array twice. A group whose mean is 0 or less, a single-response
        group and a group of equal rewards get 0.

    Source: Tajwar et al., arXiv 2602.02710.

    >>> max_rl(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    mean = spread(group_moments(rewards, offsets).mean, offsets)
    advantages = np.where(mean > 0, (rewards - mean) / np.where(mean > 0, mean, 1.0), 0.0)
    return Credit(advantages, advantages)


def gdpo(
    components: Floats,
    offsets: Integers,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
) -> Credit:
    """Return the weighted sum of group-normalised components; a later stage normalises the batch.

        Aᵢ = Σₖ wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) over the group

    Args:
        components: [N, K] reward components; NaN: not scored, left out.
        offsets: [G+1] of the groups, by which rows are sorted.
        component_weights: K weights; empty: 1 each.
        norm_mean: mean of the `group`, of the `others` of the group (leave-one-out), or `none`.
        norm_std: standard deviation of the same scopes.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.

    Returns:
        Credit of [N], the same array twice. A component whose values are equal in the group adds
        0, and so does every component of a single-response group.

    Source: Liu et al., arXiv 2601.05242. NeMo-RL uses `others`; TRL has ε = 1e-4.

    >>> components = np.array([[0.0, 5.0], [2.0, 5.0]])
    >>> gdpo(components, np.array([0, 2]), norm_std="none").advantages
    array([-1.,  1.])
    """
    parts = weighted_scores(
        components,
        offsets,
        component_weights=component_weights,
        norm_mean=norm_mean,
        norm_std=norm_std,
        norm_eps=norm_eps,
        norm_floor=norm_floor,
        norm_ddof=norm_ddof,
    )
    advantages = np.zeros(len(components), components.dtype)
    for part in parts.T:
        advantages = advantages + part
    return Credit(advantages, advantages)


def weighted_scores(
    components: Floats,
    offsets: Integers,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    **divided_by: float,
) -> Floats:
    """Return wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) of each component, [N, K]; arguments of `gdpo`."""
    group = spread(np.arange(len(offsets) - 1), offsets)
    weights = component_weights or [1.0] * components.shape[1]
    parts = [
        weight * z_scores(component, group, norm_mean=norm_mean, norm_std=norm_std, **divided_by)
        for component, weight in zip(components.T, weights, strict=True)
    ]
    return np.stack(parts, axis=1)


def over_batch(
    scores: Floats,
    moments: Moments,
    *,
    batch_over: Literal["responses", "tokens"] = "responses",
    batch_eps: NonNegative = 1e-6,
) -> Floats:
    """Return the advantages of gdpo, normalised over the responses of their batch, [N].

        Aᵢ = (sᵢ - mean) / (std + ε) over the batch

    Args:
        scores: [N] sums of components.
        moments: of the batch of each, [N].
        batch_over: what advantages are normalised over: the responses of a batch, or, by whitening
            in place of this, its policy `tokens`.
        batch_eps: ε, added to the standard deviation of the batch.

    >>> from rlpost.kernels.moments import Moments
    >>> over_batch(np.array([0.0, 2.0]), Moments(*np.array([[2.0], [1.0], [1.0]])), batch_eps=0.0)
    array([-1.,  1.])
    """
    return scores if batch_over == "tokens" else standardise(scores, moments, eps=batch_eps)


def hierarchical_grpo(
    rewards: Floats,
    domain_name: NDArray[np.str_],
    group: Integers,
    batch: Integers,
    *,
    episode_domains: tuple[str, ...] = (),
) -> Credit:
    """Return rewards minus the mean of their cohort.

        Aᵢ = rᵢ - mean of the cohort

    The cohort of a response is the responses of its domain (role of an agent) in its group, for
    the domains in `episode_domains`, and the responses of its domain in its batch for the others.

    Args:
        rewards: [N] reward of each response.
        domain_name: [N] names of the domains.
        group: [N] codes of the groups.
        batch: [N] codes of the batches.
        episode_domains: domains that are centred by group; the others by batch.

    Returns:
        Credit of [N], the same array twice. A cohort of one response or of equal rewards gets 0.

    Source: prime-rl, hierarchical_grpo.

    >>> rewards, batch = np.array([0.0, 1.0, 5.0]), np.zeros(3, np.int64)
    >>> hierarchical_grpo(rewards, np.array(["a", "a", "b"]), batch, batch).advantages
    array([-0.5,  0.5,  0. ])
    """
    names, codes = np.unique(domain_name, return_inverse=True)
    domain = codes.reshape(-1)
    by_group = np.array([int(name in episode_domains) for name in names], np.int64)[domain]
    cohort = joint_codes(by_group, np.where(by_group, group, batch), domain)
    advantages = z_scores(rewards, cohort, norm_std="none")
    return Credit(advantages, advantages)


def gar(
    rewards: Floats,
    win_rate: Floats,
    offsets: Integers,
    hack: Mask | None = None,
    *,
    floor: Unit = 0.5,
    cap: Positive = 2.0,
) -> Credit:
    """Return centred rewards; those above the mean are scaled by the response's rank.

        Aᵢ = rᵢ - mean of the group
        Aᵢ ← λ·fᵢ·Aᵢ where Aᵢ > 0,  λ = min(λ_max, Σ A₊ / Σ f·A₊),  fᵢ = f_min + (1 - f_min)·wᵢ
        A ← A - mean of A, which is 0 unless λ_max bounds λ

    A response that is a hack has the smallest reward of its group, from the start.

    Args:
        rewards: [N] reward of each response.
        win_rate: [N] w, share of the other ranked responses of its group that a grader ranks
            below it, in [0, 1]; NaN, without a rank, counts as 0.5.
        offsets: [G+1] of the groups, by which rows are sorted.
        hack: [N] bool, true for responses that a grader found to be hacks; None if none is.
        floor: smallest factor f_min of a response's rank, in [0, 1].
        cap: largest factor λ_max that restores the sum of positive advantages.

    Returns:
        Credit of [N], the same array twice. A group of equal rewards gets 0.

    Source: MiMo-V2.6 §4.3.2, eq. 3; prime-rl, algo/gar.py, `redistribute`, `apply`.

    >>> rewards, rates = np.array([0.0, 1.0, 1.0]), np.array([np.nan, 0.0, 1.0])
    >>> gar(rewards, rates, np.array([0, 3])).advantages.round(4)
    array([-0.6667,  0.2222,  0.4444])
    """
    if hack is not None:
        rewards = np.where(hack, spread(segment_min(rewards, offsets), offsets), rewards)
    advantages = rewards - spread(group_moments(rewards, offsets).mean, offsets)
    quality = floor + (1 - floor) * np.where(np.isnan(win_rate), 0.5, win_rate)
    above = np.where(advantages > 0, advantages, 0.0)
    scaled = segment_sum(quality * above, offsets)
    total = segment_sum(above, offsets)
    scale = np.where(scaled > 0, total / np.where(scaled > 0, scaled, 1.0), 1.0).clip(None, cap)
    advantages = np.where(above > 0, spread(scale, offsets) * quality * above, advantages)
    advantages = advantages - spread(group_moments(advantages, offsets).mean, offsets)
    return Credit(advantages, advantages)


def rae(
    rewards: Floats,
    domain: Integers,
    group: Integers,
    *,
    ema_decay: Unit = 0.9,
    order: Literal["row", "group"] = "row",
) -> Credit:
    """Return rewards minus the exponential moving average of the earlier rewards of their domain.

        Aᵢ = rᵢ - b, then b ← d·b + (1 - d)·rᵢ;  b = 0 at the start of each domain

    Args:
        rewards: [N] reward of each response, in input order.
        domain: [N] codes of the domains (roles of agents).
        group: [N] codes in order of first appearance.
        ema_decay: decay d of the moving average, in [0, 1].
        order: of the responses: that of the input (`row`), or group by group, in the order of
            their first responses.

    Returns:
        Credit of [N], the same array twice. The first response of a domain gets its raw reward.

    Source: Liu et al. (SPIRAL), arXiv 2506.24119, alg. 1. prime-rl has `order="group"`.

    >>> ids = np.zeros(2, np.int64)
    >>> rae(np.array([1.0, 1.0]), ids, ids, ema_decay=0.5).advantages
    array([1. , 0.5])
    """
    row = np.arange(len(rewards))
    # Responses of a domain from last to first, so that a reverse scan goes forward in time.
    rows = canonical_order(domain, *([-group] if order == "group" else []), -row)
    offsets = group_offsets(domain, int(domain.max()) + 1 if len(domain) else 0)
    averages = reverse_scan((1 - ema_decay) * rewards[rows], offsets, ema_decay)
    before = np.append(averages[1:], averages[:1])
    before[offsets[1:][offsets[1:] > offsets[:-1]] - 1] = 0.0
    baseline = placed(before, rows, len(rewards))
    return Credit(rewards - baseline, rewards - baseline)


ESTIMATORS = (
    Estimator("raw", raw, "r", ""),
    # The stage of reward normalisation computes (r - mean) / (std + 1e-6), by its defaults here:
    # mean and standard deviation of the group. Without KL penalty and with γ = 1 every policy token
    # of the response gets that number.
    Estimator(
        "grpo",
        reinforce,
        "(r - mean_g) / (std_g + 1e-6), then Gₜ = rₜ + γGₜ₊₁",
        "arXiv:2402.03300",
        norm_mean="group",
        norm_std="group",
        undiscounted_is_constant=True,
        outcome=True,
    ),
    Estimator("dr_grpo", dr_grpo, "r - mean_g", "arXiv:2503.20783"),
    # Whitening is over all policy tokens of a batch, so long responses weigh more, and a group of
    # equal rewards gets -mean / std of the batch, which is 0 only if the mean over tokens is.
    Estimator(
        "reinforce_pp_baseline",
        dr_grpo,
        "r - mean_g, then (A - mean) / √(var + 1e-8) over the batch's tokens",
        "arXiv:2501.03262",
        whiten_advantages=True,
        returns="whitened",
        outcome=True,
    ),
    Estimator("rloo", rloo, "r - mean of the others of g", "arXiv:2402.14740"),
    Estimator("opo", opo, "r - Σ n·r / Σ n over g", "arXiv:2505.23585"),
    Estimator(
        "gpg",
        gpg,
        "α(r - mean_g), α = responses of the batch / those with r ≠ 0",
        "arXiv:2504.02546",
    ),
    Estimator(
        "grpo_passk",
        grpo_passk,
        "best of g: (r_max - r_second) / (std_g + 1e-6); others 0",
        "arXiv:2503.19595",
    ),
    Estimator(
        "max_rl",
        max_rl,
        "(r - mean_g) / mean_g; 0 where mean_g ≤ 0",
        "arXiv:2602.02710",
        of_success=True,
    ),
    Estimator(
        "gdpo",
        gdpo,
        "Σₖ wₖ(cₖ - mean_g) / (std_g + 1e-6), then normalised over the batch",
        "arXiv:2601.05242",
        over_batch=over_batch,
    ),
    Estimator(
        "hierarchical_grpo",
        hierarchical_grpo,
        "r - mean of (domain, group), or of (domain, batch)",
        "prime-rl",
    ),
    Estimator(
        "gar",
        gar,
        "r - mean_g; above 0 times λ·f, f from the rank in the group; centred again",
        "MiMo-V2.6; prime-rl",
    ),
    Estimator(
        "rae",
        rae,
        "r - b of the domain, then b ← 0.9·b + 0.1·r",
        "arXiv:2506.24119",
        beyond_steps=True,
    ),
)
