"""Totals of policy losses: exact sums, counts and histograms of their effect on tokens.

What all losses of a sweep have in common (log ratios, masks, positions) is computed once. Each
loss then adds a sum and a count. Sums run over stretches of a response, and the sums of stretches
add up exactly, so that results do not depend on chunks and workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.errors import DataError
from rlpost.kernels.aggregate import AggregateTotals
from rlpost.kernels.moments import round_digits
from rlpost.kernels.quantiles import BINS, bins_of
from rlpost.kernels.segments import (
    POSITION_RANGES,
    PositionSegments,
    count_true,
    lengths,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)
from rlpost.losses.config import behaviour_of
from rlpost.losses.kl import clamped, estimated, kl_loss
from rlpost.pipeline.metrics import MOST_NATS, ROUNDING
from rlpost.pipeline.stages.loss import blocks, tokens_of
from rlpost.pipeline.totals import ExactTotals, Totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.losses.base import Surrogate, Tokens
    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Batch


POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
"""The role of each field of Tokens that has log-probs."""
SIGNS, FLAT, CLIPS = 4, 2, 5
"""A kind of token is the sign of its advantage (0, positive, negative, or masked out), whether its
gradient is 0, and its clip state."""
KINDS = SIGNS * FLAT * CLIPS
ZERO, POSITIVE, NEGATIVE, OUTSIDE = range(SIGNS)
Spans = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class TokenTotals:
    """The totals of a set of tokens."""

    sums: Totals
    kinds: Tensor
    """[configs, SIGNS, FLAT, CLIPS] int64: tokens of each kind."""
    bins: Tensor | None
    """[BINS] int64: the histogram of log ratios; None for a range of positions."""

    @property
    def policy_tokens(self) -> int:
        """The number of policy tokens, which is the same for all configs."""
        return int(self.kinds[0, :OUTSIDE].sum())


@dataclass(frozen=True)
class LossTotals:
    """The totals of losses by cell (step and domain), by range of positions and by batch.

    Totals of the same configs add with `+`, in any order, to the same bits. A sweep has only one
    cell, which is the whole input, and no positions.
    """

    configs: int
    cells: ExactTotals = ExactTotals()  # noqa: RUF009 - it is immutable
    """Its counts are kinds, [configs, KINDS], and the histogram of log ratios, [BINS]."""
    positions: ExactTotals = ExactTotals()  # noqa: RUF009
    """Its counts are kinds, [configs, KINDS]."""
    batches: ExactTotals = ExactTotals()  # noqa: RUF009
    """The sums that the loss of a batch is computed from."""

    def __add__(self, other: LossTotals) -> LossTotals:
        return LossTotals(
            self.configs,
            self.cells + other.cells,
            self.positions + other.positions,
            self.batches + other.batches,
        )

    def compact(self) -> LossTotals:
        """Return the same totals, faster to read."""
        return LossTotals(
            self.configs, self.cells.compact(), self.positions.compact(), self.batches.compact()
        )

    def total(self) -> TokenTotals:
        """Return the totals over all cells."""
        return self.over(self.cells.keys)

    def over(self, cells: Sequence[int]) -> TokenTotals:
        """Return the totals over some cells."""
        if not self.cells:
            none = torch.zeros(self.configs * KINDS, dtype=torch.int64)
            return TokenTotals(Totals(), _by_kind(none), None)
        kinds, bins = self.cells.counted(cells)
        return TokenTotals(self.cells.over(cells), _by_kind(kinds), bins)

    def at(self, position: int) -> TokenTotals:
        """Return the totals of a range of positions."""
        (kinds,) = self.positions.counted([position])
        return TokenTotals(self.positions.over([position]), _by_kind(kinds), None)

    def parts(self, name: str, batches: int) -> AggregateTotals:
        """Return the sum of each batch, with the numbers that it may be divided by.

        Args:
            name: of the sum.
            batches: how many batches the whole input has.
        """
        tokens, valid, rows = (
            round_digits(self.batches.digits(one, batches)).to(torch.int64)
            for one in ("tokens", "valid", "rows")
        )
        longest = self.batches.highest("length", batches).clamp(min=0).to(torch.int64)
        return AggregateTotals(self.batches.digits(name, batches), tokens, valid, rows, longest)


def _by_kind(counts: Tensor) -> Tensor:
    return counts.view(-1, SIGNS, FLAT, CLIPS)


def count_losses(batch: Batch, *, configs: Sequence[LossConfig], rewarded: bool) -> LossTotals:
    """Compute the totals of a batch that has advantages and log-probs.

    Args:
        batch: of whole responses.
        configs: the losses. The totals have details by cell and position only if there is one.
        rewarded: the input has rewards.

    Raises:
        DataError: a loss is not finite.
    """
    detailed = len(configs) == 1
    cells = batch.table["cell"]
    if not detailed:
        cells = torch.zeros_like(cells)
    present, local = torch.unique(cells, return_inverse=True)
    weights = batch.responses.get("sample_weight")
    if weights is not None:  # rounded as a file stores them, so that both give the same loss
        weights = weights.to(torch.float32).to(torch.float64)
    tokens = tokens_of(batch, rewarded=rewarded)
    local = local.to(tokens.mask.device)
    both = {"old_log_probs", "infer_log_probs"} <= {*batch.tokens}
    counted = []
    for rows, part in blocks(tokens):
        own = None if weights is None else weights[rows]
        block = _Block(part, own, local[rows], int(present.numel()), configs)
        block.add_ratios(both=both)
        block.add_losses()
        block.add_kl_losses()
        block.add_log_probs()
        counted.append(block)
    kinds = torch.stack([block.kinds for block in counted]).sum(0).cpu()
    bins = torch.stack([block.bins for block in counted]).sum(0).cpu()
    return LossTotals(
        len(configs),
        _joined(
            cells,
            [(block.rows, block.row_spans) for block in counted],
            kinds.sum(2).transpose(0, 1),
            bins,
        ),
        _by_position(counted, kinds.sum(1)) if detailed else ExactTotals(),
        _joined(batch.table["batch"], [(block.added, block.sizes) for block in counted]),
    )


def _by_position(blocks: list[_Block], kinds: Tensor) -> ExactTotals:
    """Return the totals of the stretches of all blocks, by their range of positions."""
    keys = torch.cat([block.stretches.places for block in blocks]).cpu()
    parts = [(block.sums, block.spans) for block in blocks]
    return _joined(keys, parts, kinds.transpose(0, 1)[torch.unique(keys)])


def _joined(
    keys: Tensor, parts: Sequence[tuple[dict[str, Tensor], Spans]], *counts: Tensor
) -> ExactTotals:
    """Return the totals of the sums and spans of consecutive blocks."""
    sums, spans = zip(*parts, strict=True)
    return ExactTotals.of(
        keys,
        {name: torch.cat([one[name] for one in sums]) for name in sums[0]},
        {
            name: (
                torch.cat([one[name][0] for one in spans]),
                torch.cat([one[name][1] for one in spans]),
            )
            for name in spans[0]
        },
        counts,
    )


class _Block:
    """The numbers of a block of whole responses, by stretch and by response.

    Args:
        tokens: of n responses.
        weights: [n] sample weights, which multiply losses; None for 1.
        local: [n] int64 in [0, cells): the cell of each response.
        cells: how many cells the batch has.
        configs: the losses.
    """

    def __init__(
        self,
        tokens: Tokens,
        weights: Tensor | None,
        local: Tensor,
        cells: int,
        configs: Sequence[LossConfig],
    ) -> None:
        self.tokens, self.weights, self.local, self.cells = tokens, weights, local, cells
        self.configs, self.behaviour = configs, behaviour_of(configs)
        self.base = tokens.with_engine_as_old if self.behaviour == "infer" else tokens
        self.positions = POSITION_RANGES if len(configs) == 1 else 1
        self.stretches = PositionSegments.of(tokens.offsets)
        self.sums: dict[str, Tensor] = {}
        self.spans: Spans = {}
        self.rows: dict[str, Tensor] = {}
        self.row_spans: Spans = {}
        self.added: dict[str, Tensor] = {}
        self.sizes: Spans = {}

    def add_ratios(self, *, both: bool) -> None:
        """Add what no config changes: sizes, log ratios and advantages.

        Args:
            both: the input has log-probs of the old policy and of the rollout engine.
        """
        tokens, count = self.tokens, count_true(self.tokens.mask, self.tokens.offsets)
        size = lengths(tokens.offsets).to(torch.float64)
        self.added = {"rows": torch.ones_like(size), "valid": count > 0, "tokens": count}
        self.rows |= {**self.added, "length": size}
        self.sizes = {"length": (size, size)}
        # Masked-out tokens have a log ratio of 0, so that they add 0 to each of these sums.
        log_ratio = self.base.log_ratio.clamp(-MOST_NATS, MOST_NATS)
        excess = torch.expm1(log_ratio)
        self._add("log_ratio", log_ratio)
        self._add("k3", excess - log_ratio)
        self._add("excess", excess)  # Σr is this plus the number of tokens
        self._add("excess2", excess * (excess + 2))  # Σr² is this plus the number of tokens
        self._add_span("log_ratio", self.base.log_ratio)
        self.bins = self._histogram(log_ratio)
        if both:
            assert tokens.infer is not None, "tokens without log-probs of the rollout engine"
            distance = torch.where(tokens.mask, tokens.old - tokens.infer, 0.0)
            distance = distance.clamp(-MOST_NATS, MOST_NATS)
            self._add("engine.log_ratio", distance)
            self._add("engine.k3", torch.expm1(distance) - distance)
        self._add("advantage.total", tokens.masked_advantages)
        self._add("advantage.squares", tokens.masked_advantages.square())
        self.rows["advantage.count"] = count
        self._add_span("advantage", tokens.masked_advantages)

    def add_losses(self) -> None:
        """Add the loss of each config, the tokens that it clips, and those with zero gradient."""
        tokens, first_kinds = self.tokens, self._first_kinds()
        shared = first_kinds + self._signs(tokens.advantage_positive, tokens.advantage_negative)
        shape = (len(self.configs), self.cells, self.positions, KINDS)
        self.kinds = torch.zeros(shape, dtype=torch.int64, device=shared.device).flatten(1)
        for index, config in enumerate(self.configs):
            surrogate = config.loss(tokens, config.options)
            self._add(f"{index}.value", surrogate.values)
            total = self.rows[f"{index}.value"]
            self._check_finite(total, config)
            self.added[f"{index}.policy"] = self._numerator(total, config.aggregation)
            live = self.stretches.any(tokens.mask ^ surrogate.zero_gradient).to(torch.float64)
            self.rows[f"{index}.live"] = segment_max(live, self.stretches.rows) > 0
            if config.own_ratio(self.behaviour):
                excess = (surrogate.ratio - 1).where(tokens.mask, 0.0)
                self._add(f"{index}.excess", excess)
                self._add_span(f"{index}.ratio", surrogate.ratio)
            signs = shared
            if config.loss.own_advantages is not None:
                own = config.loss.own_advantages(tokens)
                signs = first_kinds + self._signs(own > 0, own < 0)
            kinds = signs + _state(surrogate)
            self.kinds[index] = torch.bincount(kinds, minlength=self.kinds.shape[1])
        self.kinds = self.kinds.view(shape)

    def add_kl_losses(self) -> None:
        """Add the KL losses from the reference policy, and the tokens whose KL is clamped."""
        if self.tokens.ref is None:
            return
        for config in self.configs:
            name, options = config.kl_name, config.options
            if name in self.added:
                continue
            values = kl_loss(self.tokens, options)
            total = segment_sum(self.stretches.sum(values), self.stretches.rows)
            self.added[name] = self._numerator(total, config.kl_aggregation)
            hits = clamped(estimated(self.tokens, options), options)
            self.rows[f"{name}.clamped"] = count_true(hits, self.tokens.offsets)

    def add_log_probs(self) -> None:
        """Add the signs of wrong log-probs: positive ones, and log ratios beyond a clamp.

        The lowest and highest log-prob are those of the block, for each of its responses, since
        only the extremes of a file or an input are read.
        """
        offsets, none = self.tokens.offsets, torch.zeros_like(self.rows["rows"])
        for name, role in POLICIES.items():
            values = getattr(self.tokens, name)
            low, high = self._extremes(values)
            positive = none
            if high > ROUNDING:
                positive = count_true((values > ROUNDING) & self.tokens.mask, offsets)
            self.rows[f"positive:{role}"] = positive
            self.row_spans[role] = torch.full_like(none, low), torch.full_like(none, high)
        distance = self.base.log_ratio.abs()
        most = float(distance.amax()) if distance.numel() else 0.0
        for clamp in {config.clamp for config in self.configs}:
            beyond = count_true(distance > clamp, offsets) if most > clamp else none
            self.rows[f"beyond {clamp}"] = beyond

    def _extremes(self, values: Tensor | None) -> tuple[float, float]:
        """Return the lowest and the highest log-prob of the policy tokens."""
        tokens = self.tokens
        if values is None or not values.numel():
            return torch.inf, -torch.inf
        low = values if tokens.all_policy else values.where(tokens.mask, torch.inf)
        high = values if tokens.all_policy else values.where(tokens.mask, -torch.inf)
        return float(low.amin()), float(high.amax())

    def _add(self, name: str, values: Tensor) -> None:
        """Add the sums of values that are 0 for masked-out tokens."""
        self.sums[name] = self.stretches.sum(values)
        self.rows[name] = segment_sum(self.sums[name], self.stretches.rows)

    def _add_span(self, name: str, values: Tensor) -> None:
        """Add the lowest and the highest value of policy tokens."""
        mask, whole, ends = self.tokens.mask, self.tokens.all_policy, self.stretches.offsets
        low = segment_min(values if whole else values.where(mask, torch.inf), ends)
        high = segment_max(values if whole else values.where(mask, -torch.inf), ends)
        rows = self.stretches.rows
        self.spans[name] = low, high
        self.row_spans[name] = segment_min(low, rows), segment_max(high, rows)

    def _numerator(self, total: Tensor, how: str) -> Tensor:
        """Return what a response adds to the numerator; see `kernels.aggregate`."""
        if how == "seq-mean-token-mean":
            total = total / self.rows["tokens"].clamp(min=1)
        return total if self.weights is None else total * self.weights

    def _histogram(self, log_ratio: Tensor) -> Tensor:
        """Count the log ratios of policy tokens in each bin, [cells, BINS]."""
        bins, offsets = bins_of(log_ratio), self.tokens.offsets
        if self.cells > 1:
            bins = bins + spread(self.local * BINS, offsets)
        count = self.cells * BINS
        if not self.tokens.all_policy:
            bins = bins.masked_fill(~self.tokens.mask, count)
        return torch.bincount(bins, minlength=count + 1)[:count].view(self.cells, BINS)

    def _first_kinds(self) -> Tensor | int:
        """Return the number of the first kind of each token's cell and position, [T]."""
        if self.positions == 1:
            return 0
        cell = spread(self.local, self.stretches.rows)
        first = (cell * self.positions + self.stretches.places) * KINDS
        return self.stretches.spread(first.to(torch.int32))

    def _signs(self, up: Tensor, down: Tensor) -> Tensor:
        """Return what the sign of its advantage adds to the kind of each token, [T] uint8."""
        sign = up.to(torch.uint8) * POSITIVE
        sign += down.to(torch.uint8) * NEGATIVE
        sign += (~self.tokens.mask).to(torch.uint8) * OUTSIDE
        return sign * (KINDS // SIGNS)

    def _check_finite(self, total: Tensor, config: LossConfig) -> None:
        if not bool(torch.isfinite(total).all()):
            most = float(self.base.log_ratio.abs().amax())
            raise DataError(
                f"loss {config.loss.name}: a token's loss is not finite; its log ratio is up to "
                f"{most:.4g} nats: are log_probs and {self.behaviour}_log_probs of the same "
                "tokens? --ratio-clamp 20 bounds the ratio"
            )


def _state(surrogate: Surrogate) -> Tensor:
    """Return the clip state and whether the gradient is 0, as one number, [T] uint8."""
    return surrogate.clip + surrogate.zero_gradient.to(torch.uint8) * CLIPS
