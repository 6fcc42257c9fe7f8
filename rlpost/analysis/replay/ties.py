"""Ties of a search: recipes with the same numbers on this data, and what data has others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.candidates import DETAIL
from rlpost.recipe.estimators import READERS
from rlpost.recipe.flags import flag_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import differences

if TYPE_CHECKING:
    from rlpost.analysis.replay.trials import Trial
    from rlpost.pipeline.resolved import ResolvedRecipe

Json = dict[str, Any]

_LOG_PROBS = "log-probs of old and reference policy that differ, and a KL coefficient above 0"
_CORRECTED = "log-probs of the rollout engine that differ much from the trainer's"
DATA = {
    "estimator": "more steps, unequal rewards and lengths in a prompt group, and token rewards",
    "gamma": "responses of several tokens with a critic or rewards on several tokens",
    "lam": "responses of several tokens with critic values",
    "lambda_policy": "responses of several tokens with critic values",
    "lambda_value": "responses of several tokens with critic values",
    "step_gamma": "trajectories of several turns",
    "norm_mean": "prompt groups of unequal mean rewards",
    "norm_std": "prompt groups of unequal standard deviations of rewards",
    "reward_clip": "rewards beyond the bound",
    "reward_clip_low": "rewards beyond the bound",
    "advantage_clip": "advantages beyond the bound",
    "whiten_advantages": "advantages whose mean is not 0, or whose deviation is not 1",
    "whiten_rewards": "token rewards whose deviation over a batch is not 1",
    "kl_coef": _LOG_PROBS,
    "kl_estimator": _LOG_PROBS,
    "rollout_reward": "rows of one rollout with unequal rewards",
    "drop_zero_variance": "a prompt group of equal rewards",
    "drop_single": "a prompt group of one response",
    "drop_truncated": "a truncated response",
    "numerics.batch": "several steps, or several domains in a step",
    "numerics.norm_eps": "a prompt group whose rewards differ little",
    "numerics.norm_ddof": "a prompt group of unequal rewards",
    "numerics.norm_floor": "a prompt group whose rewards differ little",
    "numerics.single": "a prompt group of one response",
    "numerics.constant": "a prompt group of equal rewards",
    "numerics.empty": "a response without policy tokens",
    "numerics.missing_components": "a response without one of its reward components",
    "numerics.clip_stages": "token rewards beyond the bound of the reward clip",
    "numerics.log_ratio_clamp": "a token whose log-probs differ by more than the bound",
    "numerics.log_ratio_clamps": "a token whose log-probs differ by more than the bound",
    "numerics.kl_clamp": "a token whose KL estimate is above the bound",
    "numerics.kl_clamps": "a token whose KL estimate is above the bound",
    "numerics.kl_policy": "log-probs of the current policy that differ from the old ones",
    "numerics.kl_credit": _LOG_PROBS,
    "numerics.process_rewards": "token rewards in prompt groups",
    "numerics.terminal_reward": "a response that ends with an observation token",
    "numerics.observations": "observation tokens between policy tokens",
    "numerics.outcome": "rewards or KL on several tokens of a response, or a discount below 1",
    "numerics.segment_reward": "rewards on several tokens of a policy segment",
    "numerics.whiten_eps": "a batch whose advantages differ little",
    "numerics.whiten_floor": "a batch whose advantages differ little",
    "numerics.whiten_ddof": "a batch of few policy tokens",
    "numerics.whiten_scale": "advantages whose deviation over a batch is not 1",
    "numerics.gdpo_batch": "responses of unequal lengths",
    "numerics.batch_eps": "a batch whose advantages differ little",
    "numerics.otb_position": "observation tokens between policy tokens",
    "numerics.otb_lone": "a prompt group whose longest response is longer than all others",
    "numerics.otb_eps": "positions with small weights",
    "numerics.episodes": "trajectories of several turns",
    "numerics.states": "equal states in several prompt groups",
    "numerics.rae_order": "prompt groups whose rows are not beside each other",
    "numerics.correction": _CORRECTED,
    "numerics.is_clamp": _CORRECTED,
    "numerics.is_clamp_at": _CORRECTED,
    "numerics.is_observations": "observation tokens with recorded importance weights",
    "numerics.is_filter_clamp": _CORRECTED,
    "numerics.penalty_length": "observation tokens in long responses",
    "numerics.penalty_floor": "responses beyond the length limit",
}
"""By field: the data on which values of it give other numbers."""
_NORM = ("norm_eps", "norm_ddof", "norm_floor", "constant")
_WHITENING = ("whiten_eps", "whiten_floor", "whiten_ddof", "whiten_scale")
_KL = ("log_ratio_clamp", "log_ratio_clamps", "kl_clamp", "kl_clamps", "kl_policy")
_NEVER = ("estimator_name", "emit", "emit_only", "replace", "columns", "pass_threshold")


def matters(resolved: ResolvedRecipe, name: str, recorded: Any = ()) -> bool:
    """Return whether a recipe reads a field, or `numerics.NAME`, on some data.

    Args:
        resolved: the recipe.
        name: the field.
        recorded: the stages that are compared; KL is read where it is one of them.
    """
    recipe, own = resolved.recipe, name.removeprefix(DETAIL)
    charged = recipe.kl_coef > 0 and recipe.numerics.kl_credit != "none"
    normalised = resolved.norm != ("none", "none") or resolved.estimator.normalises
    whitened = resolved.whiten or recipe.whiten_rewards
    rules = {
        **dict.fromkeys(_NORM, resolved.norm[1] != "none"),
        **dict.fromkeys(_WHITENING, whitened),
        **dict.fromkeys((*_KL, "kl_estimator"), charged or "kl" in recorded),
        "single": normalised,
        "empty": normalised,
        "kl_credit": recipe.kl_coef > 0,
        "kl_horizon": recipe.kl_target is not None,
        "clip_stages": recipe.reward_clip is not None,
        "missing_components": bool(recipe.reward_components),
        "rollout_reward": recipe.rollout_id is not None,
        "penalty_length": recipe.overlong_penalty is not None,
        "penalty_floor": recipe.overlong_penalty is not None,
        "segment_reward": recipe.estimator == "agentic_reinforce",
        "rae_order": recipe.estimator == "rae",
        "gdpo_batch": recipe.estimator == "gdpo",
        "batch_eps": recipe.estimator == "gdpo" and recipe.numerics.gdpo_batch == "responses",
        "episodes": recipe.estimator == "gigpo",
        "states": recipe.estimator == "gigpo",
        "outcome": resolved.estimator.outcome,
        "process_rewards": resolved.process is not None,
        "correction": recipe.corrects,
        "is_filter_clamp": bool(recipe.is_filter),
    }
    if own in _NEVER:
        return False
    if own.startswith("otb_"):
        return recipe.estimator == "optimal_token_baseline"
    if own.startswith("is_") and own not in ("is_weight", "is_filter"):
        return rules.get(own, recipe.is_weight is not None)
    if name in READERS:
        return recipe.estimator in READERS[name]
    return rules.get(own, True)


def differing(best: Trial, other: Trial, recorded: Any) -> list[str]:
    """Return the fields in which two recipes differ and that one of them reads."""
    pairs = differences(best.candidate.recipe, other.candidate.recipe)
    names = [
        DETAIL + one.field if one.field in Numerics.model_fields else one.field for one in pairs
    ]
    both = (best.resolved, other.resolved)
    found = [name for name in names if any(matters(one, name, recorded) for one in both)]
    if best.resolved.norm == other.resolved.norm:
        found = [name for name in found if name not in ("norm_mean", "norm_std")]
    if best.resolved.whiten == other.resolved.whiten:
        found = [name for name in found if name != "whiten_advantages"]
    return found


def tie(best: Trial, other: Trial, recorded: Any) -> Json:
    """Return a tie as plain data: how it is typed, the fields that differ, and a sentence."""
    fields = differing(best, other, recorded)
    return {
        "named": other.candidate.named,
        "preset": other.candidate.preset,
        "estimator": other.candidate.estimator,
        "differs": fields,
        "data": told_apart(fields),
    }


def told_apart(fields: list[str]) -> str:
    """Return a sentence that names the data on which recipes that differ in fields part."""
    if not fields:
        return "They compute the same on all data: no option that differs is read."
    wanted = list(dict.fromkeys(DATA[name] for name in fields if name in DATA))
    names = ", ".join(f"--numerics {n.removeprefix(DETAIL)}" if n.startswith(DETAIL) else flag_of(n)
                      for n in fields)  # fmt: skip
    if not wanted:
        return f"They differ in {names}, which changes nothing here."
    return f"They differ in {names}: needed to decide is {'; or '.join(wanted)}."
