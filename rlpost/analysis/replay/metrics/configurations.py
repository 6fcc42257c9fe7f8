"""What is known of a run: the options of its policy loss, and how it splits a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import OF_ALL_TOKENS, OF_COUNTS, REDUCTIONS
from rlpost.analysis.replay.metrics.sums import KL_TERMS, kl_options, kl_term
from rlpost.kernels.layouts import all_splits
from rlpost.losses.config import LossConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.sums import SumColumn
    from rlpost.kernels.layouts import Split
    from rlpost.recipe.loss import LossOptions

    Flags = NDArray[np.bool_]

SIDES = {"low": "pg_clip_low", "high": "pg_clip_high", "dual": "dual_clip"}
"""The option of each bound of a loss."""
FOUND = frozenset({
    *SIDES.values(), "pg_clip", "behaviour", "aggregation", "agg_rows", "agg_norm", "kl_loss_coef",
    "kl_loss_estimator", "kl_loss_ratio",
})  # fmt: skip
"""The fields of a loss that are found if they are not stated."""
TOLERANCE = 1e-5
"""Relative difference between a logged metric and the computed one."""


@dataclass(frozen=True)
class RunConfiguration:
    """The loss and the split of a run, as far as they are known."""

    loss: LossOptions
    stated: frozenset[str] = frozenset()
    """The fields of `FOUND` that stay; the others are replaced if the log needs other values."""
    split: dict[str, int] = field(default_factory=dict)
    """`micro_batch`, `ranks` and `updates`, as far as they are set."""

    @property
    def unstated(self) -> RunConfiguration:
        """The same loss, of which every field may have another value, and any split."""
        return replace(self, stated=frozenset(), split={})

    def for_roles(self, roles: Collection[str]) -> RunConfiguration:
        """Return the same, divided by the rollout engine if the input lacks the old policy."""
        lacks = "old_log_probs" not in roles and "infer_log_probs" in roles
        if "behaviour" in self.stated or not lacks:
            return self
        return replace(self, loss=self.loss.model_copy(update={"behaviour": "infer"}))

    def value(self, name: str) -> Any:
        """Return a field of the loss, or of the split; None: it may have any value."""
        if name in self.split:
            return self.split[name]
        return getattr(self.loss, name) if name in self.stated else None

    def splits(self, counts: Sequence[int]) -> list[Split]:
        """Return the splits of steps with these numbers of responses, the simplest first."""
        return all_splits(counts, **self.split)

    @property
    def loss_config(self) -> LossConfig:
        """The loss with its options."""
        return LossConfig(self.loss)

    @property
    def kl_term(self) -> str:
        """The name of the KL loss of these options."""
        return kl_term(self.loss)

    @property
    def kl_terms(self) -> list[str]:
        """The KL losses that the loss may have, that of these options first."""
        if self.value("kl_loss_coef") == 0:
            return []
        return [
            name
            for name in dict.fromkeys([self.kl_term, *KL_TERMS])
            if all(self.value(field) in (None, x) for field, x in kl_options(name).items())
        ]

    def reductions(self, column: SumColumn) -> Flags:
        """Return the reductions that a column may have, [r]."""
        if column.kind != "loss":
            return OF_COUNTS & OF_ALL_TOKENS if column.kind == "all" else OF_COUNTS
        how, rows, norm = map(self.value, ("aggregation", "agg_rows", "agg_norm"))
        own = [
            how in (None, one.aggregation)
            and (not one.rows or rows in (None, one.rows))
            and (not one.norm or norm in (None, one.norm))
            for one in REDUCTIONS
        ]
        return np.array(own)

    @property
    def bounds(self) -> list[str]:
        """The sides of the loss whose bound may have another value."""
        reads = self.loss_config.loss.defaults
        both = {"low", "high"} if "pg_clip" in self.stated else set[str]()
        sides = (side for side, name in SIDES.items() if name in reads and name not in self.stated)
        return [side for side in sides if side not in both]
