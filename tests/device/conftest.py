"""The shadow as fixtures. A test process has the device type once a test has used one of them."""

import importlib

import pytest
import torch


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
    with module.plugged_in():
        yield module
    torch.set_num_threads(threads)


@pytest.fixture
def measure(shadow):  # noqa: ARG001 - its cards are plugged in
    """The module `tests.device.measure`."""
    return importlib.import_module("tests.device.measure")
