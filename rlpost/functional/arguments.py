"""Checks of array arguments: libraries, shapes, types, ids, finite numbers."""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.kernels.arrays import Array, all_true, is_tensor, like, namespace, on_host

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Ids: TypeAlias = Array | Sequence[Hashable]

P = ParamSpec("P")
R = TypeVar("R")


def of_any_library(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function take arrays of any library that follows the array API standard.

    Arrays of numpy and torch are passed as they are. Others are passed as arrays of numpy, without
    a copy if the library has them on the CPU, and the results are arrays of that library.
    """

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        other = next(filter(_is_other, (*arguments, *options.values())), None)
        if other is None:
            return function(*arguments, **options)

        def converted(part: Any) -> Any:
            known = isinstance(part, (np.ndarray, np.generic))
            return xp.asarray(np.asarray(part)) if known else part

        plain: Any = map(_as_numpy, arguments)
        result = function(*plain, **{name: _as_numpy(value) for name, value in options.items()})
        xp = other.__array_namespace__()  # type: ignore[attr-defined]
        back: R = each(result, converted)
        return back

    return call


def _is_other(value: object) -> bool:
    """Return whether a value is an array, and neither of numpy nor of torch."""
    known = isinstance(value, (np.ndarray, np.generic)) or is_tensor(value)
    return hasattr(value, "__array_namespace__") and not known


def _as_numpy(value: Any) -> Any:
    """Return an array of another library as one of numpy, and anything else as it is."""
    if not _is_other(value):
        return value
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError):
        raise UsageError(
            f"{type(value).__name__} of {type(value).__module__} cannot be read by numpy: an array "
            "on the CPU is needed, outside of transformations; tensors of torch have gradients"
        ) from None


def each(result: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a result, or of each part of a tuple, in its type."""
    if not isinstance(result, tuple):
        return function(result)
    parts = map(function, result)
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)


class Ragged(NamedTuple):
    """Offsets of responses, and the mask of their policy tokens."""

    offsets: Array
    """[N+1] int64."""
    mask: Array
    """[T] bool."""


def ragged(offsets: Array, mask: Array | None, tokens: Array) -> Ragged:
    """Check offsets and mask, and return them in the dtypes of the kernels.

    Args:
        offsets: [N+1] integers, ascending from 0 to T.
        mask: [T] of any dtype, 0 on observation tokens; None if there are none.
        tokens: [T], any array of the tokens.

    Raises:
        UsageError: the shapes or values do not match.
    """
    check_arrays(offsets=offsets)
    size = math.prod(tokens.shape)
    host = on_host(offsets)  # the only wait for offsets on a GPU
    if tokens.ndim != 1 or host.ndim != 1 or host.dtype.kind not in "iu":
        raise UsageError(
            f"tokens of shape {tuple(tokens.shape)} and {offsets.dtype} offsets of shape "
            f"{tuple(offsets.shape)}: [T] numbers and [N+1] integers are needed; "
            "rlpost.functional.padded has functions of [N, T]"
        )
    host = host.astype(np.int64, copy=False)
    ends = (int(host[0]), int(host[-1])) if len(host) else (0, 0)
    if not len(host) or ends != (0, size) or bool((np.diff(host) < 0).any()):
        raise UsageError(
            f"offsets of {len(host)} numbers from {ends[0]} to {ends[1]}: they must ascend "
            f"from 0 to the number of tokens, {size}"
        )
    return Ragged(like(host, tokens), mask_of(tokens, mask))


def mask_of(values: Array, mask: Array | None) -> Array:
    """Return the mask as bool beside the values; all true for None.

    Raises:
        UsageError: the mask does not have the shape of the values.
    """
    if mask is None:
        whole = all_true(math.prod(values.shape), values)
        return whole if values.ndim == 1 else whole.reshape(values.shape)
    if mask.shape != values.shape:
        raise UsageError(
            f"mask of shape {tuple(mask.shape)} for values of shape {tuple(values.shape)}: "
            "they must be the same"
        )
    if is_tensor(mask) and is_tensor(values):
        return mask.to(values.device) != 0
    return (mask if is_tensor(mask) == is_tensor(values) else like(on_host(mask), values)) != 0


def floats(**arrays: Array) -> tuple[Array, ...]:
    """Return arrays of one library and shape in the widest of their types.

    Raises:
        UsageError: an array is neither float32 nor float64, or shapes differ.
    """
    check_arrays(**arrays)
    first = next(iter(arrays), "")
    xp = namespace(arrays.get(first))
    for name, array in arrays.items():
        if array.dtype not in (xp.float32, xp.float64):
            cast = f"{name}.float()" if is_tensor(array) else f'{name}.astype("float32")'
            raise UsageError(
                f"{name} is {array.dtype}: float32 or float64 is needed, such as {cast}"
            )
        if array.shape != arrays[first].shape:
            raise UsageError(
                f"{name} of shape {tuple(array.shape)} and {first} of shape "
                f"{tuple(arrays[first].shape)}: they must be the same"
            )
    widest = xp.float64 if any(x.dtype == xp.float64 for x in arrays.values()) else xp.float32
    return tuple(xp.astype(array, widest) for array in arrays.values())


def check_arrays(**arrays: object) -> None:
    """Check that arguments are tensors, or all arrays of numpy.

    Raises:
        UsageError: one is None or something else.
    """
    kinds = {name: is_tensor(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        if not kinds[name] and not isinstance(array, np.ndarray):
            came = "None" if array is None else type(array).__name__
            raise UsageError(f"{name} is {came}: an array of numbers is needed")
    if len({*kinds.values()}) > 1:
        tensors = ", ".join(name for name, tensor in kinds.items() if tensor)
        others = ", ".join(name for name, tensor in kinds.items() if not tensor)
        raise UsageError(
            f"{tensors} of torch and {others} of numpy: one library is needed; "
            "torch.from_numpy(x) and x.numpy() convert without a copy"
        )


def per_response(name: str, numbers: Array, count: int) -> Array:
    """Return the numbers [N], or [N, K] of components.

    Raises:
        UsageError: they are no array with one number for each response.
    """
    check_arrays(**{name: numbers})
    if numbers.ndim != 1 + (name == "components") or len(numbers) != count:
        raise UsageError(
            f"{name} of shape {tuple(numbers.shape)}: ({count},) is needed, one number for each "
            "response"
        )
    return numbers


def finite_tokens(mask: Array, offsets: Array | None = None, **columns: Array) -> None:
    """Check that columns are finite wherever the mask is true.

    Args:
        mask: bool, of the columns' shape.
        offsets: [N+1] of the responses, for the error; None for arrays of any shape.
        columns: arrays of floats.

    Raises:
        DataError: a number is NaN or infinite, such as the log-prob of a token that the policy
            cannot sample; the first is named.
    """
    xp = namespace(mask)
    fine = [(xp.isfinite(column) | ~mask).all() for column in columns.values()]
    if not fine or bool(xp.stack(fine).all()):  # one wait for a GPU
        return
    for name, column in columns.items():
        bad = np.argwhere(on_host(~xp.isfinite(column) & mask))
        if not len(bad):
            continue
        index = bad[0].tolist()
        where = f"index {index[0] if len(index) == 1 else tuple(index)}"
        if offsets is not None:
            row = int(np.searchsorted(on_host(offsets), index[0], side="right")) - 1
            where = f"token {index[0] - int(offsets[row])} of response {row}"
        more = f" (and at {len(bad) - 1:,} more)" if len(bad) > 1 else ""
        raise DataError(
            f"{name}: is {float(column[tuple(index)])} at {where}{more}; finite numbers are needed "
            "where the mask is not 0: mask the response, or set a number"
        )


def finite(name: str, numbers: Array, *, or_nan: bool = False) -> NDArray[np.float64]:
    """Return the numbers as float64 of numpy; NaN may stand for none.

    Raises:
        DataError: a number is NaN or infinite.
    """
    values: NDArray[np.float64] = on_host(numbers).astype(np.float64)  # a result may be its input
    bad = int((np.isinf(values) if or_nan else ~np.isfinite(values)).sum())
    if bad:
        raise DataError(
            f"{name}: {bad} of {values.size} numbers are {'' if or_nan else 'NaN or '}infinite; "
            "leave those responses out, or set a number"
        )
    return values


def codes_of(name: str, ids: Ids, count: int) -> tuple[NDArray[np.int64], int]:
    """Return codes of ids in order of first appearance, from 0 without gaps, and their number.

    Raises:
        UsageError: there is not one id for each response.
    """
    ids = on_host(ids) if is_tensor(ids) else ids
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "biuf":
        labels, first, codes = np.unique(ids, return_index=True, return_inverse=True)
        codes, number = np.argsort(np.argsort(first))[codes.reshape(ids.shape)], len(labels)
    else:
        seen: dict[Hashable, int] = {}
        codes = np.array([seen.setdefault(label, len(seen)) for label in ids], np.int64)
        number = len(seen)
    if codes.shape != (count,):
        raise UsageError(
            f"{name} of shape {tuple(codes.shape)}: ({count},) is needed, one id for each response"
        )
    return codes, number
