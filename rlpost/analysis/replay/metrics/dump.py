"""The responses of a dump with the sums from which metrics are aggregated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.sums import SUMS, TokenSums
from rlpost.errors import DataError
from rlpost.io.arrow import is_number, is_tokens
from rlpost.losses.config import LossConfig
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.coupling import coupling_of
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.loss_plan import bind_losses
from rlpost.pipeline.options import Options
from rlpost.pipeline.plan import Plan
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.run import engine_for
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.loss import STORED
from rlpost.pipeline.totals import ExactTotals
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.sums import SumColumn
    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.pipeline.data import Responses
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

EXTRA_TOKENS = {"entropy": ROLES["entropy"].aliases, "returns": ("returns",)}
"""Columns of tokens that have no role, and that a metric may be the mean of."""
REWARDS = ("response_level_rewards", "raw_reward", "score", "scores", "total_reward", "rewards")
"""Columns of a number per response that a trainer may call rewards."""
_ROWS = ("reward", "batch", "domain", "sample_mask", "sample_weight")


@dataclass(frozen=True)
class MeasuredResponses:
    """The responses of the input, [N], with the numbers of their tokens."""

    columns: list[SumColumn]
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
    independent: bool
    """The numbers of a step do not depend on other steps."""

    def rows_of(self, step: str) -> Indices:
        """Return the rows of a step, in the order of the input."""
        return self._rows[step]

    @cached_property
    def _rows(self) -> dict[str, Indices]:
        order = np.argsort(self.step, kind="stable")
        ends = np.bincount(self.step, minlength=len(self.steps)).cumsum()
        return dict(zip(self.steps, np.split(order, ends[:-1]), strict=True))


@dataclass(frozen=True)
class DumpInput:
    """The input, and what computes its advantages."""

    source: Source | TableSource
    recipe: Recipe
    """Names columns, and computes the advantages if the input has none."""
    options: Options | None = None
    """How the run is done."""

    @cached_property
    def columns(self) -> ColumnMap:
        """The column of each role."""
        return columns_of(self.source, self.recipe, results=True)

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles that have a column or are computed, and the further columns of tokens."""
        roles = {*self.columns.columns, *self._extra}
        rewarded = "reward" in roles or self.recipe.reward_components
        if rewarded and "log_probs" in roles and {"old_log_probs", "infer_log_probs"} & roles:
            roles.add("advantages")
        return frozenset(roles)

    @cached_property
    def _extra(self) -> dict[str, str]:
        """The columns of tokens without a role, by quantity."""
        schema, columns = self.source.schemas[0], dict[str, str]()
        for name, aliases in EXTRA_TOKENS.items():
            lists = [x for x in aliases if x in schema.names and is_tokens(schema.field(x).type)]
            columns |= {name: lists[0]} if lists else {}
        return columns

    @cached_property
    def _rewards(self) -> dict[str, str]:
        """The columns that a trainer may call rewards, by role."""
        schema, reward = self.source.schemas[0], self.columns.columns.get("reward")
        return {
            f"component:{name}": name
            for name in REWARDS
            if name in schema.names and is_number(schema.field(name).type) and name != reward
        }

    def missing(self, loss: LossOptions) -> list[str]:
        """Return the roles that a policy loss needs and that the input lacks."""
        needs = ["log_probs", f"{loss.behaviour}_log_probs", "advantages"]
        needs += [one for one in LossConfig(loss).loss.needs if one != "old_log_probs"]
        return [role for role in dict.fromkeys(needs) if role not in self.roles]

    def measure(self, columns: Collection[SumColumn], options: LossOptions) -> MeasuredResponses:
        """Return the responses with some sums; without any, no token is read.

        Args:
            columns: the sums.
            options: the `kl_loss_...` fields.
        """
        losses = [one.loss.options for one in columns if one.loss is not None]
        reads = {role for one in columns for role in one.roles(options)}
        sums = TokenSums(columns, options, rewarded="reward" in self.columns)
        stage = Stage("metrics", map=sums, uses=STORED) if columns else None
        plan, responses = self.run(stage, reads, losses)
        return MeasuredResponses(
            sums.columns if columns else [],
            responses[SUMS] if columns else np.zeros((len(responses), 0)),
            responses["step"],
            [str(label) for label in responses.labels["step"]],
            {
                plan.columns.column(role): responses[role]
                for role in plan.row_roles
                if role == "reward" or role.startswith("component:")
            },
            responses["length"],
            responses["tokens"],
            responses["kept"],
            _independent(plan),
        )

    def run(
        self, stage: Stage | None, reads: Collection[str], losses: Sequence[LossOptions]
    ) -> tuple[Plan, Responses]:
        """Compute what a stage returns, in as many passes as the recipe needs.

        Args:
            stage: maps tokens; None: no token is read.
            reads: the roles and columns of tokens that it reads.
            losses: those that it computes.
        """
        plan = self._plan(losses) if stage is not None else self._plan_of_columns()
        columns = {**plan.columns.columns, **self._extra, **self._rewards}
        stages: tuple[Stage, ...] = ()
        if stage is not None:
            own = {*reads} & {*columns} - (STORED if plan.stages else set())
            before = (one for one in plan.stages if one.name != "loss")
            stages = (*before, replace(stage, reads=frozenset(own)))
        plan = replace(
            plan,
            columns=replace(plan.columns, columns=columns),
            stages=stages,
            row_roles=(*plan.row_roles, *self._rewards),
            no_totals=ExactTotals(),
        )
        engine = engine_for(plan, self.options or Options(device="cpu"))
        with single_threaded():
            responses = engine.responses(())
        return plan, responses

    def _plan(self, losses: Sequence[LossOptions]) -> Plan:
        """Return the plan of losses, with advantages; of columns alone if a role is missing."""
        losses = losses or [
            LossOptions(behaviour="old" if "old_log_probs" in self.columns else "infer")
        ]
        if self.missing(losses[0]):
            return self._plan_of_columns()
        configs = [LossConfig(one.model_copy(update={"kl_loss_coef": 0.0})) for one in losses]
        return bind_losses(self.source, self.recipe, configs, write=False)

    def _plan_of_columns(self) -> Plan:
        """Return a plan that computes nothing."""
        columns = self.columns
        tokens = [role for role in ROLES if ROLES[role].kind == "tokens" and role in columns]
        lists = [role for role in ("mask", *tokens) if role in columns]
        if not lists and not columns.rows_only:
            raise DataError(
                f"{self.source.name}: no column of tokens, and no reward; --metrics compares what "
                "a trainer logged with rewards, advantages and log-probs of a dump"
            )
        rows = tuple(role for role in _ROWS if role in columns)
        resolved = resolve_recipe(self.recipe, columns)
        length = None if columns.rows_only else lists[0]
        return Plan(self.source, columns, resolved, (), length, rows, _count_nothing)


def _count_nothing(_: Any) -> Any:
    """Fail: the last pass, which counts, does not run."""
    raise NotImplementedError


def _independent(plan: Plan) -> bool:
    """Return whether no advantage of a step depends on other steps: recorded ones do not."""
    scope = coupling_of(plan.resolved).scope
    by_step = plan.resolved.recipe.numerics.batch != "all"
    return (
        "advantages" in plan.columns
        or scope not in ("batch", "run")
        or (scope == "batch" and by_step)
    )
