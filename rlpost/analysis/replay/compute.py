"""Stages that a recipe computes of some rollouts, against the recorded ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.difference import Difference, recomputed, without_totals
from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.analysis.replay.stages import (
    STAGE_COLUMNS,
    STAGES,
    emitted_names,
    inputs_of,
    ordered,
    reachable,
    recipe_as_recorded,
    runs_of,
)
from rlpost.io.parquet.source import TableSource
from rlpost.kernels.codes import keyed_extremes
from rlpost.kernels.segments import segment_max
from rlpost.pipeline import run
from rlpost.pipeline.columns import LENGTH, columns_of
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.effects import fields_behind
from rlpost.pipeline.needs import coupling_of
from rlpost.pipeline.options import Options
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rlpost.analysis.difference import DifferenceTotals
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]


TOLERANCE = 1e-4
"""Relative difference that float32 arithmetic in another order can make."""
_ABSOLUTE = 1e-2
"""The absolute tolerance is this share of the relative one, of numbers near 1."""


@dataclass(frozen=True)
class Replayed:
    """A recorded stage and what a recipe computes for it."""

    name: str
    column: str
    """The recorded column."""
    difference: Difference
    outside: int = 0
    """Observation tokens, or those of dropped responses, that differ."""
    rounding: int = 0
    """Elements of groups of equal rewards that differ within float32 rounding divided by ε."""

    def by_token(self, rollouts: Rollouts) -> bool:
        """Return whether the elements are tokens of the rollouts."""
        count = 0 if rollouts.columns.rows_only else int(rollouts.offsets[-1])
        return STAGES[self.name].level == "tokens" and len(self.difference.recorded) == count

    def totals(self, rollouts: Rollouts) -> DifferenceTotals:
        """Return what differs in the rollouts that it was computed of."""
        rows = rollouts.of_tokens if self.by_token(rollouts) else None
        return self.difference.totals(rollouts.rows, rows)

    def differing(self, rollouts: Rollouts) -> Mask:
        """Return the responses in which an element differs, [N]."""
        wrong = np.flatnonzero(self.difference.wrong)
        flags = np.zeros(len(rollouts), np.bool_)
        flags[rollouts.of_tokens[wrong] if self.by_token(rollouts) else wrong] = True
        return flags


def _differing(stage: Replayed) -> tuple[int, float]:
    """Return how many numbers of a stage differ, and by how much in the mean."""
    distance = stage.difference.distance[stage.difference.chosen]
    mean = float(np.nan_to_num(distance, nan=np.inf).mean()) if len(distance) else 0.0
    return int(stage.difference.wrong.sum()), mean


class Replayer:
    """Computes the recorded stages of some rollouts by recipes, and compares.

    Args:
        rollouts: the input.
        tolerance: relative tolerance.
    """

    def __init__(self, rollouts: Rollouts, tolerance: float = TOLERANCE) -> None:
        self.rollouts = rollouts
        self.tolerance = tolerance
        used = {rollouts.columns.column(role) for role in rollouts.columns.columns}
        results = {*STAGE_COLUMNS, *rollouts.recorded.values()} - used
        kept = [name for name in rollouts.table.schema.names if name not in results]
        self.inputs: pa.Table = rollouts.table.select(kept)
        self.around: pa.Table | None = None
        """Whole steps that the rows are of; None: they are all there is."""
        if rollouts.around is not None:
            self.around = rollouts.around.table.select(kept)

    def bound(self, recipe: Recipe) -> Recipe:
        """Return a recipe that reads the roles of the rollouts, but for those it names itself.

        Lengths are found by name if tokens do not set them.
        """
        read = self.rollouts.columns
        named = dict(read.columns)
        if read.how.get(LENGTH) != "map":
            named.pop(LENGTH, None)
        if not read.is_mapped("rollout"):  # found by its name again, so that rows count
            named.pop("rollout", None)
        columns = {**named, **recipe.columns}
        roles = {role: column for role, column in columns.items() if role in ROLES}
        return recipe.model_copy(update={"columns": roles})

    def resolved(self, recipe: Recipe, names: Collection[str] = ()) -> ResolvedRecipe:
        """Return a recipe resolved for the rollouts; raises as `from_start`.

        Args:
            recipe: as the user sets it.
            names: the stages that are computed; none: those that a run writes.
        """
        bound = self.bound(recipe)
        resolved = self._resolved(bound)
        emit = emitted_names(reachable(names, resolved), resolved)
        if not emit:
            return resolved
        return self._resolved(bound.model_copy(update={"emit": emit}))

    def _resolved(self, bound: Recipe) -> ResolvedRecipe:
        return resolve_recipe(bound, columns_of(self._source(self.inputs), bound))

    def _source(self, table: pa.Table) -> TableSource:
        return TableSource(table, self.rollouts.name)

    def _computed(
        self, bound: Recipe, names: Collection[str]
    ) -> tuple[dict[str, NumberColumn], ResolvedRecipe]:
        """Return the columns of some stages that a recipe computes, and the resolved recipe.

        Stages that it does not compute are left out.
        """
        inputs, resolved = self.inputs, self._resolved(bound)
        names = reachable(names, resolved)
        if not names:
            return {}, resolved
        emit = emitted_names(names, resolved)
        emitting = bound.model_copy(update={"emit": emit, "emit_only": False, "replace": True})
        rows = None
        if self.around is not None and coupling_of(resolved).scope not in ("response", "group"):
            inputs, steps = self.around, self.rollouts.steps
            rows = np.searchsorted(steps.rows, self.rollouts.rows)
        plan = without_totals(run.bind(self._source(inputs), emitting, compares=False))
        engine = run.engine_for(plan, Options(device="cpu", workers=1))
        with single_threaded():
            batches = [*recomputed(engine, 0, engine.responses(emit), emit)]
        columns = pa.Table.from_batches(batches)
        columns = columns if rows is None else columns.take(pa.array(rows))
        results = zip(names, map(columns.column, emit), strict=True)
        return {name: NumberColumn.of(column) for name, column in results}, plan.resolved

    def fields_behind(self, recipe: Recipe, name: str) -> frozenset[str]:
        """Return the fields that can change a stage, if the recorded ones before it are equal."""
        bound = self.bound(recipe)
        used = inputs_of(name, self.resolved(bound), self.rollouts.recorded)
        bound = recipe_as_recorded(bound, name)
        bound = bound.model_copy(update={"emit": emitted_names([name], self.resolved(bound))})
        return fields_behind(self._resolved(bound), name, used)

    def from_start(self, recipe: Recipe, names: Collection[str]) -> list[Replayed]:
        """Return recorded stages against those that a recipe computes from the input alone.

        Raises:
            UsageError, DataError: the recipe does not fit the input.
        """
        return self.tried(recipe, names)[0]

    def tried(
        self, recipe: Recipe, names: Collection[str]
    ) -> tuple[list[Replayed], ResolvedRecipe]:
        """Return the same as `from_start`, and the recipe resolved for the rollouts.

        Of a stage that frameworks record elsewhere than rlpost, the nearer one is returned.
        """
        whole, resolved = self.bound(recipe), None
        out: dict[str, Replayed] = {}
        recorded = [name for name in STAGES if name in names and name in self.rollouts.recorded]
        for variant, stages in runs_of(whole, recorded):
            missing = [name for name in stages if name not in out or not out[name].difference.equal]
            if not missing:
                continue
            columns, last = self._computed(variant, missing)
            resolved = last if variant is whole else resolved
            for name, column in columns.items():
                stage = self._compared(name, column, last)
                out[name] = min(out.get(name, stage), stage, key=_differing)
        return [out[name] for name in ordered(recipe, out)], resolved or self.resolved(whole)

    def reading(self, inputs: pa.Table) -> Replayer:
        """Return a replayer of other inputs, against the same recorded columns."""
        other = Replayer(self.rollouts, self.tolerance)
        other.inputs, other.around = inputs, None
        return other

    def _compared(self, name: str, column: NumberColumn, resolved: ResolvedRecipe) -> Replayed:
        slack = equal_reward_slack(self.rollouts, resolved)
        return compared(self.rollouts, name, column, slack, self.tolerance)


def compared(
    rollouts: Rollouts,
    name: str,
    column: NumberColumn,
    slack: Numbers,
    tolerance: float,
) -> Replayed:
    """Compare a computed stage with the recorded one.

    Args:
        rollouts: have the recorded column.
        name: the stage.
        column: what a recipe computed.
        slack: [N] from `equal_reward_slack`.
        tolerance: relative tolerance.
    """
    slack = np.zeros(len(slack)) if name in _WITHOUT_REWARDS else slack
    by_token = column.offsets is not None
    key = "expected", name, rollouts.recorded[name], tolerance, by_token
    expected, others = rollouts.once(
        key, partial(_expected, rollouts, name, tolerance, by_token=by_token)
    )
    difference, rounding = replace(expected, computed=column.values), 0
    if slack.any():
        more = np.repeat(slack, rollouts.lengths) if by_token else slack
        wider = replace(difference, slack=difference.slack + more)
        rounding = int((difference.wrong & ~wider.wrong).sum())
        difference = wider
    outside = int(replace(difference, chosen=others).wrong.sum()) if others.any() else 0
    return Replayed(name, rollouts.recorded[name], difference, outside, rounding)


def _expected(
    rollouts: Rollouts, name: str, tolerance: float, *, by_token: bool
) -> tuple[Difference, Mask]:
    """Return the recorded numbers of a stage, and the finite ones that do not count.

    They are without computed numbers. The absolute tolerance is one percent of the relative one, of
    the inputs' magnitude, whose float32 rounding is an absolute error.
    """
    column, size = rollouts.column(name), 1.0 + np.abs(np.nan_to_num(rollouts.reward))
    if by_token:
        recorded = column.on_tokens(rollouts.offsets)
        chosen = rollouts.mask if name != "final_response_mask" else np.ones_like(rollouts.mask)
        chosen = chosen & rollouts.kept if name in _BEFORE_DROPS else chosen
        size = size + _largest_values(rollouts)
        size *= np.sqrt(rollouts.lengths) if name in _SUMS_OF_TOKENS else 1.0
        size = np.repeat(size, rollouts.lengths)
    else:
        recorded, chosen = _per_response(column, rollouts), np.ones(len(rollouts), np.bool_)
    near, valid = tolerance * _ABSOLUTE * size, np.isfinite(recorded)
    return Difference(recorded, recorded, chosen & valid, near, tolerance), ~chosen & valid


def _largest_values(rollouts: Rollouts) -> Numbers:
    """Return the largest critic value of each response, [N]: scans add and subtract them."""
    columns = rollouts.columns
    if "values" not in columns or columns.rows_only:
        return np.zeros(len(rollouts))
    column = NumberColumn.of(rollouts.table.column(columns.column("values")))
    size = np.abs(np.nan_to_num(column.values))
    largest: Numbers = segment_max(size, rollouts.offsets).clip(0)
    return largest


_SUMS_OF_TOKENS = ("raw_advantages", "returns", "advantages")
"""Stages whose roundings grow with the root of a response's length."""
# Frameworks set these to 0 for dropped responses, or not, or before they accumulate returns.
_BEFORE_DROPS = ("kl", "token_level_rewards", "raw_advantages", "returns")
_WITHOUT_REWARDS = ("sample_mask", "kl", "final_response_mask", "sample_weight", "is_weight")
"""Stages without rewards, and so without a rounding of their mean."""


def _per_response(column: NumberColumn, rollouts: Rollouts) -> Numbers:
    """Return one number for each response: that of its first policy token, if these are tokens."""
    if column.offsets is None:
        return column.values
    tokens, out = np.flatnonzero(rollouts.mask), np.full(len(rollouts), np.nan)
    rows, first = np.unique(rollouts.of_tokens[tokens], return_index=True)
    out[rows] = column.values[tokens[first]]
    return out


_FLOAT32 = 2e-7
"""Relative error of a mean of equal float32 numbers."""
_LARGEST_SLACK = 1.2


def equal_reward_slack(rollouts: Rollouts, resolved: ResolvedRecipe) -> Numbers:
    """Return how far a normalised reward in a group of equal rewards may be from 0, [N].

    The mean of equal float32 numbers misses them by a rounding; a framework divides that by ε.
    """
    slack = np.zeros(len(rollouts))
    if resolved.norm[1] == "none" or not resolved.grouped:
        return slack
    groups, reward = rollouts.groups, rollouts.reward
    sizes = np.bincount(groups)
    low, high = keyed_extremes(reward, groups, len(sizes))
    equal = (low == high)[groups] & (sizes > 1)[groups]
    slack[equal] = rounding_of_mean(reward, resolved.recipe.numerics.norm_eps)[equal]
    return slack


def rounding_of_mean(reward: Numbers, epsilon: float) -> Numbers:
    """Return the rounding of a mean of equal rewards, divided by ε, [N]; at most 1.2."""
    return np.minimum(_LARGEST_SLACK, _FLOAT32 * np.abs(reward) / max(epsilon, 1e-12))
