"""The facts of each sample file, and the summary of a run on it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect.facts import inspect

SAMPLES = Path(__file__).parents[3] / "sample_data"
FILES = [SAMPLES / "arithmetic.parquet", SAMPLES / "calculator.parquet"]


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def sample(request):
    return request.param


@pytest.fixture(scope="module")
def facts(sample):
    return inspect([sample], unit="row")


@pytest.fixture(scope="module")
def summary(sample, tmp_path_factory):
    recipe = Recipe(estimator="grpo", unit="row", is_weight="token", kl_estimator="k1")
    return rlpost.advantages(sample, tmp_path_factory.mktemp("out") / "out.parquet", recipe)
