"""The stages whose numbers a trainer may have recorded, and what each is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlpost.recipe.roles import RECORDED_ADVANTAGES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow as pa

    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

Level = Literal["responses", "tokens"]


@dataclass(frozen=True)
class RecordedStage:
    """A number that the pipeline computes and a trainer may record."""

    name: str
    """The column of `--emit`."""
    title: str
    level: Level
    names: tuple[str, ...] = ()
    """Names of the column, in files of frameworks and of `rlpost convert`."""


def _stage(name: str, title: str, level: Level, *names: str) -> RecordedStage:
    return RecordedStage(name, title, level, (name, *names))


STAGES = {
    stage.name: stage
    for stage in (
        _stage("sample_mask", "sample masks", "responses"),
        _stage(
            "response_level_rewards", "reward normalisation", "responses", "normalised_reward",
            "normalized_reward", "normalized_rewards",
        ),
        _stage("kl", "KL", "tokens", "token_kl", "kls", "dumped_kl"),
        _stage(
            "token_level_rewards", "token rewards", "tokens", "dumped_token_rewards",
        ),
        _stage("raw_advantages", "estimator", "tokens", "advantages_before_whitening"),
        _stage("returns", "returns", "tokens", "dumped_returns"),
        _stage("advantages", "advantages", "tokens", *RECORDED_ADVANTAGES[1:]),
        _stage("final_response_mask", "final mask", "tokens"),
        _stage("sample_weight", "sample weights", "responses", "sample_weights"),
        _stage(
            "is_weight", "importance weights", "tokens", "rollout_is_weights", "tis_weights",
            "importance_weights",
        ),
    )
}  # fmt: skip
"""In the order in which they are computed, unless `ordered` moves one."""
STAGE_COLUMNS = tuple(name for stage in STAGES.values() for name in stage.names)
"""The names of all columns of recorded stages."""


def normalises_after_kl(recipe: Recipe) -> bool:
    """Return whether rewards are normalised after KL and token rewards, by the estimator."""
    return recipe.numerics.kl_credit == "response"


def ordered(recipe: Recipe, names: Collection[str]) -> list[str]:
    """Return stages in the order in which a recipe computes them."""
    order = [*STAGES]
    if normalises_after_kl(recipe):
        order.remove("response_level_rewards")
        order.insert(order.index("token_level_rewards") + 1, "response_level_rewards")
    return [name for name in order if name in names]


def is_recorded_elsewhere(recipe: Recipe, stage: str) -> bool:
    """Return whether frameworks record a stage of a recipe at another place than rlpost."""
    elsewhere = normalises_after_kl(recipe) or bool(recipe.reward_components)
    return stage == "token_level_rewards" and elsewhere


def recipe_as_recorded(recipe: Recipe, stage: str) -> Recipe:
    """Return the recipe that computes a stage at its place in the frameworks.

    A framework that normalises rewards after KL records token rewards of raw rewards, before that.
    One that normalises components of the reward records those of the reward beside them.
    """
    if not is_recorded_elsewhere(recipe, stage) or (
        recipe.reward_components and "reward" not in recipe.columns
    ):
        return recipe
    fields: dict[str, Any] = {
        "norm_mean": "none",
        "norm_std": "none",
        "reward_components": None,
        "component_weights": None,
        "estimator": "reinforce",
        "options": {},
        "whiten_advantages": False,
        "numerics": recipe.numerics.model_copy(update={"kl_credit": "return"}),
    }
    return recipe.model_copy(update=fields)


def runs_of(recipe: Recipe, names: Collection[str]) -> list[tuple[Recipe, list[str]]]:
    """Return the recipes that compute some stages from the start, each with its stages.

    Stages that frameworks record elsewhere than rlpost are in two runs.
    """
    elsewhere = [name for name in names if is_recorded_elsewhere(recipe, name)]
    return [
        (recipe, [*names]),
        *((recipe_as_recorded(recipe, name), [name]) for name in elsewhere),
    ]


def inputs_of(stage: str, resolved: ResolvedRecipe, recorded: Collection[str]) -> tuple[str, ...]:
    """Return the recorded stages that a stage is computed from, the nearest first.

    Nothing before the nearest is read, except a KL that each token's own advantage is charged with.
    Estimators that make, normalise or add up rewards themselves are computed from raw rewards.
    """
    recipe, estimator = resolved.recipe, resolved.estimator
    after_kl = normalises_after_kl(recipe)
    raw = estimator.rewards or estimator.normalises or "components" in estimator.needs
    charged = recipe.kl_coef > 0 and recipe.numerics.kl_credit != "none"
    rewards = () if after_kl or raw else ("response_level_rewards",)
    kl = ("kl",) if charged else ()
    before: tuple[str, ...] = ()
    if stage == "token_level_rewards":
        before = (*kl, *rewards)
    elif stage == "response_level_rewards" and after_kl:
        before = () if raw else ("token_level_rewards",)
    elif stage in ("raw_advantages", "returns", "advantages"):
        whole = stage == "advantages" and not resolved.rows_only
        before = ("raw_advantages",) if whole and "raw_advantages" in recorded else ()
        tokens = () if raw else ("token_level_rewards",)
        if not before and {*tokens} & {*recorded}:
            before = (*tokens, *(kl if resolved.charges_kl else ()))
        before = before or (*kl, *rewards)
    masks = ("sample_mask",) if before and recipe.has_masks else ()
    return tuple(name for name in (*before, *masks) if name in recorded)


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with a column replaced."""
    return table.set_column(table.schema.get_field_index(name), name, column)


def reachable(names: Iterable[str], resolved: ResolvedRecipe) -> list[str]:
    """Return the stages, of some, that a recipe computes."""
    from rlpost.pipeline.output.columns import not_computed  # noqa: PLC0415 - slow to import

    kept = [name for name in names if name != "sample_mask" or resolved.masks]
    lacks = not_computed(resolved, emitted_names(kept, resolved))
    return ordered(resolved.recipe, {*kept} - {*lacks})


def emitted_names(names: Collection[str], resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Return the columns of `--emit` for some stages."""
    if resolved.rows_only:
        return tuple("response_advantage" if name == "advantages" else name for name in names)
    return tuple(names)
