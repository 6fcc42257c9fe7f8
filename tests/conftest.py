"""How tests are run: Hypothesis profiles, workers, threads; and fixtures of several test files."""

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "default")

# Tests in this process have small tensors, for which threads of torch wait longer than they
# compute. Processes that tests start have torch's own number.
torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One worker more than cores: some tests wait for processes, disks and signals."""
    return min(len(os.sched_getaffinity(0)) + 1, 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let each worker run consecutive tests, so that fixtures of a module are made once."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415 - xdist may be absent

    return WorkStealingScheduling(config, log)


def pytest_collection_finish():
    """Leave imported modules and tests out of garbage collections, and start fewer of them.

    Collections took an eighth of the time of tests. The program does the same at its start.
    """
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_sessionfinish():
    """Let the interpreter free at its end what was left out."""
    gc.unfreeze()


@pytest.fixture(scope="module")
def uninitialised_is_nan():
    """Fill uninitialised torch memory with NaN, so that reading it changes a result."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
