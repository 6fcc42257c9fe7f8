"""Clipped tokens of a page: those of the run, of `rlpost loss`, and of policy tokens alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_pages import data_in
from runs import run as run_command

import rlpost
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report.clipping import ClipCounter, clip_tables, clip_trends, number_at
from rlpost.analysis.report.run import report
from rlpost.analysis.responses.index import build_index
from rlpost.display.text import number, percent
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import resolve

SAMPLE = Path(__file__).parents[3] / "sample_data"


def test_advantages_and_clipping_equal_those_of_the_run(made, data):
    source, _, _ = made
    metadata = pq.read_metadata(source).metadata
    summary = json.loads(metadata[b"rlpost.summary"])
    loss = json.loads(metadata[b"rlpost.loss_summary"])["settings"][0]
    sections = {section["name"]: section for section in data["sections"]}
    tiles = {one["label"]: one["value"] for one in sections["distributions"]["tiles"]}
    assert tiles["Std of advantages"] == number(summary["advantage"]["std"])
    clips = {one["label"]: one["value"] for one in sections["clipping"]["tiles"]}
    for side in ("low", "high", "dual"):
        assert clips[f"Clipped: {side}"] == percent(loss["clip"][side]["fraction"])
    assert loss["clip"]["low"]["tokens"] > 0
    rates, losses = sections["clipping"]["tables"]
    clip = summary["advantage_clip"]
    assert [source.name, "advantages", "±1.5", f"{clip['count']:,}", percent(clip["fraction"])] == (
        rates["rows"][0][:5]
    )
    assert losses["rows"][0][5] == percent(loss["clip"]["any"]["fraction"])
    (trend,) = sections["clipping"]["charts"]
    shares = [percent(step["advantage_clip"]["fraction"]) for step in summary["steps"]]
    assert [cell for _, cell in trend["numbers"]["rows"]] == shares


def clips_in(path):
    source = Source(find_inputs([str(path)]))
    counter = ClipCounter(source, resolve(source.columns, {}, source.name))
    for chunk in source.read(counter.read, 1 << 10, "response_mask"):
        counter.add(chunk)
    return counter.counts


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
    assert {label: one.tolist() for label, one in counts.steps.items()} == {
        step: [(steps == step).sum(), *((states == side)[steps == step].sum() for side in (1, 2))]
        for step in np.unique(steps).tolist()
    }


def test_ppo_clips_equal_those_of_rlpost_loss(tmp_path):
    enriched = tmp_path / "enriched.parquet"
    recipe = rlpost.Recipe(estimator="grpo", drop_difficulty="0.1:0.95")
    rlpost.advantages(SAMPLE / "arithmetic.parquet", enriched, recipe)
    said = run_command("loss", enriched, "--format", "json").out
    clip = json.loads(said)["settings"][0]["clip"]
    found = clips_in(enriched)
    assert (found.ppo.low, found.ppo.high) == (clip["low"]["tokens"], clip["high"]["tokens"])
    assert found.ppo.low / found.ppo.tokens == pytest.approx(clip["low"]["fraction"])
    assert min(found.ppo.low, found.ppo.high) > 0
    assert sum(found.steps.values()).tolist() == [found.ppo.tokens, found.ppo.low, found.ppo.high]
    report([str(enriched)], tmp_path / "page.html")
    sections = {x["name"]: x for x in data_in(tmp_path / "page.html")["sections"]}
    section, trends = sections["clipping"], sections["steps"]["charts"]
    shares = [
        [cell for _, cell in one["numbers"]["rows"]] for one in trends if "Clipped" in one["title"]
    ]
    every = [found.shares()[step] for step in range(4)]
    assert shares == [[percent(one[side]) for one in every] for side in (0, 1)]
    assert [tile["value"] for tile in section["tiles"]] == [
        percent(clip["low"]["fraction"]), percent(clip["high"]["fraction"])
    ]  # fmt: skip


def test_clip_states_take_precedence_over_ppo_clips(made):
    found = clips_in(made[0])
    assert found.ppo is None
    assert found.states is not None


def test_rows_of_unequal_lists_have_no_clip_counts(tmp_path):
    columns = {
        "reward": [1.0, 0.0, 0.0],
        "log_probs": [[-0.1, -0.1], [-0.1], [-9.0]],
        "old_log_probs": [[-1.0, -0.1], [-1.0, -1.0], [-0.1]],
        "advantages": [[1.0, 1.0], [1.0], [-1.0]],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = clips_in(tmp_path / "a.parquet").ppo
    assert (found.tokens, found.low, found.high) == (3, 1, 1)


def test_metadata_of_other_programs_are_ignored(tmp_path):
    table = pa.table({"reward": [1.0]})
    for text in (
        "[" * 100_000,
        "null",
        '{"masked": 3, "steps": [1, 2]}',
        '{"settings": {}}',
        "\xff",
    ):
        metadata = {"rlpost.summary": text, "rlpost.loss_summary": text}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        source = build_index([str(tmp_path / "a.parquet")], {}).source
        assert (clip_tables(source), clip_trends(source)) == ([], [])
    assert number_at({"a": [{"b": 2}]}, "a", 0, "b") == 2
    assert number_at({"a": math.inf}, "a") is None
    assert number_at({"a": True}, "a") is None
