"""What log-probs should not be: positive, or far from one another; counted, not judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlpost.summary import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlpost.loss_stages import Setting
    from rlpost.losses import Tokens

POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
"""Where Tokens have the log-probs of each role."""


@dataclass(frozen=True)
class Oddities:
    """What log-probs cannot be, or should not: counts of tokens, and how far they go."""

    positive: Tensor
    """[POLICIES] int64: above 0 by more than rounding."""
    low: Tensor
    """[POLICIES] float64: the least."""
    high: Tensor
    """[POLICIES] float64: the greatest."""
    clamped: Tensor
    """[settings] int64: with a log ratio that the setting clamps."""
    kl_clamped: Tensor
    """[settings] int64: whose KL from the reference the setting clamps."""
    far: Tensor
    """[1] float64: the greatest |log ratio|."""

    @classmethod
    def of(
        cls, tokens: Tokens, base: Tokens, settings: Sequence[Setting], kl_clamped: Sequence[int]
    ) -> Oddities:
        """Those of some tokens.

        Args:
            tokens: T of them.
            base: the same with the policy that ratios divide by as `old`.
            settings: whose clamps of the log ratio are looked at.
            kl_clamped: how many tokens' KL each setting clamps.
        """
        positive, lows, highs = zip(*(_ends(tokens, name) for name in POLICIES), strict=True)
        apart = base.log_ratio.abs()
        far = float(apart.amax()) if apart.numel() else 0.0
        beyond = {
            clamp: int((apart > clamp).sum()) if far > clamp else 0
            for clamp in {one.clamp for one in settings}
        }
        return cls(
            torch.tensor(positive),
            torch.tensor(lows, dtype=torch.float64),
            torch.tensor(highs, dtype=torch.float64),
            torch.tensor([beyond[one.clamp] for one in settings]),
            torch.tensor(kl_clamped),
            torch.tensor([far], dtype=torch.float64),
        )

    @classmethod
    def none(cls, settings: int) -> Oddities:
        """Those of no tokens."""
        counts = torch.zeros(settings, dtype=torch.int64)
        ends = torch.full((len(POLICIES),), torch.inf, dtype=torch.float64)
        none = torch.zeros(len(POLICIES), dtype=torch.int64)
        return cls(none, ends, -ends, counts, counts, torch.zeros(1, dtype=torch.float64))

    def __add__(self, other: Oddities) -> Oddities:
        return Oddities(
            self.positive + other.positive,
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            self.clamped + other.clamped,
            self.kl_clamped + other.kl_clamped,
            torch.maximum(self.far, other.far),
        )


def _ends(tokens: Tokens, name: str) -> tuple[int, float, float]:
    """How many log-probs of a policy are above 0, and the least and the greatest of them."""
    values, mask = getattr(tokens, name), tokens.mask
    if values is None or not values.numel():
        return 0, torch.inf, -torch.inf
    low = float((values if tokens.whole else values.where(mask, torch.inf)).amin())
    inside = values if tokens.whole else values.where(mask, -torch.inf)
    high = float(inside.amax())
    return int((inside > ROUNDING).sum()) if high > ROUNDING else 0, low, high
