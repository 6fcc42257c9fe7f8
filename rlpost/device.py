"""Which device computes."""

from __future__ import annotations

import torch

from rlpost.errors import UnavailableError, UsageError


def device_named(name: str) -> torch.device:
    """The device of `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: another name.
        UnavailableError: that GPU is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UsageError(f"--device {name}: auto, cpu, cuda or cuda:N is needed")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UnavailableError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices that "
            "torch can use; --device cpu gives the same numbers"
        )
    return torch.device(name)
