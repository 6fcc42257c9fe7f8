"""Where chunks are computed: by numpy on the CPU, or by torch on a device (`torch_device`)."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.clock import Clock
    from rlpost.kernels.arrays import Array


AUTO, CPU, TORCH_CPU = "auto", "cpu", "torch:cpu"
"""Names of `--device`: the CPU is computed by numpy, or by what devices run."""


class Staged(NamedTuple):
    """Memory of the host for the tokens of a chunk."""

    tokens: dict[str, NDArray[Any]]
    """[T] of each role, to be filled."""
    send: Callable[[], tuple[Array, Array, dict[str, Array]]]
    """Returns offsets, mask and tokens where they are computed with; tokens are float64."""


class Device:
    """The CPU, which computes by numpy: nothing is copied.

    Args:
        name: as of `--device`.
        clock: counts the bytes that are sent and fetched.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name, self.clock = name, clock

    @contextmanager
    def computing(self, _where: Callable[[], str]) -> Iterator[None]:
        """Let this thread compute; infinity and NaN are results, of which numpy does not warn.

        Args:
            _where: returns the name of the rows, for errors.
        """
        with np.errstate(all="ignore"):
            yield

    def stage(
        self,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        columns: Mapping[str, Sequence[NDArray[Any]]],
        *,
        full: bool,
    ) -> Staged:
        """Return memory for the tokens of a chunk.

        Args:
            offsets: [n+1].
            mask: [T].
            columns: the numbers of each role, as the file stores them.
            full: the mask is true everywhere.
        """
        del full
        tokens: dict[str, NDArray[Any]] = {role: np.empty(len(mask)) for role in columns}
        return Staged(tokens, lambda: (offsets, mask, tokens))

    def rows(self, columns: Mapping[str, NDArray[Any]]) -> Mapping[str, Array]:
        """Return columns of responses where they are computed with."""
        return columns

    def shared(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, Array]:
        """Return arrays that all chunks of a pass read, where they are computed with."""
        return arrays

    def fetch(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
        """Return arrays on the host, those that are there as they are; waits for a device.

        Equal objects stay equal objects.
        """
        return dict(arrays)


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
