"""Reductions: from the sums of responses to the number of a unit, such as a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from rlpost.kernels.aggregate import denominator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.splits import Units

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]


class Reduction(NamedTuple):
    """A way from the sums of responses to the number of a unit."""

    aggregation: str
    cost: int
    """How unusual it is."""
    rows: Literal["valid", "all", ""] = ""
    """--agg-rows; empty if responses are not counted."""
    norm: Literal["length", "rows", ""] = ""
    """--agg-norm of seq-mean-token-sum-norm."""
    tokens: Literal["policy tokens", "all tokens", "tokens and padding"] = "policy tokens"
    """What token-mean divides by."""

    @property
    def options(self) -> dict[str, str]:
        """The options of the loss, without those that are the default."""
        rows = {"agg_rows": "all"} if self.rows == "all" else {}
        norm = {"agg_norm": "rows"} if self.norm == "rows" else {}
        return {"aggregation": self.aggregation, **norm, **rows}

    def __str__(self) -> str:
        """Return the reduction in words."""
        tokens = "" if self.tokens == "policy tokens" else f" of {self.tokens}"
        rows = " (all responses)" if self.rows == "all" and not self.norm else ""
        return f"{self.aggregation}{tokens}{rows}"


REDUCTIONS = (
    Reduction("token-mean", 0),
    Reduction("seq-mean-token-mean", 1, "valid"),
    Reduction("seq-mean-token-mean", 2, "all"),
    Reduction("seq-mean-token-sum", 2, "valid"),
    Reduction("seq-mean-token-sum", 3, "all"),
    Reduction("seq-mean-token-sum-norm", 3, "all", "rows"),
    Reduction("seq-mean-token-sum-norm", 3, norm="length"),
    Reduction("token-sum", 3),
    Reduction("token-mean", 3, tokens="all tokens"),
    Reduction("token-mean", 4, tokens="tokens and padding"),
)
OF_ALL_TOKENS = np.array([one.tokens != "policy tokens" for one in REDUCTIONS])
"""[r]: the reductions of a sum over all tokens."""
OF_COUNTS = np.array([not one.norm for one in REDUCTIONS])
"""[r]: the reductions of what no loss aggregates, such as the share of clipped tokens."""


class Sizes(NamedTuple):
    """The sizes of some responses, [n] int64."""

    tokens: Indices
    """Policy tokens."""
    length: Indices
    """Tokens, with observations."""


def response_weights(sizes: Sizes, units: Units, length: int | None) -> Numbers:
    """Return the weight of each response's sum in a mean of units, [reductions, n].

    Args:
        sizes: of the responses of a step.
        units: of the same step.
        length: the length of seq-mean-token-sum-norm; None: the longest response's.
    """
    order, starts = units.order, units.starts

    def total(numbers: Indices) -> torch.Tensor:
        return torch.from_numpy(np.add.reduceat(numbers[order], starts))

    tokens, rows = total(sizes.tokens), total(np.ones_like(sizes.tokens))
    valid, every = total((sizes.tokens > 0).astype(np.int64)), total(sizes.length)
    longest = torch.from_numpy(np.maximum.reduceat(sizes.length[order], starts))
    divided_by = {
        "policy tokens": tokens, "all tokens": every, "tokens and padding": longest * rows,
    }  # fmt: skip
    counts = np.diff(np.append(starts, len(order)))
    weights = np.zeros((len(REDUCTIONS), len(order)))
    for at, one in enumerate(REDUCTIONS):
        below = denominator(
            how=one.aggregation,
            tokens=divided_by[one.tokens],
            valid=valid,
            rows=rows,
            longest=longest,
            count_rows=one.rows or "valid",
            norm=one.norm or "length",
            length=length,
        ).numpy()
        share = np.divide(units.weights, below, out=np.zeros(len(below)), where=below > 0)
        weights[at, order] = np.repeat(share, counts)
        if one.aggregation == "seq-mean-token-mean":
            weights[at] /= np.maximum(sizes.tokens, 1)
    return weights
