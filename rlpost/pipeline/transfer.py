"""Copies between the host and the device that computes: packed into one, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels.host import with_host_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.clock import Clock


Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and the shape of each tensor."""


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """Return the layout of some tensors."""
    return {name: (one.dtype, (*one.shape,)) for name, one in tensors.items()}


class Transfers:
    """Sends tensors to a device and fetches results. On the CPU nothing is copied.

    Args:
        clock: counts the bytes that are sent and fetched here; not the few numbers of a chunk's
            structure that `rlpost.kernels.host.like` moves to a device.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def send(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return tensors of the host on a device, by one copy."""
        if device.type == "cpu":
            return dict(tensors)
        staged = Staged(layout_of(tensors), device)
        for name, tensor in tensors.items():
            staged.tensors[name].copy_(tensor)
        return self.send_staged(staged)

    def send_staged(self, staged: Staged) -> dict[str, Tensor]:
        """Return the tensors that were staged for a device on that device."""
        if staged.device.type == "cpu":
            return staged.tensors
        self.clock.count_bytes(to_device=staged.block.numel())
        return _views(staged.layout, staged.block.to(staged.device, non_blocking=True))

    def fetch(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of a device on the host, by one copy, which waits for the device.

        Equal objects stay equal objects. Tensors on the CPU are returned as they are.
        """
        on_device = {id(one): one for one in tensors.values() if one.device.type != "cpu"}
        if not on_device:
            return dict(tensors)
        parts = sorted(on_device.values(), key=lambda one: -one.element_size())
        device = parts[0].device
        block = torch.cat([one.contiguous().view(-1).view(torch.uint8) for one in parts])
        host = _host_memory(block.numel(), device)
        with self.clock.busy("device"):
            host.copy_(block)
        self.clock.count_bytes(to_host=host.numel())
        fetched = _views(layout_of({str(id(one)): one for one in parts}), host)
        return {name: fetched.get(str(id(one)), one) for name, one in tensors.items()}


class Staged:
    """Tensors of the host in one block of memory, to be filled and sent to a device.

    Args:
        layout: of the tensors.
        device: where they will be sent.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.device = device
        # The widest elements come first, so that each tensor begins at a multiple of its own.
        self.layout = dict(sorted(layout.items(), key=lambda item: -item[1][0].itemsize))
        if device.type == "cpu":
            self.tensors = {
                name: torch.empty(shape, dtype=d) for name, (d, shape) in layout.items()
            }
            return
        self.block = _host_memory(sum(map(_bytes, self.layout.values())), device)
        self.tensors = _views(self.layout, self.block)


class Sent(Mapping[str, Tensor]):
    """Tensors of the host, each of which is sent to a device when it is first read.

    Tensors on the device keep those of the host as copies.

    Args:
        tensors: of the host.
        device: to which they are sent.
        transfers: sends them.
        once: a tensor that several batches read stays on the device as long as on the host.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        transfers: Transfers,
        *,
        once: bool = False,
    ) -> None:
        self._tensors, self._device, self._transfers = tensors, device, transfers
        self._sent: dict[str, Tensor] = {}
        self._once = once

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._sent:
            self._sent[name] = self._send_once(name) if self._once else self._send(name)
        return self._sent[name]

    def _send(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        return with_host_copy(self._transfers.send({name: tensor}, self._device)[name], tensor)

    def _send_once(self, name: str) -> Tensor:
        """Return a tensor that all batches read; this waits, since they are in other streams."""
        tensor = self._tensors[name]
        before: dict[torch.device, Tensor] = getattr(tensor, "sent_to", {})
        if self._device not in before:
            self._transfers.clock.count_bytes(to_device=tensor.nbytes)
            before = {**before, self._device: with_host_copy(tensor.to(self._device), tensor)}
            tensor.sent_to = before  # type: ignore[attr-defined]
        return before[self._device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors


def _host_memory(size: int, device: torch.device) -> Tensor:
    """Return memory of the host, [size] uint8; pinned if copies to the device can use that."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=device.type != "cpu")
    except RuntimeError:  # the backend has no pinned memory, or none is left
        return torch.empty(size, dtype=torch.uint8)


def _bytes(one: tuple[torch.dtype, tuple[int, ...]]) -> int:
    dtype, shape = one
    return torch.Size(shape).numel() * dtype.itemsize


def _views(layout: Layout, block: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a block, in the order of the layout."""
    views, at = {}, 0
    for name, (dtype, shape) in layout.items():
        size = _bytes((dtype, shape))
        views[name] = block[at : at + size].view(dtype).view(shape)
        at += size
    return views
