"""Scans in which every segment has a decay of its own."""

from __future__ import annotations

import torch
from torch import Tensor

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
