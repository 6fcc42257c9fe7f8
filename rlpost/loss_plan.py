"""The plan of `rlpost loss`: a recipe's stages, or advantages as they are dumped, then the loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rlpost import response_stages as on_responses
from rlpost import token_stages as on_tokens
from rlpost.errors import DataError
from rlpost.loss_stages import add_loss, as_written, drop_masked
from rlpost.output import token_column
from rlpost.plan import Job, job_of
from rlpost.schema import missing
from rlpost.shape import shape_of
from rlpost.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.loss_stages import Setting
    from rlpost.parquet.memory import TableSource
    from rlpost.parquet.source import Source
    from rlpost.recipe import Recipe
    from rlpost.schema import ColumnMap

WRITTEN = ("pg_loss", "clip_state")
_RATIO = frozenset({"log_probs", "old_log_probs"})
_OPTIONAL = frozenset({"infer_log_probs", "ref_log_probs"})
_ROWS = ("reward", "batch", "domain", "sample_mask", "sample_weight")


def loss_job(
    source: Source | TableSource,
    columns: ColumnMap,
    recipe: Recipe,
    settings: Sequence[Setting],
    *,
    write: bool,
) -> Job:
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
    reads = _RATIO | {role for role in _OPTIONAL if role in columns}
    if given:
        reads |= {role for role in ("advantages", "is_weight") if role in columns}
        base = _given(source, columns, recipe, reads)
    else:
        base = job_of(source, columns, shape_of(recipe, columns), {})
    column = partial(token_column, shape=base.shape, name="advantages")
    stages = [
        replace(stage, reads=stage.reads | reads) if stage.name == "finite" else stage
        for stage in base.stages
    ]
    stages.append(Stage("advantages as written", reads, apply=partial(as_written, column=column)))
    if write:
        loss = partial(add_loss, setting=settings[0], rewarded="reward" in columns)
        stages.append(Stage("loss", apply=loss))
    return replace(base, stages=tuple(stages))


def _check(
    source: Source | TableSource,
    columns: ColumnMap,
    recipe: Recipe,
    settings: Sequence[Setting],
) -> None:
    """Raise DataError for the first role that is needed and has no column."""
    for role, why in (
        ("log_probs", "the policy being trained, whose loss is asked for"),
        ("old_log_probs", "the policy before its update, which the ratio divides by"),
    ):
        if role not in columns:
            raise missing(role, source.columns, source.name, why)
    rewarded = "reward" in columns or recipe.reward_components
    if "advantages" not in columns and not rewarded:
        why = "the loss weighs tokens by them, and there is no reward to make them of"
        raise missing("advantages", source.columns, source.name, why)
    for setting in settings:
        options, name = setting.options, setting.loss.name
        for role, why, needs in (
            ("infer_log_probs", "behaviour infer", options.behaviour == "infer"),
            ("ref_log_probs", f"loss {name}", name == "ref_kl"),
            ("ref_log_probs", f"kl_loss_coef {options.kl_loss_coef}", options.kl_loss_coef > 0),
        ):
            if needs and role not in columns:
                raise missing(role, source.columns, source.name, why)


def _given(
    source: Source | TableSource, columns: ColumnMap, recipe: Recipe, reads: frozenset[str]
) -> Job:
    """The job of an input that has advantages: nothing is left to do but the loss."""
    finite = Stage(
        "finite",
        reads,
        measure=on_tokens.finite,
        measures_file=True,
        settle=on_responses.leave_out_nonfinite,
    )
    masked = Stage("sample mask", settle=drop_masked)
    return Job(
        source,
        columns,
        shape_of(recipe, columns),
        (
            *([finite] if recipe.nonfinite == "mask" else []),
            *([masked] if "sample_mask" in columns else []),
        ),
        "mask" if "mask" in columns else "log_probs",
        tuple(role for role in _ROWS if role in columns),
    )
