"""The metrics that can be computed from a dump: their keys in logs, and what each is made of."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["loss", "clipped", "tokens", "responses"]
Statistic = Literal["mean", "max", "min", "std"]
_PREFIXES = (
    "train", "actor", "policy", "critic", "rollout", "training", "ppo_actor", "update", "loss",
    "metrics", "val", "objective", "batch",
)  # fmt: skip
_LIKE_MEAN = re.compile(r"(@sum|@mean|[/_]avg)$")


class MetricDefinition(NamedTuple):
    """A metric: what it is computed from, and the keys under which frameworks log it."""

    name: str
    kind: Kind
    """`loss`: the policy loss; `clipped`: the share of clipped tokens; `tokens`: of a quantity of
    tokens; `responses`: of a number of each response."""
    of: tuple[str, ...]
    """Clipped: the sides. Tokens: the quantities that it may be of, the most usual ones first.
    Responses: `rewards` or `lengths`."""
    statistic: Statistic
    keys: tuple[str, ...]
    """Without the first part of a key, such as `actor/`; keys with it have one meaning only."""


def _metric(
    name: str, kind: Kind, of: str, keys: str = "", statistic: Statistic = "mean"
) -> MetricDefinition:
    """Return a metric of quantities that `, ` separates, and of keys that blanks separate."""
    quantities = tuple(of.split(", ")) if of else ()
    return MetricDefinition(name, kind, quantities, statistic, (name, *keys.split()))


_PPO_KL = (
    "k1 old/new, k2 old/new, k3 old/new, abs old/new, k1 infer/new, k2 infer/new, k3 infer/new, "
    "abs infer/new, k3 new/old, k3 new/infer"
)
_KL_LOSS = (
    "k1 new/ref, k2 new/ref, k3 new/ref, abs new/ref, k1 old/ref, k2 old/ref, k3 old/ref, "
    "abs old/ref, ratio k1 new/ref, ratio k2 new/ref, ratio k3 new/ref, ratio abs new/ref"
)
_ENGINE_KL = (
    "abs old/infer, k1 infer/old, k3 infer/old, k2 infer/old, k3 old/infer, prob old/infer, "
    "k3 infer/new, k1 infer/new, k2 infer/new, abs new/infer, k3 new/infer, prob new/infer"
)
_RATIO = "ratio new/old, ratio new/infer"
_DIFFERENCE = "prob old/infer, abs old/infer, abs new/infer"

METRICS: dict[str, MetricDefinition] = {
    one.name: one
    for one in (
        _metric("pg_loss", "loss", "", "policy_loss actor_loss loss/policy"),
        _metric("loss", "loss", "", "total_loss final_loss loss/total loss/mean"),
        _metric("kl_loss", "tokens", _KL_LOSS, "kl kl_penalty policy_kl loss/kl ref_kl"),
        _metric(
            "clip_frac", "clipped", "low, high", "pg_clipfrac clipfrac clip_ratio/region_mean "
            "clip_ratio ppo_clip_ratio ppo_ratio_clipfrac is_masked/mean is_masked "
            "cispo_clip_ratio ppo_clip_frac",
        ),
        _metric(
            "clip_frac_low", "clipped", "low", "clip_ratio/low_mean ppo_ratio_low_clipfrac "
            "is_masked_low/mean is_masked_low pg_clipfrac_low",
        ),
        _metric(
            "clip_frac_high", "clipped", "high", "clip_ratio/high_mean ppo_ratio_high_clipfrac "
            "is_masked_high/mean is_masked_high pg_clipfrac_high pg_clipfrac_higher",
        ),
        _metric("clip_frac_dual", "clipped", "dual", "pg_clipfrac_lower"),
        _metric("ppo_kl", "tokens", _PPO_KL, "approxkl approx_kl policykl policy/approxkl"),
        _metric("ratio_mean", "tokens", _RATIO, "ratio probs_ratio importance_weight"),
        _metric("ratio_max", "tokens", _RATIO, "probs_ratio_max", "max"),
        _metric("ratio_min", "tokens", _RATIO, "probs_ratio_min", "min"),
        _metric(
            "engine_kl", "tokens", _ENGINE_KL, "mismatch_kl/mean mismatch_kl "
            "train_rollout_logprob_abs_diff rollout_probs_diff_mean "
            "sampling/sampling_logp_difference/mean vllm_kl rollout_kl",
        ),
        _metric(
            "engine_diff_max", "tokens", _DIFFERENCE,
            "rollout_probs_diff_max sampling/sampling_logp_difference/max", "max",
        ),
        _metric(
            "entropy", "tokens", "entropy, minus new, minus old",
            "entropy_loss policy_entropy entropy/mean entropy_mean policy/entropy",
        ),
        _metric(
            "reward_mean", "responses", "rewards", "reward rewards/mean score/mean reward/mean "
            "rewards raw_reward scores reward/avg_raw_reward avg_raw_reward",
        ),
        _metric("reward_max", "responses", "rewards", "rewards/max score/max reward/max", "max"),
        _metric("reward_min", "responses", "rewards", "rewards/min score/min reward/min", "min"),
        _metric("reward_std", "responses", "rewards", "rewards/std reward/std", "std"),
        _metric("advantage_mean", "tokens", "advantages", "advantages/mean advantages"),
        _metric("advantage_max", "tokens", "advantages", "advantages/max", "max"),
        _metric("advantage_min", "tokens", "advantages", "advantages/min", "min"),
        _metric("return_mean", "tokens", "returns", "returns/mean return returns"),
        _metric("return_max", "tokens", "returns", "returns/max", "max"),
        _metric("return_min", "tokens", "returns", "returns/min", "min"),
        _metric("value_mean", "tokens", "values", "values/mean values"),
        _metric("value_max", "tokens", "values", "values/max", "max"),
        _metric("value_min", "tokens", "values", "values/min", "min"),
        _metric(
            "length_mean", "responses", "lengths", "response_length/mean completions/mean_length "
            "response_length response_lengths seq_len/mean mean_gen_tokens_per_sample "
            "response_len/mean",
        ),
        _metric(
            "length_max", "responses", "lengths",
            "response_length/max completions/max_length response_len/max", "max",
        ),
        _metric(
            "length_min", "responses", "lengths",
            "response_length/min completions/min_length response_len/min", "min",
        ),
    )
}  # fmt: skip
_BY_KEY = {key: name for name, metric in METRICS.items() for key in metric.keys}


def metric_of(key: str) -> str | None:
    """Return the metric that a key has; None for an unknown key.

    >>> metric_of("actor/pg_clipfrac"), metric_of("clip_ratio/region_mean"), metric_of("lr")
    ('clip_frac', 'clip_frac', None)
    """
    name = _LIKE_MEAN.sub("", key.strip().lower())
    if name in _BY_KEY:
        return _BY_KEY[name]
    first, _, rest = name.partition("/")
    if rest and first in _PREFIXES:
        if first == "critic" and rest in ("loss", "kl", "entropy", "ratio"):
            return None
        if first == "val" and rest not in ("ratio", "clipfrac"):
            return None
        return _BY_KEY.get(rest) if first != "val" or rest == "ratio" else None
    return None
