"""Ties of a search: recipes with the same numbers on this data, and what data has others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.search.candidates import DETAIL
from rlpost.recipe.estimators import READERS
from rlpost.recipe.flags import flag_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.analysis.replay.search.moves import Facts
    from rlpost.analysis.replay.search.trials import Trial
    from rlpost.pipeline.resolved import ResolvedRecipe

Json = dict[str, Any]

_STEPS = "several steps"
_DOMAINS = "several steps, or several domains in a step"
_UNEQUAL = "a prompt group of unequal rewards"
_LENGTHS = "a prompt group of unequal lengths"
_ON_TOKENS = "token rewards"
_VALUES = "responses of several tokens with critic values"
_TURNS = "trajectories of several turns"
_MEANS = "prompt groups of unequal mean rewards"
_DEVIATIONS = "prompt groups of unequal standard deviations of rewards"
_EQUAL = "a prompt group of equal rewards"
_SINGLE = "a prompt group of one response"
_TRUNCATED = "a truncated response"
_EMPTY = "a response without policy tokens"
_OBSERVATIONS = "observation tokens between policy tokens"
_LONG_OBSERVATIONS = "observation tokens in long responses"
_ENDS = "a response that ends with an observation token"
_UNEQUAL_LENGTHS = "responses of unequal lengths"
_SCATTERED = "prompt groups whose rows are not beside each other"
_POLICIES = "log-probs of the current policy that differ from the old ones"
_LOG_PROBS = "log-probs of old and reference policy that differ, and a KL coefficient above 0"
_CORRECTED = "log-probs of the rollout engine that differ much from the trainer's"
DATA: dict[str, tuple[str, ...]] = {
    "estimator": (_STEPS, _UNEQUAL, _LENGTHS, _ON_TOKENS),
    "gamma": ("responses of several tokens with a critic or rewards on several tokens",),
    "lam": (_VALUES,),
    "lambda_policy": (_VALUES,),
    "lambda_value": (_VALUES,),
    "step_gamma": (_TURNS,),
    "norm_mean": (_MEANS,),
    "norm_std": (_DEVIATIONS,),
    "reward_clip": ("rewards beyond the bound",),
    "reward_clip_low": ("rewards beyond the bound",),
    "advantage_clip": ("advantages beyond the bound",),
    "whiten_advantages": ("advantages whose mean is not 0, or whose deviation is not 1",),
    "whiten_rewards": ("token rewards whose deviation over a batch is not 1",),
    "kl_coef": (_LOG_PROBS,),
    "kl_estimator": (_LOG_PROBS,),
    "rollout_reward": ("rows of one rollout with unequal rewards",),
    "drop_zero_variance": (_EQUAL,),
    "drop_single": (_SINGLE,),
    "drop_truncated": (_TRUNCATED,),
    "numerics.batch": (_DOMAINS,),
    "numerics.norm_eps": ("a prompt group whose rewards differ little",),
    "numerics.norm_ddof": (_UNEQUAL,),
    "numerics.norm_floor": ("a prompt group whose rewards differ little",),
    "numerics.single": (_SINGLE,),
    "numerics.constant": (_EQUAL,),
    "numerics.empty": (_EMPTY,),
    "numerics.missing_components": ("a response without one of its reward components",),
    "numerics.clip_stages": ("token rewards beyond the bound of the reward clip",),
    "numerics.log_ratio_clamp": ("a token whose log-probs differ by more than the bound",),
    "numerics.log_ratio_clamps": ("a token whose log-probs differ by more than the bound",),
    "numerics.kl_clamp": ("a token whose KL estimate is above the bound",),
    "numerics.kl_clamps": ("a token whose KL estimate is above the bound",),
    "numerics.kl_policy": (_POLICIES,),
    "numerics.kl_credit": (_LOG_PROBS,),
    "numerics.process_rewards": ("token rewards in prompt groups",),
    "numerics.terminal_reward": (_ENDS,),
    "numerics.observations": (_OBSERVATIONS,),
    "numerics.outcome": ("rewards or KL on several tokens of a response, or a discount below 1",),
    "numerics.segment_reward": ("rewards on several tokens of a policy segment",),
    "numerics.whiten_eps": ("a batch whose advantages differ little",),
    "numerics.whiten_floor": ("a batch whose advantages differ little",),
    "numerics.whiten_ddof": ("a batch of few policy tokens",),
    "numerics.whiten_scale": ("advantages whose deviation over a batch is not 1",),
    "numerics.gdpo_batch": (_UNEQUAL_LENGTHS,),
    "numerics.batch_eps": ("a batch whose advantages differ little",),
    "numerics.otb_position": (_OBSERVATIONS,),
    "numerics.otb_lone": ("a prompt group whose longest response is longer than all others",),
    "numerics.otb_eps": ("positions with small weights",),
    "numerics.episodes": (_TURNS,),
    "numerics.states": ("equal states in several prompt groups",),
    "numerics.rae_order": (_SCATTERED,),
    "numerics.correction": (_CORRECTED,),
    "numerics.is_clamp": (_CORRECTED,),
    "numerics.is_clamp_at": (_CORRECTED,),
    "numerics.is_observations": ("observation tokens with recorded importance weights",),
    "numerics.is_filter_clamp": (_CORRECTED,),
    "numerics.penalty_length": (_LONG_OBSERVATIONS,),
    "numerics.penalty_floor": ("responses beyond the length limit",),
}
"""By field: the kinds of data on which values of it give other numbers."""
_NORM = ("norm_eps", "norm_ddof", "norm_floor", "constant")
_WHITENING = ("whiten_eps", "whiten_floor", "whiten_ddof", "whiten_scale")
_KL = ("log_ratio_clamp", "log_ratio_clamps", "kl_clamp", "kl_clamps", "kl_policy")
NEVER = ("estimator_name", "emit", "emit_only", "replace", "columns", "pass_threshold")
"""Fields that change no number."""


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
    if own in NEVER:
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


def ties_of(best: Trial, others: Sequence[Trial], facts: Facts, recorded: Any) -> list[Json]:
    """Return the ties of a recipe as plain data; recipes that differ in nothing are one.

    Each has `named`, `preset`, `estimator`, `changes` (their number), `differs` (fields), `kinds`
    (the data that would separate it and that the sample lacks), `data` (a sentence) and `same`
    (recipes that are the same).
    """
    kept: list[Trial] = []
    same: list[list[Json]] = []
    for one in others:
        equal = (n for n, other in enumerate(kept) if not differing(other, one, recorded))
        number = next(equal, None)
        if number is None:
            kept.append(one)
            same.append([])
        else:
            same[number].append(_named(one))
    ties = []
    for one, also in zip(kept, same, strict=True):
        fields = differing(best, one, recorded)
        kinds = lacking(fields, facts)
        data = told_apart(fields, kinds)
        ties.append({**_named(one), "differs": fields, "kinds": kinds, "data": data, "same": also})
    return ties


def _named(one: Trial) -> Json:
    own = one.candidate
    return {
        "named": own.named,
        "preset": own.preset,
        "estimator": own.estimator,
        "changes": len(own.changes),
    }


def lacking(fields: Sequence[str], facts: Facts) -> list[str]:
    """Return the kinds of data that the sample lacks and that such recipes treat differently."""
    wanted = dict.fromkeys(kind for name in fields for kind in DATA.get(name, ()))
    return [kind for kind in wanted if not (kind in _PRESENT and _PRESENT[kind](facts))]


def told_apart(fields: Sequence[str], kinds: Sequence[str]) -> str:
    """Return a sentence that names the data that recipes with other fields treat differently."""
    if not fields:
        return "They compute the same on all data: no option that differs is read."
    names = ", ".join(f"--numerics {n.removeprefix(DETAIL)}" if n.startswith(DETAIL) else flag_of(n)
                      for n in fields)  # fmt: skip
    if not kinds:
        return f"They differ in {names}: no data that would separate them is listed."
    return f"They differ in {names}: data that would separate them: {'; or '.join(kinds)}."


def _distinct(values: Any) -> bool:
    return len(np.unique(values)) > 1


def _of_groups(facts: Facts, power: int) -> bool:
    """Return whether groups have unequal means of a power of rewards' distance from their mean."""
    groups, reward = facts.rollouts.groups, np.nan_to_num(facts.rollouts.reward)
    counts = np.bincount(groups)
    means = np.bincount(groups, reward) / counts
    if power > 1:
        means = np.bincount(groups, (reward - means[groups]) ** power) / counts
    return bool(np.ptp(means) > 1e-3 * (np.abs(means).max() + 1e-12))


def _mixed_lengths(facts: Facts) -> bool:
    groups, lengths = facts.rollouts.groups, facts.policy_lengths
    return bool((lengths != lengths[np.unique(groups, return_index=True)[1]][groups]).any())


def _ends_observed(facts: Facts) -> bool:
    rollouts = facts.rollouts
    last = rollouts.offsets[1:][rollouts.lengths > 0] - 1
    return bool((~rollouts.mask[last]).any())


def _truncated(facts: Facts) -> bool:
    rollouts = facts.rollouts
    if "truncated" not in rollouts.columns:
        return False
    return _distinct(rollouts.codes("truncated"))


def _scattered(facts: Facts) -> bool:
    groups = facts.rollouts.groups
    return bool((np.diff(groups) != 0).sum() > groups.max())


def _policies_differ(*roles: str) -> Callable[[Facts], bool]:
    def differ(facts: Facts) -> bool:
        if not facts.has(*roles) or facts.rollouts.columns.rows_only:
            return False
        left, right = (
            np.concatenate(facts.rollouts.table.column(facts.rollouts.columns.column(role))
                           .combine_chunks().flatten().to_numpy(zero_copy_only=False)[None])
            for role in roles
        )  # fmt: skip
        return len(left) == len(right) and bool((left != right).any())

    return differ


_PRESENT: dict[str, Callable[[Facts], bool]] = {
    _STEPS: lambda facts: _distinct(facts.rollouts.codes("batch")),
    _DOMAINS: lambda facts: _distinct(facts.rollouts.codes("batch", "domain")),
    _UNEQUAL: lambda facts: _of_groups(facts, 2) or bool((facts.sizes > 1).any()
                                                        and not facts.equal_groups),
    _LENGTHS: _mixed_lengths,
    _ON_TOKENS: lambda facts: facts.has("token_rewards"),
    _VALUES: lambda facts: facts.has("values"),
    _TURNS: lambda facts: facts.has("trajectory") or facts.has("traj_id"),
    _MEANS: lambda facts: _of_groups(facts, 1),
    _DEVIATIONS: lambda facts: _of_groups(facts, 2),
    _EQUAL: lambda facts: facts.equal_groups,
    _SINGLE: lambda facts: facts.singles,
    _TRUNCATED: _truncated,
    _EMPTY: lambda facts: not facts.policy_lengths.all(),
    _OBSERVATIONS: lambda facts: facts.observations,
    _LONG_OBSERVATIONS: lambda facts: facts.observations,
    _ENDS: _ends_observed,
    _UNEQUAL_LENGTHS: lambda facts: _distinct(facts.policy_lengths),
    _SCATTERED: _scattered,
    _LOG_PROBS: _policies_differ("old_log_probs", "ref_log_probs"),
    _POLICIES: _policies_differ("log_probs", "old_log_probs"),
}  # fmt: skip
"""Whether the sample has a kind of data; kinds that are not here depend on the recipes."""
