"""Copies between the host and the device that computes: none, if that is the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.clock import Clock
    from rlpost.kernels.arrays import Array


class TokenArrays(NamedTuple):
    """The arrays of a batch."""

    offsets: Array
    mask: Array
    tokens: dict[str, Array]


class Staged:
    """The arrays of a batch, on the host.

    Args:
        offsets: [n+1].
        mask: [T].
        roles: the token columns.
    """

    def __init__(
        self, offsets: NDArray[np.int64], mask: NDArray[np.bool_], roles: Sequence[str]
    ) -> None:
        self.offsets, self.mask = offsets, mask
        self.tokens: dict[str, NDArray[Any]] = {role: np.empty(len(mask)) for role in roles}
        """To be filled."""

    def sent(self) -> TokenArrays:
        """Return the arrays where they are computed with; columns are float64."""
        return TokenArrays(self.offsets, self.mask, dict(self.tokens))


class Transfers:
    """Sends arrays to a device and fetches results: without copies, since it is the CPU.

    Args:
        clock: counts the bytes that are sent and fetched.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def stage(
        self,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        columns: Mapping[str, Sequence[NDArray[Any]]],
        device: Any,
        *,
        full: bool,
    ) -> Staged:
        """Return memory for the arrays of a batch, which is then sent to a device.

        Args:
            offsets: [n+1].
            mask: [T].
            columns: the numbers of each token column, as the file stores them.
            device: to which they are sent.
            full: the mask is true everywhere.
        """
        del device, full
        return Staged(offsets, mask, [*columns])

    def rows(self, columns: Mapping[str, NDArray[Any]], device: Any) -> Mapping[str, Array]:
        """Return columns of responses on a device, each sent when it is first read."""
        del device
        return columns

    def shared(self, arrays: Mapping[str, NDArray[Any]], device: Any) -> Mapping[str, Array]:
        """Return arrays of all batches on a device, each sent once."""
        del device
        return arrays

    def fetch(self, arrays: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
        """Return arrays on the host, those that are there as they are; waits for a device.

        Equal objects stay equal objects.
        """
        return dict(arrays)
