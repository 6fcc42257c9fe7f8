"""Clipped tokens of a page: those of the run, of `rlpost loss`, and of policy tokens alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run as run_command

import rlpost
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report.clipping import ClipCounter
from rlpost.display.text import percent
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import resolve

SAMPLE = Path(__file__).parents[3] / "sample_data"


def test_clipped_shares_equal_those_of_the_loss(made):
    loss = json.loads(pq.read_metadata(made[0]).metadata[b"rlpost.loss_summary"])["settings"][0]
    counts = clips_in(made[0])
    shown = {row[0]: row[2] for row in counts.section().page.parts[0].rows}
    for place, side in enumerate(("low", "high", "dual"), 1):
        assert counts.states[place] == loss["clip"][side]["tokens"]
        assert shown.get(side, "0 %") == percent(loss["clip"][side]["fraction"])
    assert counts.states[1] > 0
    assert 'id="clipping"' in made[1].read_text(encoding="utf-8")


def clips_in(path):
    source = Source(find_inputs([str(path)]))
    counter = ClipCounter(source, resolve(source.columns, {}, source.name))
    for chunk in source.read(counter.read, 1 << 10, "response_mask"):
        counter.add(chunk)
    return counter


def test_only_policy_tokens_count(made):
    counts = clips_in(made[0])
    table = pq.read_table(made[0])
    kept = np.repeat(table["sample_mask"].to_numpy(), [len(x) for x in table["advantages"]])
    mask = (np.concatenate(table["response_mask"].to_numpy()) > 0) & kept
    assert not kept.all()
    own = np.concatenate(table["advantages"].to_numpy())[mask].astype(np.float64)
    states = np.concatenate(table["clip_state"].to_numpy())[mask]
    advantages = inspect([str(made[0])]).advantages
    whole = advantages.whole
    assert (whole.count, whole.min, whole.max) == (len(own), own.min(), own.max())
    assert (whole.mean, whole.std) == pytest.approx((own.mean(), own.std(ddof=1)), rel=1e-12)
    assert advantages.left_out == counts.left_out == int((~table["sample_mask"].to_numpy()).sum())
    assert counts.states.tolist() == np.bincount(states, minlength=5).tolist()
    steps = np.repeat(table["step"].to_numpy(), [len(x) for x in table["advantages"]])[mask]
    assert {label: cells.tolist() for label, cells in counts.steps.items()} == {
        step: np.bincount(states[steps == step], minlength=5).tolist()
        for step in np.unique(steps).tolist()
    }


def test_ppo_clips_equal_those_of_rlpost_loss(tmp_path):
    enriched = tmp_path / "enriched.parquet"
    recipe = rlpost.Recipe(estimator="grpo", drop_difficulty="0.1:0.95")
    rlpost.advantages(SAMPLE / "arithmetic.parquet", enriched, recipe)
    said = run_command("loss", enriched, "--format", "json").out
    clip = json.loads(said)["settings"][0]["clip"]
    found = clips_in(enriched)
    assert found.states[1:].tolist() == [clip["low"]["tokens"], clip["high"]["tokens"], 0, 0]
    assert found.states[1] / found.states.sum() == pytest.approx(clip["low"]["fraction"])
    assert found.states[1:3].min() > 0
    assert sum(found.steps.values()).tolist() == found.states.tolist()
    section = found.section()
    assert "rlpost loss" in section.page.lines[0]
    assert [chart.title for chart in section.charts] == ["Clipped: low", "Clipped: high"]


def test_rows_of_unequal_lists_have_no_clip_counts(tmp_path):
    columns = {
        "reward": [1.0, 0.0, 0.0],
        "log_probs": [[-0.1, -0.1], [-0.1], [-9.0]],
        "old_log_probs": [[-1.0, -0.1], [-1.0, -1.0], [-0.1]],
        "advantages": [[1.0, 1.0], [1.0], [-1.0]],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert clips_in(tmp_path / "a.parquet").states.tolist() == [1, 1, 1, 0, 0]
