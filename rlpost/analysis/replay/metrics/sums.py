"""The sums of responses of which metrics are made: of losses, clipped tokens and quantities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, all_true, like, namespace
from rlpost.kernels.kl import token_kl
from rlpost.kernels.segments import count_true, segment_max, segment_min, segment_sum
from rlpost.losses import DUAL, HIGH, LOW, SELECTED, Tokens, kl_loss
from rlpost.losses.config import LossConfig
from rlpost.pipeline.stages.loss import blocks, tokens_of
from rlpost.pipeline.stages.tokens import kept_mask
from rlpost.recipe.roles import LOG_PROBS, POLICIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlpost.losses import Surrogate
    from rlpost.pipeline.data import Batch
    from rlpost.recipe.loss import LossOptions

KL_TERMS = (
    "k3 new/ref", "ratio k3 new/ref", "k1 new/ref", "k2 new/ref", "abs new/ref",
    "ratio k1 new/ref", "ratio k2 new/ref", "ratio abs new/ref",
)  # fmt: skip
"""The KL losses that a policy loss may have, the most usual ones first."""


def kl_term(options: LossOptions) -> str:
    """Return the name of the KL loss of some options."""
    return f"{'ratio ' * options.kl_loss_ratio}{options.kl_loss_estimator} new/ref"


def kl_options(name: str) -> dict[str, str | bool]:
    """Return the options of a KL loss.

    >>> kl_options("ratio k3 new/ref")
    {'kl_loss_estimator': 'k3', 'kl_loss_ratio': True}
    """
    *ratio, estimator, _ = name.split()
    return {"kl_loss_estimator": estimator, "kl_loss_ratio": bool(ratio)}


def roles_of(name: str, options: LossOptions) -> tuple[str, ...]:
    """Return the roles of tokens that a quantity is computed from; arguments as of `quantity`."""
    *kinds, last = name.split()
    if not kinds:
        return (name,)
    policies = last.split("/")
    if len(kinds) > 1 or kinds == ["k4"]:
        policy = options.kl_loss_ratio_policy
        policies.append(options.behaviour if policy == "behaviour" else policy)
    return tuple(POLICIES[one] for one in policies if one in POLICIES)


def quantity(name: str, tokens: Mapping[str, Array], offsets: Array, options: LossOptions) -> Array:
    """Return a quantity of each token, [T], also of observation tokens.

        k1, k2, k3, abs a/b    estimate of KL(a ‖ b); of new/ref with the clamps of the KL loss
        ratio k3 new/ref       the same times the ratio, as with `--kl-loss-ratio`
        ratio a/b, prob a/b    the ratio of probabilities, and their absolute difference
        minus a                -log-prob

    Args:
        name: any other name is that of a role or a column.
        tokens: [T] by role.
        offsets: of the responses.
        options: the `kl_loss_...` fields.
    """
    *kinds, last = name.split()
    if not kinds:
        return tokens[name]
    policies = [tokens[POLICIES[one]] for one in last.split("/")]
    if kinds == ["minus"]:
        return -policies[0]
    xp, (left, right) = namespace(policies[0]), policies
    if kinds == ["ratio"]:
        return xp.exp(left - right)
    if kinds == ["prob"]:
        return abs(xp.exp(left) - xp.exp(right))
    if last != "new/ref":
        return token_kl(left, right, estimator=kinds[0])
    infer = tokens.get("infer_log_probs")
    every = Tokens(
        new=left,
        ref=right,
        infer=infer,
        old=tokens.get("old_log_probs", left if infer is None else infer),
        advantages=left,
        mask=all_true(len(left), left),
        offsets=offsets,
    )
    return kl_loss(every, options.model_copy(update=kl_options(name)))


SUMS = "sums"
"""The column of responses that has all sums."""
STATES = {"low": (LOW,), "high": (HIGH,), "dual": (DUAL,), "low, high": (LOW, HIGH, SELECTED)}
"""The clip states that are counted, by sides."""


@dataclass(frozen=True, eq=False)
class LossCandidate:
    """A policy loss whose metrics are compared with the log; equal to itself alone."""

    options: LossOptions
    weighted: bool = False
    """Importance weights of tokens and weights of responses multiply it."""

    @cached_property
    def config(self) -> LossConfig:
        """The loss with its options."""
        return LossConfig(self.options)


class SumColumn(NamedTuple):
    """What a column of sums per response is of."""

    kind: Literal["tokens", "loss", "clipped", "outside", "sum", "all", "max", "min"]
    """`tokens`: the number of policy tokens; `loss`; `clipped`: tokens that the loss clips;
    `outside`: tokens whose ratio is outside the bounds, for any advantage; of a quantity: the `sum`
    over policy tokens or over `all` tokens, the `max` or the `min` over policy tokens."""
    name: str = ""
    """The sides of clipped tokens, `, ` between them, or the quantity."""
    loss: LossCandidate | None = None

    def roles(self, options: LossOptions) -> tuple[str, ...]:
        """Return the roles and columns of tokens that it is computed from.

        Args:
            options: the `kl_loss_...` fields.
        """
        if self.loss is not None:
            return (*LOG_PROBS, "advantages", "is_weight")
        return roles_of(self.name, options) if self.name else ()


TOKENS = SumColumn("tokens")


class TokenSums:
    """Computes the sums: the `map` of a stage.

    Args:
        columns: what is computed.
        options: the `kl_loss_...` fields.
        rewarded: the input has rewards.
    """

    def __init__(
        self, columns: Collection[SumColumn], options: LossOptions, *, rewarded: bool
    ) -> None:
        own = (one for one in columns if one != TOKENS)
        self.columns = [TOKENS, *sorted(own, key=lambda one: one.name)]
        self.options, self.rewarded = options, rewarded

    @cached_property
    def _by_loss(self) -> dict[LossCandidate, list[SumColumn]]:
        found: dict[LossCandidate, list[SumColumn]] = {}
        for one in self.columns:
            if one.loss is not None:
                found.setdefault(one.loss, []).append(one)
        return found

    def __call__(self, batch: Batch) -> dict[str, Array]:
        """Return the sums of each response: `sums`, [n, columns] float64."""
        sums = {
            TOKENS: count_true(kept_mask(batch), batch.offsets),
            **dict(self._quantities(batch)),
        }
        if self._by_loss:
            weights = batch.responses.get("sample_weight")
            parts: dict[SumColumn, list[Array]] = {}
            whole = any(one.config.loss.grouped for one in self._by_loss)
            for rows, tokens in blocks(tokens_of(batch, rewarded=self.rewarded), whole=whole):
                own = None if weights is None else weights[rows]
                for column, values in self._losses(tokens, own):
                    parts.setdefault(column, []).append(values)
            sums |= {column: batch.xp.concat(values) for column, values in parts.items()}
        xp = batch.xp
        return {SUMS: xp.stack([xp.astype(sums[x], xp.float64) for x in self.columns], axis=1)}

    def _losses(self, tokens: Tokens, weights: Array | None) -> Iterator[tuple[SumColumn, Array]]:
        plain = replace(tokens, weights=None)
        for loss, columns in self._by_loss.items():
            surrogate = loss.config.loss(tokens if loss.weighted else plain, loss.options)
            for column in columns:
                if column.kind == "loss":
                    sums = segment_sum(surrogate.values, tokens.offsets)
                    own = weights if loss.weighted else None
                    yield column, sums if own is None else sums * own
                else:
                    yield column, count_true(_counted(column, surrogate, tokens), tokens.offsets)

    def _quantities(self, batch: Batch) -> Iterator[tuple[SumColumn, Array]]:
        mask, offsets = kept_mask(batch), batch.offsets
        values: dict[str, Array] = {}
        for column in self.columns:
            if column.loss is not None or column == TOKENS:
                continue
            if column.name not in values:  # columns of a quantity are beside each other
                values = {column.name: quantity(column.name, batch.tokens, offsets, self.options)}
            own = values[column.name]
            if column.kind == "all":
                yield column, segment_sum(own, offsets)
            elif column.kind == "sum":
                yield column, segment_sum(batch.xp.where(mask, own, 0.0), offsets)
            elif column.kind == "max":
                yield column, segment_max(batch.xp.where(mask, own, -np.inf), offsets)
            else:
                yield column, segment_min(batch.xp.where(mask, own, np.inf), offsets)


def _counted(column: SumColumn, surrogate: Surrogate, tokens: Tokens) -> Array:
    """Return the tokens that a column counts, [T] bool."""
    assert column.loss is not None
    if column.kind == "clipped":
        states = like(np.array(STATES[column.name], np.uint8), tokens.mask)
        return tokens.xp.isin(surrogate.clip, states)
    low, high = column.loss.config.ratio_bounds
    outside = tokens.xp.zeros_like(tokens.mask)
    if low is not None and "low" in column.name:
        outside = outside | (surrogate.ratio < low)
    if high is not None and "high" in column.name:
        outside = outside | (surrogate.ratio > high)
    return outside & tokens.mask
