"""Policy losses bound to an input: the plan of `rlpost loss`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.losses.config import behaviour_of
from rlpost.losses.own import KNOWN
from rlpost.pipeline.columns import (
    FINAL_MASK,
    absent,
    check_log_probs,
    columns_by_name,
    columns_of_rows,
    lacks_of,
    mask_is_result,
)
from rlpost.pipeline.data import ATTEMPTS
from rlpost.pipeline.loss_measures import count_losses
from rlpost.pipeline.needs import reasons
from rlpost.pipeline.plan import Plan, plan_of
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.stages import VERSIONS, Stage, finite_stage
from rlpost.pipeline.stages.ages import VERSION
from rlpost.pipeline.stages.loss import STORED, add_loss, stages_of_losses, use_final_mask
from rlpost.pipeline.stages.responses import treat_attempts
from rlpost.pipeline.totals import TotalsBy
from rlpost.recipe.input_columns import RESULTS, stored_components
from rlpost.recipe.recipe import PROXIMAL
from rlpost.recipe.roles import LOG_PROBS, is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.totals import Counted
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


_LOSS_ROWS = ("reward", "batch", "domain", "sample_mask", "sample_weight")
_ATTEMPT_ROWS = ("rollout", *ATTEMPTS)


def bind_losses(
    source: Source | TableSource,
    recipe: Recipe,
    configs: Sequence[LossConfig],
    *,
    write: bool,
    gradient: bool = False,
) -> Plan:
    """Return the plan of policy losses; the recipe computes advantages if the input has none.

    Args:
        source: the open input.
        recipe: how advantages are computed. Of an input that has them, only `columns`, `nonfinite`
            and what the output keeps are used.
        configs: the losses.
        write: the plan writes the loss and the clip state of tokens, of the first config.
        gradient: it writes the gradient of the loss, too.

    Raises:
        DataError: a role that is needed has no column, or one of another type.
    """
    columns = columns_of_rows(source, recipe, results=True)
    if read := "advantages" in columns:
        recipe = _of_results(source, recipe)
        columns = columns_of_rows(source, recipe, results=True)
    _check_results(columns)
    columns = columns if read else columns_of_rows(source, recipe)
    named: dict[str, str] = {}
    for loss in {config.loss.name: config.loss for config in configs}.values():
        flag, parameters = f"--loss {loss.name}", dict.fromkeys(loss.columns)
        named |= columns_by_name(source, recipe, flag, parameters, KNOWN)
    how = columns.how | dict.fromkeys(named, "name")
    columns = replace(columns, columns=columns.columns | named, how=how)
    components = tuple(f"component:{name}" for name in recipe.reward_components or ())
    rewarded = "reward" in columns or bool(components)
    written = configs[0] if write else None
    last = partial(add_loss, config=written, rewarded=rewarded, gradient=gradient)
    by_name = [role for role in columns.columns if is_read_by_name(role)]
    of_tokens = frozenset(role for role in by_name if kind_of(role) == "tokens")
    count = partial(count_losses, configs=configs, rewarded=rewarded)
    reads = frozenset(role for role in LOG_PROBS if role in columns)
    if any(config.options.behaviour in PROXIMAL for config in configs):
        reads |= {VERSION}
    resolved = resolve_recipe(recipe, columns)
    _check_loss_roles(source, columns, resolved, configs)
    if read:
        reads |= STORED & {*columns.columns}
        plan = _reading(source, columns, resolved, reads, count)
    else:
        plan = _computing(source, columns, resolved, reads)
    rejects = FINAL_MASK in columns if read else resolved.recipe.rejects_tokens
    weighted = gradient or len(configs) > 1
    between = stages_of_losses(reads, resolved, configs, rejects=rejects, weighted=weighted)
    loss_stage = Stage("loss", reads | of_tokens, apply=last, uses=STORED)
    units = [role for config in configs for role in config.units.values()]
    grouped = any(config.loss.grouped for config in configs)
    rows = [*plan.row_roles, *components, *(["group"] if units or grouped else []), *units]
    rows += [role for role in by_name if role not in of_tokens]
    return replace(
        plan,
        stages=tuple(
            replace(stage, observed=False) for stage in (*plan.stages, *between, loss_stage)
        ),
        row_roles=tuple(dict.fromkeys(role for role in rows if role in columns)),
        count=count,
        whole_files=grouped,
        no_totals=TotalsBy(),
    )


def _of_results(source: Source | TableSource, recipe: Recipe) -> Recipe:
    """Return a recipe that reads an input with advantages as the run that computed them read it.

    The reward is the sum of that run's components, and its sample mask includes the one it read.
    """
    columns = dict(recipe.columns)
    if mask_is_result(source) and columns.get("sample_mask", "none") != "none":
        del columns["sample_mask"]
    fields: dict[str, Any] = {"columns": columns}
    components = None if "reward" in columns else stored_components(source)
    if components is not None and not recipe.reward_components:
        numerics = recipe.numerics.model_copy(update={"missing_components": components.missing})
        fields |= {"reward_components": components.names, "component_weights": components.weights}
        fields["numerics"] = numerics
    return recipe.model_copy(update=fields)


def _check_results(columns: ColumnMap) -> None:
    """Raise DataError if only some files have a column that a run wrote."""
    for role, (name, file) in columns.in_some_files.items():
        if role in RESULTS and ("advantages" in columns or role == "advantages"):
            raise DataError(
                f"{file}: no column `{name}`, which other files have; a loss of advantages in the "
                "input needs the same columns in all files: run rlpost advantages on all of them, "
                f"or leave this file out, or ignore the column with --map {role}=none"
            )


def _reading(
    source: Source | TableSource,
    columns: ColumnMap,
    resolved: ResolvedRecipe,
    reads: frozenset[str],
    count: Callable[[Batch], Counted],
) -> Plan:
    """Return the plan that reads the advantages of the input, and what losses read."""
    stages = []
    if resolved.recipe.nonfinite == "mask":
        stages.append(finite_stage(reads))
    if resolved.attempts:
        stages.append(Stage("attempts", reduce=partial(treat_attempts, recipe=resolved.recipe)))
    if FINAL_MASK in columns:
        role, makes = frozenset({FINAL_MASK}), frozenset({"accepted"})
        stages.append(Stage("final mask", role, apply=use_final_mask, makes=makes))
    stages += [VERSIONS] if VERSION in reads else []
    length_role = "mask" if "mask" in columns else "log_probs"
    rows = (*_LOSS_ROWS, *(_ATTEMPT_ROWS if resolved.attempts else ()))
    return Plan(source, columns, resolved, tuple(stages), length_role, rows, count)


def _computing(
    source: Source | TableSource,
    columns: ColumnMap,
    resolved: ResolvedRecipe,
    reads: frozenset[str],
) -> Plan:
    """Return the plan that computes advantages, with finite numbers of what losses read."""
    plan = plan_of(source, columns, resolved, RunState())
    stages = [
        replace(stage, reads=stage.reads | reads) if stage.name == "finite" else stage
        for stage in plan.stages
    ]
    stages += [VERSIONS] if VERSION in reads and not resolved.recipe.reads_versions else []
    return replace(plan, stages=tuple(stages))


def _check_loss_roles(
    source: Source | TableSource,
    columns: ColumnMap,
    resolved: ResolvedRecipe,
    configs: Sequence[LossConfig],
) -> None:
    """Raise DataError for roles that losses need and that have no column, or one of other type."""
    needed = {"log_probs": "the policy being trained, whose loss is computed"}
    if behaviour_of(configs) == "old":
        needed["old_log_probs"] = "the policy before its update, which the ratio divides by"
    if reasons(resolved, "reward") and not resolved.rewarded:
        needed["advantages"] = (
            "the loss multiplies by them, and there is no reward to compute them from"
        )
    for config in configs:
        for why, roles in _needs_of(config, resolved).items():
            needed |= {role: why for role in roles if role not in needed}
    missing = {role: why for role, why in needed.items() if role not in columns}
    if missing:
        raise absent(source, columns, missing, lacks_of(source))
    check_log_probs(source, columns, sorted(LOG_PROBS))


def _needs_of(config: LossConfig, resolved: ResolvedRecipe) -> dict[str, list[str]]:
    """Return the roles that a loss needs, by what needs them."""
    options, needs, policy = config.options, config.loss.needs, config.options.kl_loss_ratio_policy
    roles = ["ref_log_probs", "infer_log_probs"]
    roles += [] if resolved.recipe.reward_components else ["reward"]
    roles = [role for role in roles if role in needs] + ["group"] * config.loss.grouped
    of_age = [VERSION, "batch"] if options.behaviour in PROXIMAL else []
    engine = ["infer_log_probs"] if options.behaviour != "old" else []
    divides = options.kl_loss_ratio and policy in ("old", "infer")
    return {
        f"--behaviour {options.behaviour}": engine + of_age,
        f"--kl-loss-ratio-policy {policy}": [f"{policy}_log_probs"] if divides else [],
        f"--loss {config.loss.name}": roles,
        f"--kl-loss-coef {options.kl_loss_coef}": ["ref_log_probs"] * (options.kl_loss_coef > 0),
        **{f"--aggregation {how}": [role] for how, role in config.units.items()},
    }
