"""Functions of torch's tensors, on any device and differentiable; `numpy_arrays` has the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


bool = torch.bool  # noqa: A001 - the names of the array API standard
float32, float64, int32 = torch.float32, torch.float64, torch.int32
int64, uint8 = torch.int64, torch.uint8
diff, exp, expm1, log, sign, sqrt = (
    torch.diff,
    torch.exp,
    torch.expm1,
    torch.log,
    torch.sign,
    torch.sqrt,
)
concat, where = torch.cat, torch.where
isfinite, isin, isnan = torch.isfinite, torch.isin, torch.isnan
maximum, minimum = torch.maximum, torch.minimum
ones_like, zeros_like = torch.ones_like, torch.zeros_like


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return arrays of one shape as one array with a new axis."""
    return torch.stack(tuple(arrays), dim=axis)


def flip(values: Tensor) -> Tensor:
    """Return the values in reverse order."""
    return values.flip(0)


def flatnonzero(mask: Tensor) -> Tensor:
    """Return the positions of the true elements; waits for a device."""
    return mask.nonzero().squeeze(1)


def searchsorted(ascending: Tensor, values: Tensor, side: str = "left") -> Tensor:
    """Return where each value belongs among ascending ones."""
    return torch.searchsorted(ascending, values.contiguous(), right=side == "right")


def astype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values in another type; the same tensor if they have it."""
    return values.to(dtype)


def reinterpreted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of the values as another type of the same size."""
    return values.view(dtype)


def constant(values: Tensor) -> Tensor:
    """Return the values as a constant for gradients."""
    return values.detach()


def arange(count: int, other: Tensor) -> Tensor:
    """Return 0 to count - 1, int64, on the device of another array."""
    return torch.arange(count, device=other.device)


def zeros(shape: int | tuple[int, ...], other: Tensor) -> Tensor:
    """Return zeros in the type and on the device of another array."""
    return other.new_zeros(shape)


def full(shape: int | tuple[int, ...], value: float, other: Tensor) -> Tensor:
    """Return one value everywhere, in the type and on the device of another array."""
    return other.new_full((shape,) if isinstance(shape, int) else shape, value)


def placed(values: Tensor, positions: Tensor, count: int) -> Tensor:
    """Return zeros, [count], with values at positions, which all differ."""
    return values.new_zeros((count, *values.shape[1:])).index_copy(0, positions, values)


def filled(values: Tensor, positions: Tensor, value: float) -> Tensor:
    """Return the values with one value at some positions."""
    return values.index_fill(0, positions, value)


def on_host(array: Tensor) -> NDArray[Any]:
    """Return the tensor as an array of numpy; it waits for a device that has no copy."""
    copy: NDArray[Any] | None = getattr(array, "host_copy", None)
    if copy is None:
        plain = array.detach() if array.requires_grad else array
        if plain.device.type == "cpu":
            return _numbers_of(plain)
        copy = _numbers_of(plain.cpu())
        array.host_copy = copy  # type: ignore[attr-defined]
    return copy


def _numbers_of(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor of the CPU as an array of numpy, without a copy if it has memory."""
    try:
        return tensor.numpy()
    except RuntimeError:  # within a transformation of torch.func
        return np.array(tensor.tolist(), np.dtype(str(tensor.dtype).rpartition(".")[2]))


def like(host: NDArray[Any], other: Tensor) -> Tensor:
    """Return an array of numpy as a tensor on the device of another, with its copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(host))
    if other.device.type != "cpu":
        tensor = tensor.to(other.device, non_blocking=True)
    tensor.host_copy = host  # type: ignore[attr-defined]
    return tensor


def with_host(array: Tensor, host: Callable[[], NDArray[Any]]) -> Tensor:
    """Return an array of a device with a copy on the host that the function computes."""
    if array.device.type != "cpu":
        array.host_copy = host()  # type: ignore[attr-defined]
    return array


def is_all_true(mask: Tensor) -> Any:
    """Return whether a mask is true everywhere; false if only a device has it."""
    copy = mask.numpy() if mask.device.type == "cpu" else getattr(mask, "host_copy", None)
    if copy is None:
        return False
    return (copy[:1] if copy.strides == (0,) else copy).all()


def all_true(count: int, other: Tensor) -> Tensor:
    """Return a mask that is true everywhere, [count], with a copy that needs no memory."""
    mask = torch.ones(count, dtype=torch.bool, device=other.device)
    return with_host(mask, lambda: np.broadcast_to(np.True_, count))


def spread(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Repeat the value of each segment for each of its elements: [N] -> [T]."""
    return per_segment.index_select(0, owners(offsets))


def spread_or_scalar(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Return what broadcasts over the elements."""
    return spread(per_segment, offsets)


def owners(offsets: Tensor) -> Tensor:
    """Return the segment of each element, [T] int32; computed once for each tensor of offsets."""
    segments_of: Tensor | None = getattr(offsets, "owners", None)
    if segments_of is None:
        segments = torch.arange(offsets.numel() - 1, dtype=torch.int32, device=offsets.device)
        count = int(on_host(offsets)[-1])
        segments_of = torch.repeat_interleave(segments, offsets.diff(), output_size=count)
        offsets.owners = segments_of  # type: ignore[attr-defined]
    return segments_of


_EMPTY = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}


def reduce_segments(values: Tensor, offsets: Tensor, how: str) -> Tensor:
    """Return the `sum`, `max`, `min` or `any` of each segment, [N].

    An empty segment has 0, -inf, inf or false.
    """
    if how == "any":
        return reduce_segments(values.to(torch.int64), offsets, "sum") > 0
    if not values.is_floating_point():  # torch has no such sums of integers; these wrap around
        running = torch.cat([values.new_zeros(1), values.cumsum(0)])
        return running[offsets].diff()
    return torch.segment_reduce(values, how, offsets=offsets, initial=_EMPTY[how], unsafe=True)


def add_segment_sums(start: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    """Return `start` [N] plus the sum of each segment, added one by one, [N]; differentiable.

    Every run adds in the same order. With `index_add` CUDA would add in a random one, by atomics.
    """
    segments = torch.repeat_interleave(offsets.diff(), output_size=values.numel())
    return start.index_put((segments,), values, accumulate=True)


def positions_of(mask: Tensor) -> Tensor:
    """Return the positions of the true elements of a mask with a copy, ascending, int64."""
    count = int(on_host(mask).sum())
    # Each true element is written to its place; all others to one place behind them.
    places = torch.where(mask, mask.cumsum(0) - 1, count)
    positions = torch.arange(mask.numel(), device=mask.device)
    return positions.new_zeros(count + 1).scatter_(0, places, positions)[:count]


def count_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the number of true elements of each segment, [N] int64."""
    return reduce_segments(mask.to(torch.int64), offsets, "sum")


def last_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the position in [0, T) of the last true element of each segment, [N]; -1 for none."""
    if mask.numel() == 0:
        return torch.full_like(offsets[1:], -1)
    positions = torch.arange(mask.numel(), device=mask.device)
    latest = torch.where(mask, positions, -1).cummax(0).values
    last = latest[(offsets[1:] - 1).clamp(min=0)]
    return torch.where((last >= offsets[:-1]) & (offsets.diff() > 0), last, -1)


def add_at(values: Tensor, positions: Tensor, amounts: Tensor) -> Tensor:
    """Return values [T] plus amounts [N] at positions, which all differ; -1 adds nothing."""
    if values.numel() == 0:
        return values
    # -0.0 is the number whose addition changes no other, not even a zero's sign.
    amounts = torch.where(positions >= 0, amounts, -0.0)
    return values.index_add(0, positions.clamp(min=0), amounts)


def starts_after_observations(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return whether each token is the first of its segment or follows a false element, [T]."""
    first, segment = mask.new_ones(1), owners(offsets)
    starts = torch.cat([first, ~mask])[: mask.numel()]
    return starts | torch.cat([first, segment[1:] != segment[:-1]])[: len(starts)]


def count_codes(codes: Tensor, count: int, amounts: Tensor | None = None) -> Tensor:
    """Return how often each code in [0, count) occurs, or the sum of its amounts, [count] int64."""
    # bincount waits for the largest code.
    one = torch.ones((), dtype=torch.int64, device=codes.device)
    added = one.expand(codes.shape) if amounts is None else amounts
    return one.new_zeros(count).scatter_add_(0, codes.to(torch.int64), added)


def canonical_order(codes: Tensor, *columns: Tensor) -> Tensor:
    """Return the order of rows by code, then by the values of the columns, [N]."""
    order: Tensor | None = None
    for key in (*reversed(columns), codes):
        sorts = torch.argsort(key if order is None else key[order], stable=True)
        order = sorts if order is None else order[sorts]
    assert order is not None
    return order


def blocks_of(offsets: Tensor, ends: Tensor, size: int) -> TensorBlocks:
    """Return the blocks of a ragged array; the arguments are those of `TensorBlocks`."""
    return TensorBlocks(offsets, ends, size)


class TensorBlocks:
    """The blocks of a ragged array, each of some places; a segment is at the end of its blocks.

    Args:
        offsets: [N+1] of the segments.
        ends: [N+1] the blocks of each segment.
        size: places of a block.
    """

    def __init__(self, offsets: Tensor, ends: Tensor, size: int) -> None:
        self._size, self._number = size, int(on_host(ends)[-1])
        shift = (size * ends[1:] - offsets[1:]).index_select(0, owners(offsets))
        self._places = torch.arange(shift.numel(), device=shift.device).add_(shift)

    def scanned(self, values: Tensor, decay: float) -> Tensor:
        """Return the scan of each block on its own, [size, blocks]; zeros before a segment."""
        padded = values.new_zeros(self._number * self._size).index_copy(0, self._places, values)
        rows = [*padded.view(-1, self._size).T]
        for place in reversed(range(self._size - 1)):
            rows[place] = rows[place] + rows[place + 1] * decay
        return torch.stack(rows)

    def add(self, rows: Tensor, carry: Tensor, decay: float) -> Tensor:
        """Return the scan of each block with that of the next block's first element."""
        fades = [carry * decay ** (self._size - place) for place in range(self._size)]
        return rows + torch.stack(fades)

    def joined(self, rows: Tensor) -> Tensor:
        """Return the elements of the segments, [T]."""
        return rows.T.reshape(-1)[self._places]
