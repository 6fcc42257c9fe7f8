"""What a run did, in numbers that add up exactly over chunks, files and machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost import correction_summary
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min
from rlpost.schema import LOG_PROBS
from rlpost.tally import SPREADS
from rlpost.token_stages import kept_mask, mean_kl, partial_mask

if TYPE_CHECKING:
    from rlpost.batch import Batch
    from rlpost.shape import Shape

ROUNDING = 1e-4
"""Nats above 0 that a log-softmax in few bits may give."""


@dataclass(frozen=True)
class Measured:
    """Numbers of each response of a batch, on their way into a Tally."""

    sums: dict[str, Tensor]
    spans: dict[str, tuple[Tensor, Tensor]]

    def add_numbers(self, name: str, values: Tensor, counted: Tensor) -> None:
        """One number per response, of those that count."""
        weight = counted.to(torch.float64)
        inside = torch.where(counted, values, 0.0)
        self.add_spread(name, weight, inside, inside.square(), values, values)

    def add_spread(
        self, name: str, count: Tensor, total: Tensor, squares: Tensor, low: Tensor, high: Tensor
    ) -> None:
        """Sums of many numbers per response, with their lowest and highest."""
        self.sums.update(
            zip((f"{name}.{part}" for part in SPREADS), (count, total, squares), strict=True)
        )
        self.spans[name] = (
            torch.where(count > 0, low, torch.inf),
            torch.where(count > 0, high, -torch.inf),
        )

    def add_tokens(self, name: str, values: Tensor, mask: Tensor | None, offsets: Tensor) -> None:
        """The masked-in tokens of each response; without a mask all of them."""
        moments = token_moments(values, mask, offsets)
        squares = moments.squares + moments.total.square() / moments.number.clamp(min=1)
        lows = values if mask is None else torch.where(mask, values, torch.inf)
        highs = values if mask is None else torch.where(mask, values, -torch.inf)
        low, high = segment_min(lows, offsets), segment_max(highs, offsets)
        self.add_spread(name, moments.number, moments.total, squares, low, high)


def measure(batch: Batch, shape: Shape) -> Measured:
    """Everything the summary says of a batch to which all stages were applied."""
    rows = batch.responses
    measured = Measured({}, {})
    sums, valid = measured.sums, rows["valid"]
    one = torch.ones_like(rows["reward"])
    sums |= {"rows": one, "valid": valid, "kept": rows["kept"]}
    sums |= {"tokens": rows["tokens"], "length": batch.lengths}
    sums["valid_tokens"] = torch.where(valid, rows["tokens"], 0)
    sums |= {f"{name}": flag & valid for name, flag in rows.items() if name.startswith("mask:")}
    measured.add_numbers("reward", rows["reward"], valid)
    measured.add_numbers("response_level_reward", rows["rewards"], valid)
    if "reward_clipped" in rows:
        sums["reward_clipped"] = rows["reward_clipped"] & valid
    if "kl" in batch:
        measured.add_numbers("kl", mean_kl(batch), valid)
    if "token_reward_clipped" in batch:
        clipped = count_true(batch["token_reward_clipped"], batch.offsets)
        sums["token_reward_clipped"] = torch.where(valid, clipped, 0)
    if "old_log_probs" in batch:
        sums.update(_edges(batch))
    for role in LOG_PROBS:
        if role in batch:
            _measure_positive(measured, batch, role)
    if "sample_weight" in rows:
        measured.add_numbers("sample_weight", rows["sample_weight"], valid)
    if shape.recipe.corrects:
        sums |= correction_summary.tally(batch, shape.recipe)
    if "is_weight" in batch:
        measured.add_tokens("is_weight", batch["is_weight"], kept_mask(batch), batch.offsets)
    (_measure_constant if shape.constant else _measure_tokens)(measured, batch)
    return measured


def _measure_positive(measured: Measured, batch: Batch, role: str) -> None:
    """How many log-probs of each response are above 0, which none can be, and the greatest."""
    values, none = batch.only(batch[role]), torch.zeros_like(batch.lengths)
    positive, high = none, none.to(torch.float64)
    if values.numel() and float(values.amax()) > ROUNDING:
        positive = count_true(values > ROUNDING, batch.offsets)
        high = segment_max(values, batch.offsets)
    measured.sums[f"positive:{role}"] = positive
    measured.spans[role] = high, high


def _edges(batch: Batch) -> dict[str, Tensor]:
    """Signs of padding and shifting: log-probs that are exactly 0 at a response's ends."""
    if not batch.mask.numel():
        return dict.fromkeys(("padded", "shifted"), torch.zeros_like(batch.lengths))
    last = (batch.offsets[1:] - 1).clamp(min=0)
    first = batch.offsets[:-1].clamp(max=batch.mask.numel() - 1)
    there = batch.lengths > 0
    old = batch["old_log_probs"]
    at_last, at_first = (old[last] == 0) & there, (old[first] == 0) & there
    return {
        "padded": at_last & ~batch.mask[last],
        "shifted": (at_last & batch.mask[last]) | (at_first & batch.mask[first]),
    }


def _measure_constant(measured: Measured, batch: Batch) -> None:
    rows = batch.responses
    tokens = rows["tokens"]
    if "accepted" in batch:
        tokens = count_true(batch.mask & batch["accepted"], batch.offsets)
    count = torch.where(rows["kept"], tokens, 0).to(torch.float64)
    for name, column in (("advantage", "credit"), ("return", "credit_returns")):
        value = rows[column]
        measured.add_spread(name, count, count * value, count * value.square(), value, value)
    if "credit_clipped" in rows:
        measured.sums["advantage_clipped"] = count * rows["credit_clipped"]


def _measure_tokens(measured: Measured, batch: Batch) -> None:
    mask = partial_mask(batch)
    measured.add_tokens("advantage", batch["advantages"], mask, batch.offsets)
    if batch["returns"] is batch["advantages"]:
        same = {f"return.{part}": measured.sums[f"advantage.{part}"] for part in SPREADS}
        measured.sums.update(same)
        measured.spans["return"] = measured.spans["advantage"]
    else:
        measured.add_tokens("return", batch["returns"], mask, batch.offsets)
    if "advantage_clipped" in batch:
        measured.sums["advantage_clipped"] = count_true(batch["advantage_clipped"], batch.offsets)
