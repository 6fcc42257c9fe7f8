"""Numerics: the numerical details in which frameworks differ."""

from __future__ import annotations

from typing import Literal

from rlpost.recipe.base import Bound, Clamp, Ddof, NonNegative, OptionModel, Parsed


class EstimateClamp(Clamp):
    """A bound in the KL estimates of all estimators, or of k3."""

    choices = ("all", "k3")


class WeightClamp(Clamp):
    """A bound on log weights, at the level of the weight, or on the log ratio of each token."""

    choices = ("level", "token")


class Numerics(OptionModel):
    """Numerical details in which frameworks differ; the defaults are rlpost's own choices."""

    batch: Literal["step", "step_domain", "all"] = "step"
    """What a batch is: the responses of a step, of a step and domain, or all responses."""

    penalty_length: Literal["policy", "row"] = "policy"
    """Length for the overlong penalty: policy tokens only, or observation tokens too (row)."""
    penalty_floor: Literal["none", "factor", "one"] = "none"
    """Lowest overlong penalty: none, so that it falls further beyond MAX_LEN; -FACTOR (factor), its
    value at MAX_LEN; or -1 (one), for any FACTOR."""
    norm_eps: NonNegative = 1e-6
    """ε added to the standard deviation that divides rewards."""
    norm_ddof: Ddof = 1
    """Standard deviation of rewards: divide by n - 1 (1, Bessel's correction) or by n (0)."""
    norm_floor: NonNegative = 0.0
    """Smallest standard deviation that divides rewards."""
    single: Literal["zero", "zero_always", "raw", "normalise"] = "zero"
    """Normalised reward of a single-response group: 0 if group statistics are used (zero), always 0
    (zero_always), its raw reward (raw), or the result of the formula (normalise)."""
    constant: Literal["zero", "identical", "divide"] = "zero"
    """Normalised reward if all rewards are equal: 0 if they are so to rounding (zero), or if they
    are identical (identical), or the result of the formula (divide)."""
    empty: Literal["count", "leave_out"] = "count"
    """Responses without policy tokens: counted in reward statistics (count), or not (leave_out)."""
    missing_components: Literal["error", "skip"] = "error"
    """A NaN or null reward component: an error, or skipped as not scored."""
    clip_stages: Literal["response_and_token", "response"] = "response_and_token"
    """Apply the reward clip to normalised rewards and again to token rewards, or only to the
    former."""

    log_ratio_clamp: Parsed[EstimateClamp] = EstimateClamp("all", 40.0)
    """Bound on |log old - log ref| in KL estimates, in nats: in all of them, or in k3 alone
    (k3:BOUND); never: no bound."""
    kl_clamp: Parsed[EstimateClamp] = EstimateClamp("k3", 10.0)
    """Bound on the absolute value of a KL estimate, in nats: of all, or of k3 alone (k3:BOUND);
    never: no bound."""
    kl_policy: Literal["old", "current"] = "old"
    """Policy whose KL from the reference is computed: old (before the update) or current."""
    kl_credit: Literal["return", "token", "response", "none"] = "return"
    """Where the KL penalty is subtracted: token rewards, so all earlier returns (return), its
    token's advantage (token), the reward, or step score, before normalisation (response), nowhere
    (none)."""

    process_rewards: Literal["auto", "response", "token"] = "auto"
    """Process rewards: their sum is added to the response's reward before its baseline (response),
    or each to its token after it (token); auto: token if there is no baseline per response."""
    terminal_reward: Literal["last_policy_token", "last_token"] = "last_policy_token"
    """Token that gets the response's reward; with last_token, scans drop the reward if that token
    is an observation, except with observations policy or cut; a warning counts the responses."""
    observations: Literal["skip", "states", "zero_states", "policy", "restart", "cut"] = "skip"
    """Observation tokens in scans: skipped (skip); states with their own γλ step (states), and
    value 0 (zero_states); policy tokens (policy); a scan restarts after them (restart), or ends at
    each (cut)."""
    outcome: Literal["return", "response"] = "return"
    """Advantage of a token in estimators without a critic (grpo, reinforce and kin): the
    return-to-go of token rewards (return), or the sum over the response (response)."""

    whiten_eps: NonNegative = 1e-8
    """ε of whitening, inside the square root."""
    whiten_floor: Literal["add", "clamp"] = "add"
    """Use of whiten_eps: added to the variance (add), or its lower bound (clamp)."""
    whiten_ddof: Ddof = 1
    """Variance in whitening: divide by n - 1 (1, Bessel's correction) or by n (0)."""
    whiten_scale: Literal["std", "none"] = "std"
    """Whitening divides by the standard deviation (std), or only centres (none)."""

    correction: Literal["last", "first"] = "last"
    """Off-policy correction: after all other stages (last), or before the estimator (first), so
    that rejected tokens leave its scans and lengths, and whitening."""
    is_clamp: Parsed[WeightClamp] = WeightClamp("level", 40.0)
    """Bound on |log| of importance weights, in nats: of the sum or mean at the weight's level, or
    of each token's log ratio (token:BOUND); never: no bound."""
    is_filter_clamp: Bound = 40.0
    """Bound on |log old - log infer| of each token in filters, in nats; never: no bound."""
    is_missing: Literal["error", "one"] = "error"
    """A NaN or null log-prob of the rollout engine at a policy token: not finite (error), or taken
    as the trainer's, so that its ratio and weight are 1 (one)."""
    is_observations: Literal["zero", "one", "ratio"] = "zero"
    """Importance weight of observation tokens: 0 (zero), 1 (one), or their ratio (ratio)."""
