"""Calls of users' functions: what they get is copied, and what they return is checked."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.errors import UsageError
from rlpost.kernels.arrays import is_tensor, like, namespace, on_host
from rlpost.recipe.functions import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.kernels.arrays import Array

Values = dict[str, Any]
_TWO = 2  # advantages and returns


class UserCall(NamedTuple):
    """A call of a user's function, which must return a number for each token, or response."""

    estimator: str
    function: Callable[..., Any]
    size: int
    """How many numbers it must return."""
    other: Array
    """Has the library and the device of the result."""
    tokens: str = ""
    """The argument that has tokens; empty if none has."""

    @property
    def unit(self) -> str:
        """What each number is for."""
        return "token" if self.tokens else "response"

    def pair(self, arguments: Mapping[str, Array], options: Values) -> tuple[Array, Array]:
        """Return advantages and returns as float64 [size], one array twice if there is one.

        Raises:
            UsageError: the function raised an exception, or returned something else.
        """
        result = self._run(arguments, options)
        parts = result if isinstance(result, tuple) else (result, result)
        if len(parts) != _TWO:
            raise self._wrong(f"a tuple of {len(parts)}")
        advantages = self._numbers(parts[0])
        return advantages, advantages if parts[1] is parts[0] else self._numbers(parts[1])

    def single(self, arguments: Mapping[str, Array], options: Values) -> Array:
        """Return the result as float64 [size]; raises as `pair`."""
        return self._numbers(self._run(arguments, options))

    def _run(self, arguments: Mapping[str, Array], options: Values) -> Any:
        """Return what the function returns of copies of its arguments."""
        copies = _copies(arguments, self.function)
        return result_of(f"estimator {self.estimator}", self.function, copies, options)

    def _numbers(self, part: Any) -> Array:
        try:
            numbers = real_numbers(part, self.other)
        except TypeError as error:
            raise self._wrong(str(error)) from None
        if tuple(numbers.shape) != (self.size,):
            raise UsageError(
                f"estimator {self.estimator} returned an array of shape {tuple(numbers.shape)}; "
                f"one number for each {self.unit} is needed, ({self.size},){self._advice()}"
            )
        return numbers

    def _wrong(self, what: str) -> UsageError:
        return UsageError(
            f"estimator {self.estimator} returned {what}; one real number for each of {self.size} "
            f"{self.unit}s is needed: return an array of numpy or torch, or two in a tuple, "
            "advantages and returns"
        )

    def _advice(self) -> str:
        """Return why the function must return a number for each token, or response, and advice."""
        if not self.tokens:
            return (
                ", because no parameter has tokens: name one that has, such as token_rewards, for "
                "numbers of tokens"
            )
        spreads = "numpy.repeat(x, numpy.diff(offsets))"
        if takes_tensors(self.function):
            spreads = "torch.repeat_interleave(x, offsets.diff())"
        return f", because `{self.tokens}` has tokens: {spreads} spreads numbers of responses"


def takes_tensors(function: Callable[..., Any]) -> bool:
    """Return whether a function takes tensors of torch; otherwise it takes arrays of numpy.

    It does if its file imports torch at the top, or if an annotation names a Tensor.
    """
    function = inspect.unwrap(function)
    annotations = inspect.signature(function).parameters.values()
    if any("Tensor" in str(parameter.annotation) for parameter in annotations):
        return True
    return any(map(_is_of_torch, getattr(function, "__globals__", {}).values()))


def _is_of_torch(thing: object) -> bool:
    """Return whether a global name of a file is torch, a part of it, or something of it."""
    name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def _copies(columns: Mapping[str, Array], function: Callable[..., Any]) -> Values:
    """Return copies of columns, in the library that a function takes."""
    if not takes_tensors(function):
        return {name: on_host(value).copy() for name, value in columns.items()}
    import torch  # noqa: PLC0415 - which the function's file imports

    copies: Values = {}
    for name, value in columns.items():
        if is_tensor(value):
            copies[name] = namespace(value).with_host(value.clone(), partial(on_host, value))
        else:
            copies[name] = torch.from_numpy(value.copy())
    return copies


_REAL = "biuf"  # numpy's kinds of real numbers


def real_numbers(array: Any, other: Array) -> Array:
    """Return an array of real numbers as float64, without its gradient.

    Args:
        array: a tensor or an array of numpy, of bools, integers or floats.
        other: has the library and the device of the result.

    Raises:
        TypeError: it is none; the text says what it is.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in _REAL:
            raise TypeError(f"a {type(array).__name__} of {array.dtype}")
        return like(np.array(array, np.float64), other)
    if not is_tensor(array):
        raise TypeError("None" if array is None else f"a {type(array).__name__}")
    if array.is_complex():
        raise TypeError(f"a tensor of {array.dtype}")
    import torch  # noqa: PLC0415 - whose tensor it is

    try:
        dense = array if array.layout is torch.strided else array.to_dense()
        device = other.device if is_tensor(other) else "cpu"
        numbers = dense.detach().to(device, torch.float64).contiguous()
        numbers = numbers.clone() if numbers.is_inference() else numbers
        return numbers if is_tensor(other) else numbers.numpy()
    except Exception as error:  # noqa: BLE001 - torch raises several, by kind of tensor
        text = str(error).partition("\n")[0]
        raise TypeError(f"a {type(array).__name__} without plain numbers ({text})") from None
