"""Formulas on arrays of array-api-strict, which has the array API standard and nothing else.

Inside `strict_formulas`, `rlpost.kernels.arrays.namespace` returns functions for these arrays:
those of the library if the standard has them, else the primitives of numpy, which convert. Arrays
have no methods by the standard; formulas call a few that both libraries have: these are added.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import array_api_strict as strict
import numpy as np
from array_kinds import names_of

from rlpost.kernels import arrays
from rlpost.kernels.arrays import numpy_arrays

Array = type(strict.asarray(0))
METHODS = ("clip", "sum", "any", "all", "max", "min", "mean")


def to_numpy(value):
    """An array of the library as one of numpy, also in lists; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_numpy, value))
    return np.asarray(value._array) if isinstance(value, Array) else value


def to_strict(value):
    """An array of numpy as one of the library, also in lists; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_strict, value))
    return strict.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


def is_strict(values):
    """Whether an array of the library is among values, or in one that is a list."""
    lists = (list, tuple)
    return any(is_strict(x) if isinstance(x, lists) else isinstance(x, Array) for x in values)


def dispatched(name):
    """The function of the library, or the primitive of numpy, by the arrays that it gets."""
    plain, own = getattr(numpy_arrays, name), getattr(strict, name, None)

    def call(*arguments, **options):
        if not is_strict(arguments):
            return plain(*arguments, **options)
        if own is not None and name not in ("arange", "zeros", "full"):
            return own(*arguments, **options)
        if name == "on_host":
            return to_numpy(arguments[0])
        result = plain(*map(to_numpy, arguments), **options)
        return Blocks(result) if name == "blocks_of" else to_strict(result)

    return call


class Blocks:
    """The blocks of a ragged array, with arrays of the library."""

    def __init__(self, blocks):
        self._blocks = blocks

    def scanned(self, values, decay):
        return to_strict(self._blocks.scanned(to_numpy(values), decay))

    def add(self, rows, carry, decay):
        return to_strict(self._blocks.add(to_numpy(rows).copy(), to_numpy(carry), decay))

    def joined(self, rows):
        return to_strict(self._blocks.joined(to_numpy(rows)))


def functions():
    """The functions of `numpy_arrays`, for arrays of both libraries."""
    found = {name: dispatched(name) for name in names_of(numpy_arrays)}
    types = ("bool", "float32", "float64", "int32", "int64", "uint8")
    return SimpleNamespace(**found | {name: getattr(strict, name) for name in types})


def method(function):
    """A function as a method."""

    def call(array, *arguments, **options):
        return function(array, *arguments, **options)

    return call


@contextmanager
def strict_formulas():
    """Let formulas take arrays of the library."""
    own = {name: method(getattr(strict, name)) for name in METHODS}
    own["cumsum"] = method(lambda x, axis: strict.cumulative_sum(x, axis=axis))
    own["__len__"] = method(lambda x: x.shape[0])
    with (
        strict.ArrayAPIStrictFlags(api_version="2024.12"),
        mock.patch.multiple(Array, create=True, **own),
        mock.patch.object(arrays, "numpy_arrays", functions()),
    ):
        yield strict
