"""The facts of each sample file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpost.analysis.inspect.facts import inspect

SAMPLES = Path(__file__).parents[3] / "sample_data"
FILES = [SAMPLES / "arithmetic.parquet", SAMPLES / "calculator.parquet"]


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def sample(request):
    return request.param


@pytest.fixture(scope="module")
def facts(sample):
    return inspect([sample], unit="row")
