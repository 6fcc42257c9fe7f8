"""A device of torch: its name, and the copies between it and the host, one each way for a chunk."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlpost.errors import NotEnoughMemoryError, UnavailableError, UsageError
from rlpost.kernels.arrays import all_true, is_tensor
from rlpost.kernels.arrays.torch_arrays import with_host
from rlpost.pipeline.device import TORCH_CPU, Device, Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.io.clock import Clock
    from rlpost.kernels.arrays import Array

    Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    """The dtype and the shape of each tensor."""
    Sent = dict[str, Tensor]


_SENT = {"float16", "float32", "int8", "int16", "int32", "int64", "uint8"}
_OFFSETS, _MASK = "offsets", "mask"


def torch_device(name: str) -> torch.device:
    """Return the device for `cuda`, `cuda:N`, `xpu`, ...: any kind that torch has.

    Raises:
        UsageError: another name.
        UnavailableError: this machine has no such device, or it does not compute in float64.
    """
    try:
        device = torch.device("cpu" if name == TORCH_CPU else name)
    except RuntimeError:
        device = None
    if device is None or (device.type == "cpu" and name != TORCH_CPU):
        typed = name if name.isprintable() and name.strip() == name != "" else repr(name)
        raise UsageError(
            f"--device {typed}: auto, cpu, cuda, cuda:N or another device of torch is needed, such "
            "as xpu",
            tip="torch calls cards of NVIDIA and AMD cuda",
        )
    try:
        torch.ones(1, dtype=torch.float64, device=device).add(1).cpu()
    except (AssertionError, RuntimeError, TypeError) as error:  # by the kind of the device
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise UnavailableError(
            f"--device {name}: torch {torch.__version__}: {reason}; --device cpu needs no GPU",
            tip="rlpost help gpu  # the builds of torch",
        ) from None
    return device


def accelerator() -> str | None:
    """Return the kind of accelerator that torch finds; None without one that has float64."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if kind is None or kind.type == "mps" else kind.type


class TorchDevice(Device):
    """A device of torch, for the threads of a run.

    Args:
        name: of `torch_device`.
        clock: counts the bytes that are sent and fetched here; not the few numbers of a chunk's
            structure that `rlpost.kernels.arrays.like` moves to a device.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._device = torch_device(name)
        self._shared: tuple[Mapping[str, NDArray[Any]], Sent] | None = None

    @contextmanager
    def computing(self, where: Callable[[], str]) -> Iterator[None]:
        """Let this thread compute; an error names the rows that do not fit into the device."""
        try:
            with super().computing(where):
                yield
        except torch.OutOfMemoryError:
            raise NotEnoughMemoryError(
                f"{where()}: this chunk does not fit into the memory of {self._device}",
                tip="smaller chunks need less: --chunk-tokens INT; --workers 1 computes one at a "
                "time, --device cpu has more",
            ) from None

    def stage(
        self,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        columns: Mapping[str, Sequence[NDArray[Any]]],
        *,
        full: bool,
    ) -> Staged:
        """Return memory for the tokens of a chunk, which is sent by one copy.

        Columns are sent as the file stores them, and converted on the device. A mask that is true
        everywhere is not sent.
        """
        structure = {_OFFSETS: offsets} | ({} if full else {_MASK: mask})
        kinds = {role: (_sent_as(parts), mask.shape) for role, parts in columns.items()}
        block, layout, tokens = self._filled(structure, kinds)

        def send() -> tuple[Array, Array, dict[str, Array]]:
            sent = self._sent(block, layout, structure)
            places = sent.pop(_OFFSETS)
            chosen = all_true(len(mask), places) if full else sent.pop(_MASK)
            return places, chosen, {role: values.double() for role, values in sent.items()}

        return Staged(tokens, send)

    def rows(self, columns: Mapping[str, NDArray[Any]]) -> Sent:
        """Return columns of responses on the device, by one copy, without those of texts."""
        numbers = {name: values for name, values in columns.items() if values.dtype.kind != "U"}
        block, layout, _ = self._filled(numbers, {})
        return self._sent(block, layout, numbers)

    def shared(self, arrays: Mapping[str, NDArray[Any]]) -> Sent:
        """Return arrays that all chunks of a pass read on the device, sent once."""
        if self._shared is None or self._shared[0] is not arrays:
            self._shared = arrays, self.rows(arrays)
        return self._shared[1]

    def fetch(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
        """Return arrays on the host, by one copy, which waits for the device."""
        tensors = {str(id(values)): values for values in arrays.values() if is_tensor(values)}
        if not tensors:
            return dict(arrays)
        layout = _widest_first(
            {n: (values.dtype, (*values.shape,)) for n, values in tensors.items()}
        )
        parts = [tensors[name].contiguous().view(-1).view(torch.uint8) for name in layout]
        host = self._memory(sum(map(len, parts)))
        host.copy_(torch.cat(parts))
        self.clock.count_bytes(to_host=len(host))
        fetched = {name: values.numpy() for name, values in _views(host, layout).items()}
        return {name: fetched[str(id(x))] if is_tensor(x) else x for name, x in arrays.items()}

    def _filled(
        self, arrays: Mapping[str, NDArray[Any]], more: Layout
    ) -> tuple[Tensor, Layout, dict[str, NDArray[Any]]]:
        """Return a block of the host with arrays, its layout, and its parts to be filled."""
        kinds = {name: (getattr(torch, x.dtype.name), x.shape) for name, x in arrays.items()}
        layout = _widest_first(kinds | {**more})
        block = self._memory(sum(_size(*item) for item in layout.values()))
        parts = {name: values.numpy() for name, values in _views(block, layout).items()}
        for name, array in arrays.items():
            parts.pop(name)[...] = array
        return block, layout, parts

    def _sent(self, block: Tensor, layout: Layout, host: Mapping[str, NDArray[Any]]) -> Sent:
        """Return the tensors of a block on the device; arrays of the host are their copies."""
        self.clock.count_bytes(to_device=len(block))
        sent = _views(block.to(self._device, non_blocking=True), layout)
        for name in host:
            with_host(sent[name], partial(host.__getitem__, name))
        return sent

    def _memory(self, size: int) -> Tensor:
        """Return memory of the host, [size] uint8, pinned for copies that do not block."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type != "cpu")


def _sent_as(parts: Sequence[NDArray[Any]]) -> torch.dtype:
    """Return the type in which the numbers of a role are sent."""
    names = {array.dtype.name for array in parts}
    kind: torch.dtype = (
        getattr(torch, min(names)) if len(names) == 1 and names <= _SENT else torch.float64
    )
    return kind


def _widest_first(layout: Layout) -> Layout:
    """Return the layout in an order in which each tensor begins at a multiple of its elements."""
    return dict(sorted(layout.items(), key=lambda item: -item[1][0].itemsize))


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _views(block: Tensor, layout: Layout) -> Sent:
    """Return the tensors of a block."""
    views, at = {}, 0
    for name, (dtype, shape) in layout.items():
        end = at + _size(dtype, shape)
        views[name] = block[at:end].view(dtype).view(shape)
        at = end
    return views
