"""What rules for golden cases of policy losses are made of.

The losses are called directly: an entry's input holds the advantages (`adv_in`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from golden_cases import column_of

from rlpost.functional import aggregate
from rlpost.kernels.corrections import importance_weights, log_weights, reduce_responses
from rlpost.kernels.segments import segment_sum
from rlpost.losses import HIGH, LOW, Surrogate, Tokens, kl_loss, loss_named

if TYPE_CHECKING:
    from golden_runs import Entry

    from rlpost.recipe.loss import LossOptions

Metrics = dict[str, tuple[float, float]]
Weigh = Callable[[Tokens], torch.Tensor]


@dataclass(frozen=True)
class LossRun:
    """One call of a loss, and what of an entry its numbers must equal."""

    options: LossOptions
    metrics: Callable[[Came], Metrics] = field(default=lambda _: {})
    weigh: Weigh | None = None
    """Importance weights that the framework puts on its loss."""
    with_kl: bool = False
    """The framework's tokens hold the KL loss, too."""


def tokens_of(table) -> Tokens:
    def flat(name):
        return torch.from_numpy(np.concatenate(column_of(table[name]).rows))

    sizes = torch.tensor([len(row) for row in table["response_mask"].to_pylist()])
    return Tokens(
        new=flat("log_probs"),
        old=flat("old_log_probs"),
        advantages=flat("adv_in"),
        mask=flat("response_mask") > 0,
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        infer=flat("infer_log_probs"),
        ref=flat("ref_log_probs"),
        rewards=torch.from_numpy(table["reward"].to_numpy().astype(np.float64)),
    )


@dataclass(frozen=True)
class Came:
    """What rlpost makes of an entry, and the framework's own numbers."""

    entry: Entry
    table: Any
    run: LossRun

    @property
    def config(self) -> dict:
        return self.entry["config"]

    @property
    def log(self) -> dict:
        return self.entry["metrics"]

    @cached_property
    def tokens(self) -> Tokens:
        plain = tokens_of(self.table)
        weights = self.run.weigh(plain) if self.run.weigh else None
        return Tokens(**{**vars(plain), "weights": weights})

    @cached_property
    def surrogate(self) -> Surrogate:
        return loss_named(self.run.options.loss)(self.tokens, self.run.options)

    @cached_property
    def kl(self) -> torch.Tensor:
        return kl_loss(self.tokens, self.run.options)

    @cached_property
    def values(self) -> torch.Tensor:
        coefficient = self.run.options.kl_loss_coef if self.run.with_kl else 0.0
        return self.surrogate.values + coefficient * self.kl

    @property
    def whole(self) -> Tokens:
        """The tokens as a framework sees them that pays the mask no heed."""
        return Tokens(**{**vars(tokens_of(self.table)), "mask": torch.ones_like(self.tokens.mask)})

    def mean(self, values) -> float:
        """Over policy tokens."""
        return float(values[self.tokens.mask].double().mean())

    def share(self, *states: int) -> float:
        """Of policy tokens, those in one of these clip states."""
        return self.mean(sum(self.surrogate.clip == state for state in states))

    def loss(self, how: str, values=None, **options) -> float:
        """The aggregated loss as the options have it; `options` stand above them."""
        chosen = self.run.options
        given = {"count_rows": chosen.agg_rows, "norm": chosen.agg_norm, **options}
        values = self.values if values is None else values
        return float(aggregate(values, self.tokens.offsets, self.tokens.mask, how=how, **given))

    @property
    def usual(self) -> str:
        return self.run.options.aggregation or loss_named(self.run.options.loss).aggregation


def engine_weights(*, clamp=math.inf, clamp_at="level", cap=math.inf, floor=0.0, bounds=None):
    def weigh(tokens):
        logs = log_weights(
            tokens.old, tokens.infer, tokens.mask, tokens.offsets,
            level="token", clamp=clamp, clamp_at=clamp_at,
        )  # fmt: skip
        bounded = bounds or (0.0, math.inf)
        return importance_weights(logs, cap=cap, floor=floor, bounds=bounded).values

    return weigh


# --- comparison ----------------------------------------------------------------------------------

RTOL, ATOL = 1e-4, 1e-5


def columns_of(came: Came) -> dict[str, torch.Tensor]:
    """By the names of golden columns: [T], or [n] where the framework has one number a row."""
    clip = came.surrogate.clip
    totals = segment_sum(came.values, came.tokens.offsets)
    return {
        "pg_loss": came.values,
        "kl": came.kl,
        "clipped": ((clip == LOW) | (clip == HIGH)).double(),
        "row_loss_sum": totals,
    }


def loss_differences(entry: Entry, run: LossRun, table, expected) -> list[str]:
    """What differs between an entry and rlpost's numbers for it, in words."""
    came = Came(entry, table, run)
    found = [
        f"metric {name}: expected {theirs}, came {ours}"
        for name, (theirs, ours) in run.metrics(came).items()
        if not np.isclose(ours, theirs, rtol=RTOL, atol=ATOL)
    ]
    mask, offsets = came.tokens.mask.numpy(), came.tokens.offsets
    ours = columns_of(came)
    for name, column in expected.items():
        theirs, mine = np.concatenate(column.rows), ours[name]
        chosen = mask
        if column.level == "rows":
            chosen = np.ones(len(theirs), dtype=bool)
            if len(mine) == len(mask):
                mine = reduce_responses(mine, came.tokens.mask, offsets, level="geometric")
        # a framework computes in float32, and overflows there
        mine = mine.numpy().astype(np.float32).astype(np.float64)
        wrong = chosen & ~np.isclose(mine, theirs, rtol=RTOL, atol=ATOL)
        if wrong.any():
            at = np.flatnonzero(wrong)[:3]
            found.append(f"{name}: {wrong.sum()} differ: expected {theirs[at]}, came {mine[at]}")
    return found
