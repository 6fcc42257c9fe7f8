"""A recipe against the recorded columns of a whole input of any size, streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.compute import compared, new_columns, rounding_of_mean
from rlpost.analysis.replay.differences import finite
from rlpost.analysis.replay.rollouts import NumberColumn, Rollouts
from rlpost.analysis.replay.stages import emitted_names, ordered, reachable, runs_of
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.pipeline import run
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.recipe.recipe import GROUP_COLUMNS
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
_ROWS = 10
"""Numbers of differing rows that are listed."""


@dataclass
class _StageTotals:
    """The comparison of a stage, added up chunk by chunk."""

    name: str
    compared: int = 0
    differing: int = 0
    responses: int = 0
    responses_differing: int = 0
    largest: float = 0.0
    rows: list[int] = field(default_factory=list)
    """The first responses that differ."""

    def add(self, one: Replayed, part: Rollouts) -> None:
        wrong, chosen = one.difference.wrong, one.difference.chosen
        self.compared += int(chosen.sum())
        self.differing += int(wrong.sum())
        self.responses += len(part)
        self.largest = max(self.largest, float(one.difference.distance[chosen].max(initial=0.0)))
        if wrong.any():
            tokens = part.of_tokens
            rows = np.unique(tokens[wrong]) if len(wrong) == len(tokens) else np.flatnonzero(wrong)
            self.responses_differing += len(rows)
            self.rows += part.rows[rows[: _ROWS - len(self.rows)]].tolist()

    def facts(self) -> Json:
        share = 1.0 - self.differing / self.compared if self.compared else None
        return {
            "stage": self.name,
            "equal": not self.differing,
            "compared": self.compared,
            "differing": self.differing,
            "share_equal": share,
            "responses": self.responses,
            "responses_differing": self.responses_differing,
            "largest": finite(self.largest),
            "first_rows": self.rows,
        }


def replay_whole_input(
    source: Source | TableSource,
    sample: Rollouts,
    recipe: Recipe,
    tolerance: float,
    options: Options,
) -> list[Json]:
    """Compare every recorded column of an input with those that a recipe computes from the start.

    Args:
        source: the whole input.
        sample: some of its rows, with the roles and the recorded columns.
        recipe: as the user sets it.
        tolerance: relative tolerance.
        options: of the run.

    Returns:
        For each stage that the recipe computes: counts of elements and responses, the share that is
        equal, the largest difference, and the first rows that differ.
    """
    roles = {**dict.fromkeys(ROLES, "none"), **sample.columns.columns, **recipe.columns}
    roles = {role: name for role, name in roles.items() if role in ROLES}
    own = recipe.model_copy(update={"columns": roles, "emit_only": False, "replace": True})
    found: dict[str, Json] = {}
    for one, stages in runs_of(own, sample.recorded, of_rlpost=sample.written_by_rlpost):
        found |= _compare(source, sample, one, stages, tolerance, options)
    return [found[name] for name in ordered(own, found)]


def _compare(
    source: Source | TableSource,
    sample: Rollouts,
    own: Recipe,
    recorded: list[str],
    tolerance: float,
    options: Options,
) -> dict[str, Json]:
    """Return the comparison of each stage that one recipe computes."""
    resolved = resolve_recipe(own, columns_of(source, own))
    stages = reachable(recorded, resolved)
    if not stages:
        return {}
    groups = GROUP_COLUMNS if resolved.grouped else ()
    names = (*emitted_names(stages, resolved), *groups)
    plan = run.bind(source, own.model_copy(update={"emit": names}))
    engine = run.engine_for(plan, options)
    totals = {stage: _StageTotals(stage) for stage in stages}
    with single_threaded():
        responses = engine.responses(names)
        engine.reporter.start("compare", source.rows)
        for file in range(len(source.files)):
            computed = new_columns(engine, file, responses, names)
            theirs_of = _recorded(plan, sample, file)
            start = int(source.first_rows[file])
            for theirs, ours in _aligned(theirs_of, computed):
                rows = np.arange(start, start + len(ours))
                part = _part(theirs, sample, rows)
                slack = _slack(ours, part, own.numerics.norm_eps)
                slack = slack if resolved.norm[1] != "none" else np.zeros(len(part))
                for stage, column in zip(stages, names, strict=False):
                    found = NumberColumn.of(ours.column(column))
                    totals[stage].add(compared(part, stage, found, slack, tolerance), part)
                start += len(ours)
    return {stage: one.facts() for stage, one in totals.items()}


def _recorded(plan: Plan, sample: Rollouts, file: int) -> Iterator[pa.RecordBatch]:
    """Yield the recorded columns of a file, with its mask, rewards and critic values."""
    names = [plan.columns.column(role) for role in ("mask", "reward") if role in plan.columns]
    names += [sample.columns.column(role) for role in ("values",) if role in sample.columns]
    names = [*dict.fromkeys([*sample.recorded.values(), *names])]
    for chunk in plan.source.read_file(file, names, CHUNK_TOKENS, plan.sized_by):
        yield chunk.table


def _aligned(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield batches of the same rows of two streams."""
    own = pa.record_batch({})
    for batch in right:
        rest = batch
        while rest.num_rows:
            own = own if own.num_rows else next(left)
            count = min(own.num_rows, rest.num_rows)
            yield own.slice(0, count), rest.slice(0, count)
            own, rest = own.slice(count), rest.slice(count)


def _part(batch: pa.RecordBatch, sample: Rollouts, rows: NDArray[np.int64]) -> Rollouts:
    return Rollouts(
        sample.name,
        pa.Table.from_batches([batch]),
        sample.columns,
        sample.recorded,
        rows,
        sample.total,
    )


def _slack(batch: pa.RecordBatch, part: Rollouts, epsilon: float) -> NDArray[np.float64]:
    """Return the slack of groups of equal rewards, as `equal_reward_slack`, [n]."""
    slack = np.zeros(len(part))
    if "group_std" in batch.schema.names:
        equal = np.asarray(batch.column("group_std")) == 0
        equal &= np.asarray(batch.column("group_size")) > 1
        slack[equal] = rounding_of_mean(part.reward, epsilon)[equal]
    return slack
