"""The table of responses of a recipe that only measures: which rows and rollouts count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.rows import KEYS
from rlpost.errors import UsageError
from rlpost.io.arrow import is_true
from rlpost.pipeline.data import ATTEMPTS, FAILURE, LEFT_OUT, NO_REWARD, Collector
from rlpost.pipeline.groups import prompt_groups
from rlpost.pipeline.rollout_order import PLACE
from rlpost.pipeline.stages import unit_stages
from rlpost.pipeline.stages.rewards import countable
from rlpost.pipeline.stages.units import unit_table
from rlpost.recipe.input_columns import stored_counting
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.analysis.rows import Rows
    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.columns import Masked
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.groups import PromptGroups
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.input_columns import InputNames
    from rlpost.recipe.roles import ColumnMap


@dataclass(frozen=True)
class CountedTable:
    """The table of responses that `rlpost advantages` makes, of a recipe that only measures."""

    rows: Responses
    """A row for each of the input; `known` is false for a row without the id of a rollout, and
    `keyed` for one without a step or a prompt."""
    units: Responses
    """A row for each response, or rollout."""
    unit: Integers
    """[N] the number of each row's unit in `units`."""
    resolved: ResolvedRecipe

    @property
    def counted(self) -> Mask:
        """The rows that neither masks nor failures nor later attempts leave out, [N]."""
        counted: Mask = self.rows["known"] & (self.rows["left_out"] == 0)
        return counted

    @property
    def counted_units(self) -> Mask:
        """The units that are not left out, [U]; their rewards may not be finite."""
        counted: Mask = self.units["known"] & (self.units["left_out"] == 0)
        return counted

    @property
    def scored(self) -> Mask:
        """The units that statistics of rewards count, [U]."""
        return self.units["known"] & self.units["valid"]

    @property
    def row_rewards(self) -> Floats:
        """The raw reward of each row, which all rows of a rollout have, [N]; NaN where none counts.

        The rows are those of `counted`.
        """
        rewards = self.units["reward"][self.unit]
        return np.where(self.scored[self.unit] & self.counted, rewards, np.nan)

    @property
    def nonfinite(self) -> Mask:
        """The rows that are left out because a reward is not finite, [N]."""
        return self.counted & ~self.rows["valid"]

    @property
    def left_out(self) -> dict[str, int]:
        """The rows that are left out, by reason, of `LEFT_OUT`."""
        counts = np.bincount(self.rows["left_out"], minlength=len(LEFT_OUT) + 1)[1:].tolist()
        return {name: count for name, count in zip(LEFT_OUT, counts, strict=True) if count}

    def groups(self) -> PromptGroups:
        """Return the prompt groups of the units with a reward and all keys."""
        rows = countable(self.units, self.resolved.recipe) & self.scored & self.units["keyed"]
        threshold = self.resolved.recipe.pass_threshold
        return prompt_groups(self.units, self.units["reward"], rows, threshold)


def counting_of(
    source: InputNames, columns: ColumnMap, chosen: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what statistics of responses count, as fields of a recipe; and those of the files.

    What the user does not choose is as in the recipe of the run that wrote the files, as far as the
    columns permit and the choices do not contradict it.

    Args:
        source: the files.
        columns: of their roles.
        chosen: by the user, of COUNTING; None for what is not chosen.

    Raises:
        UsageError: a reward of rollouts is chosen, but rows count.
    """
    chosen = {name: value for name, value in chosen.items() if value is not None}
    stored = {name: x for name, x in stored_counting(source).items() if name not in chosen}
    if "rollout" not in columns or chosen.get("unit") == "row":
        stored = {name: x for name, x in stored.items() if name not in ("unit", "rollout_reward")}
    if chosen.get("rollout_reward", "equal") != "equal":
        stored.pop("unit", None)
    if "failure" not in columns:
        stored.pop("failures", None)
    counting = {**stored, **chosen}
    counting["unit"] = columns.unit(counting.get("unit"))
    if counting["unit"] == "row" and counting.get("rollout_reward", "equal") != "equal":
        if "rollout_reward" in chosen:
            text = f"--rollout-reward {chosen['rollout_reward']} has no effect if each row counts"
            raise UsageError(text, tip="--map rollout=COLUMN")
        del counting["rollout_reward"], stored["rollout_reward"]
    return counting, stored


def counted_table(
    columns: Rows, resolved: ResolvedRecipe, *, count: int, masked: Masked
) -> CountedTable:
    """Return the table of responses of a recipe.

    Args:
        columns: what all rows say, of `RowReader`, with `length`, all tokens, if it is known.
        resolved: the recipe.
        count: N.
        masked: the rows of the sample mask that are left out, of `masked_rows`.
    """
    if masked == "rest":
        whole = counted_table(columns, resolved, count=count, masked="none").rows.columns
        others = [whole[name] for name in ("failed", "superseded") if name in whole]
        kept = np.any([columns["kept"] != 0, *others], axis=0)
        columns, masked = {**columns, "kept": kept}, "all"
    keys = {name: columns[name] for name in (*KEYS, FAILURE) if name in columns}

    def present(*names: str) -> Mask:
        flags = [is_true(keys[name].is_valid()) for name in names if name in keys]
        rows: Mask = np.all([np.ones(count, np.bool_), *flags], axis=0)
        return rows

    known = present(*(["rollout"] if resolved.unit == "rollout" else []))
    keyed = present("batch", "group")
    for name in PLACE[1:]:  # branches and agents are texts, without nulls
        if name in keys:
            keys[name] = keys[name].cast(pa.string()).fill_null("")
    collector = Collector(count)
    sizes = {name: _sizes(columns, name, count) for name in ("tokens", "length")}
    collector.add(_numbers(columns, resolved, masked=masked == "all") | keys, sizes)
    table = collector.finish(resolved.recipe, resolved.unit if count else "row")
    table = table.with_(known=known, keyed=keyed)
    for stage in unit_stages(resolved) if count else ():
        table = stage.reduce(table) if stage.reduce else table
    units = unit_table(table)
    return CountedTable(table, units.table, units.unit, resolved)


def _sizes(columns: Rows, name: str, count: int) -> Column:
    """Return numbers of tokens, [N]; 0 where they are unknown."""
    values = columns.get(name, columns.get("tokens"))
    return np.zeros(count) if values is None else np.nan_to_num(values).astype(np.int64)


def _numbers(columns: Rows, resolved: ResolvedRecipe, *, masked: bool) -> dict[str, Column]:
    """Return the numbers of rows as the pipeline reads them; those that a row lacks are NaN."""
    components = [name for name in columns if is_component(name)]
    rewards = components or (["reward"] if "reward" in columns else [])
    numbers = {name: columns[name].astype(np.float64) for name in rewards}
    if resolved.unit == "rollout" and rewards:
        numbers[NO_REWARD] = columns["reward_null"]
        for name in rewards:
            numbers[name] = np.where(numbers[NO_REWARD], 0.0, numbers[name])
    if resolved.excuses_failed and FAILURE in columns:
        reasons = columns[FAILURE].dictionary_encode()
        texts = np.array([reason != "" for reason in reasons.dictionary.to_pylist()], np.bool_)
        failed = texts[reasons.indices.to_numpy()]
        for name in rewards:
            numbers[name] = np.where(failed & ~np.isfinite(numbers[name]), 0.0, numbers[name])
    if masked:
        numbers["sample_mask"] = columns["kept"].astype(np.float64)
    if "turn" in columns:
        numbers["turn"] = np.where(np.isfinite(columns["turn"]), columns["turn"], -1.0)
    if "truncated" in columns:
        numbers["truncated"] = columns["truncated"]
    for name in ATTEMPTS:
        if name in columns:
            attempt = np.where(np.isnan(columns[name]), -np.inf, columns[name])
            numbers[name] = np.unique(attempt, return_inverse=True)[1].astype(np.int64)
    return numbers
