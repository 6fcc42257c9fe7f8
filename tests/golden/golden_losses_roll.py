"""Golden cases of ROLL's policy losses.

Its aggregated losses pay heed to the mask but in token-mean. The fractions of its log do not: they
count observations, and some padding; here they are computed as ROLL does.
"""

from typing import Any

import torch
from golden_loss_runs import Came, LossRun, Metrics, engine_weights
from golden_runs import pinned_loss, width

from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.rewards import length_weights
from rlpost.kernels.segments import count_true, spread
from rlpost.losses import HIGH, LOW


def roll(_entry, config, _table) -> list[LossRun]:
    trained, correction = config["actor_train"], config["train_infer_correction"]
    kind = {"vanilla": "pg"}.get(trained.get("pg_variant", "ppo"), trained.get("pg_variant", "ppo"))
    kind = "gspo" if config["importance_sampling"] == "seq" else kind
    options: dict[str, Any] = {}
    if "cispo_epsilon_low" in trained:
        options["pg_clip"] = (trained["cispo_epsilon_low"], trained["cispo_epsilon_high"])
    if "cispo_use_unified_mask" in trained:
        options["loss_options"] = {"mask_clipped": trained["cispo_use_unified_mask"]}
    if kind in ("ppo", "gspo"):
        options["pg_clip"] = config["pg_clip"]
        if config["use_pg_clip_range"]:
            options["pg_clip"] = (config["pg_clip_low"], config["pg_clip_high"])
        options["dual_clip"] = "twice" if config["dual_clip_loss"] else None
    options["aggregation"] = config["loss_agg_mode"]
    options["kl_loss_coef"] = config["kl_loss_coef"] if config["use_kl_loss"] else 0.0
    weigh = None
    if isinstance(correction, dict) and correction["enabled"]:
        weigh = engine_weights(cap=correction["upper_bound"])
    return [LossRun(pinned_loss("roll", loss=kind, **options), metrics, weigh)]


def cells(came: Came) -> int:
    """Of ROLL's padded matrices: a prompt of two tokens, one of them no target, and padding."""
    return (width(came.table) + 1) * len(came.table)


def sample_weights(came: Came) -> torch.Tensor:
    """By length alone: ROLL means to weigh by difficulty, too, but swallows the error there."""
    tokens = count_true(came.tokens.mask, came.tokens.offsets)
    if not came.config["length_loss_weight"]:
        return torch.ones_like(tokens, dtype=torch.float64)
    weights = length_weights(tokens.double(), tokens.min(), tokens.max())
    return weights * len(weights) / weights.sum()


def aggregated(came: Came, how: str) -> float:
    """The loss; token-mean adds up all cells, observations too, over the policy tokens.

    Advantages of observations are 0, so that only kimi15 has something left there: its square.
    """
    if how != "token-mean":
        return came.loss(how, length=width(came.table) + 1)
    total = came.values.sum()
    if came.run.options.loss == "kimi15":
        total += 0.1 / 2 * came.whole.log_ratio[~came.tokens.mask].square().sum()
    return float(total / came.tokens.mask.sum())


def metrics(came: Came) -> Metrics:
    log = {name.partition("@")[0]: value for name, value in came.log.items()}
    ours = losses_of(came) | ratios_of(came) | OF_LOSS.get(came.run.options.loss, ratio_clips)(came)
    by_mode = log.pop("total_loss_by_agg_mode", {})
    found = {f"loss {how}": (value, aggregated(came, how)) for how, value in by_mode.items()}
    return found | {name: (value, ours[name]) for name, value in log.items()}


def losses_of(came: Came) -> dict[str, float]:
    how, weights = came.usual, sample_weights(came)
    tokens, coefficient = came.tokens, came.run.options.kl_loss_coef
    valid = count_true(tokens.mask, tokens.offsets) > 0
    plain, kl = came.loss(how), came.loss(how, came.kl)
    weighted = came.loss(how, weights=weights)
    clip = came.surrogate.clip
    active = ((clip == LOW) | (clip == HIGH)).double()
    return {
        "actor/pg_loss": plain,
        "actor/weighted_pg_loss": weighted,
        "actor/kl_loss": kl,
        "actor/total_loss": weighted + coefficient * kl,
        "total_loss": weighted + coefficient * kl,
        "actor/approxkl": came.loss(how, tokens.log_ratio.square() / 2),
        "actor/policykl": came.loss(how, tokens.log_ratio),
        "actor/valid_samples": float(valid.sum()),
        "actor/total_samples": float(len(valid)),
        "actor/valid_sample_ratio": share_of_valid(came, valid),
        "actor/sample_weights_mean": float(weights.mean()),
        "actor/sample_weights_min": float(weights.min()),
        "actor/sample_weights_max": float(weights.max()),
        "actor/clipfrac": came.loss(how, active),
    }


def share_of_valid(came: Came, valid) -> float:
    """Of all responses; of the valid ones in the plain worker, which is 1."""
    return 1.0 if "actor_worker" in came.entry["function"] else float(valid.double().mean())


def ratios_of(came: Came) -> dict[str, float]:
    """Of tokens, or of responses for gspo."""
    tokens = came.tokens
    ratio = came.surrogate.ratio if came.run.options.loss == "gspo" else tokens.ratio()
    inside = ratio[tokens.mask]
    return {
        "actor/ratio_mean": came.loss(came.usual, ratio),
        "actor/ratio_max": float(inside.max()),
        "actor/ratio_min": float(inside.min()),
    }


def clips(ratio, low, high, prefix, below) -> dict[str, float]:
    """Shares of ratios outside, of whatever ROLL divides by."""
    lower, upper = float((ratio < low).sum()) / below, float((ratio > high).sum()) / below
    return {f"{prefix}low": lower, f"{prefix}high": upper, f"{prefix}total": lower + upper}


def ratio_clips(came: Came) -> dict[str, float]:
    """All cells with a ratio outside over the number of policy tokens, whatever the advantage.

    For gspo a response's ratio stands in all cells of its row, padding with them.
    """
    config = came.config
    own = (config["pg_clip_low"], config["pg_clip_high"])
    low, high = own if config["use_pg_clip_range"] else (config["pg_clip"],) * 2
    ratio = came.whole.ratio()
    if came.run.options.loss == "gspo":
        tokens = came.tokens
        rows = reduce_responses(tokens.log_ratio, tokens.mask, tokens.offsets, level="geometric")
        ratio = rows.exp().repeat_interleave(width(came.table) + 1)
    found = clips(ratio, 1 - low, 1 + high, "", float(came.tokens.mask.sum()))
    names = {"low": "low_clipfrac", "high": "high_clipfrac", "total": "clipfrac"}
    return {f"actor/ppo_ratio_{names[name]}": value for name, value in found.items()}


def padded(came: Came, values, filler: float) -> torch.Tensor:
    """All cells of a matrix: observations with the rest, and what padding holds."""
    return torch.nn.functional.pad(values, (0, cells(came) - values.numel()), value=filler)


def tis_log(came: Came) -> dict[str, float]:
    ratio = came.whole.ratio()
    found = clips(ratio, 0.0, 1.0, "", cells(came))
    names = {"low": "lower_clipfrac", "high": "upper_clipfrac", "total": "total_clipfrac"}
    return {f"actor/tis_{names[name]}": value for name, value in found.items()} | {
        "actor/tis_clipped_ratio_mean": came.loss(came.usual, came.tokens.ratio().clamp(0, 1)),
        "actor/tis_lower_bound": 0.0,
        "actor/tis_upper_bound": 1.0,
    }


def topr_log(came: Came) -> dict[str, float]:
    tokens, rewards = came.tokens, came.tokens.rewards
    good, bad = (spread(which, tokens.offsets) for which in (rewards > 0, rewards <= 0))
    found = clips(came.whole.ratio()[bad], 0.0, 1.0, "", cells(came))
    names = {"low": "lower_clipfrac", "high": "upper_clipfrac", "total": "total_clipfrac"}
    found = {f"actor/topr_negative_{names[name]}": value for name, value in found.items()}
    for name, which in (("positive", good), ("negative", bad)):
        found[f"actor/topr_{name}_loss"] = came.loss(came.usual, came.values * which)
        found[f"actor/topr_weighted_{name}_loss"] = found[f"actor/topr_{name}_loss"]
        found[f"actor/topr_{name}_weight"] = 1.0
    return found | {
        "actor/topr_positive_samples": float((rewards > 0).sum()),
        "actor/topr_negative_samples": float((rewards <= 0).sum()),
        "actor/topr_positive_ratio": float((rewards > 0).double().mean()),
        "actor/topr_negative_ratio": float((rewards <= 0).double().mean()),
        "actor/topr_scores_mean": float(rewards.mean()),
        "actor/topr_scores_std": float(rewards.std()),
    }


def cispo_log(came: Came) -> dict[str, float]:
    trained, ratio = came.config["actor_train"], padded(came, came.whole.ratio(), 1.0)
    low, high = (trained.get(f"cispo_epsilon_{side}", 0.1) for side in ("low", "high"))
    found = clips(ratio, 1 - low, 1 + high, "", cells(came))
    names = {"low": "lower_clipfrac", "high": "upper_clipfrac", "total": "total_clipfrac"}
    found = {f"cispo_{names[name]}": value for name, value in found.items()}
    gain = padded(came, came.tokens.masked_advantages, 0.0)
    positive = (ratio > 1 + high) & (gain > 0)
    negative = (ratio < 1 - low) & (gain < 0)
    clipped = came.tokens.ratio().clamp(1 - low, 1 + high)
    found |= {
        "cispo_epsilon_low": low,
        "cispo_epsilon_high": high,
        "cispo_clip_lower": 1 - low,
        "cispo_clip_upper": 1 + high,
        "cispo_use_unified_mask": float(trained.get("cispo_use_unified_mask", False)),
        "cispo_masked_positive_tokens": float(positive.double().mean()),
        "cispo_masked_negative_tokens": float(negative.double().mean()),
        "cispo_kept_tokens": float((~(positive | negative)).double().mean()),
        "clipped_ratio_mean": came.loss(came.usual, clipped, count_rows="all"),
    }
    return {f"actor/cispo_{name}": value for name, value in found.items()}


def kimi15_log(came: Came) -> dict[str, float]:
    distance = padded(came, (came.whole.ratio() + 1e-8).log(), 0.0)
    pull = (padded(came, came.tokens.masked_advantages, 0.0) * distance).abs().mean()
    push = (0.1 / 2 * distance.square()).mean()
    found = {
        "tau": 0.1,
        "log_ratio_mean": distance.mean(),
        "log_ratio_std": distance.std(),
        "log_ratio_abs_mean": distance.abs().mean(),
        "policy_grad_magnitude": pull,
        "kl_reg_magnitude": push,
        "reg_ratio": push / pull,
    }
    return {f"actor/kimi15_kimi15_{name}": float(value) for name, value in found.items()}


OF_LOSS = {
    "tis": tis_log,
    "topr": topr_log,
    "cispo": cispo_log,
    "kimi15": kimi15_log,
    "pg": lambda _: {},
}
