"""Small tensors for tests of kernels."""

from itertools import pairwise

import torch

from rlpost.kernels import segments

DOUBLE = torch.float64
NONE = torch.zeros(1, dtype=torch.int64)
"""Offsets of no segments."""


def double(xs):
    return torch.tensor(xs, dtype=DOUBLE)


def flags(xs):
    return torch.tensor(xs, dtype=torch.bool)


def ragged(lengths):
    """Offsets, values 1, 2, 3 and so on, and the same values as lists."""
    offsets = segments.offsets_of(torch.tensor(lengths, dtype=torch.int64))
    values = torch.arange(1, sum(lengths) + 1, dtype=DOUBLE)
    bounds = offsets.tolist()
    return offsets, values, [values[a:b].tolist() for a, b in pairwise(bounds)]


def unchanged(function, *tensors, **knobs):
    """The function's result, once it is sure that it left its inputs as they were."""
    before = [tensor.clone() for tensor in tensors]
    found = function(*tensors, **knobs)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)
    return found
