"""Arrays of numpy or torch: the functions that formulas call, chosen by the array.

A formula takes arrays of either library and returns the same kind: `xp = namespace(values)` has the
functions that the libraries call by different names, and those that both lack, the primitives of
ragged arrays. `numpy_arrays` and `torch_arrays` have the same functions, which return the same
numbers. Products and the sum of two numbers have the same bits; the sum of a segment is added in
another order, and sqrt, exp, expm1 and log may differ in the last bit. Arrays are not changed in
place, and kinds of numbers are not mixed: int64 + float32 is float64 in numpy, float32 in torch.

numpy computes on the CPU, where it is faster, and imports in a tenth of the time. torch computes on
devices, and gradients.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlpost.kernels.arrays import numpy_arrays

if TYPE_CHECKING:
    from types import ModuleType


Array = Any
"""An array of numpy, or a tensor of torch."""


def namespace(array: Array) -> ModuleType:
    """Return the functions for arrays of this one's library."""
    if is_tensor(array):
        from rlpost.kernels.arrays import torch_arrays  # noqa: PLC0415 - torch, which is imported

        return torch_arrays
    return numpy_arrays


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


# Sizes of ragged arrays come from offsets and masks. If these are on an accelerator, reading one
# number of them waits for all work that was queued before. So an array that was sent there keeps
# its numbers on the host, too, as an array of numpy.


def on_host(array: Array) -> Array:
    """Return an array as one of numpy: the attached copy, if there is one.

    Without a copy, this waits for the device once, and attaches what it read. So the array must not
    change afterwards.
    """
    return namespace(array).on_host(array)


def like(host: Array, other: Array) -> Array:
    """Return an array of numpy in the library and on the device of another, with its copy."""
    return namespace(other).like(host, other)


def is_all_true(mask: Array) -> bool:
    """Return whether a mask is true everywhere; false if only a device has it."""
    return bool(namespace(mask).is_all_true(mask))


def all_true(count: int, other: Array) -> Array:
    """Return a mask that is true everywhere, [count], in the library of another array."""
    return namespace(other).all_true(count, other)
