"""Aggregation of token losses to one number: means over tokens or over responses.

What a response contributes depends on its own tokens only, and contributions are summed exactly, so
neither the order nor the chunking of responses changes a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.moments import add_digits, exact_digits, keyed_extremes, round_digits
from rlpost.kernels.segments import count_true, lengths

if TYPE_CHECKING:
    from torch import Tensor


def denominator(
    *,
    how: str,
    tokens: Tensor,
    valid: Tensor,
    rows: Tensor,
    longest: Tensor,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> Tensor:
    """Return what the sum of the responses' contributions is divided by, int64, like `tokens`.

        token-mean               Σ over responses of Σ loss           / policy tokens
        seq-mean-token-sum       Σ over responses of Σ loss           / responses
        seq-mean-token-mean      Σ over responses of Σ loss / tokens  / responses
        seq-mean-token-sum-norm  Σ over responses of Σ loss           / length [/ responses]

    Args:
        how: one of the four.
        tokens: number of policy tokens.
        valid: number of responses with a policy token.
        rows: number of responses.
        longest: length of the longest response, observation tokens included.
        count_rows: which responses count: `valid` ones or `all`.
        norm: seq-mean-token-sum-norm divides by `length` (verl, ROLL), or by length and number of
            responses (`rows`; Dr. GRPO, arXiv 2503.20783).
        length: the length of seq-mean-token-sum-norm; None for `longest`.
    """
    responses = valid if count_rows == "valid" else rows
    if how == "token-mean":
        return tokens
    if how != "seq-mean-token-sum-norm":
        return responses
    divisor = longest if length is None else torch.full_like(responses, length)
    return divisor * responses if norm == "rows" else divisor


@dataclass(frozen=True)
class AggregateTotals:
    """Totals from which losses are aggregated by key (a batch); they add with `+`; [keys] each."""

    total: Tensor
    """[keys, digits]: exact sums of contributions."""
    tokens: Tensor
    """Number of policy tokens."""
    valid: Tensor
    """Number of responses with a policy token."""
    rows: Tensor
    """Number of responses."""
    longest: Tensor
    """Length of the longest response, observation tokens included; 0 for no response."""

    @classmethod
    def of(
        cls,
        added: Tensor,
        mask: Tensor,
        offsets: Tensor,
        keys: Tensor | None = None,
        count: int = 1,
    ) -> AggregateTotals:
        """Return the totals of some responses.

        Args:
            added: [n] contribution of each response: the sum of the losses of its policy tokens,
                or with seq-mean-token-mean their mean.
            mask: [T] bool, true on policy tokens.
            offsets: [n+1] of the responses.
            keys: [n] int64 in [0, count); None if all are 0.
            count: the number of keys.
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

    def __add__(self, other: AggregateTotals) -> AggregateTotals:
        return AggregateTotals(
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
        """Return the aggregated loss of each key, [keys] float64, rounded once; 0 for no tokens.

        The arguments are those of `denominator`; `how` is the one of the contributions.
        """
        below = denominator(
            how=how,
            tokens=self.tokens,
            valid=self.valid,
            rows=self.rows,
            longest=self.longest,
            count_rows=count_rows,
            norm=norm,
            length=length,
        )
        return torch.where(below > 0, round_digits(self.total, below.clamp(min=1)), 0.0)
