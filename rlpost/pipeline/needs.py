"""What the parts of a recipe need of an input, and which responses they couple."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from rlpost.pipeline.stages import RATIO_ROLES
from rlpost.pipeline.stages.ages import VERSION
from rlpost.pipeline.stages.off_policy import roles as corrected_roles
from rlpost.pipeline.stages.tokens import weight_roles
from rlpost.pipeline.stages.top_entropy import ENTROPY
from rlpost.recipe.recipe import GROUP_COLUMNS
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from rlpost.pipeline.resolved import ResolvedRecipe


Scope = Literal["response", "group", "batch", "run"]
_REWARD_COLUMNS = {"response_level_rewards", "token_level_rewards"}
_NORMS = {"batch": "per_batch", "group": "group", "others": "group"}
"""What a scope of mean or deviation needs or couples."""


class Coupling(NamedTuple):
    """The responses that a recipe couples."""

    scope: Scope
    """Those of a prompt group, of a batch, of the whole run, or none."""
    why: str = ""
    """The part of the recipe, as the start of a sentence."""
    carried: str = ""
    """The part of the recipe that a batch passes to the next one, and a state file to the next
    run."""


def coupling_of(resolved: ResolvedRecipe) -> Coupling:
    """Return what a resolved recipe couples; when in doubt, more."""
    couples: dict[Scope, list[str]] = {
        "run": reasons(resolved, "per_run"),
        "batch": reasons(resolved, "per_batch"),
        "group": [*reasons(resolved, "group"), *reasons(resolved, "per_group")],
    }
    carried = next(iter(reasons(resolved, "carried")), "")
    coupled = (Coupling(x, why[0], carried * (x == "run")) for x, why in couples.items() if why)
    return next(coupled, Coupling("response"))


def reasons(resolved: ResolvedRecipe, need: str) -> list[str]:
    """Return the parts of a recipe that need a role, `tokens` or `lengths`, or that couple.

    Args:
        resolved: the recipe.
        need: a word of `_parts`.
    """
    return list(dict.fromkeys(why for why, needs in _parts(resolved) if need in needs))


def needed_roles(resolved: ResolvedRecipe) -> dict[str, str]:
    """Return the roles that a recipe needs, each with the reason."""
    needed: dict[str, list[str]] = {}
    for why, needs in _parts(resolved):
        for role in needs:
            if role in ROLES and why not in needed.setdefault(role, []):
                needed[role].append(why)
    if resolved.recipe.reward_components:
        needed.pop("reward", None)
    return {role: " and ".join(why) for role, why in needed.items()}


def _parts(resolved: ResolvedRecipe) -> list[tuple[str, list[str]]]:
    """Return the parts of a recipe, each with what it needs.

    That is roles; `tokens` to compute on, besides their roles; `lengths` of responses. Parts that
    need `group` couple the responses of a prompt group, `per_group` does so without a need of
    them, `per_batch` and `per_run` those of a batch or of all; `carried` is passed to the next run.
    """
    recipe, estimator = resolved.recipe, resolved.estimator
    mean_of, std_of = resolved.norm
    single, name = recipe.numerics.single, f"estimator {estimator.name}"
    in_signature = (
        role
        for role in estimator.roles
        if role in ROLES and role in estimator.needs and role not in ("group", "reward")
    )
    on_groups = estimator.level == "response" and "offsets" in estimator.parameters
    on_groups |= not {"group", "position_baseline"}.isdisjoint(estimator.needs)
    by_group = recipe.options.get("states") == "group" and not estimator.of_user
    of_batch = bool(estimator.over_batch) or ("batch" in estimator.needs and not by_group)
    columns = {*GROUP_COLUMNS} - {"group_size"}
    columns |= set() if estimator.makes_rewards else _REWARD_COLUMNS
    emitted = [column for column in recipe.emit or () if column in columns]
    policy = "log_probs" if recipe.numerics.kl_policy == "current" else "old_log_probs"
    charged = recipe.kl_coef > 0 and recipe.numerics.kl_credit != "none"
    caps = "infer_log_probs" in weight_roles(recipe, estimator)
    table = (
        (name, " ".join(in_signature), True),
        (name, "turn", "turn" in estimator.roles),
        (name, "reward", "reward" in estimator.roles),
        (name, "lengths", not {"tokens", "length"}.isdisjoint(estimator.needs)),
        (name, "per_run", estimator.beyond_steps),
        (f"--norm-mean {mean_of}" if recipe.norm_mean else name, _NORMS.get(mean_of, ""), True),
        (f"--norm-std {std_of}" if recipe.norm_std else name, _NORMS.get(std_of, ""), True),
        (name, "group", on_groups),
        (name, "per_batch", of_batch),
        (name, "per_group", estimator.token_weights or estimator.rewards),
        ("running reward statistics", "per_run carried", "running" in resolved.norm),
        ("--drop-difficulty", "reward group", recipe.drop_difficulty is not None),
        ("--drop-equal-rewards", "reward group", recipe.drop_equal_rewards),
        ("--drop-single", "group", recipe.drop_single),
        ("--drop-longer", "lengths", recipe.drop_longer is not None),
        ("--drop-long-errors", "reward lengths", recipe.drop_long_errors is not None),
        ("--overlong-penalty", "lengths", recipe.overlong_penalty is not None),
        ("--group-length-penalty", "group lengths", recipe.group_length_penalty is not None),
        ("--unit rollout", "reward per_group", resolved.unit == "rollout"),
        (f"--emit {','.join(emitted)}", "reward", emitted),
        ("--emit of a group column", "group", {*GROUP_COLUMNS} & {*(recipe.emit or ())}),
        ("--emit of a group column", "per_group", {*GROUP_COLUMNS} & {*resolved.written}),
        (f"--numerics single={single}", "per_group", single in ("zero_always", "raw")),
        ("--teacher", policy, recipe.teachers),
        (f"--kl-coef {recipe.kl_coef}; 0 subtracts no KL", f"{policy} ref_log_probs", charged),
        ("--kl-target", "per_run carried", recipe.kl_target is not None and resolved.kl),
        ("the off-policy correction", " ".join(sorted(corrected_roles(recipe))), True),
        ("the age of tokens", "tokens", recipe.reads_versions),
        ("--age-decay", f"{VERSION} per_batch", recipe.age_decay is not None),
        ("the age of a token is its step minus its version", "batch", recipe.reads_versions),
        ("--whiten-rewards", "tokens per_batch", recipe.whiten_rewards),
        ("whitening of advantages", "lengths per_batch", resolved.whiten),
        (f"{name} computes one advantage per token", "tokens",
         not resolved.constant and not recipe.whiten_rewards),
        ("--top-entropy-quantile", f"{ENTROPY} per_batch", recipe.top_entropy_quantile is not None),
        ("--emit engine_log_ratio", " ".join(RATIO_ROLES), resolved.log_ratio),
        ("--scan rollout", "turn rollout per_group", resolved.joins),
        ("--unit rollout", "rollout", resolved.unit == "rollout" and not resolved.joins),
        ("--difficulty-weight", "difficulty per_batch", recipe.difficulty_weight),
        ("--length-weight", "lengths per_batch", recipe.length_weight),
        (f"--is-weight {recipe.is_weight}", "per_batch",
         recipe.is_weight is not None and recipe.is_weight.normalised),
        ("--attempts newest", "per_batch", resolved.attempts and recipe.attempts == "newest"),
        ("--truncation-penalty", "truncated", recipe.truncation_penalty is not None),
        ("--drop-truncated", "truncated", recipe.drop_truncated),
        (f"--bootstrap {recipe.bootstrap}", "truncated", recipe.bootstrap is not None),
        ("--bootstrap last", "values", recipe.bootstrap == "last"),
        ("--bootstrap column", "next_value", recipe.bootstrap == "column"),
        ("--option ratio_cap", "infer_log_probs", caps),
        ("--failures zero", "failure", recipe.failures == "zero"),
    )  # fmt: skip
    return [(why, needs.split()) for why, needs, on in table if on]
