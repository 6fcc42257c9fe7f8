"""Scans from the last token of a response to its first, over ragged arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpost.kernels.segments import lengths, offsets_of, spread

BLOCK = 32


def reverse_scan(values: Tensor, offsets: Tensor, decay: float) -> Tensor:
    """yₜ = xₜ + decay·yₜ₊₁ within each segment, y = 0 behind its last element.

    Segments are cut into blocks of 32 from their end. One product with the matrix of powers of
    the decay solves every block by itself. What a block takes over from the one behind it is the
    same recursion over the blocks' first elements, a thirty-second of the size, with decay³²; a
    rank-one update adds it. Nothing is padded to the longest segment, and no power of the decay
    is divided by, so long segments stay finite.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64; empty segments are allowed.
        decay: in [0, 1].

    Returns:
        [T], in the dtype of `values`.
    """
    if values.numel() == 0 or decay == 0:
        return values.clone()
    blocks = (lengths(offsets) + BLOCK - 1) // BLOCK
    block_offsets = offsets_of(blocks)
    # Segments are right-aligned in their blocks: the pad stands before the first element.
    shift = block_offsets[1:] * BLOCK - offsets[1:]
    slots = spread(shift, offsets).add_(torch.arange(values.numel(), device=values.device))
    padded = values.new_zeros(int(block_offsets[-1]) * BLOCK)
    padded[slots] = values
    powers = decay ** torch.arange(BLOCK + 1, device=values.device, dtype=torch.float64)
    local = padded.view(-1, BLOCK) @ _decay_matrix(powers).to(values.dtype)
    if int(blocks.max()) > 1:
        heads = reverse_scan(local[:, 0].contiguous(), block_offsets, float(powers[BLOCK]))
        local.addr_(_from_behind(heads, block_offsets), powers[1:].flip(0).to(values.dtype))
    return local.view(-1)[slots]


def _decay_matrix(powers: Tensor) -> Tensor:
    """M[i, j] = decay^(i-j) for i >= j, else 0, so that (x @ M)[j] = sum over i >= j."""
    index = torch.arange(BLOCK, device=powers.device)
    distance = index[:, None] - index[None, :]
    return torch.where(distance >= 0, powers[distance.clamp(min=0)], 0.0)


def _from_behind(values: Tensor, offsets: Tensor) -> Tensor:
    """Each element's successor in its segment, [T]; 0 for the last."""
    behind = torch.cat([values[1:], values.new_zeros(1)])
    behind[offsets[1:][offsets[1:] > offsets[:-1]] - 1] = 0.0
    return behind
