"""Units: what statistics of responses count, rows or rollouts of several rows.

If rollouts count, the table of responses has three columns more: `unit`, the code of each row's
rollout, `last`, true for one row of each rollout, and `turn`. The others of a rollout's numbers are
computed here once, so that every statistic sees one row for each rollout.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.errors import DataError
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.moments import exact_means, exact_sums
from rlpost.pipeline.data import NO_REWARD
from rlpost.pipeline.rollout_order import order_of, repeated_turns
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import RolloutReward
    from rlpost.recipe.roles import ColumnMap


_SUMMED = ("tokens", "length")


class UnitTable(NamedTuple):
    """One row for each unit, and where the rows of the input are in it."""

    table: Responses
    unit: Integers
    """[N] the number of each row's unit in the table."""
    lost: Mask
    """[N] true for rows that are left out, though others of their rollout are not."""

    def spread(self, column: Column) -> Column:
        """Return a column of units as one of rows; 0 for rows that are left out."""
        values = column[self.unit]
        values[self.lost] = 0
        return values


def unit_table(responses: Responses) -> UnitTable:
    """Return one row for each unit: the same rows if rows count.

    A rollout has the total of its rows' tokens and lengths, the mean of KL over its tokens, the
    mean of other numbers that differ between its rows, and what else its last turn has. Rows that
    are left out do not count. Of a rollout whose last turn is not among these rows, those of one
    file for instance, the last row stands for it.
    """
    if "unit" not in responses:
        every = np.arange(len(responses))
        return UnitTable(responses, every, np.zeros(len(responses), np.bool_))
    unit, valid = joint_codes(responses["unit"]), responses["valid"]
    rows = np.empty(int(unit.max(initial=-1)) + 1, np.int64)
    for chosen in (np.arange(len(unit)), np.flatnonzero(valid), np.flatnonzero(responses["last"])):
        rows[unit[chosen]] = chosen
    lost = ~valid & valid[rows][unit]
    counts = np.bincount(unit[~lost], minlength=len(rows))

    def combined(name: str, values: Column) -> Column:
        own = values[rows]
        if name in _SUMMED:
            return np.bincount(unit, np.where(lost, 0, values), len(rows)).astype(values.dtype)
        if name == "kept":
            return np.bincount(unit, values, len(rows)) > 0
        if name == "turn" or values.dtype.kind != "f" or values.ndim > 1:
            return own
        weights = (
            responses["tokens"].astype(np.float64) if name == "kl_mean" else np.ones(len(unit))
        )
        used = ~lost & np.isfinite(values) & (counts[unit] > 1)
        if not (used & (values != own[unit])).any():
            return own
        total = exact_sums(np.where(used, values * weights, 0.0), unit, len(rows))
        size = exact_sums(np.where(used, weights, 0.0), unit, len(rows))
        return np.where((counts > 1) & (size > 0), total / np.where(size > 0, size, 1.0), own)

    columns = {
        name: combined(name, values)
        for name, values in responses.columns.items()
        if name not in ("unit", "last")
    }
    return UnitTable(replace(responses, columns=columns), unit, lost)


def per_unit(reduce: Callable[[Responses], Responses]) -> Callable[[Responses], Responses]:
    """Return a reduce of one row for each unit; each row gets the columns of its unit."""
    return partial(_reduced, reduce)


def _reduced(reduce: Callable[[Responses], Responses], responses: Responses) -> Responses:
    if "unit" not in responses:
        return reduce(responses)
    units = unit_table(responses)
    out = reduce(units.table)
    changed = {
        name: units.spread(column)
        for name, column in out.columns.items()
        if column is not units.table.columns.get(name)
    }
    return replace(out, columns={**responses.columns, **changed})


def combine(responses: Responses, values: Floats, rule: RolloutReward, counts: Mask) -> Floats:
    """Return the value of each row's rollout, [N]: the last, the sum or the mean; 0 without any.

    Args:
        responses: with units.
        values: [N].
        rule: how a rollout's value follows from those of its rows; `equal` is their mean.
        counts: [N] the rows that count.
    """
    unit = responses["unit"]
    if rule == "last":
        return values[unit_rows(responses)][unit]
    taken, keys = values[counts], unit[counts]
    numbers = np.bincount(keys, minlength=int(unit.max(initial=-1)) + 1)
    if rule == "sum":
        return exact_sums(taken, keys, len(numbers))[unit]
    return exact_means(taken, keys, numbers.astype(np.float64))[unit]


def unit_rows(responses: Responses) -> Integers:
    """Return the row of each unit that is its last turn, [codes]; 0 for codes without rows."""
    last, unit = np.flatnonzero(responses["last"]), responses["unit"]
    rows = np.zeros(int(unit.max(initial=-1)) + 1, np.int64)
    rows[unit[last]] = last
    return rows


class RowsDiffer(NamedTuple):
    """Rows of one rollout with other rewards or steps, or one turn; or a turn without a reward."""

    rows: list[int]
    values: list[Any]
    column: str
    """The column of Responses."""

    def error(self, names: Sequence[str], columns: ColumnMap) -> DataError:
        """Return the error.

        Args:
            names: of the rows: file and row number.
            columns: of the input, with that of rollout ids.
        """
        rollout, kind = columns.column("rollout"), self.column
        if kind == NO_REWARD:
            parts = [f"`{columns.column(role)}`" for role in columns.columns if is_component(role)]
            null = f"all of {', '.join(parts)} are" if parts else f"`{columns.column('reward')}` is"
            return DataError(
                f"{names[0]}: {null} null in the last turn of a rollout by `{rollout}`; a finite "
                "number is needed there",
                tip="--nonfinite mask  # leaves such rollouts out",
            )
        of = {"step": "batch", "turn": "turn"}
        known = {"reward": "a reward of", "process": "process rewards that sum to"}
        known |= {kind: f"`{columns.column(of[kind])}`"} if kind in of else {}
        what = known.get(kind, f"`{kind.removeprefix('component:')}` of")
        first, second = (
            f"{name}, has {what} {value}" for name, value in zip(names, self.values, strict=True)
        )
        if kind == "turn":
            tip = "drop the copies"
            if "branch" not in columns:
                tip = f"--map branch=COLUMN  # separates the branches of a turn; else {tip}"
            return DataError(
                f"{first}, and {second}; both rows are one turn of a rollout by `{rollout}` and "
                f"{what}, and a turn is one row",
                tip=tip,
            )
        text = f"{first}, but {second}; both rows are one rollout by `{rollout}`, and"
        if kind == "step":
            return DataError(
                f"{text} its rows need one training batch: if {what} counts the turns of a "
                "rollout, --map batch=none joins all rows to one batch, and --map batch=COLUMN "
                f"names the training step; otherwise write other `{rollout}` in each batch"
            )
        return DataError(
            f"{text} one reward is needed: choose --rollout-reward last, sum or mean, or count "
            "rows with --unit row"
        )


def check_rows(responses: Responses, *, resolved: ResolvedRecipe) -> Responses:
    """Note in `rows_differ` rows of one rollout that are of several steps.

    If the rows of a rollout are chained, also those of one turn, branch and agent.
    """
    responses = _checked_steps(responses)
    noted = "rows_differ" in responses.notes
    if noted or "turn" not in responses or not resolved.chains_turns:
        return responses
    pairs = repeated_turns(responses, grouped=resolved.grouped)
    if not pairs.size:
        return responses
    first, second = pairs[:, 0].tolist()
    values = [f"{turn:g}" for turn in responses["turn"][[first, second]]]
    return responses.noting(rows_differ=RowsDiffer([first, second], values, "turn"))


def _checked_steps(responses: Responses) -> Responses:
    """Note in `rows_differ` the first row whose step differs from that of its rollout's first row.

    A rollout is the rows of one prompt with one id; ids of different prompts may be equal.
    """
    if "rollout" not in responses or "prompt" not in responses:
        return responses
    unit, step = joint_codes(responses["prompt"], responses["rollout"]), responses["step"]
    first = np.unique(unit, return_index=True)[1][unit]
    differing = np.flatnonzero(step != step[first])
    if not len(differing):
        return responses
    rows, labels = [int(first[differing[0]]), int(differing[0])], responses.labels["step"]
    values = [labels[int(step[row])] for row in rows]
    return responses.noting(rows_differ=RowsDiffer(rows, values, "step"))


def rollouts(responses: Responses, *, resolved: ResolvedRecipe) -> Responses:
    """Set the reward of each row to that of its rollout; add `last`, and `turn` if there is none.

    The last turn is the last row in the order of the rollout. Rows whose reward is null have none,
    but for the last turn. With `equal`, the first row whose reward
    differs from that of its rollout's first row is noted in `rows_differ`, with that row. With
    `last` and `sum`, a rollout with a row that is left out has no reward, so all are left out.
    """
    recipe, rule = resolved.recipe, resolved.recipe.rollout_reward
    unit, valid, kept = responses["unit"], responses["valid"], responses["kept"]
    count = int(unit.max(initial=-1)) + 1
    silent = valid & responses.columns.get(NO_REWARD, np.zeros(len(unit), np.bool_))
    order = order_of(responses)
    ends = order.last
    if silent[ends].any():
        if recipe.nonfinite == "error" and "rows_differ" not in responses.notes:
            row = int(ends[silent[ends]].min())
            responses = responses.noting(rows_differ=RowsDiffer([row], ["null"], NO_REWARD))
        valid = valid & ~silent[ends][unit]
    if rule in ("last", "sum"):
        valid = valid & ~(np.bincount(unit[~valid], minlength=count) > 0)[unit]
    last = np.zeros(len(unit), np.bool_)
    last[ends] = True
    if not valid.all():  # of a rollout without its last turn, the last one that is there
        some = order.last_of(valid)
        last &= ~(np.bincount(unit[some], minlength=count) > 0)[unit]
        last[some] = True
    turn = {} if "turn" in responses else {"turn": (np.bincount(unit)[unit] - 1).astype(np.float64)}
    responses = responses.with_(valid=valid, kept=kept & valid, last=last, **turn)
    counts = valid & ~silent
    if rule == "equal" and "rows_differ" not in responses.notes:
        names = [name for name in _compared(resolved) if name in responses]
        responses = _checked_equal(responses, names, counts)
    parts = [name for name in responses.columns if is_component(name)]
    names = ["reward", *parts, *(["process"] if "process" in responses else [])]
    if resolved.joins and rule == "sum":
        responses = responses.with_(row_reward=np.where(valid, responses["reward"], 0.0))
        names = [name for name in names if name != "process"]
    every = {name: combine(responses, responses[name], rule, counts) for name in names}
    return responses.with_(**{name: np.where(valid, x, 0.0) for name, x in every.items()})


def _compared(resolved: ResolvedRecipe) -> list[str]:
    """Return the columns of rewards in which the rows of a rollout must be equal."""
    components = "components" in resolved.estimator.columns
    parts = [f"component:{name}" for name in resolved.recipe.reward_components or () if components]
    return [*(parts or ["reward"]), *(["process"] if resolved.process == "response" else [])]


def _checked_equal(responses: Responses, names: Sequence[str], counts: Mask) -> Responses:
    """Note the first row that differs from the first row of its rollout in a reward."""
    found, unit = [], responses["unit"]
    rows = np.flatnonzero(counts)
    first = np.full(int(unit.max(initial=-1)) + 1, -1)
    first[unit[rows][::-1]] = rows[::-1]
    own = first[unit]
    for name in names:
        values = responses[name]
        missing = np.isnan(values) & np.isnan(values[own])
        differing = np.flatnonzero(counts & (values != values[own]) & ~missing)
        if len(differing):
            pair = [int(own[differing[0]]), int(differing[0])]
            found.append(RowsDiffer(pair, values[pair].tolist(), name))
    differ = min(found, key=lambda one: one.rows[1], default=None)
    return responses if differ is None else responses.noting(rows_differ=differ)
