"""Scans from the last token of a response to its first, over ragged arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpost.kernels.segments import lengths, offsets_of, spread

BLOCK = 128


def reverse_scan(values: Tensor, offsets: Tensor, decay: float) -> Tensor:
    """yₜ = xₜ + decay·yₜ₊₁ within each segment, y = 0 behind its last element.

    Segments are cut into blocks of 128 from their end. One product with the matrix of powers of
    the decay solves every block by itself; the carries then pass from block to block, all
    segments of that many blocks at once; a rank-one update adds them. Nothing is padded to the
    longest segment, and no power of the decay is divided by, so long segments stay finite.

    Args:
        values: [T] float32 or float64.
        offsets: [N+1] int64; empty segments are allowed.
        decay: in [0, 1].

    Returns:
        [T], in the dtype of `values`.
    """
    if values.numel() == 0 or decay == 0:
        return values.clone()
    sizes = lengths(offsets)
    blocks = (sizes + BLOCK - 1) // BLOCK
    block_offsets = offsets_of(blocks)
    # Segments are right-aligned in their blocks: the pad stands before the first element.
    shift = block_offsets[1:] * BLOCK - offsets[1:]
    slots = torch.arange(values.numel(), device=values.device) + spread(shift, offsets)
    padded = values.new_zeros(int(block_offsets[-1]) * BLOCK)
    padded[slots] = values
    powers = values.new_full((), decay, dtype=torch.float64) ** torch.arange(
        BLOCK + 1, device=values.device
    )
    local = padded.view(-1, BLOCK) @ _decay_matrix(powers).to(values.dtype)
    carries = _carries(local[:, 0], blocks, block_offsets, float(powers[BLOCK]))
    local.addr_(carries, powers[1:].flip(0).to(values.dtype))
    return local.view(-1)[slots]


def _decay_matrix(powers: Tensor) -> Tensor:
    """M[i, j] = decay^(i-j) for i >= j, else 0, so that (x @ M)[j] = sum over i >= j."""
    index = torch.arange(BLOCK, device=powers.device)
    distance = index[:, None] - index[None, :]
    return torch.where(distance >= 0, powers[distance.clamp(min=0)], 0.0)


def _carries(heads: Tensor, blocks: Tensor, block_offsets: Tensor, decay: float) -> Tensor:
    """What each block takes over from the block behind it, [blocks]."""
    heads = heads.clone()
    carries = torch.zeros_like(heads)
    longest = int(blocks.max())
    if longest < 2:  # noqa: PLR2004
        return carries
    order = torch.argsort(blocks, descending=True, stable=True)
    last = (block_offsets[1:] - 1)[order]
    longer = blocks.numel() - torch.bincount(blocks, minlength=longest + 1).cumsum(0)
    for step, alive in enumerate(longer[1:longest].tolist(), start=1):
        block = last[:alive] - step
        carries[block] = heads[block + 1]
        heads[block] += decay * carries[block]
    return carries
