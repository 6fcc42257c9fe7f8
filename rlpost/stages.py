"""The pipeline as a list of values: what each stage measures, settles and does to tokens.

A stage may `measure` numbers per response from tokens, `settle` them on the table of all
responses, and then `apply` the outcome to the tokens of any batch. The engine decides in which
pass over the file each of these happens; see `rlpost.engine.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rlpost import response_stages as on_responses
from rlpost import token_stages as on_tokens
from rlpost.estimators import estimator_named
from rlpost.recipe import GROUP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.batch import Batch, Responses
    from rlpost.estimators import Estimator
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.recipe import Recipe
    from rlpost.schema import ColumnMap


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline, in up to three parts."""

    name: str
    reads: frozenset[str] = frozenset()
    """Token roles, besides the mask, that `measure` and `apply` read from the file."""
    measure: Callable[[Batch], dict[str, Tensor]] | None = None
    """Numbers per response, [n] each; they become columns of Responses."""
    measures_file: bool = False
    """`measure` reads columns of the file alone, so it can share the first pass."""
    settle: Callable[[Responses], Responses] | None = None
    apply: Callable[[Batch], Batch] | None = None


@dataclass(frozen=True)
class Shape:
    """What a recipe and a file come to, before any number is read."""

    recipe: Recipe
    estimator: Estimator
    kl: bool
    """Both policies' log-probs are there, so KL is measured."""
    varying: bool
    """Token rewards are more than one terminal reward per response."""
    constant: bool
    """All policy tokens of a response get the same advantage."""
    whiten: bool
    """Advantages are whitened."""
    process_rewards: bool

    @property
    def same_returns(self) -> bool:
        """The written returns equal the written advantages, so one encoding serves both."""
        changed = self.whiten or self.recipe.advantage_clip is not None
        return not changed and self.estimator.name != "gae"

    @property
    def kl_reads(self) -> frozenset[str]:
        """Token roles that KL needs."""
        return frozenset({"old_log_probs", "ref_log_probs"}) if self.kl else frozenset()


def shape_of(recipe: Recipe, columns: ColumnMap) -> Shape:
    """Decide which parts of the pipeline work on tokens and which on responses alone."""
    estimator = estimator_named(recipe.estimator)
    process = "token_rewards" in columns
    varying = recipe.kl_coef > 0 or recipe.whiten_rewards or process
    plain_return = (
        estimator.undiscounted_is_constant
        and recipe.gamma == 1
        and not varying
        and recipe.numerics.terminal_reward == "last_policy_token"
    )
    whiten = recipe.whiten_advantages
    return Shape(
        recipe=recipe,
        estimator=estimator,
        kl="old_log_probs" in columns and "ref_log_probs" in columns,
        varying=varying,
        constant=estimator.level == "response" or plain_return,
        whiten=estimator.whiten_advantages if whiten is None else whiten,
        process_rewards=process,
    )


def stages_of(shape: Shape, running: Mapping[str, RunningMoments]) -> list[Stage]:
    """The stages of a recipe, in order; stages that would do nothing are left out.

    Args:
        shape: from `shape_of`.
        running: where each domain's running reward moments stand.
    """
    recipe = shape.recipe
    return [
        *_response_stages(shape, running),
        *_token_reward_stages(shape),
        *_estimator_stages(shape),
        *_advantage_stages(shape),
        Stage("weights", settle=partial(on_responses.weights, recipe=recipe)),
    ]


def _response_stages(shape: Shape, running: Mapping[str, RunningMoments]) -> list[Stage]:
    recipe, estimator = shape.recipe, shape.estimator
    norm_mean = recipe.norm_mean or estimator.norm_mean
    norm_std = recipe.norm_std or estimator.norm_std
    finite = Stage(
        "finite",
        token_roles(shape),
        measure=on_tokens.finite,
        measures_file=True,
        settle=on_responses.leave_out_nonfinite,
    )
    groups = Stage("group columns", settle=partial(on_responses.group_columns, recipe=recipe))
    return [
        *([finite] if recipe.nonfinite == "mask" else []),
        *([groups] if {*GROUP_COLUMNS} & {*(recipe.emit or ())} else []),
        Stage("sample masks", settle=partial(on_responses.sample_masks, recipe=recipe)),
        Stage("reward shaping", settle=partial(on_responses.shape_rewards, recipe=recipe)),
        Stage(
            "reward normalisation",
            settle=partial(
                on_responses.normalise_rewards,
                recipe=recipe,
                mean_of=norm_mean,
                std_of=norm_std,
                running=running,
            ),
        ),
        Stage("reward clip", settle=partial(on_responses.clip_rewards, recipe=recipe)),
    ]


def _token_reward_stages(shape: Shape) -> list[Stage]:
    recipe = shape.recipe
    kl = partial(on_tokens.measure_kl, recipe=recipe)
    stages = []
    if shape.kl:
        adaptive = recipe.kl_target is not None
        stages.append(
            Stage(
                "kl",
                shape.kl_reads,
                measure=kl if adaptive else None,
                measures_file=True,
                settle=partial(on_responses.kl_coefficients, recipe=recipe),
                apply=partial(on_tokens.add_kl, recipe=recipe),
            )
        )
    if not shape.constant or shape.varying:
        reads = frozenset({"token_rewards"}) if shape.process_rewards else frozenset()
        stages.append(
            Stage("token rewards", reads, apply=partial(on_tokens.place_rewards, recipe=recipe))
        )
    if recipe.whiten_rewards:
        stages.append(_whitening(recipe, "token_level_rewards"))
    return stages


def _estimator_stages(shape: Shape) -> list[Stage]:
    recipe, estimator = shape.recipe, shape.estimator
    if shape.constant:
        return [
            Stage(
                estimator.name,
                measure=partial(on_tokens.score, recipe=recipe) if shape.varying else None,
                settle=partial(on_responses.estimate, recipe=recipe, estimator=estimator),
            )
        ]
    reads = frozenset(estimator.columns) - {"token_rewards"}
    return [
        Stage(
            estimator.name,
            reads,
            apply=partial(on_tokens.estimate, recipe=recipe, estimator=estimator),
        )
    ]


def _advantage_stages(shape: Shape) -> list[Stage]:
    recipe = shape.recipe
    stages = []
    if shape.whiten and shape.constant:
        stages.append(
            Stage("advantage whitening", settle=partial(on_responses.whiten, recipe=recipe))
        )
    elif shape.whiten:
        stages.append(_whitening(recipe, "advantages"))
    if recipe.advantage_clip is not None and shape.constant:
        stages.append(
            Stage("advantage clip", settle=partial(on_responses.clip_advantages, recipe=recipe))
        )
    if not shape.constant:
        stages.append(
            Stage("advantage clip", apply=partial(on_tokens.clip_and_mask, recipe=recipe))
        )
    return stages


def _whitening(recipe: Recipe, column: str) -> Stage:
    return Stage(
        f"{column.rpartition('_')[2].removesuffix('s')} whitening",
        measure=partial(on_tokens.measure_moments, column=column),
        settle=partial(on_responses.token_whitening, recipe=recipe, column=column),
        apply=partial(on_tokens.whiten, column=column),
    )


def token_roles(shape: Shape) -> frozenset[str]:
    """Every token role, besides the mask, that any stage of the recipe reads."""
    estimator = frozenset(shape.estimator.columns) & {"values"}
    process = frozenset({"token_rewards"}) if shape.process_rewards else frozenset()
    return shape.kl_reads | estimator | process
