"""The plan of `rlpost loss`: a recipe's stages, or advantages as they are dumped, then the loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from rlpost.analysis.loss.totals import Scope
from rlpost.errors import DataError
from rlpost.pipeline.columns import absent, check_log_probs
from rlpost.pipeline.metrics import count_advantages
from rlpost.pipeline.output import token_column
from rlpost.pipeline.plan import Plan, lacks_of, plan_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages import responses as on_responses
from rlpost.pipeline.stages import tokens as on_tokens
from rlpost.pipeline.stages.loss import add_loss, as_written, drop_masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.stages.loss import LossConfig
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


WRITTEN = ("pg_loss", "clip_state")
_POLICIES = frozenset({"log_probs", "old_log_probs", "infer_log_probs", "ref_log_probs"})
_BEFORE = "the policy before its update, which the ratio divides by"
_ROWS = ("reward", "batch", "domain", "sample_mask", "sample_weight")


def loss_job(
    source: Source | TableSource,
    columns: ColumnMap,
    recipe: Recipe,
    settings: Sequence[LossConfig],
    *,
    write: bool,
) -> Plan:
    """Bind losses to an input; advantages come from it or, where it has none, of the recipe.

    Args:
        source: the input.
        columns: which column serves each role.
        recipe: how advantages are made; of a file that has them only `columns`, `nonfinite` and
            what is kept in the output count.
        settings: the losses.
        write: tokens get their loss and clip state, of the first setting.

    Raises:
        DataError: there are no rows, or a role that is needed has no column.
    """
    if source.rows == 0:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to process")
    _check(source, columns, recipe, settings)
    given = "advantages" in columns
    reads = frozenset(role for role in _POLICIES if role in columns)
    if given:
        reads |= {role for role in ("advantages", "is_weight") if role in columns}
        base = _given(source, columns, recipe, reads)
    else:
        base = plan_of(source, columns, resolve_recipe(recipe, columns), {})
    column = partial(token_column, resolved=base.resolved, name="advantages")
    stages = [
        replace(stage, reads=stage.reads | reads) if stage.name == "finite" else stage
        for stage in base.stages
    ]
    stages.append(Stage("advantages as written", reads, apply=partial(as_written, column=column)))
    if write:
        loss = partial(add_loss, setting=settings[0], rewarded="reward" in columns)
        stages.append(Stage("loss", apply=loss))
    return replace(base, stages=tuple(stages))


def behaviour_of(settings: Sequence[LossConfig]) -> str:
    """Whose log-probs the ratio divides by that is told once for all settings: old or infer."""
    return "infer" if all(one.options.behaviour == "infer" for one in settings) else "old"


def scope_of(job: Plan, responses: Responses, settings: Sequence[LossConfig]) -> Scope:
    """What is counted: details of one setting, or only what a sweep compares."""
    batch_of = torch.zeros(responses.count("cell"), dtype=torch.int64)
    batch_of[responses["cell"]] = responses["batch"]
    return Scope(
        batch_of=batch_of,
        batches=responses.count("batch"),
        details=len(settings) == 1,
        behaviour=behaviour_of(settings),
        both={"old_log_probs", "infer_log_probs"} <= {*job.columns.columns},
    )


def _check(
    source: Source | TableSource,
    columns: ColumnMap,
    recipe: Recipe,
    settings: Sequence[LossConfig],
) -> None:
    """Raise DataError for roles that are needed and have no column, or one that can't do."""
    needed = {"log_probs": "the policy being trained, whose loss is asked for"}
    if behaviour_of(settings) != "infer":
        needed["old_log_probs"] = _BEFORE
    if "reward" not in columns and not recipe.reward_components:
        needed["advantages"] = (
            "the loss weighs tokens by them, and there is no reward to make them of"
        )
    for setting in settings:
        options, name = setting.options, setting.loss.name
        for role, why, needs in (
            ("infer_log_probs", "behaviour infer", options.behaviour == "infer"),
            ("ref_log_probs", f"loss {name}", name == "ref_kl"),
            ("ref_log_probs", f"kl_loss_coef {options.kl_loss_coef}", options.kl_loss_coef > 0),
        ):
            if needs:
                needed.setdefault(role, why)
    absent_ones = {role: why for role, why in needed.items() if role not in columns}
    if absent_ones:
        raise absent(source, absent_ones, lacks_of(source))
    check_log_probs(source, columns, sorted(_POLICIES))


def _given(
    source: Source | TableSource, columns: ColumnMap, recipe: Recipe, reads: frozenset[str]
) -> Plan:
    """The job of an input that has advantages: nothing is left to do but the loss."""
    finite = Stage(
        "finite",
        reads,
        map=on_tokens.finite,
        in_first_pass=True,
        reduce=on_responses.leave_out_nonfinite,
    )
    masked = Stage("sample mask", reduce=drop_masked)
    return Plan(
        source,
        columns,
        resolve_recipe(recipe, columns),
        (
            *([finite] if recipe.nonfinite == "mask" else []),
            *([masked] if "sample_mask" in columns else []),
        ),
        "mask" if "mask" in columns else "log_probs",
        tuple(role for role in _ROWS if role in columns),
        partial(count_advantages, resolved=resolve_recipe(recipe, columns)),
    )
