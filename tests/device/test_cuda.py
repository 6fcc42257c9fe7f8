"""The pipeline on a CUDA device: its results, its determinism, its workers, its memory."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rlpost
from rlpost import functional
from rlpost.analysis.loss.run import loss
from rlpost.errors import NotEnoughMemoryError
from rlpost.estimators import ESTIMATORS
from rlpost.losses import LOSSES
from rlpost.losses.config import LossConfig
from rlpost.recipe.loss import LossOptions
from tests.bench.inputs import write_rollouts
from tests.device.inputs import rollouts
from tests.device.recipes import all_recipes

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICE = "cuda:0"
RECIPES = all_recipes() if torch.cuda.is_available() else {}
SCANS = rlpost.Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True)
MOST = 1e-5
"""Largest difference from the CPU, relative to a number or to a thousandth of the largest one."""
GAPS: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def largest_differences():
    """Write the differences to the file that DIFFERENCES names, the largest first."""
    yield
    ordered = dict(sorted(GAPS.items(), key=lambda item: -item[1]))
    if "DIFFERENCES" in os.environ:
        Path(os.environ["DIFFERENCES"]).write_text(json.dumps(ordered, indent=1), encoding="utf-8")


@contextmanager
def deterministic():
    """Let operations without a deterministic algorithm fail, and fill new memory with NaN."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


def enriched(table, recipe, device=DEVICE, **options):
    return rlpost.enrich(table, recipe, rlpost.Options(device=device, **options))[0]


def numbers_of(column):
    """The numbers of a column, of lists or not, without nulls."""
    array = column.combine_chunks()
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        array = array.flatten()
    return array.drop_null().to_numpy(zero_copy_only=False)


def gap(found, expected):
    """The largest relative difference of two arrays; flags and counts must be equal."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.dtype.kind != "f" or np.array_equal(found, expected, equal_nan=True):
        np.testing.assert_array_equal(found, expected)
        return 0.0
    wide = expected.astype(np.float64)
    scale = np.maximum(np.abs(wide), 1e-3 * np.abs(wide).max())
    return float((np.abs(found - wide) / scale).max())


def gap_of_tables(found, expected):
    assert found.schema.equals(expected.schema)
    pairs = zip(found.columns, expected.columns, strict=True)
    return max(gap(numbers_of(one), numbers_of(other)) for one, other in pairs)


def noted(name, found):
    GAPS[name] = max(GAPS.get(name, 0.0), found)
    assert found <= MOST
    return found


def is_outcome(name):
    """Whether each advantage is a number of its response, computed without tokens."""
    name, _, variant = name.partition(" ")
    estimator = ESTIMATORS.get(name)
    if estimator is None or variant != "plain" or estimator.whiten_advantages:
        return False
    return estimator.level == "response" or estimator.undiscounted_is_constant


@pytest.mark.parametrize("name", RECIPES)
def test_results_are_those_of_the_cpu_and_the_same_every_time(name):
    for observations in (False, True):
        table, recipe = rollouts(observations=observations), RECIPES[name]
        found = enriched(table, recipe)
        difference = gap_of_tables(found, enriched(table, recipe, "cpu"))
        noted(f"{name}{', observations' * observations}", difference)
        assert difference == 0 or not is_outcome(name)
        assert enriched(table, recipe).equals(found)
        with deterministic():
            assert enriched(table, recipe).equals(found)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_the_cpu(name, tmp_path):
    pq.write_table(rollouts(observations=True), tmp_path / "in.parquet")
    config = LossConfig(LossOptions(loss=name))
    tables = []
    for device in ("cpu", DEVICE, DEVICE):
        path, options = tmp_path / f"{len(tables)}.parquet", rlpost.Options(device=device)
        loss(tmp_path / "in.parquet", path, rlpost.Recipe(), [config], options)
        tables.append(pq.read_table(path))
    noted(f"loss {name}", gap_of_tables(tables[1], tables[0]))
    assert tables[2].equals(tables[1])


@pytest.mark.parametrize("run", [functional.response_rewards, functional.aggregate])
def test_functions_of_tensors_add_in_one_order(run):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1 << 20, generator=generator, dtype=torch.float64)
    offsets = torch.arange(0, (1 << 20) + 1, 1 << 14)
    own = {"rewards": values[:64]} if run is functional.response_rewards else {}
    name = "token_rewards" if own else "values"
    columns = {**own, name: values, "offsets": offsets}
    there = {key: column.to(DEVICE) for key, column in columns.items()}
    found = run(**there)
    torch.testing.assert_close(found.cpu(), run(**columns), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(run(**there), found) for _ in range(5))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of 3,000 responses, about 2.3 million tokens."""
    path = tmp_path_factory.mktemp("large") / "in.parquet"
    write_rollouts(path, 3000)
    return path


def written(source, target, device=DEVICE, recipe=SCANS, **options):
    """Write a file; return its summary, its numbers and the hash of its bytes."""
    settings = rlpost.Options(device=device, overwrite=True, **options)
    summary = rlpost.advantages(source, target, recipe, settings)
    table = pq.read_table(target, columns=["advantages", "returns"])
    return summary, table, hashlib.sha256(target.read_bytes()).hexdigest()


@pytest.mark.parametrize("recipe", [rlpost.Recipe(), SCANS], ids=["grpo", "gae"])
def test_workers_write_the_same_file_every_time(recipe, large, tmp_path):
    shared = {"recipe": recipe, "chunk_tokens": 1 << 17}
    _, expected, _ = written(large, tmp_path / "cpu.parquet", "cpu", **shared)
    bytes_of = set()
    for _ in range(2):
        for workers in (1, 4):
            _, table, own = written(large, tmp_path / "out.parquet", workers=workers, **shared)
            bytes_of.add(own)
            noted(f"file, {recipe.estimator}", gap_of_tables(table, expected))
    assert len(bytes_of) == 1


def test_a_chunk_that_does_not_fit_is_an_error_and_smaller_ones_fit(large, tmp_path):
    _, expected, _ = written(large, tmp_path / "cpu.parquet", "cpu")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    most = torch.cuda.memory_reserved() + (96 << 20)
    torch.cuda.set_per_process_memory_fraction(most / total, 0)
    try:
        with pytest.raises(NotEnoughMemoryError, match="smaller chunks need less: --chunk-tokens"):
            written(large, tmp_path / "out.parquet", workers=1, chunk_tokens=1 << 24)
        torch.cuda.empty_cache()
        _, table, _ = written(large, tmp_path / "out.parquet", workers=1, chunk_tokens=1 << 15)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    noted("smaller chunks", gap_of_tables(table, expected))
