"""Copies between the host and a device of torch: packed into one, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlpost.kernels.arrays import all_true, is_tensor
from rlpost.kernels.arrays.torch_arrays import with_host
from rlpost.pipeline.transfer import Staged, TokenArrays, Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.io.clock import Clock
    from rlpost.kernels.arrays import Array


Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and the shape of each tensor."""
_SENT_AS = {
    np.dtype(name): getattr(torch, name)
    for name in ("float16", "float32", "int8", "int16", "int32", "int64", "uint8")
}
_OFFSETS, _MASK = "offsets", "mask"


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """Return the layout of some tensors."""
    return {name: (one.dtype, (*one.shape,)) for name, one in tensors.items()}


class DeviceTransfers(Transfers):
    """Sends arrays to a device and fetches results.

    Args:
        clock: counts the bytes that are sent and fetched here; not the few numbers of a chunk's
            structure that `rlpost.kernels.arrays.like` moves to a device.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._once: dict[tuple[str, torch.device], tuple[NDArray[Any], Tensor]] = {}

    def stage(
        self,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        columns: Mapping[str, Sequence[NDArray[Any]]],
        device: Any,
        *,
        full: bool,
    ) -> DeviceStaged:
        """Return memory for the arrays of a batch, which is then sent to a device.

        Columns are sent as the file stores them, and converted on the device. A mask that is true
        everywhere is not sent.
        """
        return DeviceStaged(self, offsets, None if full else mask, columns, device)

    def rows(self, columns: Mapping[str, NDArray[Any]], device: Any) -> Mapping[str, Array]:
        """Return columns of responses on a device, each sent when it is first read."""
        return Sent(columns, lambda name: self.send({name: columns[name]}, device)[name])

    def shared(self, arrays: Mapping[str, NDArray[Any]], device: Any) -> Mapping[str, Array]:
        """Return arrays of all batches on a device, each sent once."""
        return Sent(arrays, lambda name: self._send_once(name, arrays[name], device))

    def _send_once(self, name: str, host: NDArray[Any], device: torch.device) -> Tensor:
        """Return an array that all batches read; this waits, since they are in other streams."""
        before = self._once.get((name, device))
        if before is None or before[0] is not host:
            self.clock.count_bytes(to_device=host.nbytes)
            sent = with_host(torch.from_numpy(host).to(device), lambda: host)
            before = self._once[name, device] = host, sent
        return before[1]

    def send(self, arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
        """Return arrays of the host on a device, by one copy, with the host's arrays as copies."""
        tensors = {name: torch.from_numpy(np.asarray(one)) for name, one in arrays.items()}
        layout = _widest_first(layout_of(tensors))
        block = _host_memory(sum(map(_bytes, layout.values())), device)
        for name, view in _views(layout, block).items():
            view.copy_(tensors[name])
        sent = self.send_block(block, layout, device)
        return {
            name: with_host(one, partial(arrays.__getitem__, name)) for name, one in sent.items()
        }

    def send_block(self, block: Tensor, layout: Layout, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors of a block of the host on a device."""
        self.clock.count_bytes(to_device=block.numel())
        return _views(layout, block.to(device, non_blocking=True))

    def fetch(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
        """Return arrays on the host, by one copy, which waits for the device.

        Equal objects stay equal objects. Arrays of numpy are returned as they are.
        """
        tensors = {id(one): one for one in arrays.values() if is_tensor(one)}
        if not tensors:
            return dict(arrays)
        parts = sorted(tensors.values(), key=lambda one: -one.element_size())
        device = parts[0].device
        block = torch.cat([one.contiguous().view(-1).view(torch.uint8) for one in parts])
        host = _host_memory(block.numel(), device)
        with self.clock.busy("device"):
            host.copy_(block)
        self.clock.count_bytes(to_host=host.numel())
        views = _views(layout_of({str(id(one)): one for one in parts}), host)
        fetched = {name: one.numpy() for name, one in views.items()}
        return {n: fetched[str(id(x))] if id(x) in tensors else x for n, x in arrays.items()}


class DeviceStaged(Staged):
    """The arrays of a batch in one block of memory of the host, to be filled and sent.

    Args:
        transfers: sends them.
        offsets: [n+1].
        mask: [T]; None if it is true everywhere.
        columns: the numbers of each token column, as the file stores them.
        device: where they will be sent.
    """

    def __init__(
        self,
        transfers: DeviceTransfers,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
        columns: Mapping[str, Sequence[NDArray[Any]]],
        device: torch.device,
    ) -> None:
        self._transfers, self._device = transfers, device
        self._host: dict[str, NDArray[Any]] = {_OFFSETS: offsets}
        self._host |= {} if mask is None else {_MASK: mask}
        size = (int(offsets[-1]),)
        layout = layout_of({name: torch.from_numpy(one) for name, one in self._host.items()})
        layout = {**layout, **{role: (_sent_as(one), size) for role, one in columns.items()}}
        self._layout = _widest_first(layout)
        self._block = _host_memory(sum(map(_bytes, self._layout.values())), device)
        views = {name: one.numpy() for name, one in _views(self._layout, self._block).items()}
        for name, host in self._host.items():
            views.pop(name)[:] = host
        self.tokens = views

    def sent(self) -> TokenArrays:
        """Return the arrays where they are computed with; columns are float64."""
        sent = self._transfers.send_block(self._block, self._layout, self._device)
        structure = {
            name: with_host(sent.pop(name), partial(self._host.__getitem__, name))
            for name in self._host
        }
        offsets = structure[_OFFSETS]
        mask = structure.get(_MASK)
        if mask is None:
            mask = all_true(int(self._host[_OFFSETS][-1]), offsets)
        return TokenArrays(offsets, mask, {n: one.to(torch.float64) for n, one in sent.items()})


def _sent_as(values: Sequence[NDArray[Any]]) -> torch.dtype:
    """Return the type in which numbers are sent to a device."""
    kinds = {array.dtype for array in values}
    if len(kinds) > 1:
        return torch.float64
    dtype: torch.dtype = _SENT_AS.get(kinds.pop(), torch.float64)
    return dtype


class Sent(Mapping[str, Tensor]):
    """Arrays of the host, each of which is sent to a device when it is first read.

    Args:
        arrays: of the host.
        send: sends one, by its name.
    """

    def __init__(self, arrays: Mapping[str, Any], send: Callable[[str], Tensor]) -> None:
        self._arrays, self._send = arrays, send
        self._sent: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._sent:
            self._sent[name] = self._send(name)
        return self._sent[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays


def _widest_first(layout: Layout) -> Layout:
    """Return the layout in the order in which each tensor begins at a multiple of its elements."""
    return dict(sorted(layout.items(), key=lambda item: -item[1][0].itemsize))


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
