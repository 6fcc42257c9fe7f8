"""What losses do to the tokens of a piece, measured on the way to a LossTally.

What no setting changes (log ratios, masks, positions) is measured once for all of them; a setting
adds one sum and one count. Sums run over stretches of a response first, each by itself, and then
add up exactly: with details by cell and position, else only by batch what a batch's loss needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.analysis.loss.totals import (
    KINDS,
    NEGATIVE,
    OUTSIDE,
    POSITIVE,
    SIGNS,
    LossTally,
    Oddities,
)
from rlpost.errors import DataError
from rlpost.kernels.quantiles import BINS, bins_of
from rlpost.kernels.segments import (
    Stretches,
    count_true,
    lengths,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)
from rlpost.losses import clamped, estimated, kl_loss
from rlpost.pipeline.metrics import MOST_NATS
from rlpost.pipeline.stages.loss import blocks
from rlpost.pipeline.totals import ExactTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.analysis.loss.totals import Scope
    from rlpost.losses import Surrogate, Tokens
    from rlpost.pipeline.stages.loss import LossConfig


Spans = dict[str, tuple[Tensor, Tensor]]


def measure_losses(
    tokens: Tokens,
    weights: Tensor | None,
    keys: Tensor,
    settings: Sequence[LossConfig],
    scope: Scope,
) -> LossTally:
    """The tally of some responses.

    Args:
        tokens: of n responses.
        weights: [n] sample weights, which multiply losses; None for 1.
        keys: [n] int64, the cell of each response.
        settings: the losses to tell of.
        scope: what is counted, and by what.

    Raises:
        DataError: a loss is not finite.
    """
    cells = keys if scope.details else torch.zeros_like(keys)
    here, local = torch.unique(cells, return_inverse=True)
    local = local.to(tokens.mask.device)
    if weights is not None:  # as a file holds them, so that a run on the file gives the same
        weights = weights.to(torch.float32).to(torch.float64)
    done = []
    for rows, part in blocks(tokens):
        block = _Block(part, local[rows], int(here.numel()), scope)
        block.add_shared()
        block.add_settings(settings, None if weights is None else weights[rows])
        done.append(block)
    kinds = torch.stack([block.kinds for block in done]).sum(0).cpu()
    bins = torch.stack([block.bins for block in done]).sum(0).cpu()
    counts = kinds.sum(2).transpose(0, 1), bins
    empty = LossTally.empty(scope, len(settings))
    batch = scope.batch_of[keys]
    return LossTally(
        _tally(done, lambda block: (block.rows, block.row_spans), cells, counts),
        _by_place(done, scope),
        _tally(done, lambda block: (block.added, block.sizes), batch),
        kinds.sum(1),
        scope.batches,
        sum((block.odd for block in done), empty.odd),
    )


class _Block:
    """The numbers of a block of whole responses: of its stretches, and of its rows.

    Args:
        tokens: of n responses.
        local: [n] int64 in [0, cells): the cell of each response.
        cells: how many cells the piece has.
        scope: what is counted.
    """

    def __init__(self, tokens: Tokens, local: Tensor, cells: int, scope: Scope) -> None:
        self.tokens, self.local, self.cells, self.scope = tokens, local, cells, scope
        self.base = tokens.on_engine if scope.behaviour == "infer" else tokens
        self.stretches = Stretches.of(lengths(tokens.offsets))
        self.whole = bool(tokens.mask.all())
        self.sums: dict[str, Tensor] = {}
        self.spans: Spans = {}
        self.rows: dict[str, Tensor] = {}
        self.row_spans: Spans = {}
        self.added: dict[str, Tensor] = {}
        self.sizes: Spans = {}

    def add_shared(self) -> None:
        """Measures what no setting changes."""
        tokens, count = self.tokens, count_true(self.tokens.mask, self.tokens.offsets)
        size = lengths(tokens.offsets).to(torch.float64)
        self.added = {"rows": torch.ones_like(size), "valid": count > 0, "tokens": count}
        self.rows |= {**self.added, "length": size}
        self.sizes = {"length": (size, size)}
        # Masked-out tokens have a log ratio of 0, so that none of these sums counts them.
        log_ratio = self.base.log_ratio.clamp(-MOST_NATS, MOST_NATS)
        excess = torch.expm1(log_ratio)
        self._add("log_ratio", log_ratio)
        self._add("k3", excess - log_ratio)
        self._add("excess", excess)  # Σr is this and the number of tokens
        self._add("excess2", excess * (excess + 2))  # likewise Σr²
        self._add_span("log_ratio", log_ratio)
        self.bins = self._histogram(log_ratio)
        if self.scope.both:
            assert tokens.infer is not None, "tokens without log-probs of the rollout engine"
            apart = torch.where(tokens.mask, tokens.old - tokens.infer, 0.0)
            apart = apart.clamp(-MOST_NATS, MOST_NATS)
            self._add("engine.log_ratio", apart)
            self._add("engine.k3", torch.expm1(apart) - apart)
        self._add("advantage.total", tokens.gain)
        self._add("advantage.squares", tokens.gain.square())
        self.rows["advantage.count"] = count
        self._add_span("advantage", tokens.gain)

    def add_settings(self, settings: Sequence[LossConfig], weights: Tensor | None) -> None:
        """Measures each setting: its loss, what it clips, what it leaves without gradient."""
        tokens, cells = self.tokens, self._cells()
        kinds = cells + self._signs(tokens.up, tokens.down)
        shape = (len(settings), self.cells, self.scope.places, KINDS)
        self.kinds = torch.zeros(shape, dtype=torch.int64, device=kinds.device).flatten(1)
        for place, setting in enumerate(settings):
            found = setting.loss(tokens, setting.options)
            self._add(f"{place}.value", found.values)
            total = self.rows[f"{place}.value"]
            self._check(total, setting)
            self.added[f"{place}.policy"] = self._numerator(total, setting, weights)
            live = self.stretches.any(tokens.mask ^ found.flat).to(torch.float64)
            self.rows[f"{place}.live"] = segment_max(live, self.stretches.rows) > 0
            if setting.own_ratio(self.scope.behaviour):
                self._add(f"{place}.excess", (found.ratio - 1).where(tokens.mask, 0.0))
                self._add_span(f"{place}.ratio", found.ratio)
            signs = kinds
            if setting.loss.own_gain is not None:
                gain = setting.loss.own_gain(tokens)
                signs = cells + self._signs(gain > 0, gain < 0)
            kind = signs + _state(found)
            self.kinds[place] = torch.bincount(kind, minlength=self.kinds.shape[1])
        self.kinds = self.kinds.view(shape)
        self.odd = Oddities.of(tokens, self.base, settings, self._add_kl(settings, weights))

    def _add_kl(self, settings: Sequence[LossConfig], weights: Tensor | None) -> list[int]:
        """Measures the KL from the reference; gives how many tokens of each setting it clamps."""
        if self.tokens.ref is None:
            return [0] * len(settings)
        bounded: dict[str, int] = {}
        for setting in settings:
            name, options = setting.kl_name, setting.options
            if name not in bounded:
                bounded[name] = clamped(estimated(self.tokens, options), options)
                total = self._row_sums(kl_loss(self.tokens, options))
                self.added[name] = self._numerator(total, setting, weights)
        return [bounded[setting.kl_name] for setting in settings]

    def _add(self, name: str, values: Tensor) -> None:
        """Adds up the values of masked-out tokens, too: they have to be 0."""
        self.sums[name] = self.stretches.sum(values)
        self.rows[name] = segment_sum(self.sums[name], self.stretches.rows)

    def _add_span(self, name: str, values: Tensor) -> None:
        mask, ends = self.tokens.mask, self.stretches.offsets
        low = segment_min(values if self.whole else values.where(mask, torch.inf), ends)
        high = segment_max(values if self.whole else values.where(mask, -torch.inf), ends)
        rows = self.stretches.rows
        self.spans[name] = low, high
        self.row_spans[name] = segment_min(low, rows), segment_max(high, rows)

    def _row_sums(self, values: Tensor) -> Tensor:
        return segment_sum(self.stretches.sum(values), self.stretches.rows)

    def _numerator(self, total: Tensor, setting: LossConfig, weights: Tensor | None) -> Tensor:
        """What a response adds above the fraction bar, as kernels.aggregate has it."""
        if setting.aggregation == "seq-mean-token-mean":
            total = total / self.rows["tokens"].clamp(min=1)
        return total if weights is None else total * weights

    def _histogram(self, log_ratio: Tensor) -> Tensor:
        """How many log ratios of policy tokens are in each bin, [cells, BINS]."""
        bins, ends = bins_of(log_ratio), self.tokens.offsets
        if self.cells > 1:
            bins = bins + spread(self.local * BINS, ends)
        if not self.whole:
            bins = bins.masked_fill(~self.tokens.mask, self.cells * BINS)
        most = self.cells * BINS
        return torch.bincount(bins, minlength=most + 1)[:most].view(self.cells, BINS)

    def _cells(self) -> Tensor | int:
        """Where the kinds of each token's cell and position begin, [T]; 0 without details."""
        if not self.scope.details:
            return 0
        cell = spread(self.local, self.stretches.rows)
        first = (cell * self.scope.places + self.stretches.places) * KINDS
        return self.stretches.spread(first.to(torch.int32))

    def _signs(self, up: Tensor, down: Tensor) -> Tensor:
        """What the sign of its advantage adds to the kind of each token, [T] uint8."""
        sign = up.to(torch.uint8) * POSITIVE
        sign += down.to(torch.uint8) * NEGATIVE
        sign += (~self.tokens.mask).to(torch.uint8) * OUTSIDE
        return sign * (KINDS // SIGNS)

    def _check(self, total: Tensor, setting: LossConfig) -> None:
        if not bool(torch.isfinite(total).all()):
            most = float(self.base.log_ratio.abs().amax())
            raise DataError(
                f"loss {setting.loss.name}: a token's loss is not finite; its log ratio is up to "
                f"{most:.4g} nats: are log_probs and {self.scope.behaviour}_log_probs of the same "
                "tokens? --ratio-clamp 20 bounds the ratio"
            )


def _state(found: Surrogate) -> Tensor:
    """The clip state and whether there is no gradient, as one number, [T] uint8."""
    return found.clip + found.flat.to(torch.uint8) * 4


def _by_place(blocks: list[_Block], scope: Scope) -> ExactTotals:
    """The tally of the stretches of all blocks, by their range of positions."""
    if not scope.details:
        return ExactTotals()
    places = torch.cat([block.stretches.places for block in blocks]).cpu()
    return _tally(blocks, lambda block: (block.sums, block.spans), places)


def _tally(
    blocks: list[_Block],
    numbers: Callable[[_Block], tuple[dict[str, Tensor], Spans]],
    keys: Tensor,
    counts: tuple[Tensor, ...] = (),
) -> ExactTotals:
    """The tally of the rows, or of the stretches, of all blocks."""
    sums, spans = zip(*map(numbers, blocks), strict=True)
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
