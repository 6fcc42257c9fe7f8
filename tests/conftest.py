"""Hypothesis profiles, and fixtures that several test files use."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")


@pytest.fixture(scope="module")
def uninitialised_is_nan():
    """Fill uninitialised torch memory with NaN, so that reading it changes a result."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
