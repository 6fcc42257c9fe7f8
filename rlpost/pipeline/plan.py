"""The plan: a recipe bound to an input, as passes over it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlpost.estimators import ESTIMATORS
from rlpost.io.finish_reasons import is_readable
from rlpost.pipeline.columns import IDS, LENGTH, ROW_ROLES, absent, check_log_probs, lacks_of
from rlpost.pipeline.data import TRUNCATED
from rlpost.pipeline.measures import COUNTED, count_advantages, observed
from rlpost.pipeline.needs import needed_roles, reasons
from rlpost.pipeline.rollout_order import PLACE
from rlpost.pipeline.running_state import RunState
from rlpost.pipeline.stages import Stage, stages_of, token_roles
from rlpost.pipeline.totals import Counted, ExactTotals
from rlpost.pipeline.turns import TURN, TURN_ROLES
from rlpost.recipe.recipe import ROW_COLUMNS
from rlpost.recipe.roles import RECORDED, ROLES, is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.roles import ColumnMap


@dataclass(frozen=True)
class Pass:
    """One pass over the input: the columns that it reads, and the stages that it runs."""

    purpose: str
    columns: tuple[str, ...]
    mapped: tuple[Stage, ...]
    """Of a pass between the first and the last, the one that it is for."""
    applied: tuple[Stage, ...]
    reduced: tuple[Stage, ...] = ()
    """Those that reduce its results before the next pass."""
    observed: bool = False
    """It computes what measures need of columns that the passes after it do not read."""

    @property
    def roles(self) -> frozenset[str]:
        """The token roles that its stages read, besides the mask."""
        return frozenset(role for stage in (*self.applied, *self.mapped) for role in stage.reads)


@dataclass(frozen=True)
class Plan:
    """A recipe bound to an input: the columns that it reads, and its stages."""

    source: Source | TableSource
    columns: ColumnMap
    resolved: ResolvedRecipe
    stages: tuple[Stage, ...]
    length_role: str | None
    """The role whose lists set the length of each response: the mask, if the input has one; None
    if the input has no tokens."""
    row_roles: tuple[str, ...]
    count: Callable[[Batch], Counted]
    """Counts what a batch to which all stages were applied adds to the totals."""
    observe: Callable[[Batch], dict[str, Array]] = lambda _: {}
    """Returns the numbers of responses that `count` needs of columns of the file."""
    whole_files: bool = False
    """The last pass computes each file at once."""
    no_totals: Any = ExactTotals()  # noqa: RUF009 - it is immutable
    """The totals of no responses."""
    state: RunState = field(default_factory=RunState)
    """Before the first batch."""

    @property
    def roles(self) -> list[str]:
        """All roles that are read; those with one value a response first."""
        tokens = sorted(roles_of(self.stages) | self._length_roles)
        rows = (role for role in self.row_roles if role not in TURN_ROLES)
        return [*rows, *(role for role in tokens if role in self.columns)]

    @property
    def _length_roles(self) -> set[str]:
        """The role that sets lengths, if there is one."""
        return set() if self.length_role is None else {self.length_role}

    @property
    def sized_by(self) -> str:
        """The column whose elements set the size of chunks; empty if rows do."""
        return "" if self.length_role is None else self.columns.column(self.length_role)

    @property
    def token_bytes(self) -> int:
        """The bytes of the columns that passes over tokens read, as the input stores them."""
        columns = {name for step in self.passes()[1:] for name in step.columns}
        return self.source.bytes_of(sorted(columns))

    def passes(self, names: Sequence[str] | None = None) -> list[Pass]:
        """Return the passes over the input, in order.

        The first one reads the responses. One follows for each stage that maps tokens which earlier
        stages change. The last one writes.

        Args:
            names: the columns that the last one writes; None: any.
        """
        first = tuple(stage for stage in self.stages if stage.map and stage.in_first_pass)
        later = [n for n, stage in enumerate(self.stages) if stage.map and not stage.in_first_pass]
        parts = (self.stages[a:b] for a, b in pairwise([0, *later, len(self.stages)]))
        reduced = [tuple(stage for stage in part if stage.reduce) for part in parts]
        read = tuple(sorted({*map(self.columns.column, self.row_roles), *self._columns(first)}))
        passes = [Pass("read responses", read, first, (), reduced[0])]
        begin = 0
        for number, index in enumerate(later, 1):
            stage, observed = self.stages[index], False
            before, purpose = self._applied(begin, index), f"statistics for {stage.name}"
            if names is not None and stage.observed and not self._used_later(index, names):
                begin, observed = index, True
            columns = self._columns(before, stage)
            passes.append(Pass(purpose, columns, (stage,), before, reduced[number], observed))
        every = self._applied(begin, len(self.stages))
        write = Pass("write", self._columns(every), (), every)
        if names is not None and not self.needs_tokens(write, names):
            write = replace(write, columns=())
        return [*passes, write]

    def needs_tokens(self, last: Pass, names: Sequence[str]) -> bool:
        """Return whether the last pass needs the tokens, or nothing but the table of responses.

        Args:
            last: that pass.
            names: the columns that it writes.
        """
        on_tokens = not self.resolved.constant or not ROW_COLUMNS.issuperset(names)
        any_end = self.resolved.recipe.numerics.terminal_reward != "last_policy_token"
        needs = bool(last.applied) or on_tokens or any_end
        return needs and not self.resolved.rows_only

    def _applied(self, begin: int, end: int) -> tuple[Stage, ...]:
        """Return the stages that a pass applies: from one stage to before another."""
        return tuple(stage for stage in self.stages[begin:end] if stage.apply)

    def _used_later(self, index: int, names: Sequence[str]) -> frozenset[str]:
        """Return the token columns made before a stage that it, later ones or measures use."""
        made = {name for stage in self.stages[:index] if stage.apply for name in stage.makes}
        used = {name for stage in self.stages[index + 1 :] for name in stage.uses}
        return frozenset(made & (used | {*names} | COUNTED))

    def _columns(self, stages: Sequence[Stage], *more: Stage) -> tuple[str, ...]:
        return tuple(
            sorted(
                {
                    self.columns.column(role)
                    for role in roles_of((*stages, *more)) | self._length_roles
                }
            )
        )


def roles_of(stages: Sequence[Stage]) -> set[str]:
    """Return the token roles that these stages read."""
    return {role for stage in stages for role in stage.reads}


def plan_of(
    source: Source | TableSource, columns: ColumnMap, resolved: ResolvedRecipe, state: RunState
) -> Plan:
    """Bind a recipe to an input.

    Raises:
        DataError: roles that the recipe needs have no columns (with the nearest names).
    """
    needed, stages = needed_roles(resolved), stages_of(resolved, state)
    of_tokens = token_roles(stages)
    needs = {role: why for role, why in needed.items() if role not in columns}
    length_role = next(
        (
            role
            for role in ("mask", *sorted(of_tokens), *_TOKEN_ROLES, IDS)
            if role in columns and kind_of(role) in ("tokens", "ids")
        ),
        None,
    )
    if columns.rows_only:
        length_role, needs = None, needs | _needs_without_tokens(resolved, needs)
    elif length_role is None and needs.keys().isdisjoint(_TOKEN_ROLES):
        needs["mask"] = "no list column sets the number of tokens"
    if needs:
        raise absent(source, columns, needs, lacks_of(source))
    check_log_probs(source, columns, of_tokens)
    of_rows = (role for role in needed if role not in {*_TOKEN_ROLES} | of_tokens)
    rows = dict.fromkeys((*ROW_ROLES, *of_rows, *_optional_rows(resolved)))
    present = tuple(
        role
        for role in rows
        if role in columns and (role in needed or _is_read(source, columns, role, resolved))
    )
    return Plan(
        source,
        columns,
        resolved,
        tuple(stages),
        length_role,
        present,
        partial(count_advantages, resolved=resolved),
        partial(observed, resolved=resolved),
        state=state,
    )


def _is_read(
    source: Source | TableSource, columns: ColumnMap, role: str, resolved: ResolvedRecipe
) -> bool:
    """Return whether a role is read: finish reasons of any type, if they are for a warning."""
    if role == "turn" and resolved.unit == "rollout" and not columns.is_mapped(role):
        return TURN in columns or resolved.recipe.rollout_reward == "last" or resolved.chains_turns
    if role != TRUNCATED or columns.how[role] == "map":
        return True
    name = columns.column(role)
    schemas = (schema for schema in source.schemas if name in schema.names)
    return all(is_readable(schema.field(name).type) for schema in schemas)


def _needs_without_tokens(resolved: ResolvedRecipe, needs: Mapping[str, str]) -> dict[str, str]:
    """Return the roles that a recipe needs, besides others, of an input without tokens."""
    if (why := reasons(resolved, "tokens")) and needs.keys().isdisjoint(_TOKEN_ROLES):
        return {"mask": f"{' and '.join(why)}, and the input has no tokens"}
    if resolved.lengths == "unknown" and (why := reasons(resolved, "lengths")):
        return {LENGTH: f"{' and '.join(why)}, and the input has no tokens"}
    return {}


_TOKEN_ROLES = tuple(role.name for role in ROLES.values() if role.kind == "tokens")


def _optional_rows(resolved: ResolvedRecipe) -> list[str]:
    recipe, estimator = resolved.recipe, resolved.estimator
    return [
        *([LENGTH] if resolved.lengths == "column" else []),
        *([TRUNCATED] if warns_of_ends(resolved) else []),
        *(["turn"] if recipe.group_length_penalty is not None else []),
        *(["rollout", *PLACE] if resolved.orders_rows else []),
        *(["rollout"] if resolved.attempts else []),
        *(TURN_ROLES if counts_rows(resolved) or scans_row_units(resolved) else []),
        *(["turn_reward"] if resolved.joins else []),
        *[f"component:{name}" for name in recipe.reward_components or ()],
        *([RECORDED] if resolved.rows_only else []),
        *(role for role in estimator.needs if kind_of(role) != "tokens" and _is_column(role)),
    ]


def _is_column(role: str) -> bool:
    """Return whether a role that an estimator reads is a column of the input."""
    return role in ROLES or is_read_by_name(role)


def warns_of_ends(resolved: ResolvedRecipe) -> bool:
    """Return whether the advantage of a truncated response lacks the value behind its end."""
    critic = "values" in resolved.estimator.columns and resolved.recipe.estimator in ESTIMATORS
    return critic and resolved.recipe.bootstrap is None


def counts_rows(resolved: ResolvedRecipe) -> bool:
    """Return whether a recipe compares the rows of groups without regard to rollouts."""
    return bool(reasons(resolved, "group")) and not resolved.has_rollouts


def scans_row_units(resolved: ResolvedRecipe) -> bool:
    """Return whether a scan ends with each row, and it is not known which rows are of a rollout."""
    return resolved.scans_rows and not resolved.has_rollouts
