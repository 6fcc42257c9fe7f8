"""Facts of single tokens, a piece at a time: ranges, engine against trainer, places, shifts.

Everything is over the policy's tokens (mask 1). Pieces are small enough for a core's cache, and
each number is one or two numpy calls on the flat values of a piece.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.columns import kept_offsets, segment_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.statistics import TokenTotals

    Rows = dict[str, NDArray[Any]]


LOG_PROBS = ("old_log_probs", "infer_log_probs", "ref_log_probs", "log_probs")
ROLES = (*LOG_PROBS, "values", "token_rewards")
TWINS = (
    ("old_log_probs", "infer_log_probs"),
    ("old_log_probs", "ref_log_probs"),
    ("infer_log_probs", "ref_log_probs"),
)
ROUNDING = 1e-3  # nats that a log-prob may exceed 0 by
MOST = 40.0  # bound on log-ratios, as in the numerics of `rlpost advantages`
SURE, NATS = math.log(0.5), 2.0
FIRST_BUCKET = 128


@dataclass(frozen=True)
class Block:
    """Some responses: all lists of a row have the same length."""

    offsets: NDArray[np.int64]
    mask: NDArray[np.bool_] | None
    """[T]; None where all tokens are the policy's."""
    values: Mapping[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """Responses."""
        return len(self.offsets) - 1

    def policy(self) -> Block:
        """Only the policy's tokens."""
        if self.mask is None:
            return self
        kept = {role: values[self.mask] for role, values in self.values.items()}
        return Block(kept_offsets(self.mask, self.offsets), None, kept)


def measure(block: Block, tally: TokenTotals) -> Rows:
    """Add a block to the tally, and give what is kept of each response, [n] each."""
    rows: Rows = {}
    policy = block.policy()
    for role, values in policy.values.items():
        rows |= ranges(role, values, policy.offsets, tally)
    if {"old_log_probs", "infer_log_probs"} <= policy.values.keys():
        rows |= mismatch(policy, tally)
    if {"old_log_probs", "ref_log_probs"} <= policy.values.keys():
        rows |= divergence(policy, tally)
    for one, other in TWINS:
        if {one, other} <= policy.values.keys():
            equal = np.count_nonzero(policy.values[one] == policy.values[other])
            tally.add(f"{one}/{other}.equal", equal)
            tally.add(f"{one}/{other}.tokens", len(policy.values[one]))
    return rows


def ranges(role: str, values: NDArray[Any], offsets: NDArray[np.int64], tally: TokenTotals) -> Rows:
    """Count, sum, span and what is no log-prob; of each response the mean, and whether finite."""
    wide = tally.room("gap", len(values))
    wide[:] = values
    total = segment_sums(wide, offsets)
    lengths = np.diff(offsets)
    nonfinite = ~np.isfinite(total)
    if nonfinite.any():
        finite = np.isfinite(values)
        tally.add(f"{role}.nan", np.count_nonzero(np.isnan(values)))
        tally.add(f"{role}.minus_infinity", np.count_nonzero(values == -np.inf))
        tally.add(f"{role}.plus_infinity", np.count_nonzero(values == np.inf))
        offsets, values = kept_offsets(finite, offsets), values[finite]
        lengths = np.diff(offsets)
        total = segment_sums(values.astype(np.float64), offsets)
    tally.add(f"{role}.count", len(values))
    tally.add(f"{role}.sum", total.sum())
    if len(values):
        low, high = values.min(), values.max()
        tally.span(role, low, high)
        tally.add(f"{role}.zero", np.count_nonzero(values == 0) if high >= 0 >= low else 0)
        if high > ROUNDING:
            tally.add(f"{role}.positive", np.count_nonzero(values > ROUNDING))
    mean = np.where(lengths > 0, total / np.maximum(lengths, 1), np.nan)
    return {f"mean:{role}": mean, f"nonfinite:{role}": nonfinite}


def mismatch(policy: Block, tally: TokenTotals) -> Rows:
    """Engine against trainer, d = old - infer, in all and by place; of each response Σ k3."""
    infer, offsets = policy.values["infer_log_probs"], policy.offsets
    gap, most = _gap(policy, "infer_log_probs", tally)
    if not math.isfinite(most):
        finite = np.isfinite(gap)
        gap, infer, offsets = gap[finite], infer[finite], kept_offsets(finite, offsets)
        most = np.abs(gap).max(initial=0.0)
    tally.span("gap", 0.0, most)
    if most > MOST:
        gap = np.clip(gap, -MOST, MOST, out=gap)
    size = np.abs(gap, out=tally.room("size", len(gap)))
    excess = np.expm1(gap, out=tally.room("excess", len(gap)))
    tally.add("gap.tokens", len(gap))
    tally.add("gap.sum", gap.sum())
    tally.add("gap.excess", excess.sum())
    tally.add("gap.excess_squared", np.einsum("i,i", excess, excess))
    if most > NATS:
        tally.add("gap.sure", np.count_nonzero((infer >= SURE) & (size > NATS)))
    k3 = np.subtract(excess, gap, out=excess)
    cells = _by_place({"abs": size, "k3": k3}, offsets, tally)
    return {"k3": cells["k3"].sum(1), "compared": np.diff(offsets).astype(np.int32)}


def _gap(policy: Block, other: str, tally: TokenTotals) -> tuple[NDArray[np.float64], float]:
    """Old - other, [T], and its largest size; NaN where a number is."""
    old = policy.values["old_log_probs"]
    gap = tally.room("gap", len(old))
    np.subtract(old, policy.values[other], dtype=np.float64, out=gap)
    return gap, float(max(gap.max(initial=0.0), -gap.min(initial=0.0)))


def _by_place(
    values: Mapping[str, NDArray[np.float64]], offsets: NDArray[np.int64], tally: TokenTotals
) -> dict[str, NDArray[np.float64]]:
    """Sums over the buckets of each response, [n, k]; the tally gets those over responses."""
    bounds = places(offsets)
    width = bounds.shape[1] - 1
    flat = np.append(bounds[:, :-1].reshape(-1), offsets[-1])
    cells = {name: segment_sums(one, flat).reshape(-1, width) for name, one in values.items()}
    for name, sums in cells.items():
        tally.add_table(f"place.{name}", sums.sum(0))
        tally.add(f"gap.{name}", sums.sum())
    tally.add_table("place.tokens", np.diff(bounds, axis=1).sum(0).astype(np.float64))
    return cells


def places(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the buckets of each response start and the last one ends, [n, k + 1].

    Buckets are 0 to 127, 128 to 255, 256 to 511 and on by doubling, as far as the longest goes.
    """
    longest = int(np.diff(offsets).max(initial=1))
    edges = [0]
    while (edges[-1] * 2 or FIRST_BUCKET) < longest:
        edges.append(edges[-1] * 2 or FIRST_BUCKET)
    starts = np.minimum(offsets[:-1, None] + np.array(edges), offsets[1:, None])
    return np.concatenate([starts, offsets[1:, None]], axis=1)


def divergence(policy: Block, tally: TokenTotals) -> Rows:
    """The mean of old - ref of each response, bounded by ±40; NaN where it is not finite."""
    gap, most = _gap(policy, "ref_log_probs", tally)
    if not most <= MOST:
        infinite = np.isinf(gap)
        np.clip(gap, -MOST, MOST, out=gap)
        gap[infinite] = np.nan
    lengths = np.maximum(np.diff(policy.offsets), 1)
    return {"kl": segment_sums(gap, policy.offsets) / lengths}
