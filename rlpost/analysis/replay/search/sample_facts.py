"""What a sample has: the data on which fields of a recipe matter, and the values they can have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.analysis.responses.columns import numbers
from rlpost.io.arrow import is_list, is_number
from rlpost.kernels.codes import keyed_extremes
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.rollouts import Rollouts

    Codes = NDArray[np.int64]
    Numbers = NDArray[np.float64]

_SHARED = 3
"""Equal numbers that can be those of a clip."""
_MOST_COLUMNS = 5
"""Columns of components, or domains, that are tried at most."""
_REWARD_BOUNDS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


@dataclass
class SampleFacts:
    """What a sample of rollouts has."""

    rollouts: Rollouts

    def has(self, *roles: str) -> bool:
        """Return whether the input has columns for all these roles."""
        return all(role in self.rollouts.columns for role in roles)

    @cached_property
    def sizes(self) -> Codes:
        """[N] responses of each response's group."""
        return np.asarray(np.bincount(self.rollouts.groups)[self.rollouts.groups])

    @cached_property
    def singles(self) -> bool:
        """There are groups of one response."""
        return bool((self.sizes == 1).any())

    def _spread(self, values: Numbers | Codes) -> Numbers:
        """Return the largest minus the least value of each group, [G]."""
        groups = self.rollouts.groups
        low, high = keyed_extremes(values, groups, int(groups.max()) + 1)
        return np.asarray(high - low)

    @cached_property
    def _reward_spread(self) -> Numbers:
        return self._spread(np.nan_to_num(self.rollouts.reward))

    @cached_property
    def equal_groups(self) -> bool:
        """There are groups of several equal rewards."""
        several = np.bincount(self.rollouts.groups) > 1
        return bool((several & (self._reward_spread == 0)).any())

    @cached_property
    def unequal_groups(self) -> bool:
        """There are groups of unequal rewards."""
        return bool((self._reward_spread > 0).any())

    @cached_property
    def unequal_lengths_in_groups(self) -> bool:
        """There are groups of unequal lengths."""
        return bool((self._spread(self.rollouts.policy_lengths) > 0).any())

    def groups_differ(self, power: int) -> bool:
        """Return whether groups have unequal means (1) or variances (2) of rewards."""
        groups, reward = self.rollouts.groups, np.nan_to_num(self.rollouts.reward)
        counts = np.bincount(groups)
        means = np.bincount(groups, reward) / counts
        if power > 1:
            means = np.bincount(groups, (reward - means[groups]) ** power) / counts
        return bool(np.ptp(means) > 1e-3 * (np.abs(means).max() + 1e-12))

    @cached_property
    def observations(self) -> bool:
        """There are observation tokens."""
        return not bool(self.rollouts.mask.all())

    @cached_property
    def ends_observed(self) -> bool:
        """A response ends with an observation token."""
        own = self.rollouts
        return bool((~own.mask[own.offsets[1:][own.lengths > 0] - 1]).any())

    @property
    def unequal_lengths(self) -> bool:
        """There are responses of unequal lengths."""
        return bool(np.ptp(self.rollouts.policy_lengths) > 0)

    @property
    def empty_responses(self) -> bool:
        """There are responses without policy tokens."""
        return not self.rollouts.policy_lengths.all()

    @property
    def truncated_values(self) -> bool:
        """There are truncated responses, and critic values."""
        return self.distinct("truncated") and (self.has("values") or self.has("next_value"))

    @cached_property
    def log_ratios(self) -> bool:
        """There are log-probs that can be a teacher's or a reference's, other than the old ones."""
        return bool(self.teachers) or self.differ("old_log_probs", "ref_log_probs")

    @cached_property
    def scattered(self) -> bool:
        """Rows of a group are not beside each other."""
        groups = self.rollouts.groups
        return bool((np.diff(groups) != 0).sum() > groups.max())

    def distinct(self, *roles: str) -> bool:
        """Return whether roles have more than one combination of values."""
        return bool(self.rollouts.codes(*roles).max(initial=0) > 0)

    def differ(self, *roles: str) -> bool:
        """Return whether two roles of tokens have columns, with different numbers."""
        if not self.has(*roles) or self.rollouts.columns.rows_only:
            return False
        left, right = (
            NumberColumn.of(self.rollouts.table.column(self.rollouts.columns.column(role))).values
            for role in roles
        )
        return not np.array_equal(left, right)

    @cached_property
    def _unused(self) -> dict[str, Any]:
        """The types of the columns that serve no role and are not recorded, by name."""
        own = self.rollouts
        used = {*own.columns.columns.values(), *own.recorded.values()}
        return {one.name: one.type for one in own.table.schema if one.name not in used}

    @cached_property
    def components(self) -> tuple[str, ...]:
        """Columns that can be reward components: numbers for each response that serve no role."""
        kinds = self._unused
        names = [n for n in kinds if not is_list(kinds[n]) and is_number(kinds[n])]
        words = ("reward", "score", "component")
        return tuple(n for n in names if any(word in n for word in words))[:_MOST_COLUMNS]

    @cached_property
    def teachers(self) -> list[str]:
        """Columns that can be the log-probs of a teacher."""
        kinds, columns = self._unused, self.rollouts.columns
        own = [n for n in kinds if is_list(kinds[n]) and ("teacher" in n or "logp" in n)]
        return own + [columns.column(r) for r in ("ref_log_probs",) if r in columns]

    @cached_property
    def rollout_ids(self) -> list[str]:
        """Columns that can be rollout ids."""
        own = self.rollouts.columns.columns.get("rollout", "")
        names = dict.fromkeys((own, *ROLES["rollout"].aliases))
        return [name for name in names if name in self.rollouts.table.schema.names]

    @cached_property
    def domains(self) -> list[str]:
        """The domains of the responses."""
        if not self.has("domain"):
            return []
        column = self.rollouts.table.column(self.rollouts.columns.column("domain"))
        return sorted(str(one) for one in column.unique().to_pylist())[:_MOST_COLUMNS]

    @cached_property
    def limits(self) -> list[int]:
        """Lengths that can be the limit of generation: the largest, and constant columns."""
        table = self.rollouts.table
        found = {int(self.rollouts.policy_lengths.max(initial=1))}
        for name, kind in self._unused.items():
            if "max" in name and is_number(kind):
                values = np.unique(numbers(table.column(name).combine_chunks()))
                found |= {int(v) for v in values[:_MOST_COLUMNS] if v >= 1}
        return sorted(found)

    def extremes(self, stage: str) -> tuple[float, float] | None:
        """Return the least and largest recorded number, if several share the larger one."""
        if stage not in self.rollouts.recorded:
            return None
        values = self.rollouts.column(stage).values
        values = values[np.isfinite(values)]
        size = np.abs(values)
        shared = (size >= size.max(initial=0.0) * (1 - 1e-6)).sum() >= _SHARED
        return (plain(values.min()), plain(values.max())) if shared else None

    @cached_property
    def reward_bounds(self) -> list[float]:
        """Usual bounds of rewards that some rewards exceed."""
        largest = float(np.abs(np.nan_to_num(self.rollouts.reward)).max(initial=0.0))
        return [one for one in _REWARD_BOUNDS if one < largest]

    @cached_property
    def weights(self) -> Numbers:
        """The recorded importance weights of policy tokens; none if they are not recorded."""
        if "is_weight" not in self.rollouts.recorded:
            return np.zeros(0)
        values = self.rollouts.column("is_weight").on_tokens(self.rollouts.offsets)
        return np.asarray(values[self.rollouts.mask & np.isfinite(values)])


def plain(value: float, digits: int = 6) -> float:
    """Return a number without the digits that float32 adds."""
    return float(f"{value:.{digits}g}")
