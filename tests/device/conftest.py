"""The shadow as fixtures. A test process has the device type once a test has used one of them."""

import importlib
from unittest import mock

import pytest
import torch

from rlpost.kernels.arrays import numpy_arrays


@pytest.fixture
def shadow():
    """The module `tests.device.shadow`, with its cards plugged in."""
    registration = torch.utils.backend_registration
    if not (
        hasattr(registration, "_setup_privateuseone_for_python_backend")
        and hasattr(torch.library, "get_kernel")
    ):
        pytest.skip(f"torch {torch.__version__} has no backends in Python with pinned memory")
    module = importlib.import_module("tests.device.shadow")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its operations are small
    with module.plugged_in(), mock.patch.object(torch, "segment_reduce", in_order_of_numpy):
        yield module
    torch.set_num_threads(threads)


REDUCE = torch.segment_reduce


def in_order_of_numpy(values, how, **options):
    """`torch.segment_reduce`, which adds on the CPU in the order in which the shadow adds."""
    if how != "sum" or values.device.type != "cpu":
        return REDUCE(values, how, **options)
    sums = numpy_arrays.reduce_segments(values.numpy(), options["offsets"].numpy(), how)
    return torch.from_numpy(sums)


@pytest.fixture
def measure(shadow):  # noqa: ARG001 - its cards are plugged in
    """The module `tests.device.measure`."""
    return importlib.import_module("tests.device.measure")
