"""Small tensors for tests of kernels."""

from itertools import pairwise

import numpy as np

from rlpost.kernels import segments

DOUBLE = np.float64
NONE = np.zeros(1, dtype=np.int64)
"""Offsets of no segments."""


def double(xs):
    return np.array(xs, dtype=DOUBLE)


def flags(xs):
    return np.array(xs, dtype=np.bool_)


def ragged(lengths):
    """Offsets, values 1, 2, 3 and so on, and the same values as lists."""
    offsets = segments.offsets_of(np.array(lengths, dtype=np.int64))
    values = np.arange(1, sum(lengths) + 1, dtype=DOUBLE)
    bounds = offsets.tolist()
    return offsets, values, [values[a:b].tolist() for a, b in pairwise(bounds)]


def unchanged(function, *tensors, **knobs):
    """The function's result, once it is sure that it left its inputs as they were."""
    before = [tensor.copy() for tensor in tensors]
    found = function(*tensors, **knobs)
    for tensor, old in zip(tensors, before, strict=True):
        assert np.array_equal(tensor, old)
    return found
