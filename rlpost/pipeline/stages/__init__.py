"""The stages of a recipe: a list of values with up to three parts each.

A stage may `map` the tokens of a batch to numbers per response, `reduce` the table of all
responses, and `apply` the result to the tokens of any batch. `rlpost.pipeline.plan` assigns these
parts to passes over the input, and the engine runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rlpost.estimators.base import COMPUTED_TOKENS
from rlpost.pipeline.rollout_order import add_order
from rlpost.pipeline.stages import ages, recorded, top_entropy
from rlpost.pipeline.stages import off_policy as correction
from rlpost.pipeline.stages import responses as on_responses
from rlpost.pipeline.stages import rewards as on_rewards
from rlpost.pipeline.stages import rollouts as on_rollouts
from rlpost.pipeline.stages import tokens as on_tokens
from rlpost.pipeline.stages import units as on_units
from rlpost.pipeline.stages.batch_order import order_parts
from rlpost.pipeline.stages.units import per_unit
from rlpost.recipe.recipe import GROUP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline, in up to three parts."""

    name: str
    reads: frozenset[str] = frozenset()
    """Token roles that `map` and `apply` read from the file, besides the mask."""
    map: Callable[[Batch], dict[str, Array]] | None = None
    """Returns numbers per response, [n] each; they become columns of Responses."""
    in_first_pass: bool = False
    """`map` reads only columns of the file, so that it can run in the first pass."""
    gather: Callable[[Responses, Iterable[dict[str, Array]]], Responses] | None = None
    """Merges the mapped numbers of all batches, if they are not columns of Responses."""
    reduce: Callable[[Responses], Responses] | None = None
    apply: Callable[[Batch], Batch] | None = None
    uses: frozenset[str] = frozenset()
    """Token columns of earlier stages that `map` and `apply` read."""
    makes: frozenset[str] = frozenset()
    """Token columns that `apply` adds or replaces."""
    part: str = "input"
    """The part of the pipeline that it is of, as in `rlpost.pipeline.effects`."""
    observed: bool = False
    """Its pass also computes what measures need of columns of the file, so that later passes begin
    with it if they use no token column of earlier stages."""


def stages_of(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    """Return the stages of a recipe, in order.

    Recorded columns take the place of the stages that compute them.

    Args:
        resolved: from `resolve_recipe`.
        state: before the first batch.
    """
    recipe = resolved.recipe
    return [
        *_mask_stages(resolved),
        *([version_stage()] if recipe.reads_versions else []),
        *_cut_stages(recipe),
        *_stages_to_rewards(resolved, state),
        *_credit_stages(resolved),
        Stage(
            "weights",
            reduce=per_unit(on_responses.weights, recipe=recipe),
            part="sample_weight",
        ),
        *([] if recipe.numerics.correction == "first" else _filter_stages(recipe)),
        Stage("importance weights", **correction.weight_parts(recipe), part="is_weight"),
        *([_LOG_RATIO] if resolved.log_ratio else []),
        *([_COMPARED] if resolved.compares_recorded and not resolved.rows_only else []),
    ]


def _filter_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages of filters; they reject tokens by columns of the file, or by advantages."""
    if not recipe.is_filter:
        return []
    return [Stage("filters", **correction.filter_parts(recipe), part="filters")]


def version_stage() -> Stage:
    """Return the stage that computes how old responses are."""
    return Stage(
        "policy versions",
        frozenset({ages.VERSION}),
        map=ages.map_versions,
        in_first_pass=True,
        reduce=ages.add_ages,
        part="order",
    )


def _cut_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that find the cuts of masks by the order of a batch's tokens."""
    ordered = top_entropy.ordered(recipe) | correction.ordered_filters(recipe)
    reads = top_entropy.roles(recipe)
    reads |= correction.roles(recipe) if recipe.batch_filters else frozenset()
    parts = order_parts(ordered, reads)
    return [
        Stage(f"order of tokens, {bits} bits", **part, part="order") for bits, part in parts.items()
    ]


def _credit_stages(resolved: ResolvedRecipe) -> list[Stage]:
    """Return the stages from token rewards to advantages, of tokens that filters accept or of all.

    If the filters come first, they get a mask without the tokens that filters reject.
    """
    recipe = resolved.recipe
    stages = [
        *_token_reward_stages(resolved),
        *_estimator_stages(resolved),
        *_advantage_stages(resolved),
    ]
    if recipe.numerics.correction == "first":
        accepted = [_of_accepted(stage) for stage in stages] if recipe.is_filter else stages
        return [*_filter_stages(recipe), *accepted]
    return stages


def _of_accepted(stage: Stage) -> Stage:
    """Return a stage that computes on the tokens that filters accept."""
    return replace(
        stage,
        map=partial(correction.map_accepted, stage.map) if stage.map else None,
        reduce=partial(correction.reduce_accepted, stage.reduce) if stage.reduce else None,
        apply=partial(correction.apply_accepted, stage.apply) if stage.apply else None,
    )


def _mask_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe = resolved.recipe
    groups = Stage(
        "group columns",
        reduce=per_unit(on_responses.group_columns, recipe=recipe),
        part="group columns",
    )
    masks = Stage(
        "sample masks",
        reduce=per_unit(on_responses.sample_masks, recipe=recipe, estimator=resolved.estimator),
        part="masks",
    )
    if "sample_mask" in resolved.recorded:
        masks = Stage("recorded sample mask", reduce=recorded.use_sample_mask, part="masks")
    return [
        *unit_stages(resolved),
        *([groups] if {*GROUP_COLUMNS} & {*resolved.written} else []),
        masks,
    ]


def unit_stages(resolved: ResolvedRecipe) -> list[Stage]:
    """Return the stages that decide which responses count, and with which raw reward."""
    recipe = resolved.recipe
    finite = Stage(
        "finite",
        reads=token_roles(resolved),
        map=on_tokens.finite,
        in_first_pass=True,
        reduce=on_responses.leave_out_nonfinite,
    )
    order = partial(add_order, grouped=resolved.grouped)
    attempts = partial(on_responses.treat_attempts, recipe=recipe)
    failures = partial(on_responses.treat_failures, recipe=recipe)
    batches = partial(on_units.check_rows, resolved=resolved)
    rollouts = partial(on_units.rollouts, resolved=resolved)
    return [
        *([Stage("order of rollouts", reduce=order)] if resolved.orders_rows else []),
        *([finite] if recipe.nonfinite == "mask" and not resolved.rows_only else []),
        *([Stage("attempts", reduce=attempts)] if resolved.attempts else []),
        *([Stage("failures", reduce=failures)] if resolved.failures else []),
        *([Stage("batches of rollouts", reduce=batches)] if resolved.has_rollouts else []),
        *([Stage("rollouts", reduce=rollouts)] if resolved.unit == "rollout" else []),
    ]


def _stages_to_rewards(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    """Return the stages from raw rewards to those of responses, and of KL."""
    early, kl = resolved.recipe.numerics.kl_credit == "response", _kl_stages(resolved, state)
    if resolved.rewards_recorded:
        kl = kl if resolved.charges_kl else []
        return [Stage("recorded rewards", reduce=recorded.without_rewards, part="rewards"), *kl]
    if "response_level_rewards" in resolved.recorded:
        rewards = Stage("recorded rewards", reduce=recorded.use_rewards, part="rewards")
        return [rewards, *([] if early else kl)]
    shaped = [*_shaping_stages(resolved), *(kl if early else [])]
    if early and "token_level_rewards" in resolved.recorded:
        column = on_rewards.reward_column(resolved.estimator)
        shaped = [
            Stage(
                "recorded token rewards",
                frozenset({recorded.role_of("token_level_rewards")}),
                map=recorded.sum_token_rewards,
                in_first_pass=True,
                reduce=partial(recorded.use_sums, column=column),
                part="rewards",
            )
        ]
    return [*shaped, *_reward_stages(resolved, state), *([] if early else kl)]


def _shaping_stages(resolved: ResolvedRecipe) -> list[Stage]:
    shape = Stage(
        "reward shaping",
        reduce=_each(resolved)(on_rewards.shape_rewards, recipe=resolved.recipe),
        part="rewards",
    )
    if resolved.process is None:
        return [shape]
    column = on_rewards.reward_column(resolved.estimator)
    process = Stage(
        f"process rewards per {resolved.process}",
        frozenset({"token_rewards"}),
        map=on_tokens.sum_process_rewards,
        in_first_pass=True,
        reduce=_each(resolved)(
            on_rewards.add_process_rewards,
            column=column if resolved.process == "response" else None,
        ),
        part="rewards",
    )
    return [shape, process]


def _each(resolved: ResolvedRecipe) -> Callable[..., Callable[[Responses], Responses]]:
    """Return what makes a reduce of one reward for each unit, or for each row.

    Rows have their own rewards if the estimator computes them from turns.
    """
    return partial if resolved.own_rewards else per_unit


def _reward_stages(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    make = partial(on_rewards.make_rewards, resolved=resolved)
    each = _each(resolved)
    normalise = each(on_rewards.normalise_rewards, resolved=resolved, running=state.running)
    clip = each(on_rewards.clip_rewards, recipe=recipe)
    steps = Stage("step rewards", reduce=make, part="rewards")
    norms = Stage("reward normalisation", reduce=normalise, part="rewards")
    return [
        *([steps] if estimator.rewards else []),
        *([] if estimator.normalises else [norms]),
        Stage("reward clip", reduce=clip, part="rewards"),
    ]


RATIO_ROLES = ("old_log_probs", "infer_log_probs")
"""The roles of engine_log_ratio."""
_LOG_RATIO = Stage(
    "engine log-ratio",
    frozenset(RATIO_ROLES),
    apply=correction.add_log_ratio,
    part="engine_log_ratio",
)
_COMPARED = Stage(
    "comparison",
    frozenset({recorded.role_of("advantages")}),
    apply=lambda batch: batch,
    part="comparison",
)
"""Reads advantages that a trainer recorded, which measures compare with the computed ones."""
_KL = frozenset({"kl", "row_kl"})
_REWARDS = frozenset({"token_level_rewards"})
_CREDIT = frozenset({"advantages", "returns"})


def _kl_stages(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    recipe = resolved.recipe
    if not resolved.kl:
        return []
    early = recipe.numerics.kl_credit == "response" and recipe.kl_coef > 0
    maps = early or recipe.kl_target is not None
    column = on_rewards.reward_column(resolved.estimator)
    computed = partial(on_tokens.add_kl, recipe=recipe)
    add = recorded.add_kl if "kl" in resolved.recorded else computed
    adapt = per_unit(on_responses.kl_coefficients, recipe=recipe, start=state.kl_coef)
    charge = partial(on_responses.charge_kl, recipe=recipe, start=state.kl_coef, column=column)
    return [
        Stage(
            "kl",
            resolved.kl_reads,
            map=partial(on_tokens.map_kl, add=add) if maps else None,
            in_first_pass=True,
            reduce=charge if early else adapt,
            apply=add,
            makes=_KL,
            part="kl",
        )
    ]


def _token_reward_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe = resolved.recipe
    if "raw_advantages" in resolved.recorded:
        return []
    if resolved.rewards_recorded:
        role, add = recorded.role_of("token_level_rewards"), recorded.add_token_rewards
        stage = Stage("recorded token rewards", frozenset({role}), apply=add, makes=_REWARDS)
        return [replace(stage, part="token rewards"), *_distillation(resolved)]
    stages = []
    if resolved.joins:
        ends = partial(on_rollouts.place_rollout_rewards, recipe=recipe)
        stages.append(Stage("rewards of rollouts", reduce=ends))
    if not resolved.plain or resolved.varying:
        reads = frozenset({"token_rewards"}) if resolved.process == "token" else frozenset()
        place = partial(on_tokens.place_rewards, recipe=recipe)
        both = recipe.numerics.clip_stages == "response_and_token" and recipe.reward_clip
        makes = frozenset({"token_level_rewards", *(["token_reward_clipped"] if both else [])})
        stages.append(Stage("token rewards", reads, apply=place, uses=_KL, makes=makes))
    if recipe.whiten_rewards:
        stages.append(_whitening(recipe, "token_level_rewards"))
    stages = [replace(stage, part="token rewards") for stage in stages]
    return [*stages, *_distillation(resolved)]


def _distillation(resolved: ResolvedRecipe) -> list[Stage]:
    if not resolved.recipe.teachers:
        return []
    return [
        Stage(
            "distillation",
            reads=_teacher_roles(resolved),
            apply=partial(on_tokens.add_distillation, recipe=resolved.recipe),
            makes=frozenset({"distillation"}),
            part="estimator",
        )
    ]


def _estimator_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    if "raw_advantages" in resolved.recorded:
        reads = frozenset({recorded.role_of("raw_advantages")})
        add = recorded.add_advantages
        return [Stage("recorded advantages", reads, apply=add, makes=_CREDIT, part="estimator")]
    stages = _position_stages(resolved) if estimator.token_weights else []
    if resolved.joins:
        joined = partial(on_rollouts.join_heads, recipe=recipe, estimator=estimator)
        stages.append(
            Stage(
                "rollouts joined",
                frozenset(estimator.token_columns) - {*COMPUTED_TOKENS},
                map=partial(on_rollouts.map_heads, recipe=recipe, estimator=estimator),
                reduce=joined,
                uses=_REWARDS,
            )
        )
    if not resolved.plain:
        reads = (frozenset(estimator.token_columns) - {*COMPUTED_TOKENS}) | _behind(recipe)
        apply = partial(on_tokens.estimate, recipe=recipe, estimator=estimator)
        uses = _REWARDS | {*COMPUTED_TOKENS}
        stages.append(Stage(estimator.name, reads, apply=apply, uses=uses, makes=_CREDIT))
    else:
        score = partial(on_tokens.score, recipe=recipe) if resolved.varying else None
        reduce = _each(resolved)(on_responses.estimate, recipe=recipe, estimator=estimator)
        # The measures of filters that come first need their columns of the file.
        observed = not (recipe.is_filter and recipe.numerics.correction == "first")
        stage = Stage(estimator.name, map=score, reduce=reduce, uses=_REWARDS)
        stages.append(replace(stage, observed=observed))
    if estimator.over_batch and recipe.options["batch_over"] == "responses":
        reduce = per_unit(
            on_responses.normalise_credit, recipe=recipe, over_batch=estimator.over_batch
        )
        stages.append(Stage("batch normalisation", reduce=reduce))
    if resolved.plain and not resolved.constant:
        stages.append(Stage("credit of tokens", apply=on_tokens.spread_credit, makes=_CREDIT))
    if resolved.charged:
        both = estimator.returns != "own"
        charged = partial(on_tokens.charge_tokens, recipe=recipe, returns=both)
        uses = _CREDIT | _KL | {"distillation"}
        stages.append(Stage("token charges", apply=charged, uses=uses, makes=_CREDIT))
    return [replace(stage, part="estimator") for stage in stages]


def _behind(recipe: Recipe) -> frozenset[str]:
    """Return the token role that has the value behind the end of a truncated response."""
    return frozenset({"values"} if recipe.bootstrap == "last" else ())


def _position_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    return [
        Stage("position layout", reduce=partial(on_tokens.add_slots, recipe=recipe)),
        Stage(
            "position baselines",
            on_tokens.weight_roles(recipe, estimator) | _behind(recipe),
            map=partial(on_tokens.map_slots, recipe=recipe, estimator=estimator),
            gather=partial(on_tokens.gather_baselines, recipe=recipe, estimator=estimator),
            apply=partial(on_tokens.add_baselines, recipe=recipe, estimator=estimator),
            uses=_REWARDS,
            makes=frozenset({"position_baseline"}),
        ),
    ]


def _advantage_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, stages = resolved.recipe, list[Stage]()
    if resolved.whiten and resolved.constant:
        reduce = partial(on_responses.whiten, recipe=recipe, returns=resolved.whitened_returns)
        stages.append(Stage("advantage whitening", reduce=reduce))
    elif resolved.whiten:
        stages.append(_whitening(recipe, "advantages"))
        if resolved.whitened_returns:
            apply = on_tokens.returns_as_advantages
            stages.append(Stage("returns", apply=apply, uses=_CREDIT, makes=_CREDIT))
    if not resolved.constant:
        clip, both = partial(on_tokens.clip_and_mask, recipe=recipe), _CREDIT | {"raw_advantages"}
        stages.append(Stage("advantage clip", apply=clip, uses=both, makes=both))
    elif recipe.advantage_clip is not None:
        clip_rows = partial(on_responses.clip_advantages, recipe=recipe)
        stages.append(Stage("advantage clip", reduce=clip_rows))
    if recipe.top_entropy_quantile is not None:
        keep = partial(top_entropy.keep_top_entropy, recipe=recipe)
        reads, makes = top_entropy.roles(recipe), _CREDIT | {top_entropy.CHOSEN}
        stages.append(Stage("top entropy", reads, apply=keep, uses=_CREDIT, makes=makes))
    return [replace(stage, part="advantages") for stage in stages]


def _whitening(recipe: Recipe, column: str) -> Stage:
    return Stage(
        f"{column.rpartition('_')[2].removesuffix('s')} whitening",
        map=partial(on_tokens.map_moments, column=column),
        reduce=partial(on_responses.token_whitening, recipe=recipe, column=column),
        apply=partial(on_tokens.whiten, column=column),
        uses=frozenset({column}),
        makes=frozenset({column, *(["raw_advantages"] if column == "advantages" else [])}),
    )


def token_roles(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the token roles that any stage of the recipe reads, besides the mask."""
    corrected = correction.roles(resolved.recipe)
    if "raw_advantages" in resolved.recorded:
        return corrected | {recorded.role_of("raw_advantages")}
    estimator = frozenset(resolved.estimator.token_columns) - {*COMPUTED_TOKENS}
    process = frozenset({"token_rewards"}) if resolved.process else frozenset()
    corrected |= {*RATIO_ROLES} if resolved.log_ratio else set()
    corrected |= {ages.VERSION} if resolved.recipe.reads_versions else set()
    corrected |= top_entropy.roles(resolved.recipe)
    weights = on_tokens.weight_roles(resolved.recipe, resolved.estimator)
    weights |= _behind(resolved.recipe)
    if "token_level_rewards" in resolved.recorded:
        process = frozenset({recorded.role_of("token_level_rewards")})
    return resolved.kl_reads | estimator | process | weights | corrected | _teacher_roles(resolved)


def _teacher_roles(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the roles that distillation reads: the teachers' columns and the student's."""
    if not resolved.recipe.teachers:
        return frozenset()
    current = resolved.recipe.numerics.kl_policy == "current"
    teachers = {f"teacher:{name}" for name in resolved.recipe.teachers}
    student = {"log_probs" if current else "old_log_probs"}
    return frozenset(teachers | student) | resolved.ratio_reads
