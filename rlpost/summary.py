"""What a run did, in numbers that add up exactly over chunks, files and machines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost import correction_summary
from rlpost.kernels.exact import add_digits, exact_digits, fraction_of
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min
from rlpost.kernels.weights import keyed_extremes
from rlpost.schema import LOG_PROBS
from rlpost.token_stages import kept_mask, mean_kl, partial_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.batch import Batch
    from rlpost.shape import Shape

ROUNDING = 1e-4
"""Nats above 0 that a log-softmax in few bits may give."""
SPREADS = ("count", "total", "squares")


class Tally:
    """Exact sums, minima and maxima of named numbers, by key.

    Tallies of the same names and keys add with `+`, in any order, to the same bits.

    Args:
        keys: how many keys there are.
    """

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self.sums: dict[str, Tensor] = {}
        self.lows: dict[str, Tensor] = {}
        self.highs: dict[str, Tensor] = {}

    @classmethod
    def of(
        cls,
        keys: Tensor,
        count: int,
        sums: Mapping[str, Tensor],
        spans: Mapping[str, tuple[Tensor, Tensor]],
    ) -> Tally:
        """The tally of some rows.

        Args:
            keys: [n] the key of each row.
            count: how many keys there are.
            sums: numbers to add up, [n] each.
            spans: lowest and highest, [n] each, of what makes up a row.
        """
        one = cls(count)
        stacked = torch.stack([value.to("cpu", torch.float64) for value in sums.values()])
        places = torch.arange(len(sums))[:, None] * count + keys
        digits = exact_digits(stacked.view(-1), places.view(-1), len(sums) * count)
        one.sums = dict(zip(sums, digits.view(len(sums), count, -1), strict=True))
        for name, (low, high) in spans.items():
            one.lows[name], _ = keyed_extremes(low.to("cpu", torch.float64), keys, count)
            _, one.highs[name] = keyed_extremes(high.to("cpu", torch.float64), keys, count)
        return one

    def __add__(self, other: Tally) -> Tally:
        if not (self.sums and other.sums):
            return self if self.sums else other
        joined = Tally(self.keys)
        joined.sums = _joined(self.sums, other.sums, add_digits)
        joined.lows = _joined(self.lows, other.lows, torch.minimum)
        joined.highs = _joined(self.highs, other.highs, torch.maximum)
        return joined

    def over(self, chosen: Tensor) -> Totals:
        """The totals over some keys, [k] int64."""
        return Totals(
            {name: fraction_of(digits[chosen].sum(0)) for name, digits in self.sums.items()},
            {name: float(low[chosen].amin()) for name, low in self.lows.items()},
            {name: float(high[chosen].amax()) for name, high in self.highs.items()},
        )


def _joined(
    left: dict[str, Tensor], right: dict[str, Tensor], join: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """All names at once: one call of torch instead of one a name."""
    if not left:
        return {}
    both = join(torch.stack([*left.values()]), torch.stack([right[name] for name in left]))
    return dict(zip(left, both, strict=True))


@dataclass(frozen=True)
class Totals:
    """Sums (exact), minima and maxima of a set of rows."""

    sums: dict[str, Fraction]
    lows: dict[str, float]
    highs: dict[str, float]

    def __contains__(self, name: object) -> bool:
        return name in self.sums or f"{name}.count" in self.sums

    def count(self, name: str) -> int:
        """A sum of whole numbers."""
        return int(self.sums.get(name, 0))

    def share(self, part: str, whole: str) -> float:
        """One sum over another, 0 where the latter is 0."""
        base = self.sums.get(whole, Fraction(0))
        return float(self.sums.get(part, Fraction(0)) / base) if base else 0.0

    def statistic(self, name: str) -> dict[str, float | None]:
        """Mean, Bessel standard deviation, min and max; all None where there is no number."""
        count, total, squares = (self.sums.get(f"{name}.{part}", Fraction(0)) for part in SPREADS)
        if not count:
            return {"mean": None, "std": None, "min": None, "max": None}
        mean = total / count
        # `squares` is the sum of x², kept exactly, so nothing cancels before it is rounded
        variance = max((squares - total * mean) / (count - 1), Fraction(0)) if count > 1 else 0
        return {
            "mean": float(mean),
            "std": float(variance) ** 0.5,
            "min": self.lows[name] + 0.0,  # -0 and 0 are equal, and which came first is chance
            "max": self.highs[name] + 0.0,
        }


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
    zero = batch["old_log_probs"] == 0
    at_last, at_first = zero[last] & there, zero[first] & there
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
