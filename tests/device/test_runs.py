"""Runs on the shadow: files, tasks on files and tables, full memory, several cards, functions."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed_runs import in_tasks, run_tasks
from functional_calls import CALLS, called, columns_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import recipes as random_recipes
from strategies import rollouts as random_rollouts
from strategies import to_table

import rlpost
from rlpost.distributed.passes import InputPart, TaskPasses, enrich
from rlpost.errors import NotEnoughMemoryError, RlpostError
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline import run as runs
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.run import bind
from rlpost.pipeline.running_state import RunState
from rlpost.render.summary import page as summary_page
from tests.device.inputs import rollouts

SAMPLES = Path(__file__).parents[2] / "sample_data"
SMALL = rlpost.Options(device="torch:cpu", chunk_tokens=3000, workers=2)
ON_CARD = replace(SMALL, device="shadow:0")
RECIPES = {
    "gae": rlpost.Recipe(estimator="gae", unit="row", kl_coef=0.05, whiten_advantages=True),
    "filters": rlpost.Recipe(
        estimator="rloo",
        unit="row",
        is_weight="segment:normalised",
        is_cap=1.1,
        is_filter=("token:ratio:0.8:1.25", "sequence:ratio:0.5:2"),
    ),
}
FIXTURE = HealthCheck.function_scoped_fixture
WAYS = ("to_device_bytes", "to_host_bytes")
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@every_recipe
@pytest.mark.parametrize("sample", ["arithmetic", "calculator"])
def test_a_file_has_the_bytes_of_the_cpu(measure, tmp_path, recipe, sample):
    paths = []
    for options in (SMALL, ON_CARD):
        path = tmp_path / f"{options.device.replace(':', '-')}.parquet"
        with measure.measured() as run:
            summary = rlpost.advantages(SAMPLES / f"{sample}.parquet", path, recipe, options)
        paths.append(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert all(chunk.counts.waits <= 1 for chunk in run.chunks)
    rows, counts = sum(each.rows for each in run.chunks), [each.counts for each in run.chunks]
    sent, fetched = (sum(getattr(each, way) for each in counts) for way in WAYS)
    assert summary["bytes"]["to_host"] == fetched
    assert sent - 16 * rows <= summary["bytes"]["to_device"] <= sent  # not offsets of segments


def test_a_chunk_that_does_not_fit_is_an_error_and_smaller_ones_fit(shadow, measure):
    recipe, table = RECIPES["gae"], rollouts(observations=True)
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    _, _, whole = measure.on_shadow(table, recipe, chunk_tokens=1 << 20, workers=1)
    with shadow.limited(whole.counts.to_device_bytes // 4):
        with pytest.raises(
            NotEnoughMemoryError, match=r"row 0: this chunk .* shadow:0.*--chunk-to"
        ):
            measure.on_shadow(table, recipe, chunk_tokens=1 << 20, workers=1)
        result, _, _ = measure.on_shadow(table, recipe, chunk_tokens=1000, workers=1)
    assert result.equals(expected)


def test_auto_takes_a_card_for_large_inputs_alone(shadow, monkeypatch, tmp_path):
    assert shadow.cards
    names = []
    for least in (1 << 30, 1000):
        monkeypatch.setattr(runs, "LEAST_BYTES", least)
        monkeypatch.setattr(runs, "_DRIVERS", ("/",))
        source, target = SAMPLES / "arithmetic.parquet", tmp_path / f"{least}.parquet"
        summary = rlpost.advantages(source, target, RECIPES["gae"])
        names += [summary["device"], rlpost.loss(source, recipe=RECIPES["gae"])["device"]]
        line = f"computed on {summary['device']}"
        assert (line in summary_page(summary).lines) == (summary["device"] != "cpu")
    assert names == ["cpu", "cpu", "shadow", "shadow"]


@pytest.mark.nightly
@every_recipe
def test_tasks_leave_the_bytes_of_a_run_on_the_cpu(shadow, tmp_path, recipe):
    (tmp_path / "in").mkdir()
    table = rollouts(observations=True)
    for place, (start, stop) in enumerate(pairwise((0, 40, 96))):
        part = table.slice(start, stop - start)
        pq.write_table(part, tmp_path / "in" / f"{place}.parquet", row_group_size=9)
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, SMALL)
    with shadow.counted() as counts:
        in_tasks(tmp_path / "in", tmp_path / "out", recipe, ON_CARD)
    assert counts.to_device > 0
    for path in (tmp_path / "local").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.nightly
@settings(max_examples=12, suppress_health_check=[*settings.default.suppress_health_check, FIXTURE])
@given(random_rollouts(extreme=True), random_recipes(tuple(ESTIMATORS)), st.integers(1, 40))
def test_any_rollouts_have_the_bits_of_the_cpu(measure, rows, options, chunk_tokens):
    table, recipe = to_table(rows), rlpost.Recipe(**options)
    cut = {"chunk_tokens": chunk_tokens, "workers": 1}
    try:
        expected, summary = rlpost.enrich(table, recipe, rlpost.Options(device="torch:cpu", **cut))
    except RlpostError as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            measure.on_shadow(table, recipe, **cut)
        return
    result, ours, run = measure.on_shadow(table, recipe, **cut)
    assert result.equals(expected)
    assert measure.same_results(ours, summary)
    assert not run.counts.unordered
    assert all(sum(each.counts.waits for each in one) <= len(one) + 1 for one in run.passes)


@every_recipe
def test_tasks_on_tables_return_the_columns_of_the_cpu(shadow, recipe):
    table = rollouts(observations=True)
    plan = bind(TableSource(table), recipe, RunState())
    parts = [InputPart(start, 48, table.slice(start, 48)) for start in (0, 48)]
    options = replace(SMALL, device="shadow:1")
    passes = TaskPasses(plan, options, run=run_tasks, parts=parts)
    with shadow.counted() as counts:
        responses = passes.responses(emitted(plan.resolved))
        tables = [table for _, table in passes.results(-1, enrich, responses)]
    expected, _ = rlpost.enrich(table, recipe, SMALL)
    assert counts.to_device > 0
    assert pa.concat_tables(tables).equals(expected)


@pytest.mark.parametrize(("name", "columns", "knobs"), CALLS)
def test_a_function_has_the_cpus_bits_on_the_card_of_its_input(shadow, name, columns, knobs):
    card, arrays = shadow.cards[1], columns_of("torch")
    expected = called(name, columns, knobs, arrays)
    with shadow.counted() as counts:
        result = called(name, columns, knobs, {key: x.to(card) for key, x in arrays.items()})
    assert not counts.unordered
    for here, there in zip(expected, result, strict=True):
        assert there.device == card
        assert torch.equal(here, there.cpu())
