"""The shadow: an accelerator written in Python, for tests of device code on machines without one.

Its tensors are on `shadow:0` or `shadow:1`, keep their numbers in the host's memory, and refuse to
mix with tensors of the CPU or of the other card. It counts what a GPU would wait for and transfer
(`counted`), may have no room for large tensors (`limited`), and fails if a pinned buffer changes
before its copy is done.

Import registers the device type with torch, for good. The cards are there inside `plugged_in()`
alone: outside, `torch.accelerator.is_available()` is false. Torch's backend in Python (2.13) sets
the limits: for `torch.accelerator`, card 0 is always the current one, and waits by the methods of
`torch.Stream`, `torch.Event` and `torch.accelerator.synchronize()` do not reach Python. So every
copy to the host counts as one wait, also a non-blocking one, for which one of these would wait.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.device.counting import Counts, count, count_operation, counted

__all__ = ["Counts", "cards", "counted", "limited", "plugged_in"]

NAME = "shadow"
CARDS = 2
MEMORY = 1 << 33  # bytes of a card, without another limit
aten = torch.ops.aten


_lock = threading.RLock()
_threads = threading.local()


cards: list[torch.device] = []
_most = [MEMORY]


@contextmanager
def limited(nbytes: int):
    """Let no tensor of a card have more bytes in the block."""
    _most.append(nbytes)
    try:
        yield
    finally:
        _most.pop()


class ShadowTensor(torch.Tensor):
    """A tensor on a card. `numbers` has its numbers, on the CPU."""

    @staticmethod
    def __new__(cls, numbers, card):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=card,
        )

    def __init__(self, numbers, card):  # noqa: ARG002 - `__new__` takes it
        self.numbers = numbers

    def __repr__(self):
        return f"{self.device} {self.numbers}"

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _on_card(numbers, card: torch.device):
    """Return numbers as a tensor of a card."""
    if numbers.nbytes > _most[-1]:
        raise torch.OutOfMemoryError(f"{card} out of memory: {numbers.nbytes} bytes")
    return ShadowTensor(numbers, card)


def _card_of(device) -> torch.device | None:
    """Return the card that a device names, None for another device."""
    device = torch.device(device)
    if device.type != NAME:
        return None
    return cards[backend.current_device() if device.index is None else device.index]


def _each(function, tree):
    """Return lists, tuples and dictionaries with the function of each element."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([_each(function, part) for part in tree])
    if isinstance(tree, dict):
        return {key: _each(function, part) for key, part in tree.items()}
    return function(tree)


def _numbers(tree):
    return _each(lambda x: x.numbers if isinstance(x, ShadowTensor) else x, tree)


def _tensors(tree) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    _each(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, tree)
    return tensors


# Operations whose result has a size, or is a number, that a GPU's host has to wait for
_WAITS = {
    "_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select",
    "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "mode",
    "bincount", "histc", "isin",
}  # fmt: skip
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
_COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}


def _waits(name: str, args, kwargs) -> bool:
    """Return whether an operation on a card makes the host wait."""
    if name in _WAITS:
        return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "segment_reduce":
        return not kwargs.get("unsafe", False)  # it checks the segments
    if name in ("masked_fill", "masked_fill_", "index_fill", "index_fill_"):
        return isinstance(args[-1], ShadowTensor)  # it reads the value
    if name in _INDEXES:
        masked = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        number = name != "index" and not isinstance(args[2], ShadowTensor) and args[2].dim() == 0
        return masked and not number
    return False


# Operations that torch has no deterministic kernel for on CUDA, or that add by atomics. `index_put`
# with `accumulate` sorts.
_UNORDERED = {
    "cumsum", "cumsum_", "cumprod", "cumprod_", "logcumsumexp", "index_add", "index_add_",
    "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_reduce",
    "index_reduce_", "put_", "histc", "bincount", "kthvalue", "median", "nanmedian",
}  # fmt: skip


def _adds_in_any_order(name: str, args, kwargs) -> bool:
    """Return whether a GPU may add the floats of an operation in any order."""
    if name not in _UNORDERED:
        return False
    if name == "bincount":
        return len(args) > 1 and args[1] is not None
    if name.startswith("scatter_reduce") and args[4] in ("amax", "amin"):
        return False
    if name.startswith(("index_add", "scatter_add")) and args[0].dim() == 1:
        places = args[2].numbers[args[3].numbers != 0]
        if len(places.unique()) == len(places):  # each place gets one number
            return False
    return args[0].is_floating_point() or kwargs.get("dtype") in (torch.float32, torch.float64)


def _run(func, args, kwargs):
    """Run an operation that has tensors of a card, or makes one."""
    count_operation()
    name = func.overloadpacket.__name__
    tensors = _tensors((args, kwargs))
    inputs = [x for x in tensors if isinstance(x, ShadowTensor)]
    if name in _COPIES:
        return _copy(func, name, args, kwargs)
    _check_devices(name, args, tensors)
    if inputs and _waits(name, args, kwargs):
        _wait(name)
    if inputs and _adds_in_any_order(name, args, kwargs):
        count("unordered", name)
    target = kwargs.get("device")
    card = inputs[0].device if target is None and inputs else _card_of(target or NAME)
    options = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if "device" in kwargs:
        options["device"] = "cpu"
    plain, options = _numbers((args, options))
    sums = name == "segment_reduce" and args[1] == "sum" and options.get("offsets") is not None
    results = (_segment_sum if sums else func)(*plain, **options)
    for x in inputs:
        if x.shape != x.numbers.shape:
            raise NotImplementedError(f"{name} changes the shape of a tensor of {x.device}")
    if card is None:
        return results
    same = {id(x.numbers): x for x in inputs}

    def wrapped(x):
        if not isinstance(x, torch.Tensor):
            return x
        return same[id(x)] if id(x) in same else _on_card(x, card)

    return _each(wrapped, results)


def _segment_sum(values, _how, *, offsets, initial=0.0, **_options):
    """Return the sum of each segment, added in numpy's order as the pipeline does on the CPU.

    A GPU has an order of its own. With this one, results have the CPU's bits.
    """
    bounds, sums = offsets.numpy(), values.new_full((len(offsets) - 1,), initial)
    some = bounds[1:] > bounds[:-1]
    if some.any():
        sums.numpy()[some] += np.add.reduceat(values.numpy(), bounds[:-1][some])
    return sums


def _check_devices(name: str, args, tensors) -> None:
    """Raise if tensors of several devices meet; numbers of the CPU without dimensions may."""
    if name in _INDEXES and isinstance(args[0], ShadowTensor):
        for x in args[1]:  # CUDA copies these
            if x is not None and not isinstance(x, ShadowTensor):
                count("transfer", x.nbytes)
                _wait(f"{name} with indices on the CPU")
        indices = {id(x) for x in args[1] if x is not None and x.device.type == "cpu"}
        tensors = [x for x in tensors if id(x) not in indices]
    devices = {x.device for x in tensors if isinstance(x, ShadowTensor) or x.dim() > 0}
    if len(devices) > 1:
        raise RuntimeError(f"{name}: tensors on {' and '.join(sorted(map(str, devices)))}")


def _copy(func, name: str, args, kwargs):
    """Copy within a card, between cards, or between a card and the host; count it."""
    if name == "_to_copy":
        source = args[0]
        to = kwargs.get("device") or source.device
        options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        numbers = func(_numbers(source), **options, device="cpu")
        card = _card_of(to)
        result = numbers if card is None else _on_card(numbers, card)
        nonblocking = kwargs.get("non_blocking", False)
    else:
        target, source = (args[0], args[1]) if name == "copy_" else (args[1], args[0])
        nonblocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        numbers = _numbers(target).copy_(_numbers(source))
        card, result = _card_of(target.device), target
    if card is not None and source.device.type == "cpu":
        count("transfer", numbers.nbytes)
        if nonblocking:
            _remember(source)
        else:
            _wait(f"{name}, blocking transfer")
    elif card is None and isinstance(source, ShadowTensor):
        count("copy", numbers.nbytes)
        _wait(f"{name} to the host")
    return result


def _remember(source) -> None:
    """Keep what a non-blocking copy from pinned memory has to find there until the next wait."""
    if _is_pinned(source):
        pending = _threads.__dict__.setdefault("pending", [])
        pending.append((source.detach(), source.detach().clone()))


def _wait(name: str) -> None:
    """Count a wait; all copies that this thread began are then done."""
    count("wait", name)
    pending, _threads.pending = getattr(_threads, "pending", []), []
    for buffer, sent in pending:
        with torch.no_grad():
            same = buffer.contiguous().view(torch.uint8).equal(sent.contiguous().view(torch.uint8))
        if not same:
            raise RuntimeError("a pinned buffer changed before its copy to the card was done")


# Pinned memory: torch has no allocator for it that Python can implement, so a table of storages
_pinned: dict[int, StorageWeakRef] = {}


def _pin(tensor):
    storage = tensor.untyped_storage()
    if storage.nbytes():
        with _lock:
            for start in [start for start, held in _pinned.items() if held.expired()]:
                del _pinned[start]
            _pinned[storage.data_ptr()] = StorageWeakRef(storage)
    return tensor


def _is_pinned(tensor, device=None) -> bool:  # noqa: ARG001 - the operator's signature
    held = _pinned.get(tensor.untyped_storage().data_ptr())
    return held is not None and not held.expired()


class _Backend:
    """`torch.shadow`, the module of the device type."""

    def __init__(self) -> None:
        self.plugged_in = False

    def is_available(self) -> bool:
        return self.plugged_in

    def is_initialized(self) -> bool:
        return self.plugged_in

    def device_count(self) -> int:
        return CARDS if self.plugged_in else 0

    def current_device(self) -> int:
        return getattr(_threads, "card", 0)

    @contextmanager
    def device(self, device):
        """Make a card the current one of this thread in the block."""
        before, _threads.card = self.current_device(), torch.device(device).index or 0
        try:
            yield
        finally:
            _threads.card = before

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def mem_get_info(self, device=None) -> tuple[int, int]:  # noqa: ARG002
        return _most[-1], MEMORY

    def synchronize(self, device=None) -> None:  # noqa: ARG002 - as torch.cuda has it
        _wait("synchronize")

    def get_device_name(self, device=None) -> str:  # noqa: ARG002
        return "Shadow of the CPU"


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return backend.plugged_in

    def has_primary_context(self, index: int) -> bool:  # noqa: ARG002
        return backend.plugged_in

    def is_built(self) -> bool:
        return True


def _register() -> list[torch.library.Library]:
    """Register the device type; return what keeps its kernels registered."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=backend, hook=_Hooks())
    cards.extend(torch.device(NAME, index) for index in range(CARDS))
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    names = [
        *_COPIES, "arange", "arange.start", "arange.start_step", "empty.memory_format",
        "empty_strided", "eye", "eye.m", "fill_.Scalar", "linspace", "lift", "lift_fresh",
    ]  # fmt: skip
    for name in names:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        kernels.impl(
            name, lambda *args, func=func, **kwargs: _run(func, args, kwargs), "PrivateUse1"
        )
    return [rest, kernels]


def _pinned_kernels() -> torch.library.Library:
    """Let tensors of the CPU be pinned, while the result is kept."""
    empty = torch.library.get_kernel("aten::empty.memory_format", "CPU")

    def empty_on_cpu(keys, *args, pin_memory=None, **kwargs):
        full = {"dtype": None, "layout": None, "device": None, "memory_format": None, **kwargs}
        result = empty.call_boxed(keys, *args, **full, pin_memory=False)
        return _pin(result) if pin_memory else result

    kernels = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it replaces one
        kernels.impl("empty.memory_format", empty_on_cpu, "CPU", with_keyset=True)
    kernels.impl("is_pinned", _is_pinned, "CPU")
    kernels.impl("_pin_memory", lambda tensor, _device=None: _pin(tensor.clone()), "CPU")
    return kernels


@contextmanager
def plugged_in():
    """Let this process have the cards in the block."""
    assert not backend.plugged_in
    kernels, backend.plugged_in = _pinned_kernels(), True
    try:
        yield cards
    finally:
        backend.plugged_in = False
        kernels._destroy()


backend = _Backend()
_kernels = _register()
