"""The fields of a recipe that change numbers of some input, and what others need for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_origin

from rlpost.errors import ErrorPart, UsageError
from rlpost.estimators.base import fields_read
from rlpost.estimators.groups import raw
from rlpost.pipeline.needs import coupling_of
from rlpost.pipeline.resolved import bootstraps, resolve_recipe, scans
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.flags import flag_of
from rlpost.recipe.recipe import EXTRA, GROUP_COLUMNS, MASKS, UNCLAMPED, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES, ColumnMap

if TYPE_CHECKING:
    from collections.abc import Collection

    from rlpost.pipeline.resolved import ResolvedRecipe

_MOST = 4
"""Estimators that an error names."""
_ADVANTAGES = {"advantages", "returns", "raw_advantages", "response_advantage"}
_CORRECTED = {"sample_mask", "final_response_mask", "is_weight"}
_TOKEN_REWARDS = {"token_level_rewards", *_ADVANTAGES}
_REWARDS = {"response_level_rewards", *_TOKEN_REWARDS}
_WEIGHTS = {"sample_weight", "is_weight", "engine_log_ratio"}


def columns_after(part: str, resolved: ResolvedRecipe) -> set[str]:
    """Return the written columns whose numbers follow from a part of the pipeline."""
    recipe = resolved.recipe
    rejects = {*_ADVANTAGES, *_CORRECTED} if any(x.where != "any" for x in recipe.is_filter) else {}
    early = recipe.numerics.kl_credit == "response"
    returns = {"returns"} if resolved.whitened_returns else set()
    columns = {
        "input": {*WRITTEN, *EXTRA},
        "group columns": {*GROUP_COLUMNS},
        "masks": {"kl", *_REWARDS, *_CORRECTED, *_WEIGHTS},
        "order": {*_ADVANTAGES, *_CORRECTED, "sample_weight"},
        "rewards": {*_REWARDS, *rejects},
        "kl": {"kl", *(_REWARDS if early else _TOKEN_REWARDS), *rejects},
        "token rewards": {*_TOKEN_REWARDS, *rejects},
        "estimator": {*_ADVANTAGES, *rejects},
        "advantages": {"advantages", "response_advantage", *returns, *rejects},
        "filters": {*_TOKEN_REWARDS, *_CORRECTED},
    }
    return columns.get(part, {part})


def fields_by_part(
    resolved: ResolvedRecipe, recorded: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return the fields of a recipe whose value can change a number on some data, as the recipe is.

    Those of its numerics are `numerics.NAME`, the options of its estimator `options.NAME`. A part
    that is off has the field that turns it on. A field stands in each part of the pipeline that
    reads it, in order; when in doubt, a field is one that can.

    Args:
        resolved: the recipe.
        recorded: written columns whose numbers are known, so that no field changes them.
    """
    recipe, numerics, estimator = resolved.recipe, resolved.recipe.numerics, resolved.estimator
    (mean_of, std_of), clip = resolved.norm, recipe.reward_clip
    early = numerics.kl_credit == "response"
    # With the KL penalty before the normalisation, token rewards come before it, too.
    rewards_recorded = "raw_advantages" in recorded
    rewards_recorded |= "token_level_rewards" in recorded and not early
    # What is computed, and not read as a trainer recorded it.
    credit = "raw_advantages" not in recorded
    placed = credit and not rewards_recorded
    rewarded = not rewards_recorded and "response_level_rewards" not in recorded
    shaped = rewarded and "token_level_rewards" not in recorded
    shaped &= estimator.rewards is None or "rewards" in estimator.reward_columns
    # What statistics of rewards count.
    drops = recipe.has_masks or recipe.failures == "mask"
    drops |= numerics.correction == "first" and recipe.rejects_responses
    counted = "mask_before_norm " * drops + "numerics.empty"
    groups = recipe.drop_difficulty is not None or recipe.drop_equal_rewards or recipe.drop_single
    norms = rewarded and not estimator.normalises
    normed, divided = norms and {mean_of, std_of} != {"none"}, norms and std_of != "none"
    # Equal rewards of a set minus its mean are 0, or rounding in a group, and are divided by ε.
    flat = not {"group", "others"}.isdisjoint(resolved.norm) or numerics.single == "zero_always"
    flat |= std_of not in (mean_of, "none")
    flat |= std_of not in ("none", "others") and numerics.norm_eps == numerics.norm_floor == 0
    # Where KL can be charged, and what estimates it.
    used = resolved.reads_rewards or "token_level_rewards" in resolved.written
    in_rewards = numerics.kl_credit == "return" and used
    charges = in_rewards or numerics.kl_credit in ("token", "response")
    charged = resolved.has_kl and recipe.kl_coef > 0
    kl = resolved.has_kl and not (
        early and {"response_level_rewards", "token_level_rewards"} & {*recorded}
    )
    kl &= not rewards_recorded or resolved.charges_kl
    estimated = kl and "kl" not in recorded
    estimated &= "kl" in resolved.written or (charges and recipe.kl_coef > 0)
    estimate = "kl_estimator numerics.kl_clamp numerics.kl_policy numerics.log_ratio_clamp"
    finite = recipe.nonfinite == "mask" and not resolved.rows_only
    measures = recipe.kl_estimator is None and "kl" not in resolved.written
    # What places token rewards, and what an estimator reads besides its options.
    places = placed and used
    places &= not resolved.plain or resolved.varying or "token_level_rewards" in resolved.written
    more = (recipe.kl_coef > 0 and numerics.kl_credit == "return") or resolved.process == "token"
    of_tokens = credit and estimator.level == "token"
    of_lists = of_tokens and not resolved.rows_only
    grouped = "offsets" in estimator.parameters and "single" not in estimator.keywords
    of_positions = (estimator.token_positions, estimator.position_baselines)
    positions = sorted(name for function in of_positions for name in fields_read(function))
    options = {*estimator.fields}
    if "norm_std" in estimator.keywords and recipe.norm_std == "none":
        options -= {"numerics.norm_eps", "numerics.norm_ddof", "numerics.norm_floor"}
    whitens = "numerics.whiten_scale"
    if numerics.whiten_scale == "std":
        floor = " numerics.whiten_floor" * (numerics.whiten_eps > 0)
        whitens += f" numerics.whiten_eps numerics.whiten_ddof{floor}"
    clamped = any(rule.measure not in UNCLAMPED for rule in recipe.is_filter)
    table = (
        ("input", "columns", True),
        ("input", "component_weights", recipe.reward_components),
        ("input", "numerics.batch", coupling_of(resolved).scope != "response"),
        ("input", "numerics.missing_components", recipe.reward_components),
        ("input", "reward_components", True),
        ("input", "is_policy", finite and recipe.compares_engine),
        ("input", "kl_coef", finite and resolved.has_kl and measures),
        ("input", "kl_estimator", finite and (resolved.has_kl or recipe.teachers)),
        ("input", "nonfinite", True),
        ("input", "numerics.kl_policy", finite and (resolved.kl or recipe.teachers)),
        ("input", "attempts", resolved.attempts),
        ("input", "failures", resolved.failures),
        ("input", "rollout_reward", resolved.unit == "rollout"),
        ("input", "unit", True),
        ("group columns", "numerics.empty", not {*GROUP_COLUMNS}.isdisjoint(resolved.written)),
        ("group columns", "pass_threshold", "group_pass_rate" in resolved.written),
        ("masks", " ".join(sorted(MASKS)), "sample_mask" not in recorded),
        ("masks", "component_weights norm_mean norm_std", recipe.drop_equal_rewards
         and "components" in estimator.columns and "sample_mask" not in recorded),
        ("masks", "numerics.empty", groups and "sample_mask" not in recorded),
        ("rewards", "group_length_penalty", shaped),
        ("rewards", counted, shaped and recipe.group_length_penalty is not None),
        ("rewards", "numerics.penalty_floor numerics.penalty_length",
         shaped and recipe.overlong_penalty is not None),
        ("rewards", "overlong_penalty reward_scale truncation_penalty", shaped),
        ("rewards", "numerics.process_rewards", rewarded and resolved.process),
        ("rewards", "numerics.outcome", rewarded and resolved.process
         and numerics.process_rewards == "auto" and estimator.outcome),
        ("rewards", f"{counted} {' '.join(sorted(fields_read(estimator.rewards)))}",
         rewarded and estimator.rewards),
        ("rewards", "numerics.kl_credit", shaped and charged and not early),
        ("rewards", counted, normed),
        ("rewards", "norm_mean norm_std", norms),
        ("rewards", "numerics.constant", normed and flat),
        ("rewards", "numerics.norm_ddof numerics.norm_eps numerics.norm_floor", divided),
        ("rewards", "numerics.single", normed),
        ("rewards", "reward_clip", rewarded),
        ("kl", "kl_coef", kl and charges),
        ("kl", "numerics.kl_credit", kl and charged),
        ("kl", "kl_target", kl and charged and charges),
        ("kl", "numerics.observations", kl and charged and in_rewards),
        ("kl", estimate, estimated),
        ("token rewards", "numerics.terminal_reward", places),
        ("token rewards", "numerics.clip_stages",
         places and clip is not None and (more or clip[0] > 0)),
        ("token rewards", "scan", places and scans(estimator)),
        ("token rewards", "whiten_rewards", placed and used and not resolved.rows_only),
        ("token rewards", whitens, placed and used and recipe.whiten_rewards),
        ("estimator", "teachers", credit),
        ("estimator", estimate, credit and recipe.teachers),
        ("estimator", f"{counted} numerics.single {' '.join(positions)}",
         credit and estimator.token_weights),
        ("estimator", f"estimator {' '.join(sorted(options))}", credit),
        ("estimator", "numerics.empty" if estimator.function is raw else counted,
         credit and not of_tokens),
        ("estimator", "numerics.single", credit and not of_tokens and grouped),
        ("estimator", "numerics.constant", credit and not of_tokens and not estimator.of_user
         and "offsets" in estimator.parameters),
        ("estimator", "numerics.outcome", credit and estimator.outcome),
        ("estimator", "options.batch_over", credit and estimator.over_batch),
        ("estimator", "scan", credit and scans(estimator)),
        ("estimator", "numerics.terminal_reward",
         of_lists and "token_rewards" in estimator.columns),
        ("estimator", "bootstrap", of_lists and bootstraps(recipe, estimator)),
        ("estimator", "numerics.observations",
         of_lists and not {"offsets", "mask"}.isdisjoint(estimator.parameters)),
        ("estimator", f"{counted} options.batch_eps", credit and estimator.over_batch
         and recipe.options["batch_over"] == "responses"),
        ("advantages", "whiten_advantages", True),
        ("advantages", whitens, resolved.whiten),
        ("advantages", "advantage_clip top_entropy_quantile", True),
        ("sample_weight", "age_decay difficulty_weight length_weight", True),
        ("filters", "is_filter", True),
        ("filters", "numerics.correction", recipe.is_filter),
        ("filters", "is_policy numerics.is_missing", recipe.is_filter and recipe.compares_engine),
        ("filters", "numerics.is_filter_clamp", clamped),
        ("is_weight", "is_weight", True),
        ("is_weight", "is_cap is_mask is_policy numerics.is_clamp", recipe.is_weight is not None),
        ("is_weight", "numerics.is_missing numerics.is_observations", recipe.is_weight is not None),
    )  # fmt: skip
    return [(part, name) for part, names, reads in table if reads for name in names.split()]


def fields_of(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the fields of a recipe that can change a number on some data."""
    return frozenset(name for _, name in fields_by_part(resolved))


def fields_behind(
    resolved: ResolvedRecipe, column: str, recorded: Collection[str] = ()
) -> frozenset[str]:
    """Return the fields that can change one written column; all of them for any other column.

    An estimator may set the default of a field of an earlier part; `recorded` as of
    `fields_by_part`.
    """
    fields = fields_by_part(resolved, recorded)
    return frozenset(name for part, name in fields if leads_to(part, column, resolved))


def leads_to(part: str, column: str, resolved: ResolvedRecipe) -> bool:
    """Return whether a column follows from a part of the pipeline."""
    return column not in (*WRITTEN, *EXTRA) or column in columns_after(part, resolved)


def fields_with_effect(recipe: Recipe) -> list[str]:
    """Return the fields that change a number of an input with every role, if all are written.

    They are in the order in which the pipeline reads them. The fields of a KL penalty are among
    them, even if the numerics subtract it nowhere: its coefficients are in the summary, which warns
    of it.

    Raises:
        UsageError: the estimator does not support an option.
    """
    columns = ColumnMap({role: role for role in ROLES}, dict.fromkeys(ROLES, "map"))
    numerics = recipe.numerics
    if numerics.kl_credit == "none":
        numerics = numerics.model_copy(update={"kl_credit": "return"})
    every = recipe.model_copy(update={"emit": (*WRITTEN, *EXTRA), "numerics": numerics})
    return list(dict.fromkeys(name for _, name in fields_by_part(resolve_recipe(every, columns))))


def check_effects(recipe: Recipe, fields: Collection[str], *, any_estimator: bool = False) -> None:
    """Raise UsageError for the first of these fields that changes no number.

    Args:
        recipe: the recipe.
        fields: of the recipe, which flags set to other values than the default.
        any_estimator: the estimator may be any one of rlpost's.
    """
    if not fields:
        return
    read: Collection[str] = fields_with_effect(recipe)
    if any_estimator:
        read = {name for other in NAMES for name in _with(recipe, estimator=other)}
    unread = next((name for name in fields if name not in read), None)
    if unread is not None:
        raise UsageError(_without_effect(recipe, unread))


def _with(recipe: Recipe, **values: Any) -> frozenset[str]:
    """Return the fields with effect of a recipe with other values; none if it is not valid."""
    try:
        return frozenset(fields_with_effect(recipe.model_copy(update=values)))
    except UsageError:
        return frozenset()


def _without_effect(recipe: Recipe, name: str) -> ErrorPart:
    """Return the error for a field without effect: the estimators or options that read it."""
    text = f"{flag_of(name)} has no effect"
    estimators = [other for other in NAMES if name in _with(recipe, estimator=other)]
    if estimators:
        only = (
            f"only {estimators[0]} reads"
            if len(estimators) == 1
            else f"{', '.join(estimators[:-1])} and {estimators[-1]} read"
        )
        if len(estimators) > _MOST:
            only = f"{len(estimators)} other estimators read"
        return ErrorPart(f"{text} with estimator {recipe.estimator}: {only} it", tip="leave it out")
    switches = {other: _on(other) for other, x in recipe if x in (None, False)}
    needs = [
        flag_of(other)
        for other, value in switches.items()
        if value is not None and name in _with(recipe, **{other: value})
    ]
    if needs:
        options = " or ".join(needs)
        tip = f"add {options}, or leave {flag_of(name)} out"
        return ErrorPart(f"{text} without {options}", tip=tip)
    return ErrorPart(f"{text} with the other options", tip="leave it out")


def _on(name: str) -> Any:
    """Return a value of a field that is off; None if it has more than one part."""
    kinds = _kinds(Recipe.model_fields[name].annotation)
    values = {bool: True, str: name, float: 1.0, int: 1}
    return next((value for kind, value in values.items() if kind in kinds), None)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types of an annotation, without those in tuples and tables."""
    if get_origin(annotation) in (tuple, dict):
        return set()
    parts = get_args(annotation)
    return {kind for part in parts for kind in _kinds(part)} if parts else {annotation}
