"""From the losses of tokens to one number: means over tokens or over responses.

What a response adds depends on its own tokens alone, and such numbers add up exactly, so that
neither order nor pieces can change a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.moments import add_digits, exact_digits, rounded
from rlpost.kernels.segments import count_true, lengths, segment_sum
from rlpost.kernels.weights import keyed_extremes

if TYPE_CHECKING:
    from torch import Tensor


def numerators(
    values: Tensor, mask: Tensor, offsets: Tensor, *, how: str, weights: Tensor | None = None
) -> Tensor:
    """What each response adds above the fraction bar, [n] float64.

    Its sum over policy tokens, or with seq-mean-token-mean their mean; 0 without one.

    Args:
        values: [T] losses of tokens, finite where the mask is 1.
        mask: [T] bool.
        offsets: [n+1].
        how: token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm.
        weights: [n] sample weights, which multiply; the denominator takes no notice of them.
    """
    found = segment_sum(torch.where(mask, values.detach().to(torch.float64), 0.0), offsets)
    if how == "seq-mean-token-mean":
        found = found / count_true(mask, offsets).clamp(min=1)
    return found if weights is None else found * weights


@dataclass(frozen=True)
class Parts:
    """Parts of aggregated losses by key (a batch), which add up with `+`; [keys] each."""

    total: Tensor
    """[keys, digits]: exact sums of numerators."""
    tokens: Tensor
    """Policy tokens."""
    valid: Tensor
    """Responses with a policy token."""
    rows: Tensor
    """Responses."""
    longest: Tensor
    """Length of the longest response, observations with it; 0 for none."""

    @classmethod
    def of(
        cls,
        added: Tensor,
        mask: Tensor,
        offsets: Tensor,
        keys: Tensor | None = None,
        count: int = 1,
    ) -> Parts:
        """The parts of some responses.

        Args:
            added: [n] from `numerators`.
            mask: [T] bool.
            offsets: [n+1].
            keys: [n] int64 in [0, count); None for all 0.
            count: how many keys there are.
        """
        sizes, tokens = lengths(offsets).cpu(), count_true(mask, offsets).cpu()
        keys = torch.zeros_like(sizes) if keys is None else keys.cpu()
        none = torch.zeros(count, dtype=torch.int64)
        _, longest = keyed_extremes(sizes.to(torch.float64), keys, count)
        return cls(
            exact_digits(added, keys, count),
            none.index_add(0, keys, tokens),
            none.index_add(0, keys, (tokens > 0).to(torch.int64)),
            none.index_add(0, keys, torch.ones_like(keys)),
            longest.clamp(min=0).to(torch.int64),
        )

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            add_digits(self.total, other.total),
            self.tokens + other.tokens,
            self.valid + other.valid,
            self.rows + other.rows,
            torch.maximum(self.longest, other.longest),
        )

    def loss(
        self,
        *,
        how: str,
        count_rows: str = "valid",
        norm: str = "length",
        length: int | None = None,
    ) -> Tensor:
        """The aggregated loss of each key, [keys] float64, rounded once; 0 where nothing counts.

            token-mean               Σ tokens / tokens
            seq-mean-token-sum       Σ rows Σ tokens / rows
            seq-mean-token-mean      Σ rows (Σ tokens / tokens of the row) / rows
            seq-mean-token-sum-norm  Σ rows Σ tokens / length [/ rows]

        Args:
            how: the same that the numerators were made with.
            count_rows: a mean over rows counts `valid` ones or `all`.
            norm: seq-mean-token-sum-norm divides by `length` (verl, ROLL) or by `rows` times it
                (Dr. GRPO, arXiv 2503.20783).
            length: the divisor of seq-mean-token-sum-norm; None for the longest response's.
        """
        rows = self.valid if count_rows == "valid" else self.rows
        if how == "token-mean":
            below = self.tokens
        elif how == "seq-mean-token-sum-norm":
            below = self.longest if length is None else torch.full_like(rows, length)
            below = below * rows if norm == "rows" else below
        else:
            below = rows
        return torch.where(below > 0, rounded(self.total, below.clamp(min=1)), 0.0)


def aggregate(
    values: Tensor,
    mask: Tensor,
    offsets: Tensor,
    *,
    how: str,
    weights: Tensor | None = None,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> float:
    """The aggregated loss of one batch, as `numerators` and `Parts.loss` have it.

    >>> values, mask = torch.tensor([1.0, 2.0, 6.0]), torch.ones(3, dtype=torch.bool)
    >>> aggregate(values, mask, torch.tensor([0, 2, 3]), how="seq-mean-token-mean")
    3.75
    """
    added = numerators(values, mask, offsets, how=how, weights=weights)
    parts = Parts.of(added, mask, offsets)
    return float(parts.loss(how=how, count_rows=count_rows, norm=norm, length=length))
