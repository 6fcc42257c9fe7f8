"""V-trace: values of the trainer's policy from responses of the rollout engine's policy."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.scans import reverse_scan_each
from rlpost.kernels.segments import ends_of

_MOST_NATS = 80.0


def vtrace(
    token_rewards: Array,
    values: Array,
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    *,
    gamma: float = 1.0,
    vtrace_rho_cap: float = 1.0,
    vtrace_c_cap: float = 1.0,
) -> Credit:
    """Return TD errors weighted by capped ratios of the trainer's to the engine's probabilities.

        ρₜ = min(πₜ/μₜ, ρ̄),  cₜ = min(πₜ/μₜ, c̄)
        vₜ = Vₜ + ρₜ·(rₜ + γ·Vₜ₊₁ - Vₜ) + γ·cₜ·(vₜ₊₁ - Vₜ₊₁),  V = v = 0 after the last token
        Aₜ = ρₜ·(rₜ + γ·vₜ₊₁ - Vₜ);  R = v

    With π = μ and caps from 1 it is gae with λ = 1.

    Args:
        token_rewards: [T] reward of each token.
        values: [T] value of the state before each token, in units of reward.
        old_log_probs: [T] log π, of the trainer's policy before the update.
        infer_log_probs: [T] log μ, of the rollout engine's policy.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].
        vtrace_rho_cap: ρ̄ > 0; with a finite one, v are the values of a policy between μ and π.
        vtrace_c_cap: c̄ > 0, which trades variance for speed, and does not change that policy.

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Espeholt et al., arXiv 1802.01561, eq. 1 and section 4.2; torchrl 0.14,
    objectives/value/functional.py:1298, vtrace_advantage_estimate.

    >>> rewards, values, offsets = np.array([0.0, 1.0]), np.array([0.5, 0.5]), np.array([0, 2])
    >>> vtrace(rewards, values, np.log([0.2, 0.5]), np.log([0.4, 0.5]), offsets).advantages
    array([0.25, 0.5 ])
    """
    xp = namespace(values)
    ratio = xp.exp((old_log_probs - infer_log_probs).clip(max=_MOST_NATS))
    rho, decay = ratio.clip(max=vtrace_rho_cap), gamma * ratio.clip(max=vtrace_c_cap)

    def following(numbers: Array) -> Array:
        return xp.filled(xp.concat([numbers[1:], numbers[:1]]), ends_of(offsets), 0.0)

    errors = rho * (token_rewards - values + gamma * following(values))
    targets = values + reverse_scan_each(errors, offsets, decay)
    return Credit(rho * (token_rewards - values + gamma * following(targets)), targets)


ESTIMATOR = Estimator(
    "vtrace",
    vtrace,
    formula="ρₜ(rₜ + γvₜ₊₁ - Vₜ), v = V + Σ γᵏ Πc ρδ, ρ and c capped ratios old / engine",
    source="arXiv:1802.01561",
    returns="own",
)
