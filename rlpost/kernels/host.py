"""Copies on the host of tensors that describe structure: offsets and masks.

The sizes of ragged arrays come from offsets and masks. If these are on an accelerator, reading one
number of them waits for all work that was queued before. So a tensor that was sent there keeps its
numbers on the host, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def on_host(tensor: Tensor) -> Tensor:
    """Return offsets or a mask on the CPU: the attached copy, if there is one.

    Without a copy, this waits for the device once, and attaches what it read. So the tensor must
    not change afterwards.
    """
    copy = _copy_of(tensor)
    if copy is None:
        copy = tensor.cpu()
        with_host_copy(tensor, copy)
    return copy


def with_host_copy(tensor: Tensor, host: Tensor) -> Tensor:
    """Attach a copy with the same numbers to a tensor; return the tensor."""
    if tensor.device.type != "cpu":
        tensor.host_copy = host  # type: ignore[attr-defined]
    return tensor


def like(host: Tensor, other: Tensor) -> Tensor:
    """Return numbers of the host on the device of another tensor, with the copy attached."""
    if other.device.type == "cpu":
        return host
    return with_host_copy(host.to(other.device, non_blocking=True), host)


def all_true(count: int, device: torch.device) -> Tensor:
    """Return a mask that is true everywhere, [count], with a copy that needs no memory."""
    mask = torch.ones(count, dtype=torch.bool, device=device)
    return with_host_copy(mask, torch.ones(1, dtype=torch.bool).expand(count))


def is_all_true(mask: Tensor) -> bool:
    """Return whether the host's copy of a mask is true everywhere; false if there is no copy."""
    copy = _copy_of(mask)
    if copy is None:
        return False
    return bool((copy[:1] if copy.stride() == (0,) else copy).all())


def _copy_of(tensor: Tensor) -> Tensor | None:
    """Return a tensor of the CPU, or the copy that is attached to another."""
    copy: Tensor | None
    copy = tensor if tensor.device.type == "cpu" else getattr(tensor, "host_copy", None)
    return copy
