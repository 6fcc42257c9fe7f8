"""The responses of a dump with the sums from which metrics are aggregated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.losses import SUMS, CandidateSums, candidates_for
from rlpost.errors import DataError
from rlpost.io.arrow import is_number, is_tokens
from rlpost.losses.config import LossConfig
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.coupling import coupling_of
from rlpost.pipeline.engine import single_threaded_torch
from rlpost.pipeline.options import Options
from rlpost.pipeline.plan import Plan
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import bind_losses, engine_for
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.loss import STORED
from rlpost.pipeline.totals import ExactTotals
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.roles import LOG_PROBS, ROLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.losses import Candidates, Column
    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.pipeline.data import Responses
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]


EXTRA_TOKENS = {"entropy": ("entropy", "entropys", "entropies", "token_entropy"),
                "returns": ("returns",)}  # fmt: skip
"""Columns of tokens that have no role, and that a metric may be the mean of."""
REWARDS = ("response_level_rewards", "raw_reward", "score", "scores", "total_reward", "rewards")
"""Columns of a number per response that a trainer may call rewards."""
_ROWS = ("reward", "batch", "domain", "sample_mask", "sample_weight")


@dataclass(frozen=True)
class Measured:
    """The responses of the input, [N], with the numbers of their tokens."""

    columns: list[Column]
    sums: Numbers
    """[N, columns]."""
    step: Indices
    """[N] codes of steps."""
    steps: list[str]
    """The labels of the codes."""
    rewards: dict[str, Numbers]
    """By column: a number of each response."""
    length: Indices
    """[N] tokens, with observations."""
    tokens: Indices
    """[N] policy tokens."""
    kept: NDArray[np.bool_]
    """[N]: the response is not dropped."""
    roles: ColumnMap
    candidates: Candidates | None
    """The losses; None if the input lacks what they need."""
    lacks: dict[str, str]
    """Roles that losses need and that the input lacks, and why they are needed."""
    apart: bool
    """The numbers of a step do not depend on other steps."""

    def rows_of(self, step: str) -> Indices:
        """Return the rows of a step, in the order of the input."""
        return self._rows[step]

    @cached_property
    def _rows(self) -> dict[str, Indices]:
        order = np.argsort(self.step, kind="stable")
        ends = np.bincount(self.step, minlength=len(self.steps)).cumsum()
        return dict(zip(self.steps, np.split(order, ends[:-1]), strict=True))


def measure(
    source: Source | TableSource,
    recipe: Recipe,
    chosen: LossOptions | None,
    fixed: Collection[str],
    *,
    candidates: Candidates | None = None,
    wanted: Collection[Column] | None = None,
    options: Options | None = None,
) -> Measured:
    """Compute the sums of all candidate losses, in as many passes as the recipe needs.

    Args:
        source: the input.
        recipe: names columns, and computes the advantages if the input has none.
        chosen: options of the loss that the user sets.
        fixed: the fields of `chosen` that are set.
        candidates: the losses to compute; None for those that fit the input.
        wanted: the columns to compute; None for all, and nothing of tokens if it is empty.
        options: how the run is done.
    """
    columns = columns_of(source, recipe, results=True)
    lacks = _lacks(columns, recipe)
    weights = "is_weight" in columns or "sample_weight" in columns
    losses = None
    tokens = wanted is None or len(wanted) > 0
    if not lacks and tokens:
        losses = candidates or candidates_for(columns.columns, chosen, fixed, weights=weights)
    plan = _plan(source, columns, recipe, losses)
    sums = CandidateSums(losses, wanted, rewarded="reward" in plan.columns)
    plan = _measuring(plan, source, sums, tokens=tokens)
    engine = engine_for(plan, options or Options(device="cpu"))
    with single_threaded_torch():
        responses = engine.responses(())
    engine.close()
    return _measured(plan, responses, sums, losses, lacks)


def _lacks(columns: ColumnMap, recipe: Recipe) -> dict[str, str]:
    """Return the roles that any loss needs and that are missing, and why each is needed."""
    needs = {
        "log_probs": "the policy being trained",
        "old_log_probs": "the policy before its update",
        "advantages": "what the loss multiplies by",
    }
    present = {*columns.columns}
    if "infer_log_probs" in present:
        present.add("old_log_probs")
    if "reward" in present or recipe.reward_components:
        present.add("advantages")
    return {role: why for role, why in needs.items() if role not in present}


def _plan(
    source: Source | TableSource, columns: ColumnMap, recipe: Recipe, losses: Candidates | None
) -> Plan:
    """Return the plan that computes what losses read; of token columns alone without losses."""
    if losses is not None:
        options = LossOptions(behaviour="old" if "old_log_probs" in columns else "infer")
        return bind_losses(source, recipe, [LossConfig(options)], write=False)
    tokens = [role for role in ROLES if ROLES[role].kind == "tokens" and role in columns]
    lists = [role for role in ("mask", *tokens) if role in columns]
    if not lists and not columns.rows_only:
        raise DataError(
            f"{source.name}: no column of tokens, and no reward; --metrics compares what a trainer "
            "logged with rewards, advantages and log-probs of a dump"
        )
    rows = tuple(role for role in _ROWS if role in columns)
    resolved = resolve_recipe(recipe, columns)
    length = None if columns.rows_only else lists[0]
    return Plan(source, columns, resolved, (), length, rows, _count_nothing)


def _count_nothing(batch: Any) -> Any:
    """Fail: the last pass, which counts, does not run."""
    raise NotImplementedError


def _measuring(
    plan: Plan, source: Source | TableSource, sums: CandidateSums, *, tokens: bool
) -> Plan:
    """Return a plan whose last stage computes the sums, if it reads tokens."""
    schema = source.schemas[0]
    extra = {
        role: next((x for x in names if x in schema.names and is_tokens(schema.field(x).type)), "")
        for role, names in EXTRA_TOKENS.items()
    }
    extra = {role: column for role, column in extra.items() if column}
    rewards = {
        f"component:{name}": name
        for name in REWARDS
        if name in schema.names
        and is_number(schema.field(name).type)
        and name != plan.columns.columns.get("reward")
    }
    named = {**plan.columns.columns, **extra, **rewards}
    roles = replace(plan.columns, columns=named)
    reads = {role for role in (*LOG_PROBS, "advantages", "values", *extra) if role in named}
    made = {"advantages", "is_weight"} & {*plan.columns.columns} if plan.stages else set()
    stages = plan.stages
    if plan.length_role is not None and tokens:
        measuring = Stage("metrics", frozenset(reads - made), map=sums, uses=STORED)
        stages = (*(one for one in stages if one.name != "loss"), measuring)
    return replace(
        plan,
        columns=roles,
        stages=stages,
        row_roles=(*plan.row_roles, *rewards),
        no_totals=ExactTotals(),
    )


def _measured(
    plan: Plan,
    responses: Responses,
    sums: CandidateSums,
    losses: Candidates | None,
    lacks: dict[str, str],
) -> Measured:
    count = len(responses)
    matrix = responses[SUMS].numpy() if SUMS in responses else np.zeros((count, 0))
    rewards = {
        plan.columns.column(role): responses[role].numpy()
        for role in plan.row_roles
        if role == "reward" or role.startswith("component:")
    }
    return Measured(
        sums.columns,
        matrix,
        responses["step"].numpy(),
        [str(label) for label in responses.labels["step"]],
        rewards,
        responses["length"].numpy(),
        responses["tokens"].numpy(),
        responses["kept"].numpy(),
        plan.columns,
        losses,
        lacks,
        _apart(plan),
    )


def _apart(plan: Plan) -> bool:
    """Return whether no advantage of a step depends on other steps: those recorded do not."""
    scope = coupling_of(plan.resolved).scope
    by_step = plan.resolved.recipe.numerics.batch != "all"
    return (
        "advantages" in plan.columns
        or scope not in ("batch", "run")
        or (scope == "batch" and by_step)
    )
