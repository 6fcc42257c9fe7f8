"""The stages whose numbers a trainer may have recorded, and each computed from recorded inputs.

A recorded column takes the place of what a recipe computes: its role is mapped to the column, and
the stages before it are switched off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

Level = Literal["responses", "tokens"]
Values = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A number that the pipeline computes and a trainer may record."""

    name: str
    """The column of `--emit`."""
    title: str
    level: Level
    names: tuple[str, ...] = ()
    """Other names of the column, in files of frameworks and of `rlpost convert`."""


def _stage(name: str, title: str, level: Level, *names: str) -> Stage:
    return Stage(name, title, level, (name, *names))


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
        _stage(
            "advantages", "advantages", "tokens", "dumped_advantages", "dumped_advantage",
            "advantage", "response_advantage",
        ),
        _stage("final_response_mask", "final mask", "tokens"),
        _stage("sample_weight", "sample weights", "responses", "sample_weights"),
        _stage(
            "is_weight", "importance weights", "tokens", "rollout_is_weights", "tis_weights",
            "importance_weights",
        ),
    )
}  # fmt: skip
"""In the order in which they are computed, unless `ordered` moves one."""
CHAIN = ("response_level_rewards", "kl", "token_level_rewards", "raw_advantages")
"""Stages that later ones are computed from."""
_OWN = "rlpost.replay."
DROPPED = f"{_OWN}dropped"
"""A column of the table: true for responses that the masks of the recipe drop."""
MAPPABLE = frozenset(ROLES)
ZEROS = f"{_OWN}zeros"


class Substituted(NamedTuple):
    """A table and a recipe that compute a stage from recorded columns."""

    table: pa.Table
    recipe: Recipe
    used: tuple[str, ...]
    """The recorded stages that are inputs."""


def late_normalisation(recipe: Recipe) -> bool:
    """Return whether rewards are normalised after KL and token rewards, by the estimator."""
    return recipe.numerics.kl_credit == "response"


def substituted(
    table: pa.Table,
    resolved: ResolvedRecipe,
    recorded: dict[str, str],
    stage: str,
) -> Substituted:
    """Return a table and a recipe that compute a stage from the recorded columns before it.

    Args:
        table: the input.
        resolved: the recipe of the whole pipeline, resolved for the table.
        recorded: stage to column of the table; lists for stages of tokens.
        stage: the stage to compute.
    """
    recipe = isolated(resolved.recipe, stage)
    before = [name for name in _inputs_of(stage, resolved) if name in recorded]
    used: list[str] = []
    for name in before:
        found = _SUBSTITUTES[name](table, recipe, resolved, recorded[name])
        if found is not None:
            table, recipe = found
            used.append(name)
            if name in ("token_level_rewards", "raw_advantages"):
                break  # nothing before them is read
    return Substituted(table, recipe, tuple(used))


def ordered(recipe: Recipe, names: Collection[str]) -> list[str]:
    """Return stages in the order in which a recipe computes them."""
    order = [*STAGES]
    if late_normalisation(recipe):
        order.remove("response_level_rewards")
        order.insert(order.index("token_level_rewards") + 1, "response_level_rewards")
    return [name for name in order if name in names]


def moved(recipe: Recipe, stage: str) -> bool:
    """Return whether frameworks record a stage of a recipe at another place than rlpost."""
    elsewhere = late_normalisation(recipe) or bool(recipe.reward_components)
    return stage == "token_level_rewards" and elsewhere


def isolated(recipe: Recipe, stage: str) -> Recipe:
    """Return the recipe that computes a stage at its place in the frameworks.

    A framework that normalises rewards after KL records token rewards of raw rewards, before that.
    One that normalises components of the reward records those of the reward beside them.
    """
    if not moved(recipe, stage) or (recipe.reward_components and "reward" not in recipe.columns):
        return recipe
    return _with_fields(
        recipe,
        norm_mean="none",
        norm_std="none",
        reward_components=None,
        component_weights=None,
        estimator="reinforce",
        whiten_advantages=False,
        numerics={"kl_credit": "return"},
    )


def runs_of(
    recipe: Recipe, names: Collection[str], *, of_rlpost: bool | None
) -> list[tuple[Recipe, list[str]]]:
    """Return the recipes that compute some stages from the start, each with its stages.

    Args:
        recipe: of the whole pipeline.
        names: stages.
        of_rlpost: whether the stages that frameworks record elsewhere are those of rlpost; None:
            unknown, so they are in two runs. The last one counts unless an earlier one is equal.
    """
    elsewhere = [name for name in names if moved(recipe, name)]
    own = [name for name in names if of_rlpost is not False or name not in elsewhere]
    others = [] if of_rlpost else elsewhere
    runs = [(recipe, own), *((isolated(recipe, name), [name]) for name in others)]
    return [(one, stages) for one, stages in runs if stages]


def _inputs_of(stage: str, resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Return the stages that a stage is computed from, the nearest first."""
    late = late_normalisation(resolved.recipe)
    rewards: tuple[str, ...] = () if late else ("response_level_rewards",)
    if stage == "token_level_rewards":
        return ("kl", *rewards)
    if stage == "response_level_rewards":
        return ("token_level_rewards",) if late else ()
    if stage in ("raw_advantages", "returns"):
        return ("token_level_rewards", "kl", *rewards)
    if stage == "advantages":
        whole = ("raw_advantages",) if not resolved.rows_only else ()
        return (*whole, "token_level_rewards", "kl", *rewards)
    return ()


def _with_fields(recipe: Recipe, **fields: Any) -> Recipe:
    """Return a recipe with other fields; `columns` and `numerics` are merged."""
    columns = {**recipe.columns, **fields.pop("columns", {})}
    numerics = recipe.numerics.model_copy(update=fields.pop("numerics", {}))
    return recipe.model_copy(update={**fields, "columns": columns, "numerics": numerics})


_UNSHAPED: Values = {
    "norm_mean": "none",
    "norm_std": "none",
    "reward_components": None,
    "component_weights": None,
    "reward_scale": None,
    "truncation_penalty": None,
    "group_length_penalty": None,
    "overlong_penalty": None,
    "rollout_id": None,
}
_UNCHARGED: Values = {"kl_coef": 0.0, "kl_target": None}
_UNMASKED: Values = {
    "max_len_mask": False,
    "difficulty_mask": False,
    "error_max_len_clip": None,
    "drop_zero_variance": False,
    "drop_single": False,
}


def masks_by_rewards(recipe: Recipe) -> bool:
    """Return whether the recipe drops responses by their raw rewards or lengths."""
    defaults = {name: type(recipe).model_fields[name].default for name in _UNMASKED}
    return any(getattr(recipe, name) != default for name, default in defaults.items())


def _without_rewards(table: pa.Table, recipe: Recipe, **fields: Any) -> Recipe:
    """Return a recipe whose rewards are replaced; it still drops the same responses."""
    if DROPPED in table.schema.names:
        columns = {**fields.pop("columns", {}), "truncated": DROPPED}
        fields |= _UNMASKED | {"drop_truncated": True, "columns": columns}
    return _with_fields(recipe, **fields)


def _own_rewards(resolved: ResolvedRecipe) -> bool:
    """Return whether the estimator makes its rewards itself, so that none can replace them."""
    estimator = resolved.estimator
    return bool(estimator.rewards) or estimator.normalises or "components" in estimator.needs


def _by_rewards(
    table: pa.Table, recipe: Recipe, resolved: ResolvedRecipe, column: str
) -> tuple[pa.Table, Recipe] | None:
    if _own_rewards(resolved):
        return None
    return table, _without_rewards(table, recipe, **_UNSHAPED, columns={"reward": column})


def _by_kl(
    table: pa.Table, recipe: Recipe, _resolved: ResolvedRecipe, column: str
) -> tuple[pa.Table, Recipe] | None:
    """Return the recorded KL as the k1 estimate of two columns of log-probs, of which one is 0."""
    if recipe.kl_coef == 0 or recipe.numerics.kl_credit == "none":
        return None
    zeros = with_column(table, ZEROS, _zeros_like(table, column))
    numerics = {"kl_policy": "current", "log_ratio_clamp": math.inf, "kl_clamp": math.inf}
    columns = {"log_probs": column, "ref_log_probs": ZEROS}
    return zeros, _with_fields(recipe, kl_estimator="k1", numerics=numerics, columns=columns)


def _by_token_rewards(
    table: pa.Table, recipe: Recipe, resolved: ResolvedRecipe, column: str
) -> tuple[pa.Table, Recipe] | None:
    if _own_rewards(resolved):
        return None
    zeros = with_column(table, ZEROS, pa.array(np.zeros(table.num_rows)))
    fields = _UNCHARGED | {"columns": {"reward": ZEROS, "token_rewards": column}}
    if late_normalisation(recipe):
        numerics = {"process_rewards": "response", "kl_credit": "none"}
        return zeros, _without_rewards(zeros, recipe, **fields, numerics=numerics)
    whitened = {"whiten_rewards": False}
    return zeros, _without_rewards(zeros, recipe, **_UNSHAPED, **fields, **whitened)


def _by_raw_advantages(
    table: pa.Table, recipe: Recipe, resolved: ResolvedRecipe, column: str
) -> tuple[pa.Table, Recipe] | None:
    """Return the recorded advantages as token rewards whose returns are not accumulated (γ = 0)."""
    zeros = with_column(table, ZEROS, pa.array(np.zeros(table.num_rows)))
    numerics = {"outcome": "return", "observations": "skip", "terminal_reward": "last_policy_token"}
    fields = _UNSHAPED | _UNCHARGED | {"whiten_rewards": False, "teachers": {}}
    return zeros, _without_rewards(
        zeros,
        recipe,
        **fields,
        estimator="reinforce",
        gamma=0.0,
        reward_clip=None,
        reward_clip_low=None,
        whiten_advantages=resolved.whiten,
        numerics=numerics | {"process_rewards": "token", "kl_credit": "none"},
        columns={"reward": ZEROS, "token_rewards": column},
    )


_SUBSTITUTES = {
    "response_level_rewards": _by_rewards,
    "kl": _by_kl,
    "token_level_rewards": _by_token_rewards,
    "raw_advantages": _by_raw_advantages,
}


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with a column added or replaced."""
    if name in table.schema.names:
        return table.set_column(table.schema.get_field_index(name), name, column)
    return table.append_column(name, column)


def _zeros_like(table: pa.Table, column: str) -> pa.Array:
    """Return lists of zeros, as long as those of a column."""
    lists = table.column(column).combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(0))
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.zeros(int(offsets[-1]), np.float32))


def reachable(names: Iterable[str], resolved: ResolvedRecipe) -> list[str]:
    """Return the stages, of some, that a recipe computes."""
    recipe, lacks = resolved.recipe, set()
    lacks |= set() if resolved.weighted else {"sample_weight"}
    lacks |= set() if recipe.is_weight else {"is_weight"}
    lacks |= set() if resolved.kl else {"kl"}
    lacks |= set() if resolved.masks else {"sample_mask"}
    if resolved.rows_only:
        lacks |= {name for name, stage in STAGES.items() if stage.level == "tokens"}
        lacks -= {"advantages"}
    return ordered(recipe, {*names} - lacks)


def emitted_names(names: Collection[str], resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Return the columns of `--emit` for some stages."""
    if resolved.rows_only:
        return tuple("response_advantage" if name == "advantages" else name for name in names)
    return tuple(names)
