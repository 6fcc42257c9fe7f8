"""What losses do to the tokens of a piece, measured on the way to a LossTally.

What no setting changes (log ratios, masks, positions) is measured once for all of them; a setting
adds one sum and one count. Sums run over stretches of a response first, each by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.correction_summary import MOST_NATS
from rlpost.errors import DataError
from rlpost.kernels.quantiles import BINS, bins_of
from rlpost.kernels.segments import (
    count_true,
    lengths,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)
from rlpost.kernels.stretches import PLACES, Stretches
from rlpost.loss_stages import blocks
from rlpost.loss_tally import KINDS, NEGATIVE, OUTSIDE, POSITIVE, SIGNS, LossTally
from rlpost.losses import kl_loss
from rlpost.summary import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.loss_stages import Setting
    from rlpost.losses import Surrogate, Tokens

Spans = dict[str, tuple[Tensor, Tensor]]


def measure_losses(
    tokens: Tokens,
    weights: Tensor | None,
    keys: Tensor,
    count: int,
    settings: Sequence[Setting],
) -> LossTally:
    """The tally of some responses.

    Args:
        tokens: of n responses.
        weights: [n] sample weights, which multiply losses; None for 1.
        keys: [n] int64 in [0, count), the cell of each response.
        count: how many cells there are.
        settings: the losses to tell of.

    Raises:
        DataError: a loss is not finite.
    """
    here, local = torch.unique(keys, return_inverse=True)
    local, cells = local.to(tokens.mask.device), int(here.numel())
    if weights is not None:  # as a file holds them, so that a run on the file gives the same
        weights = weights.to(torch.float32).to(torch.float64)
    done = []
    for rows, part in blocks(tokens):
        block = _Block(part, local[rows], cells)
        block.add_shared()
        block.add_settings(settings, None if weights is None else weights[rows])
        done.append(block)
    kinds = torch.stack([block.kinds for block in done]).sum(0).cpu()
    bins = torch.stack([block.bins for block in done]).sum(0).cpu()
    empty = LossTally.empty(count, len(settings))
    return LossTally(
        _tally(done, lambda block: (block.rows, block.row_spans), keys, count),
        _tally(
            done,
            lambda block: (block.sums, block.spans),
            torch.cat([block.stretches.places for block in done]).cpu(),
            PLACES,
        ),
        empty.cell_kinds.index_copy(1, here, kinds.sum(2)),
        kinds.sum(1),
        empty.bins.index_copy(0, here, bins),
    )


class _Block:
    """The numbers of a block of whole responses: of its stretches, and of its rows.

    Args:
        tokens: of n responses.
        local: [n] int64 in [0, cells): the cell of each response.
        cells: how many cells the piece has.
    """

    def __init__(self, tokens: Tokens, local: Tensor, cells: int) -> None:
        self.tokens, self.local, self.cells = tokens, local, cells
        self.stretches = Stretches.of(lengths(tokens.offsets))
        self.whole = bool(tokens.mask.all())
        self.sums: dict[str, Tensor] = {}
        self.spans: Spans = {}
        self.rows: dict[str, Tensor] = {}
        self.row_spans: Spans = {}

    def add_shared(self) -> None:
        """Measures what no setting changes."""
        tokens, count = self.tokens, count_true(self.tokens.mask, self.tokens.offsets)
        size = lengths(tokens.offsets).to(torch.float64)
        one = torch.ones_like(size)
        self.rows |= {"rows": one, "valid": count > 0, "tokens": count, "length": size}
        self.row_spans["length"] = (size, size)
        # Masked-out tokens have a log ratio of 0, so that none of these sums counts them.
        log_ratio = tokens.log_ratio.clamp(-MOST_NATS, MOST_NATS)
        excess = torch.expm1(log_ratio)
        self._add("log_ratio", log_ratio)
        self._add("k3", excess - log_ratio)
        self._add("excess", excess)  # Σr is this and the number of tokens
        self._add("excess2", excess * (excess + 2))  # likewise Σr²
        self._add_span("log_ratio", log_ratio)
        self.bins = self._histogram(log_ratio)
        if tokens.infer is not None:
            apart = torch.where(tokens.mask, tokens.old - tokens.infer, 0.0)
            apart = apart.clamp(-MOST_NATS, MOST_NATS)
            self._add("engine.log_ratio", apart)
            self._add("engine.k3", torch.expm1(apart) - apart)
        self._add("advantage.total", tokens.gain)
        self._add("advantage.squares", tokens.gain.square())
        self.rows["advantage.count"] = count
        self._add_span("advantage", tokens.gain)

    def add_settings(self, settings: Sequence[Setting], weights: Tensor | None) -> None:
        """Measures each setting: its loss, what it clips, what it leaves without gradient."""
        tokens, kinds = self.tokens, self._kinds()
        kl: dict[tuple[object, ...], Tensor] = {}
        self.kinds = torch.zeros(
            len(settings), self.cells * PLACES * KINDS, dtype=torch.int64, device=kinds.device
        )
        for place, setting in enumerate(settings):
            found = setting.loss(tokens, setting.options)
            self._add(f"{place}.value", found.values)
            total = self.rows[f"{place}.value"]
            self._check(total, setting)
            self.rows[f"{place}.policy"] = self._numerator(total, setting, weights)
            live = self.stretches.any(tokens.mask ^ found.flat).to(torch.float64)
            self.rows[f"{place}.live"] = segment_max(live, self.stretches.rows) > 0
            if setting.own_ratio:
                self._add(f"{place}.excess", (found.ratio - 1).where(tokens.mask, 0.0))
                self._add_span(f"{place}.ratio", found.ratio)
            kind = kinds + _state(found)
            self.kinds[place] = torch.bincount(kind, minlength=self.kinds.shape[1])
            if tokens.ref is not None:
                key = _kl_key(setting)
                if key not in kl:
                    kl[key] = self._row_sums(kl_loss(tokens, setting.options))
                self.rows[f"{place}.kl"] = self._numerator(kl[key], setting, weights)
        self.kinds = self.kinds.view(len(settings), self.cells, PLACES, KINDS)

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

    def _numerator(self, total: Tensor, setting: Setting, weights: Tensor | None) -> Tensor:
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

    def _kinds(self) -> Tensor:
        """The kind of each token but for what a setting decides, by cell and position, [T]."""
        tokens, places = self.tokens, self.stretches.places
        cell = spread(self.local, self.stretches.rows)
        sign = tokens.up.to(torch.uint8) * POSITIVE
        sign += tokens.down.to(torch.uint8) * NEGATIVE
        sign += (~tokens.mask).to(torch.uint8) * OUTSIDE
        # 32 bits, which a sweep reads and writes once a setting
        base = ((cell * PLACES + places) * KINDS).to(torch.int32)
        return self.stretches.spread(base) + sign * (KINDS // SIGNS)

    def _check(self, total: Tensor, setting: Setting) -> None:
        if not bool(torch.isfinite(total).all()):
            most = float(self.tokens.log_ratio.abs().amax())
            raise DataError(
                f"loss {setting.loss.name}: a token's loss is not finite; its log ratio is up to "
                f"{most:.4g} nats: are log_probs and old_log_probs of the same tokens? "
                "--ratio-clamp 20 bounds the ratio"
            )


def _state(found: Surrogate) -> Tensor:
    """The clip state and whether there is no gradient, as one number, [T] uint8."""
    return found.clip + found.flat.to(torch.uint8) * 4


def _kl_key(setting: Setting) -> tuple[object, ...]:
    """What the KL of tokens depends on, so that settings can share it."""
    options = setting.options
    fields = [name for name in type(options).model_fields if name.startswith("kl_loss_")]
    return (
        options.behaviour,
        *(getattr(options, name) for name in fields if name != "kl_loss_coef"),
    )


def _tally(
    blocks: list[_Block],
    numbers: Callable[[_Block], tuple[dict[str, Tensor], Spans]],
    keys: Tensor,
    count: int,
) -> Tally:
    """The tally of the rows, or of the stretches, of all blocks."""
    sums, spans = zip(*map(numbers, blocks), strict=True)
    return Tally.of(
        keys,
        count,
        {name: torch.cat([one[name] for one in sums]) for name in sums[0]},
        {
            name: (
                torch.cat([one[name][0] for one in spans]),
                torch.cat([one[name][1] for one in spans]),
            )
            for name in spans[0]
        },
    )
