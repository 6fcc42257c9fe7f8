"""Reverse scans over ragged arrays: discounted sums from the last token of a response."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlpost.kernels.segments import lengths, spread


def reverse_scan_each(values: Tensor, offsets: Tensor, decays: Tensor) -> Tensor:
    """Return the reverse scan of each segment, with a decay per segment.

        yₜ = xₜ + decay·yₜ₊₁,  y = 0 after the last element of the segment

    Neighbouring sums of 1, 2, 4, … elements are combined, in log₂(longest segment) steps.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64.
        decays: [N] in [0, 1].

    Returns:
        [T], in the dtype of `values`.
    """
    remaining = spread(offsets[1:], offsets) - torch.arange(values.numel(), device=values.device)
    decay = spread(decays, offsets).to(values.dtype)
    out, step = values.clone(), 1
    longest = int(lengths(offsets).max()) if offsets.numel() > 1 else 0
    while step < longest:
        following = torch.where(remaining[:-step] > step, decay[:-step] * out[step:], 0.0)
        out = torch.cat([out[:-step] + following, out[-step:]])
        decay, step = decay.square(), 2 * step
    return out


BLOCK = 16
_ROWS = 1024  # blocks per matrix product, few enough that numpy's library uses one thread


def reverse_scan(values: Tensor, offsets: Tensor, decay: float) -> Tensor:
    """Return the reverse scan of each segment.

        yₜ = xₜ + decay·yₜ₊₁,  y = 0 after the last element of the segment

    The array is divided into blocks of 16 elements, regardless of the segments. A block in which no
    segment begins is solved by one product with the matrix of the powers of the decay; the other
    blocks are solved by doubling, over 1, 2, 4, … neighbours of the same segment. The contribution
    of the next block is the same recursion over the first elements of the blocks, with decay¹⁶, and
    a rank-one update adds it. Nothing is padded and nothing is divided by a power of the decay, so
    long segments stay finite and segments do not affect each other.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64; empty segments are allowed.
        decay: in [0, 1].

    Returns:
        [T], in the dtype of `values`.
    """
    size = values.numel()
    if size == 0 or decay == 0:
        return values.clone()
    powers = decay ** torch.arange(BLOCK + 1, device=values.device, dtype=torch.float64)
    powers = powers.to(values.dtype)
    blocks = _Blocks.of(values)
    out = blocks.times(_decay_matrix(powers))
    starts = torch.unique_consecutive(offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < size)])
    cut, segment = _cut_blocks(starts)
    out[cut] = _by_doubling(blocks.at(cut), segment, powers)
    if len(out) > 1:
        carry = _carries(out[:, 0], starts, cut, float(powers[BLOCK]))
        fade = powers[1:].flip(0)
        tail = torch.where(segment == segment[:, -1:], carry[cut, None] * fade, 0.0)
        carry[cut] = 0.0
        out.addr_(carry, fade)
        out[cut] += tail
    return out.view(-1)[:size]


class _Blocks(NamedTuple):
    """An array viewed as blocks; only the elements after the last whole block are copied."""

    whole: Tensor
    """[blocks, BLOCK]."""
    rest: Tensor
    """[0 or 1, BLOCK], zeros after the last element."""

    @classmethod
    def of(cls, values: Tensor) -> _Blocks:
        """Return the blocks of [T]."""
        end = values.numel() // BLOCK * BLOCK
        rest = values.new_zeros(int(end < values.numel()), BLOCK)
        rest.view(-1)[: values.numel() - end] = values[end:]
        return cls(values[:end].view(-1, BLOCK), rest)

    def at(self, blocks: Tensor) -> Tensor:
        """Return blocks by index, ascending."""
        whole = blocks < len(self.whole)
        return torch.cat([self.whole[blocks[whole]], self.rest[blocks[~whole] - len(self.whole)]])

    def times(self, matrix: Tensor) -> Tensor:
        """Return every block times a matrix, [blocks, BLOCK]."""
        if self.whole.device.type != "cpu" or _differentiated(self.whole):
            return torch.cat([self.whole @ matrix, self.rest @ matrix])
        # numpy's product takes 40 % of the time of torch's on the CPU. A product of _ROWS blocks
        # fits the cache and starts no threads.
        out = self.whole.new_empty(len(self.whole) + len(self.rest), BLOCK)
        end = len(self.whole) // _ROWS * _ROWS
        stacks = self.whole[:end].view(-1, _ROWS, BLOCK), out[:end].view(-1, _ROWS, BLOCK)
        others = self.whole[end:], out[end : len(self.whole)]
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are as in torch
            for rows, into in (stacks, others, (self.rest, out[len(self.whole) :])):
                np.matmul(rows.numpy(), matrix.numpy(), out=into.numpy())
        return out


def _differentiated(values: Tensor) -> bool:
    """Return whether a gradient or a forward derivative is computed for the values."""
    tangent = forward_ad.unpack_dual(values).tangent  # type: ignore[no-untyped-call]
    return values.requires_grad or tangent is not None


def _decay_matrix(powers: Tensor) -> Tensor:
    """Return M[i, j] = decay^(i-j) for i >= j, else 0: (x @ M)[j] = Σᵢ≥ⱼ decay^(i-j)·xᵢ."""
    index = torch.arange(BLOCK, device=powers.device)
    distance = index[:, None] - index[None, :]
    return torch.where(distance >= 0, powers[distance.clamp(min=0)], 0.0)


def _cut_blocks(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the blocks in the middle of which a segment begins, and the segment of each element.

    Args:
        starts: first element of each segment, ascending.

    Returns:
        Block indices [C], and the index of the segment within the block [C, BLOCK], from 0.
    """
    inside = starts[starts % BLOCK != 0]
    cut, row = torch.unique_consecutive(inside // BLOCK, return_inverse=True)
    begins = torch.zeros(cut.numel(), BLOCK, dtype=torch.int8, device=starts.device)
    begins[row, inside % BLOCK] = 1
    return cut, begins.cumsum(1, dtype=torch.int8)


def _by_doubling(rows: Tensor, segment: Tensor, powers: Tensor) -> Tensor:
    """Return the scan of each row on its own, [C, BLOCK], with several segments in a row."""
    step = 1
    while step < BLOCK:
        same = segment[:, step:] == segment[:, :-step]
        rows = rows.clone()
        rows[:, :-step] += torch.where(same, rows[:, step:] * powers[step], 0.0)
        step *= 2
    return rows


def _carries(heads: Tensor, starts: Tensor, cut: Tensor, decay: float) -> Tensor:
    """Return the first element of the scan of the next block, [blocks]; 0 across segments.

    Args:
        heads: [blocks] first element of the scan of each block on its own.
        starts: first element of each segment, ascending.
        cut: blocks in the middle of which a segment begins; no carry passes through them.
        decay: decay over a whole block.
    """
    between = starts[starts % BLOCK == 0] // BLOCK
    closed = torch.zeros(heads.numel() + 1, dtype=torch.bool, device=heads.device)
    closed[between] = True
    apart = closed.clone()
    apart[cut + 1] = True
    apart[[0, -1]] = True
    scanned = reverse_scan(heads.contiguous(), apart.nonzero().squeeze(1), decay)
    following = torch.cat([scanned[1:], scanned.new_zeros(1)])
    return torch.where(closed[1:], 0.0, following)
