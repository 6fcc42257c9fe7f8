"""Arrays of numbers from other code as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_REAL = "biuf"  # numpy's kinds of real numbers


def real_numbers(array: Any, device: torch.device) -> torch.Tensor:
    """Return an array of real numbers as a float64 tensor on a device, without its gradient.

    Args:
        array: a tensor or numpy array of bools, integers or floats.
        device: of the result.

    Raises:
        TypeError: it is none; the text says what it is.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in _REAL:
            raise TypeError(f"a {type(array).__name__} of {array.dtype}")
        array = torch.from_numpy(array.astype(np.float64))
    if not isinstance(array, torch.Tensor):
        raise TypeError("None" if array is None else f"a {type(array).__name__}")
    if array.is_complex():
        raise TypeError(f"a tensor of {array.dtype}")
    try:
        dense = array if array.layout is torch.strided else array.to_dense()
        numbers = dense.detach().to(device, torch.float64).contiguous()
        return numbers.clone() if numbers.is_inference() else numbers
    except Exception as error:  # noqa: BLE001 - torch raises several, by kind of tensor
        text = str(error).partition("\n")[0]
        raise TypeError(f"a {type(array).__name__} without plain numbers ({text})") from None
