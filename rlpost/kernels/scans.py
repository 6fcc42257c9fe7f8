"""Reverse scans over ragged arrays: discounted sums from the last token of a response."""

from __future__ import annotations

from rlpost.kernels.arrays import Array, namespace, on_host
from rlpost.kernels.segments import lengths, offsets_of, spread


def reverse_scan_each(values: Array, offsets: Array, decays: Array) -> Array:
    """Return the reverse scan of each segment, with a decay per element.

        yₜ = xₜ + decayₜ·yₜ₊₁,  y = 0 after the last element of the segment

    Neighbouring sums of 1, 2, 4, … elements are combined, in log₂(longest segment) steps.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64.
        decays: [T], 0 or more.

    Returns:
        [T], in the type of `values`.
    """
    xp = namespace(values)
    remaining = spread(offsets[1:], offsets) - xp.arange(len(values), values)
    out, decay, step = values, xp.astype(decays, values.dtype), 1
    longest = int(lengths(on_host(offsets)).max()) if len(offsets) > 1 else 0
    while step < longest:
        following = xp.where(remaining[:-step] > step, decay[:-step] * out[step:], 0.0)
        out = xp.concat([out[:-step] + following, out[-step:]])
        decay = xp.concat([decay[:-step] * decay[step:], decay[-step:]])
        step = 2 * step
    return out


BLOCK = 16


def reverse_scan(values: Array, offsets: Array, decay: float) -> Array:
    """Return the reverse scan of each segment.

        yₜ = xₜ + decay·yₜ₊₁,  y = 0 after the last element of the segment

    Each segment is divided into blocks of 16 elements, counted from its end. The recursion runs
    from the last to the first place of all blocks at once. What a block gets from the next one is
    the same recursion over the first elements of the blocks, with decay¹⁶. So an element depends
    on those that follow it in its segment and, bit for bit, on nothing else. Products and sums are
    rounded one by one on every device. Nothing is divided by a power of the decay, so long segments
    stay finite.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64; empty segments are allowed.
        decay: in [0, 1].

    Returns:
        [T], in the type of `values`.
    """
    if len(values) == 0 or decay == 0:
        return values
    xp, ends = namespace(values), _block_ends(offsets)
    blocks = xp.blocks_of(offsets, ends, BLOCK)
    rows = blocks.scanned(values, decay)
    if int(lengths(on_host(offsets)).max()) > BLOCK:
        heads = reverse_scan(rows[0, ...], ends, decay**BLOCK)
        carry = xp.concat([heads[1:], xp.zeros(1, heads)])
        last = (ends[1:] - 1) % len(carry)
        rows = blocks.add(rows, xp.filled(carry, last, 0.0), decay)
    return blocks.joined(rows)


def _block_ends(offsets: Array) -> Array:
    """Return the offsets [N+1] of the blocks of each segment."""
    ends = offsets_of((lengths(offsets) + (BLOCK - 1)) // BLOCK)
    return namespace(offsets).with_host(ends, lambda: _block_ends(on_host(offsets)))
