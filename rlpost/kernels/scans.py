"""Scans from the last token of a response to its first, over ragged arrays.

Scans in which every segment has a decay of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlpost.kernels.segments import lengths, spread


def reverse_scan_each(values: Tensor, offsets: Tensor, decays: Tensor) -> Tensor:
    """yₜ = xₜ + decay·yₜ₊₁ within each segment, y = 0 behind its last element.

    Sums of 1, 2, 4, … elements are joined pairwise, so it takes log₂ of the longest segment.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64.
        decays: [N] in [0, 1].

    Returns:
        [T], in the dtype of `values`.
    """
    left = spread(offsets[1:], offsets) - torch.arange(values.numel(), device=values.device)
    decay = spread(decays, offsets).to(values.dtype)
    out, step = values.clone(), 1
    longest = int(lengths(offsets).max()) if offsets.numel() > 1 else 0
    while step < longest:
        joined = torch.where(left[:-step] > step, decay[:-step] * out[step:], 0.0)
        out = torch.cat([out[:-step] + joined, out[-step:]])
        decay, step = decay.square(), 2 * step
    return out


BLOCK = 16
_ROWS = 1024  # so few that numpy's library makes no job for several threads of them


def reverse_scan(values: Tensor, offsets: Tensor, decay: float) -> Tensor:
    """yₜ = xₜ + decay·yₜ₊₁ within each segment, y = 0 behind its last element.

    The array is cut into blocks of 16, wherever segments begin. One product with the matrix of
    powers of the decay solves every block that no segment begins in; the few others are solved by
    doubling, step by step over 1, 2, 4, … neighbours of the same segment. What a block takes over
    from the one behind it is the same recursion over the blocks' first elements, with decay¹⁶; a
    rank-one update adds it. Nothing is padded, and no power of the decay is divided by, so long
    segments stay finite and one segment's numbers never meet another's.

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
    rows = _Rows.of(values)
    out = rows.times(_decay_matrix(powers))
    starts = torch.unique_consecutive(offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < size)])
    cut, segment = _cut_blocks(starts)
    out[cut] = _by_doubling(rows.at(cut), segment, powers)
    if len(out) > 1:
        behind = _from_behind(out[:, 0], starts, cut, float(powers[BLOCK]))
        fade = powers[1:].flip(0)
        tail = torch.where(segment == segment[:, -1:], behind[cut, None] * fade, 0.0)
        behind[cut] = 0.0
        out.addr_(behind, fade)
        out[cut] += tail
    return out.view(-1)[:size]


class _Rows(NamedTuple):
    """An array cut into blocks, where it lies; only what is behind the last whole one is copied."""

    whole: Tensor
    """[blocks, BLOCK]."""
    rest: Tensor
    """[0 or 1, BLOCK], zeros behind the last element."""

    @classmethod
    def of(cls, values: Tensor) -> _Rows:
        """The blocks of [T]."""
        end = values.numel() // BLOCK * BLOCK
        rest = values.new_zeros(int(end < values.numel()), BLOCK)
        rest.view(-1)[: values.numel() - end] = values[end:]
        return cls(values[:end].view(-1, BLOCK), rest)

    def at(self, blocks: Tensor) -> Tensor:
        """Some blocks, by their numbers, ascending."""
        among = blocks < len(self.whole)
        return torch.cat([self.whole[blocks[among]], self.rest[blocks[~among] - len(self.whole)]])

    def times(self, matrix: Tensor) -> Tensor:
        """Every block times a matrix, [blocks, BLOCK]."""
        if self.whole.device.type != "cpu" or _differentiated(self.whole):
            return torch.cat([self.whole @ matrix, self.rest @ matrix])
        # numpy's product takes 40 % of the time of torch's on the CPU. Taken some rows at a time,
        # it stays in the cache and leaves threads alone.
        out = self.whole.new_empty(len(self.whole) + len(self.rest), BLOCK)
        end = len(self.whole) // _ROWS * _ROWS
        several = self.whole[:end].view(-1, _ROWS, BLOCK), out[:end].view(-1, _ROWS, BLOCK)
        others = self.whole[end:], out[end : len(self.whole)]
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are as in torch
            for rows, into in (several, others, (self.rest, out[len(self.whole) :])):
                np.matmul(rows.numpy(), matrix.numpy(), out=into.numpy())
        return out


def _differentiated(values: Tensor) -> bool:
    """Whether derivatives are asked for, backwards or forwards."""
    tangent = forward_ad.unpack_dual(values).tangent  # type: ignore[no-untyped-call]
    return values.requires_grad or tangent is not None


def _decay_matrix(powers: Tensor) -> Tensor:
    """M[i, j] = decay^(i-j) for i >= j, else 0, so that (x @ M)[j] = sum over i >= j."""
    index = torch.arange(BLOCK, device=powers.device)
    distance = index[:, None] - index[None, :]
    return torch.where(distance >= 0, powers[distance.clamp(min=0)], 0.0)


def _cut_blocks(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks that a segment begins inside of, [C], and which of its segments each element is in.

    Args:
        starts: where segments begin, ascending.

    Returns:
        [C] and [C, BLOCK]; the latter counts from 0 in each block.
    """
    inside = starts[starts % BLOCK != 0]
    cut, place = torch.unique_consecutive(inside // BLOCK, return_inverse=True)
    begins = torch.zeros(cut.numel(), BLOCK, dtype=torch.int8, device=starts.device)
    begins[place, inside % BLOCK] = 1
    return cut, begins.cumsum(1, dtype=torch.int8)


def _by_doubling(rows: Tensor, segment: Tensor, powers: Tensor) -> Tensor:
    """The scan of each row by itself, [C, BLOCK], with several segments in it."""
    step = 1
    while step < BLOCK:
        same = segment[:, step:] == segment[:, :-step]
        rows = rows.clone()
        rows[:, :-step] += torch.where(same, rows[:, step:] * powers[step], 0.0)
        step *= 2
    return rows


def _from_behind(heads: Tensor, starts: Tensor, cut: Tensor, decay: float) -> Tensor:
    """What each block takes over from the one behind it, [blocks].

    Args:
        heads: [blocks] the first element of each block, solved by itself.
        starts: where segments begin, ascending.
        cut: blocks that a segment begins inside of: nothing passes through them.
        decay: over a whole block.
    """
    between = starts[starts % BLOCK == 0] // BLOCK
    closed = torch.zeros(heads.numel() + 1, dtype=torch.bool, device=heads.device)
    closed[between] = True
    apart = closed.clone()
    apart[cut + 1] = True
    apart[[0, -1]] = True
    whole = reverse_scan(heads.contiguous(), apart.nonzero().squeeze(1), decay)
    behind = torch.cat([whole[1:], whole.new_zeros(1)])
    return torch.where(closed[1:], 0.0, behind)
