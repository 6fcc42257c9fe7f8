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
from rlpost.pipeline.stages import off_policy as correction
from rlpost.pipeline.stages import responses as on_responses
from rlpost.pipeline.stages import rewards as on_rewards
from rlpost.pipeline.stages import tokens as on_tokens
from rlpost.recipe.recipe import GROUP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

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
    map: Callable[[Batch], dict[str, Tensor]] | None = None
    """Returns numbers per response, [n] each; they become columns of Responses."""
    in_first_pass: bool = False
    """`map` reads only columns of the file, so that it can run in the first pass."""
    gather: Callable[[Responses, Iterable[dict[str, Tensor]]], Responses] | None = None
    """Merges the mapped numbers of all batches, if they are not columns of Responses."""
    reduce: Callable[[Responses], Responses] | None = None
    apply: Callable[[Batch], Batch] | None = None
    uses: frozenset[str] = frozenset()
    """Token columns of earlier stages that `map` and `apply` read."""
    makes: frozenset[str] = frozenset()
    """Token columns that `apply` adds or replaces."""
    keeps: bool = False
    """Its pass keeps the columns of earlier stages, so that later passes begin with `apply`.

    `apply` then reads no column of the file.
    """


def stages_of(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    """Return the stages of a recipe, in order, without those that would do nothing.

    Args:
        resolved: from `resolve_recipe`.
        state: before the first batch.
    """
    recipe = resolved.recipe
    kl = _kl_stages(resolved, state)
    early = recipe.numerics.kl_credit == "response"
    return [
        *_mask_stages(resolved),
        *_shaping_stages(resolved),
        *(kl if early else []),
        *_reward_stages(resolved, state),
        *([] if early else kl),
        *_credit_stages(resolved),
        Stage("weights", reduce=partial(on_responses.weights, recipe=recipe)),
        *([] if recipe.numerics.correction == "first" else _correction_stages(recipe)),
    ]


def _correction_stages(recipe: Recipe) -> list[Stage]:
    return [Stage(**correction.parts(recipe))] if recipe.corrects else []


def _credit_stages(resolved: ResolvedRecipe) -> list[Stage]:
    """Return the stages from token rewards to advantages, of tokens that filters accept or of all.

    If the correction comes first, they get a mask without the tokens that filters reject.
    """
    recipe = resolved.recipe
    stages = [
        *_token_reward_stages(resolved),
        *_estimator_stages(resolved),
        *_advantage_stages(resolved),
    ]
    if recipe.numerics.correction == "last":
        return stages
    if recipe.is_filter:
        stages = [_of_accepted(stage) for stage in stages]
    return [*_correction_stages(recipe), *stages]


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
    finite = Stage(
        "finite",
        token_roles(resolved),
        map=on_tokens.finite,
        in_first_pass=True,
        reduce=on_responses.leave_out_nonfinite,
    )
    rollouts = Stage("rollouts", reduce=partial(on_rewards.check_rollouts, resolved=resolved))
    groups = Stage("group columns", reduce=partial(on_responses.group_columns, recipe=recipe))
    return [
        *([finite] if recipe.nonfinite == "mask" and not resolved.rows_only else []),
        *([rollouts] if recipe.rollout_id else []),
        *([groups] if {*GROUP_COLUMNS} & {*resolved.written} else []),
        Stage("sample masks", reduce=partial(on_responses.sample_masks, recipe=recipe)),
    ]


def _shaping_stages(resolved: ResolvedRecipe) -> list[Stage]:
    shape = Stage(
        "reward shaping", reduce=partial(on_rewards.shape_rewards, recipe=resolved.recipe)
    )
    if resolved.process is None:
        return [shape]
    column = on_rewards.reward_column(resolved.estimator)
    process = Stage(
        f"process rewards per {resolved.process}",
        frozenset({"token_rewards"}),
        map=on_tokens.sum_process_rewards,
        in_first_pass=True,
        reduce=partial(
            on_rewards.add_process_rewards,
            column=column if resolved.process == "response" else None,
        ),
    )
    return [shape, process]


def _reward_stages(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    make = partial(on_rewards.make_rewards, resolved=resolved)
    rollouts = partial(on_rewards.rollout_rewards, recipe=recipe)
    normalise = partial(on_rewards.normalise_rewards, resolved=resolved, running=state.running)
    return [
        *([Stage("step rewards", reduce=make)] if estimator.rewards else []),
        *([Stage("rollout rewards", reduce=rollouts)] if recipe.rollout_id else []),
        *([] if estimator.normalises else [Stage("reward normalisation", reduce=normalise)]),
        Stage("reward clip", reduce=partial(on_rewards.clip_rewards, recipe=recipe)),
    ]


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
    adapt = partial(on_responses.kl_coefficients, recipe=recipe, start=state.kl_coef)
    charge = partial(on_responses.charge_kl, recipe=recipe, start=state.kl_coef, column=column)
    return [
        Stage(
            "kl",
            resolved.kl_reads,
            map=partial(on_tokens.map_kl, recipe=recipe) if maps else None,
            in_first_pass=True,
            reduce=charge if early else adapt,
            apply=partial(on_tokens.add_kl, recipe=recipe),
            makes=_KL,
        )
    ]


def _token_reward_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe = resolved.recipe
    stages = []
    if not resolved.plain or resolved.varying:
        reads = frozenset({"token_rewards"}) if resolved.process == "token" else frozenset()
        place = partial(on_tokens.place_rewards, recipe=recipe)
        both = recipe.numerics.clip_stages == "response_and_token" and recipe.reward_bounds
        makes = frozenset({"token_level_rewards", *(["token_reward_clipped"] if both else [])})
        stages.append(Stage("token rewards", reads, apply=place, uses=_KL, makes=makes))
    if recipe.whiten_rewards:
        stages.append(_whitening(recipe, "token_level_rewards"))
    if resolved.distilled:
        apply = partial(on_tokens.add_distillation, recipe=recipe)
        makes = frozenset({"distillation"})
        stages.append(Stage("distillation", _teacher_roles(resolved), apply=apply, makes=makes))
    return stages


def _estimator_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    stages = _position_stages(resolved) if estimator.token_weights else []
    if not resolved.plain:
        reads = frozenset(estimator.token_columns) - {*COMPUTED_TOKENS}
        apply = partial(on_tokens.estimate, recipe=recipe, estimator=estimator)
        uses = _REWARDS | {*COMPUTED_TOKENS}
        stages.append(Stage(estimator.name, reads, apply=apply, uses=uses, makes=_CREDIT))
    else:
        score = partial(on_tokens.score, recipe=recipe) if resolved.varying else None
        reduce = partial(on_responses.estimate, recipe=recipe, estimator=estimator)
        keeps = _keeps(recipe)
        stages.append(Stage(estimator.name, map=score, reduce=reduce, uses=_REWARDS, keeps=keeps))
    if estimator.normalise_batch and recipe.numerics.gdpo_batch == "responses":
        reduce = partial(on_responses.normalise_credit, recipe=recipe)
        stages.append(Stage("batch normalisation", reduce=reduce))
    if resolved.charged:
        spread = [Stage("credit of tokens", apply=on_tokens.spread_credit, makes=_CREDIT)]
        both = estimator.returns != "own"
        charged = partial(on_tokens.charge_tokens, recipe=recipe, returns=both)
        uses = _CREDIT | _KL | {"distillation"}
        charge = Stage("token charges", apply=charged, uses=uses, makes=_CREDIT)
        stages += [*(spread if resolved.plain else []), charge]
    return stages


def _position_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    return [
        Stage("position layout", reduce=partial(on_tokens.add_slots, recipe=recipe)),
        Stage(
            "position baselines",
            on_tokens.weight_roles(recipe, estimator),
            map=partial(on_tokens.map_slots, recipe=recipe, estimator=estimator),
            gather=partial(on_tokens.gather_baselines, recipe=recipe),
            apply=partial(on_tokens.add_baselines, recipe=recipe),
            uses=_REWARDS,
            makes=frozenset({"position_baseline"}),
            keeps=_keeps(recipe),
        ),
    ]


def _advantage_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, stages = resolved.recipe, []
    if resolved.whiten and resolved.constant:
        reduce = partial(on_responses.whiten, recipe=recipe, returns=resolved.whitened_returns)
        stages.append(Stage("advantage whitening", reduce=reduce))
    elif resolved.whiten:
        stages.append(_whitening(recipe, "advantages"))
        if resolved.whitened_returns:
            stages.append(
                Stage("returns", apply=on_tokens.returns_as_advantages, uses=_CREDIT, makes=_CREDIT)
            )
    if recipe.advantage_clip is not None and resolved.constant:
        stages.append(
            Stage("advantage clip", reduce=partial(on_responses.clip_advantages, recipe=recipe))
        )
    if not resolved.constant:
        clip, both = partial(on_tokens.clip_and_mask, recipe=recipe), _CREDIT | {"raw_advantages"}
        stages.append(Stage("advantage clip", apply=clip, uses=both, makes=both))
    return stages


def _whitening(recipe: Recipe, column: str) -> Stage:
    return Stage(
        f"{column.rpartition('_')[2].removesuffix('s')} whitening",
        map=partial(on_tokens.map_moments, column=column),
        reduce=partial(on_responses.token_whitening, recipe=recipe, column=column),
        apply=partial(on_tokens.whiten, column=column),
        uses=frozenset({column}),
        makes=frozenset({column, *(["raw_advantages"] if column == "advantages" else [])}),
        keeps=_keeps(recipe),
    )


def _keeps(recipe: Recipe) -> bool:
    """Return whether passes may keep columns.

    The metrics of a correction need its columns of the file, so all stages before it run again.
    """
    return not (recipe.corrects and recipe.numerics.correction == "first")


def token_roles(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the token roles that any stage of the recipe reads, besides the mask."""
    estimator = frozenset(resolved.estimator.token_columns) - {*COMPUTED_TOKENS}
    process = frozenset({"token_rewards"}) if resolved.process else frozenset()
    corrected = correction.ROLES if resolved.recipe.corrects else frozenset()
    weights = on_tokens.weight_roles(resolved.recipe, resolved.estimator)
    return resolved.kl_reads | estimator | process | weights | corrected | _teacher_roles(resolved)


def _teacher_roles(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the roles that distillation reads: the teachers' columns and the student's."""
    if not resolved.distilled:
        return frozenset()
    current = resolved.recipe.numerics.kl_policy == "current"
    teachers = {f"teacher:{name}" for name in resolved.recipe.teachers}
    student = {"log_probs" if current else "old_log_probs"}
    return frozenset(teachers | student) | resolved.ratio_reads
