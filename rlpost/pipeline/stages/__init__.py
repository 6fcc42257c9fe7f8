"""The stages of a recipe: a list of values with up to three parts each.

A stage may `map` the tokens of a batch to numbers per response, `reduce` the table of all
responses, and `apply` the result to the tokens of any batch. `rlpost.pipeline.plan` assigns these
parts to passes over the input, and the engine runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from rlpost.estimators.base import COMPUTED_TOKENS
from rlpost.pipeline.rollout_order import add_order
from rlpost.pipeline.stages import ages, top_entropy
from rlpost.pipeline.stages import off_policy as correction
from rlpost.pipeline.stages import responses as on_responses
from rlpost.pipeline.stages import rewards as on_rewards
from rlpost.pipeline.stages import rollouts as on_rollouts
from rlpost.pipeline.stages import tokens as on_tokens
from rlpost.pipeline.stages import units as on_units
from rlpost.recipe.recipe import GROUP_COLUMNS
from rlpost.recipe.roles import RECORDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe

NO_ROLES = frozenset[str]()


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline, in up to three parts.

    The keyword-only parameters of a part get the recipe, its estimator, the resolved recipe, the
    state before the first batch, and the stage's `options`, by their names.
    """

    name: str
    reads: frozenset[str] = NO_ROLES
    """Token roles that `map` and `apply` read from the file, besides the mask."""
    map: Callable[..., Any] | None = None
    """Returns numbers per response, [n] each; they become columns of Responses."""
    in_first_pass: bool = False
    """`map` reads only columns of the file, so that it can run in the first pass."""
    gather: Callable[..., Any] | None = None
    """Merges the mapped numbers of all batches, if they are not columns of Responses."""
    reduce: Callable[..., Any] | None = None
    """Returns the table of responses with the result."""
    of_units: bool = False
    """`reduce` gets one row for each unit, as `rlpost.pipeline.stages.units` has them."""
    apply: Callable[..., Any] | None = None
    """Returns the batch with changed tokens."""
    uses: frozenset[str] = NO_ROLES
    """Token columns of earlier stages that `map` and `apply` read."""
    makes: frozenset[str] = NO_ROLES
    """Token columns that `apply` adds or replaces."""
    observed: bool = False
    """Its pass also computes what measures need of columns of the file, so that later passes begin
    with it if they use no token column of earlier stages."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Callable[..., Any]]:
        """Its parts by name, without those that it has not."""
        names = ("map", "gather", "reduce", "apply")
        return {x: part for x in names if (part := getattr(self, x)) is not None}


def bound(
    stages: Iterable[Stage], resolved: ResolvedRecipe, state: RunState | None = None
) -> list[Stage]:
    """Return stages whose parts have the arguments that their parameters name."""
    known = {"resolved": resolved, "recipe": resolved.recipe, "estimator": resolved.estimator}
    return [_bound(stage, {**known, "state": state, **stage.options}) for stage in stages]


def _bound(stage: Stage, values: Mapping[str, Any]) -> Stage:
    parts: dict[str, Any] = {
        name: partial(part, **{x: values[x] for x in _parameters(part)})
        for name, part in stage.parts.items()
    }
    if stage.of_units:
        parts["reduce"] = on_units.per_unit(parts["reduce"])
    return replace(stage, **parts)


@cache
def _parameters(part: Callable[..., Any]) -> list[str]:
    """Return the keyword-only parameters of a part."""
    return [x.name for x in signature(part).parameters.values() if x.kind is x.KEYWORD_ONLY]


def stages_of(resolved: ResolvedRecipe, state: RunState) -> list[Stage]:
    """Return the stages of a recipe, in order.

    Recorded columns take the place of the stages that compute them.

    Args:
        resolved: from `resolve_recipe`.
        state: before the first batch.
    """
    recipe, filters = resolved.recipe, _filter_stages(resolved.recipe)
    first = [
        *_mask_stages(resolved),
        *([VERSIONS] if recipe.reads_versions else []),
        *_cut_stages(recipe),
        *_stages_to_rewards(resolved),
    ]
    credit = [
        *_token_reward_stages(resolved),
        *_estimator_stages(resolved),
        *_advantage_stages(resolved),
    ]
    credit = bound(credit, resolved)
    if filters and recipe.numerics.correction == "first":
        credit, filters = [*bound(filters, resolved), *map(_of_accepted, credit)], []
    last = [
        *([_WEIGHTS] if recipe.weighs_responses else []),
        *filters,
        *([_importance_weights(recipe)] if recipe.is_weight is not None else []),
        *([_LOG_RATIO] if resolved.log_ratio else []),
        *([_COMPARED] if resolved.compares_recorded and not resolved.rows_only else []),
    ]
    stages = [*bound(first, resolved, state), *credit, *bound(last, resolved)]
    return [*unit_stages(resolved, token_roles(stages)), *stages]


def _of_accepted(stage: Stage) -> Stage:
    """Return a stage that computes on the tokens that filters accept."""
    ways = correction.ON_ACCEPTED
    parts: dict[str, Any] = {
        x: partial(ways[x], part) for x, part in stage.parts.items() if x in ways
    }
    return replace(stage, **parts)


def token_roles(stages: Iterable[Stage]) -> frozenset[str]:
    """Return the token roles of which stages need finite numbers, besides the mask."""
    return NO_ROLES.union(*(stage.reads for stage in stages)) - {RECORDED}


VERSIONS = Stage(
    "policy versions",
    frozenset({ages.VERSION}),
    map=ages.map_versions,
    in_first_pass=True,
    reduce=ages.add_ages,
)
"""Computes how old responses are."""
RATIO_ROLES = ("old_log_probs", "infer_log_probs")
"""The roles of engine_log_ratio."""
_LOG_RATIO = Stage("engine log-ratio", frozenset(RATIO_ROLES), apply=correction.add_log_ratio)
_COMPARED = Stage("comparison", frozenset({RECORDED}), apply=lambda batch: batch)
"""Reads advantages that a trainer recorded, which measures compare with the computed ones."""
_WEIGHTS = Stage("weights", reduce=on_responses.weights, of_units=True)
_KL = frozenset({"kl", "row_kl"})
_REWARDS = frozenset({"token_level_rewards"})
_CREDIT = frozenset({"advantages", "returns"})
_ENTROPY = frozenset({top_entropy.ENTROPY})


def finite_stage(reads: frozenset[str]) -> Stage:
    """Return the stage that leaves out responses with numbers of roles that are not finite."""
    leave_out = on_responses.leave_out_nonfinite
    return Stage("finite", reads, map=on_tokens.finite, in_first_pass=True, reduce=leave_out)


def unit_stages(resolved: ResolvedRecipe, reads: frozenset[str] = NO_ROLES) -> list[Stage]:
    """Return the stages that decide which responses count, and with which raw reward.

    Args:
        resolved: the recipe.
        reads: the token roles whose numbers must be finite.
    """
    recipe = resolved.recipe
    order = Stage("order of rollouts", reduce=add_order, options={"grouped": resolved.grouped})
    stages = (
        (order, resolved.orders_rows),
        (finite_stage(reads), recipe.nonfinite == "mask" and not resolved.rows_only),
        (Stage("attempts", reduce=on_responses.treat_attempts), resolved.attempts),
        (Stage("failures", reduce=on_responses.treat_failures), resolved.failures),
        (Stage("batches of rollouts", reduce=on_units.check_rows), resolved.has_rollouts),
        (Stage("rollouts", reduce=on_units.rollouts), resolved.unit == "rollout"),
    )
    return bound([stage for stage, is_on in stages if is_on], resolved)


def _mask_stages(resolved: ResolvedRecipe) -> list[Stage]:
    groups = Stage("group columns", reduce=on_responses.group_columns, of_units=True)
    masks = Stage("sample masks", reduce=on_responses.sample_masks, of_units=True)
    return [*([groups] if {*GROUP_COLUMNS} & {*resolved.written} else []), masks]


def _cut_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that find the cut of the entropies of each batch."""
    if recipe.top_entropy_quantile is None:
        return []
    first, second = (f"order of tokens, {bits} bits" for bits in ("leading", "trailing"))
    return [
        Stage(first, _ENTROPY, map=top_entropy.map_leading, gather=top_entropy.bins),
        Stage(second, _ENTROPY, map=top_entropy.map_trailing, gather=top_entropy.cuts),
    ]


def _stages_to_rewards(resolved: ResolvedRecipe) -> list[Stage]:
    """Return the stages from raw rewards to those of responses, and of KL."""
    early, kl = resolved.recipe.numerics.kl_credit == "response", _kl_stages(resolved)
    shaped = [*_shaping_stages(resolved), *(kl if early else [])]
    return [*shaped, *_reward_stages(resolved), *([] if early else kl)]


def _shaping_stages(resolved: ResolvedRecipe) -> list[Stage]:
    of_units = not resolved.own_rewards
    shape = Stage("reward shaping", reduce=on_rewards.shape_rewards, of_units=of_units)
    process = Stage(
        f"process rewards per {resolved.process}",
        frozenset({"token_rewards"}),
        map=on_tokens.sum_process_rewards,
        in_first_pass=True,
        reduce=on_rewards.add_process_rewards,
        of_units=of_units,
    )
    return [shape, *([] if resolved.process is None else [process])]


def _reward_stages(resolved: ResolvedRecipe) -> list[Stage]:
    estimator, of_units = resolved.estimator, not resolved.own_rewards
    steps = Stage("step rewards", reduce=on_rewards.make_rewards)
    norms = Stage("reward normalisation", reduce=on_rewards.normalise_rewards, of_units=of_units)
    return [
        *([steps] if estimator.rewards else []),
        *([] if estimator.normalises else [norms]),
        Stage("reward clip", reduce=on_rewards.clip_rewards, of_units=of_units),
    ]


def _kl_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe = resolved.recipe
    early = recipe.numerics.kl_credit == "response" and recipe.kl_coef > 0
    kl = Stage(
        "kl",
        resolved.kl_reads,
        map=on_tokens.map_kl if early or recipe.kl_target is not None else None,
        in_first_pass=True,
        reduce=on_responses.charge_kl if early else on_responses.kl_coefficients,
        of_units=not early,
        apply=on_tokens.add_kl,
        makes=_KL,
    )
    return [kl] if resolved.kl else []


def _token_reward_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe = resolved.recipe
    stages = []
    if resolved.joins:
        stages.append(Stage("rewards of rollouts", reduce=on_rollouts.place_rollout_rewards))
    if not resolved.plain or resolved.varying:
        reads = frozenset({"token_rewards"}) if resolved.process == "token" else NO_ROLES
        both = recipe.numerics.clip_stages == "response_and_token" and recipe.reward_clip
        makes = _REWARDS | ({"token_reward_clipped"} if both else NO_ROLES)
        place = on_tokens.place_rewards
        stages.append(Stage("token rewards", reads, apply=place, uses=_KL, makes=makes))
    if recipe.whiten_rewards:
        stages.append(_whitening("token_level_rewards"))
    if recipe.teachers:
        reads, distil = _teacher_roles(resolved), on_tokens.add_distillation
        makes = frozenset({"distillation"})
        stages.append(Stage("distillation", reads, apply=distil, makes=makes))
    return stages


def _estimator_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, estimator = resolved.recipe, resolved.estimator
    behind = frozenset({"values"} if recipe.bootstrap == "last" else ())
    read = frozenset(estimator.token_columns) - {*COMPUTED_TOKENS}
    stages = []
    if estimator.token_weights:
        baselines = Stage(
            "position baselines",
            on_tokens.weight_roles(recipe, estimator) | behind,
            map=on_tokens.map_slots,
            gather=on_tokens.gather_baselines,
            apply=on_tokens.add_baselines,
            uses=_REWARDS,
            makes=frozenset({"position_baseline"}),
        )
        stages += [Stage("position layout", reduce=on_tokens.add_slots), baselines]
    if resolved.joins:
        heads, join = on_rollouts.map_heads, on_rollouts.join_heads
        stages.append(Stage("rollouts joined", read, map=heads, reduce=join, uses=_REWARDS))
    if not resolved.plain:
        apply, uses = on_tokens.estimate, _REWARDS | {*COMPUTED_TOKENS}
        stages.append(Stage(estimator.name, read | behind, apply=apply, uses=uses, makes=_CREDIT))
    else:
        stage = Stage(
            estimator.name,
            map=on_tokens.score if resolved.varying else None,
            reduce=on_responses.estimate,
            of_units=not resolved.own_rewards,
            uses=_REWARDS,
            # The measures of filters that come first need their columns of the file.
            observed=not (recipe.is_filter and recipe.numerics.correction == "first"),
        )
        stages.append(stage)
    if estimator.over_batch and recipe.options["batch_over"] == "responses":
        normalise = on_responses.normalise_credit
        stages.append(Stage("batch normalisation", reduce=normalise, of_units=True))
    if resolved.plain and not resolved.constant:
        stages.append(Stage("credit of tokens", apply=on_tokens.spread_credit, makes=_CREDIT))
    if resolved.charged:
        charge, uses = on_tokens.charge_tokens, _CREDIT | _KL | {"distillation"}
        stages.append(Stage("token charges", apply=charge, uses=uses, makes=_CREDIT))
    return stages


def _advantage_stages(resolved: ResolvedRecipe) -> list[Stage]:
    recipe, stages = resolved.recipe, list[Stage]()
    if resolved.whiten and resolved.constant:
        stages.append(Stage("advantage whitening", reduce=on_responses.whiten))
    elif resolved.whiten:
        stages.append(_whitening("advantages"))
        if resolved.whitened_returns:
            apply = on_tokens.returns_as_advantages
            stages.append(Stage("returns", apply=apply, uses=_CREDIT, makes=_CREDIT))
    if not resolved.constant:
        clip, both = on_tokens.clip_and_mask, _CREDIT | {"raw_advantages"}
        stages.append(Stage("advantage clip", apply=clip, uses=both, makes=both))
    elif recipe.advantage_clip is not None:
        stages.append(Stage("advantage clip", reduce=on_responses.clip_advantages))
    if recipe.top_entropy_quantile is not None:
        keep, makes = top_entropy.keep_top_entropy, _CREDIT | {top_entropy.CHOSEN}
        stages.append(Stage("top entropy", _ENTROPY, apply=keep, uses=_CREDIT, makes=makes))
    return stages


def _whitening(column: str) -> Stage:
    return Stage(
        f"{column.rpartition('_')[2].removesuffix('s')} whitening",
        map=on_tokens.map_moments,
        reduce=on_responses.token_whitening,
        apply=on_tokens.whiten,
        uses=frozenset({column}),
        makes=frozenset({column, *(["raw_advantages"] if column == "advantages" else [])}),
        options={"column": column},
    )


def _filter_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage of filters, which reject tokens by columns of the file, or by advantages."""
    reduces = recipe.rejects_responses or recipe.numerics.correction == "first"
    stage = Stage(
        "filters",
        correction.roles(recipe),
        map=correction.map_accepted_by if reduces else None,
        in_first_pass=not recipe.reads_ages,
        reduce=correction.drop_rejected if reduces else None,
        apply=correction.reject,
        uses=_CREDIT | {"raw_advantages"},
    )
    return [stage] if recipe.is_filter else []


def _importance_weights(recipe: Recipe) -> Stage:
    """Return the stage of weights; it maps and reduces to divide by their mean."""
    divided = recipe.is_weight is not None and recipe.is_weight.normalised
    return Stage(
        "importance weights",
        correction.roles(recipe),
        map=correction.map_weights if divided else None,
        in_first_pass=not recipe.reads_ages,
        reduce=correction.mean_weights if divided else None,
        apply=correction.add_weights,
    )


def _teacher_roles(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the roles that distillation reads: the teachers' columns and the student's."""
    current = resolved.recipe.numerics.kl_policy == "current"
    teachers = {f"teacher:{name}" for name in resolved.recipe.teachers}
    student = {"log_probs" if current else "old_log_probs"}
    return frozenset(teachers | student) | resolved.ratio_reads
