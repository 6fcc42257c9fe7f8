"""The tokens of a chunk, as lists and blocks: numbers of columns, populations of measures.

Chunks fit the cache of a core, and each number is one or two numpy calls on the flat values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.counted import numbers_of
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, fill_nulls, is_list, is_number, is_true, to_numpy
from rlpost.kernels.divergence import FAR, confident_disagreement
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import compact_offsets, count_true, segment_sum
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import TokenColumn
    from rlpost.io.arrow import CellLocation
    from rlpost.kernels.moments import Floats, Mask

    Rows = dict[str, NDArray[Any]]


class ListColumn(NamedTuple):
    """A list column: row i has values[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None = None
    """Rows without a list, [n]; None if each row has one."""
    null_values: NDArray[np.bool_] | None = None
    """Values that are null, and NaN in `values`, [t]; None if none is."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each row, [n]."""
        return np.diff(self.offsets)

    def like(self, offsets: NDArray[np.int64]) -> ListColumn:
        """Return the column with lists of other lengths, whose rows are NaN if theirs differ."""
        lengths = np.diff(offsets)
        fits = self.lengths == lengths
        if fits.all():
            return self
        to, of = np.repeat(fits, lengths), np.repeat(fits, self.lengths)
        wide, nulls = np.full(int(offsets[-1]), np.nan), None
        wide[to] = self.values[of]
        if self.null_values is not None:
            nulls = np.zeros(len(wide), np.bool_)
            nulls[to] = self.null_values[of]
        return ListColumn(offsets, wide, self.nulls, nulls)


@dataclass(frozen=True)
class Block:
    """Tokens of some responses of a chunk; all lists of a response have the same length."""

    offsets: NDArray[np.int64]
    values: Mapping[str, NDArray[Any]]
    """[T] each."""
    mask: Mask | None = None
    """[T]; None if all tokens are policy tokens."""
    nulls: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """By role, the values that are null in the file; only of roles with such values."""
    rows: NDArray[np.int64] | None = None
    """[n] places of the responses in the chunk, ascending; None: all of them."""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.offsets) - 1

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of the responses in the chunk, [n]."""
        return np.arange(len(self)) if self.rows is None else self.rows

    def policy(self) -> Block:
        """Return the block without observation tokens."""
        if self.mask is None:
            return self
        offsets = compact_offsets(self.mask, self.offsets)
        return replace(self._tokens(self.mask), offsets=offsets, mask=None)

    def of_rows(self, keep: Mask) -> Block:
        """Return the block of some of its responses, [n] bool."""
        if keep.all():
            return self
        lengths = np.diff(self.offsets)
        offsets = np.append(0, lengths[keep].cumsum())
        return replace(self._tokens(np.repeat(keep, lengths)), offsets=offsets,
                       rows=self.places[keep])  # fmt: skip

    def _tokens(self, keep: Mask) -> Block:
        values = {name: numbers[keep] for name, numbers in self.values.items()}
        nulls = {name: flags[keep] for name, flags in self.nulls.items()}
        mask = None if self.mask is None else self.mask[keep]
        return replace(self, values=values, nulls=nulls, mask=mask)


def lists_of(array: pa.Array, location: CellLocation) -> ListColumn:
    """Return a list column; a null row is empty, a null value NaN.

    Raises:
        DataError: not a list of numbers.
    """
    if pa.types.is_null(array.type):
        empty = np.zeros(0, np.float32)
        return ListColumn(np.zeros(len(array) + 1, np.int64), empty, np.ones(len(array), np.bool_))
    if is_list(array.type) and pa.types.is_null(array.type.value_type):
        array = array.cast(pa.large_list(pa.float32()))
    if not is_list(array.type) or not is_number(array.type.value_type):
        raise location.error(0, f"is {array.type}", "a list of floats, integers or bools is needed")
    offsets = _offsets(array)
    values = array.flatten()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    null_values = None
    if values.null_count:
        null_values = is_true(values.is_null())
        values = values.cast(pa.float64())
    nulls = is_true(array.is_null()) if array.null_count else None
    return ListColumn(offsets, fill_nulls(values, math.nan), nulls, null_values)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    kind = array.type
    if not array.null_count and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        stored = to_numpy(array.offsets)
        return np.asarray(stored - stored[0], dtype=np.int64)
    lengths = fill_nulls(pc.list_value_length(array), 0)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprints_of(array: pa.Array, location: CellLocation) -> NDArray[np.uint64]:
    """Return a 64-bit hash per row, of a text, a list of numbers, or messages.

    Raises:
        DataError: another type.
    """
    if is_list(array.type) and not pa.types.is_nested(array.type.value_type):
        return _hashes(lists_of(array, location))
    if pa.types.is_nested(array.type):
        return ragged.fingerprints(array)
    return np.asarray(pl.Series(array).cast(pl.String).hash().to_numpy())


def _hashes(lists: ListColumn) -> NDArray[np.uint64]:
    """Return Σ mix(value) · power(position) of each row, modulo 2⁶⁴, plus the row's length."""
    values = lists.values
    bits = values.astype(np.int64) if values.dtype.kind != "f" else values.astype(np.float64)
    mixed = bits.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    longest = int(lists.lengths.max(initial=0))
    powers = np.cumprod(np.full(longest, 0x94D049BB133111EB, np.uint64), dtype=np.uint64)
    mixed *= powers[np.arange(len(values)) - np.repeat(lists.offsets[:-1], lists.lengths)]
    sums: NDArray[np.uint64] = segment_sum(mixed, lists.offsets)
    return sums + lists.lengths.astype(np.uint64)


LOG_RATIO_CLAMP = Numerics().log_ratio_clamp.bound
POLICIES = ("old_log_probs", "log_probs", "infer_log_probs")


class Buffers(dict[str, "Floats"]):
    """Arrays to write into; their memory is used again, since new pages cost time."""

    def of(self, name: str, size: int) -> Floats:
        """Return an array of a size."""
        if len(self.setdefault(name, np.empty(0))) < size:
            self[name] = np.empty(size * 5 // 4)
        return self[name][:size]


def column_rows(
    column: TokenColumn, role: str, policy: Block, buffers: Buffers
) -> tuple[Rows, Block]:
    """Return means and flags of responses, and the finite tokens, which are added to a column."""
    values, offsets = policy.values[role], policy.offsets
    wide = buffers.of("column", len(values))
    wide[:] = values
    total = segment_sum(wide, offsets)
    nonfinite = ~np.isfinite(total)
    if nonfinite.any():
        finite, null = np.isfinite(wide), np.count_nonzero(policy.nulls.get(role, False))
        column.nonfinite_rows += int(nonfinite.sum())
        column.null += int(null)
        column.nan += int(np.count_nonzero(np.isnan(values)) - null)
        column.minus_infinity += int(np.count_nonzero(values == -np.inf))
        column.plus_infinity += int(np.count_nonzero(values == np.inf))
        offsets, values, wide = compact_offsets(finite, offsets), values[finite], wide[finite]
        total = segment_sum(wide, offsets)
    lengths, positive = np.diff(offsets), np.zeros(len(nonfinite), np.bool_)
    column.tokens += len(values)
    if len(values):
        low, high = float(values.min()), float(values.max())
        column.min = low if column.min is None else min(column.min, low)
        column.max = high if column.max is None else max(column.max, high)
        if high >= 0 >= low:
            column.zero += int(np.count_nonzero(values == 0))
        if high > LOG_PROB_ROUNDING:
            above = count_true(values > LOG_PROB_ROUNDING, offsets)
            column.positive += int(above.sum())
            positive = above > 0
    mean = np.where(lengths > 0, total / np.maximum(lengths, 1), np.nan)
    flags = {f"mean:{role}": mean, f"nonfinite:{role}": nonfinite, f"positive:{role}": positive}
    return flags, Block(offsets, {"values": wide}, rows=policy.rows)


def compared_tokens(policy: Block, buffers: Buffers) -> Block:
    """Return the tokens with both log-probs: d = old - infer clamped to ±40, and its size."""
    infer, offsets = policy.values["infer_log_probs"], policy.offsets
    gap, most = _gap(policy, "infer_log_probs", buffers)
    if not math.isfinite(most):
        finite = np.isfinite(gap)
        gap, infer, offsets = gap[finite], infer[finite], compact_offsets(finite, offsets)
        most = np.abs(gap).max(initial=0.0)
    size = np.abs(gap, out=buffers.of("size", len(gap)))
    none = np.zeros(len(gap), np.bool_)
    clamped, sure = none, none
    if most > LOG_RATIO_CLAMP:
        clamped = size > LOG_RATIO_CLAMP
        np.clip(gap, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP, out=gap)
    if most > FAR:
        sure = confident_disagreement(infer, size)
    excess = np.expm1(gap, out=buffers.of("excess", len(gap)))
    columns = {"d": gap, "size": size, "excess": excess, "clamped": clamped, "sure": sure}
    return Block(offsets, columns, rows=policy.rows)


def _gap(policy: Block, other: str, buffers: Buffers) -> tuple[Floats, float]:
    """Return old - other, [T], and its largest size; both are NaN if a number is."""
    old = policy.values["old_log_probs"]
    gap = buffers.of("gap", len(old))
    np.subtract(old, policy.values[other], dtype=np.float64, out=gap)
    return gap, float(max(gap.max(initial=0.0), -gap.min(initial=0.0)))


def reference_tokens(policy: Block, buffers: Buffers) -> tuple[Floats, Block]:
    """Return the mean of old - ref of each response, clamped to ±40, and the finite tokens.

    The mean is NaN if a number is not finite.
    """
    gap, most = _gap(policy, "ref_log_probs", buffers)
    tokens, offsets, clamped = gap, policy.offsets, gap
    if not most <= LOG_RATIO_CLAMP:
        finite = np.isfinite(gap)
        tokens, offsets = gap[finite], compact_offsets(finite, offsets)
        clamped = np.where(finite, gap.clip(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP), np.nan)
    lengths = np.maximum(np.diff(policy.offsets), 1)
    kl = segment_sum(clamped, policy.offsets) / lengths
    size = np.abs(tokens, out=buffers.of("size", len(tokens)))
    return kl, Block(offsets, {"gap": tokens, "size": size}, rows=policy.rows)


def policy_role(roles: Any) -> str | None:
    """Return the role of the log-probs: those of the trainer before the update, if they exist."""
    return next((role for role in POLICIES if role in roles), None)


def entropy_tokens(policy: Block, role: str | None) -> Block | None:
    """Return the tokens of responses with finite entropies.

    Without a column of entropies, -log p of the sampled tokens is their estimate.

    Args:
        policy: with the column `entropy`, if the input has it.
        role: of log p.
    """
    if "entropy" in policy.values:
        entropies = policy.values["entropy"].astype(np.float64)
    elif role is not None and role in policy.values:
        entropies = -policy.values[role].astype(np.float64)
    else:
        return None
    tokens = Block(policy.offsets, {"entropy": entropies}, rows=policy.rows)
    return tokens.of_rows(np.isfinite(segment_sum(entropies, policy.offsets)))


def critic_tokens(policy: Block, rewards: Floats) -> Block:
    """Return the tokens of responses with finite values and rewards, their returns and errors.

    The return of a token is the sum of the rewards from it to the end of its row (γ = 1, λ = 1):
    the reward, and the token rewards of policy tokens. So no value is part of it.

    Args:
        policy: with `values`, and `token_rewards` if there is a column.
        rewards: [n].
    """
    offsets, names = policy.offsets, {"values": "value", "token_rewards": "process"}
    columns = {
        new: policy.values[name].astype(np.float64)
        for name, new in names.items()
        if name in policy.values
    }
    good = np.isfinite(rewards) & (np.diff(offsets) > 0)
    for values in columns.values():
        good &= np.isfinite(segment_sum(values, offsets))
    tokens = Block(offsets, columns, rows=policy.rows).of_rows(good)
    returns = np.repeat(rewards[good], np.diff(tokens.offsets))
    if "process" in tokens and len(returns):
        returns += reverse_scan(tokens["process"], tokens.offsets, 1.0)
    errors = returns - tokens["value"]
    more = {"return": returns, "error": errors}
    return replace(tokens, values={**tokens.values, **more})


def advantage_tokens(
    array: pa.Array, location: CellLocation, mask: ListColumn | None, kept: Mask | None
) -> tuple[Block, int]:
    """Return the finite advantages of responses that are kept, and how many are not finite.

    Args:
        array: a list per row, or a number.
        location: of the array, for errors.
        mask: of the same rows; a row whose mask has another length counts all its values.
        kept: [n], False for responses that are left out; None keeps all.

    Raises:
        DataError: neither numbers nor lists of them.
    """
    if is_list(array.type):
        lists = lists_of(array, location)
        values, offsets = lists.values.astype(np.float64), lists.offsets
        chosen = _is_policy(lists, mask)
    else:
        values = numbers_of(array, location)
        offsets, chosen = np.arange(len(values) + 1), None
    finite = np.isfinite(values)
    if kept is not None and not kept.all():
        of_kept = np.repeat(kept, np.diff(offsets))
        chosen = of_kept if chosen is None else chosen & of_kept
    if chosen is None and finite.all():  # nothing is copied
        return Block(offsets, {"advantage": values}), 0
    chosen = np.ones(len(values), np.bool_) if chosen is None else chosen
    nonfinite = int(np.count_nonzero(chosen & ~finite))
    chosen = chosen & finite
    offsets = compact_offsets(chosen, offsets)
    return Block(offsets, {"advantage": values[chosen]}), nonfinite


def _is_policy(lists: ListColumn, mask: ListColumn | None) -> Mask | None:
    """Return which values belong to policy tokens, [t]; None if all do."""
    if mask is None or mask.values.all():
        return None
    policy = np.ones(len(lists.values), np.bool_)
    fits = lists.lengths == mask.lengths
    policy[np.repeat(fits, lists.lengths)] = mask.values[np.repeat(fits, mask.lengths)] != 0
    return policy
