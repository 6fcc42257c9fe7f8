"""The CPU, which computes by numpy: the devices of a run that imports no torch."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.pipeline.transfer import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.clock import Clock


CPU = "cpu"
TORCH_CPU = "torch:cpu"
"""Names of the CPU: computed by numpy, and by what devices run."""


class Devices:
    """The CPU, which computes by numpy; or the devices of torch in `accelerators`."""

    out_of_memory: tuple[type[BaseException], ...] = ()
    """What is raised if the memory of a device is full."""

    def __init__(self, devices: tuple[Any, ...] = (CPU,)) -> None:
        self.all = devices

    @property
    def library(self) -> str:
        """The library that computes, and its version, by which the last bit may differ."""
        return f"numpy {np.__version__}"

    @property
    def kind(self) -> str:
        """What the devices are: `cpu`, `cuda`, ..."""
        return str(self.all[0]).partition(":")[0]

    @property
    def names(self) -> list[str]:
        """The name of each, as of `--device`."""
        return [*map(str, self.all)]

    @property
    def here(self) -> Any:
        """The device of this thread."""
        return self.all[0]

    def transfers(self, clock: Clock) -> Transfers:
        """Return what sends arrays to these devices, and counts bytes on a clock."""
        return Transfers(clock)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Let this thread compute; infinity and NaN are results, of which numpy does not warn."""
        with np.errstate(all="ignore"):
            yield

    def chunk_tokens(self, workers: int) -> int:
        """Return tokens per chunk: few enough for the CPU's caches."""
        del workers
        return CHUNK_TOKENS

    def empty_cache(self) -> None:
        """Free memory of devices that is kept for later."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let the workers alone compute: without threads of torch, which would compete with them.

    Infinity and NaN are results, of which numpy does not warn.
    """
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)
