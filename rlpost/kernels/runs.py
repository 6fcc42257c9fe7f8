"""Stretches of tokens between observations, inside ragged responses."""

from __future__ import annotations

import torch
from torch import Tensor


def policy_starts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Where a contiguous segment of policy tokens begins, [T] bool."""
    return mask & _behind_observation(mask, offsets)


def cut_starts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Where a stretch begins if every observation ends one, as its last token, [T] bool."""
    return _behind_observation(mask, offsets)


def _behind_observation(mask: Tensor, offsets: Tensor) -> Tensor:
    """Whether a token is the first of its response or follows an observation, [T] bool."""
    starts = torch.cat([mask.new_ones(1), ~mask])[: mask.numel()]
    starts[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    return starts


def bounds_of(starts: Tensor) -> Tensor:
    """Offsets [K+1] of the stretches that begin where `starts` [T] is true, its first included."""
    begins = starts.nonzero().squeeze(1)
    return torch.cat([begins, begins.new_tensor([starts.numel()])])


def owners(bounds: Tensor, offsets: Tensor) -> Tensor:
    """Which response each stretch belongs to, [K]."""
    return torch.searchsorted(offsets, bounds[:-1].contiguous(), right=True) - 1
