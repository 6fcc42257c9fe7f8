"""What the rows of an input say, also what a run rejects; which rows and rollouts count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.display.reporter import SilentReporter
from rlpost.errors import UsageError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, is_true
from rlpost.io.finish_reasons import truncations
from rlpost.io.keys import encode_keys, of_one_type
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.io.threads import prefetch
from rlpost.kernels.rewards import component_sum
from rlpost.pipeline.columns import LENGTH
from rlpost.pipeline.data import (
    ATTEMPTS,
    FAILURE,
    LEFT_OUT,
    NO_REWARD,
    TRUNCATED,
    UNKNOWN_REASON,
    Collector,
)
from rlpost.pipeline.failures import failure_reasons
from rlpost.pipeline.groups import prompt_groups
from rlpost.pipeline.rollout_order import PLACE
from rlpost.pipeline.stages import unit_stages
from rlpost.pipeline.stages.rewards import countable
from rlpost.pipeline.stages.units import unit_table
from rlpost.recipe.input_columns import stored_counting
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.pipeline.columns import Masked
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.groups import PromptGroups
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.input_columns import InputNames
    from rlpost.recipe.roles import ColumnMap


Rows = dict[str, Any]
KEYS = ("group", "batch", "domain", "rollout", *PLACE[1:])
"""The roles whose columns are keys."""
ROLES = (
    *KEYS, "reward", "turn", "turn_reward", "sample_mask", TRUNCATED, FAILURE, *ATTEMPTS, LENGTH,
)  # fmt: skip
"""The roles of which each row has one value."""
SAID = (*ROLES, "kept", "reward_null", "tokens", "length")
"""The names of what rows say, besides components of rewards."""


@dataclass(frozen=True)
class RowReader:
    """Reads the columns of ROLES; nothing in a row is an error, but a type that a role cannot have.

    Rows are, by name, keys as Arrow's dictionaries, and numbers, [n] each: NaN for none. Besides
    roles, there are `kept`, `reward_null`, `unknown_reason`, and `component:NAME`; the number of
    policy tokens is `tokens`.
    """

    source: Source
    columns: ColumnMap
    components: Mapping[str, float] = field(default_factory=dict)
    """The columns whose weighted sum is the reward, with their weights."""

    @property
    def names(self) -> list[str]:
        """The columns that chunks need."""
        served = (self.columns.column(role) for role in ROLES if role in self.columns)
        return list(dict.fromkeys([*served, *self.components]))

    def cells(self, chunk: RowChunk, name: str) -> tuple[pa.Array, CellLocation]:
        """Return a column of a chunk, and where it is."""
        path = str(self.source.files[chunk.file].path)
        return chunk.table.column(name), CellLocation(path, chunk.first_row, name)

    def rows(self, chunk: RowChunk) -> Rows:
        """Return what the rows of a chunk say.

        Raises:
            DataError: a column has neither numbers nor what its role needs.
        """
        rows: Rows = {}
        for role in (role for role in ROLES if role in self.columns):
            array, location = self.cells(chunk, self.columns.column(role))
            if role in KEYS:
                rows[role] = keys_of(array)
            elif role == FAILURE:
                rows[role] = encode_keys(failure_reasons(array, location))
            elif role == TRUNCATED:
                rows[role], unknown = truncations(array, location)
                rows[UNKNOWN_REASON] = encode_keys(unknown)
            elif role == "sample_mask":
                rows["kept"] = numbers_of(array, location) != 0
            else:
                rows["tokens" if role == LENGTH else role] = numbers_of(array, location)
        rewards = [*self.components] or [
            self.columns.column(role) for role in ("reward",) if role in self.columns
        ]
        if self.components:
            parts = {name: numbers_of(*self.cells(chunk, name)) for name in rewards}
            rows |= {f"component:{name}": values for name, values in parts.items()}
            values, weights = np.stack([*parts.values()], axis=1), [*self.components.values()]
            lacking = np.isnan(values).any(1)
            rows["reward"] = np.where(lacking, np.nan, component_sum(values, np.array(weights)))
        if rewards:
            nulls = [is_true(chunk.table.column(name).is_null()) for name in rewards]
            rows["reward_null"] = np.all(nulls, axis=0)
        return rows


def stream_chunks(
    source: Source, columns: Sequence[str], sized_by: str | None, purpose: str,
    reporter: Reporter | None = None,
) -> Iterator[RowChunk]:  # fmt: skip
    """Yield the chunks of an input, read ahead in a thread; report each one after its use."""
    reporter = reporter or SilentReporter()
    reporter.start(purpose, source.rows)
    names = list(columns) or source.columns[:1]
    for chunk in prefetch(source.read(names, CHUNK_TOKENS, sized_by or ""), 1):
        yield chunk
        reporter.advance(chunk.table.num_rows)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of consecutive chunks; keys are texts if their types differ between files."""
    rows: Rows = {}
    for name in [*parts[0]] if parts else ():
        columns = [part.pop(name) for part in parts]
        if isinstance(columns[0], pa.Array):
            whole = pa.chunked_array(of_one_type(columns)).unify_dictionaries()
            rows[name] = whole.combine_chunks()
        else:
            rows[name] = np.concatenate(columns)
    return rows


def keys_of(array: pa.Array) -> pa.DictionaryArray:
    """Return keys as codes of whole numbers or texts; nulls are kept."""
    array = ragged.nan_as_null(array)
    if pa.types.is_floating(array.type) and not ragged.is_inexact(array).any():
        array = array.cast(pa.int64())
    return encode_keys(ragged.plain_keys(array))


def numbers_of(array: pa.Array, location: CellLocation) -> NDArray[np.float64]:
    """Return one float64 per row: the sum of a list; NaN for a null.

    Raises:
        DataError: neither a number nor a list of numbers.
    """
    values = np.full(len(array), np.nan)
    values[is_true(array.is_valid())] = ragged.numbers(array.drop_null(), location)
    return values


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
