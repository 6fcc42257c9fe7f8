"""The picture: one scale a line, as wide as the console, told apart without colours."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from compared_files import ARITHMETIC
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpost
from rlpost.display.picture import Bin, Blocks, Share, bins, blocks, shares

COUNTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=17
)  # fmt: skip


@settings(max_examples=50)
@given(COUNTS, st.integers(30, 200))
def test_bars_fit_have_one_scale_and_show_any_count(counts, width):
    line = bins("passes", [Bin(str(i), *pair) for i, pair in enumerate(counts)], "group")
    text = line.text(width).plain
    assert len(text) <= width
    if sum(map(sum, counts)) < width // 4 and len(counts) < 4:
        assert "groups" not in text
        assert text.count("█") == sum(full for full, _ in counts)
        assert text.count("░") == sum(light for _, light in counts)


def test_parts_of_a_whole_are_told_apart_by_signs():
    parts = [Share("A<0 50 %", 0.5, "■", "red"), Share("A=0 0 %", 0, "·"), Share("A>0", 0.5, "■")]
    text = shares("tokens", parts).text(80).plain
    assert "·" not in text
    assert text.count("■") > 30
    assert len(text) <= 80


@pytest.mark.parametrize("count", [2, 24, 50, 1000])
def test_steps_beyond_the_blocks_are_said(count):
    line = blocks("steps", [Blocks("reward 0", [*map(float, range(count))], "9")], counted=True)
    text = line.text(80).plain
    assert len(text) <= 80
    assert (f"{count:,} in 24 bins" in text) == (count > 24)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_note_beside_two_lines_of_blocks_is_whole(width):
    values = [*map(float, range(5000))]
    parts = [Blocks("reward -0.11", values, "-0.18"), Blocks("no signal 0 %", values, "0 %")]
    said = blocks("steps", parts, counted=True).text(width).plain.rpartition("0 %")[2].strip()
    assert re.fullmatch(r"5,000 in \d+ bins", said)


def test_the_profiles_of_a_run_are_those_of_its_rows():
    frame = pl.read_parquet(ARITHMETIC)
    table, summary = rlpost.enrich(frame, rlpost.Recipe())
    found = rlpost.inspect(frame).profiles
    signal = pl.col("advantages").list.eval(pl.element().abs().max()).list.first().max() > 0
    groups = table.group_by("step", "prompt_id").agg(
        passes=(pl.col("reward") >= 1).sum(), signal=signal, size=pl.len()
    )
    assert groups["size"].unique().to_list() == [8]
    for kind, flag in (("with", True), ("without", False)):
        passes = groups.filter(pl.col("signal") == flag)["passes"]
        counts = np.bincount(passes.to_numpy(), minlength=9).tolist()
        assert summary.profiles["groups"][kind] == counts
        assert found["groups"][kind] == counts
    assert found["length"] == summary.profiles["length"]
    passed = frame.filter(pl.col("reward") >= 1)
    assert sum(found["length"]["pass"]) == len(passed)
    assert summary.profiles["groups"]["by"] == "passes of 8"
    chosen = rlpost.enrich(frame.with_columns(reward=pl.int_range(len(frame)) / 100))[1]
    assert chosen.profiles["groups"]["by"] == "mean reward"
    assert sum(chosen.profiles["groups"]["with"]) == 64


def test_means_of_log_ratios_and_sizes_of_advantages_are_those_of_the_tokens():
    recipe = rlpost.Recipe(estimator="gae", kl_coef=0.1, is_weight="token")
    table, summary = rlpost.enrich(pl.read_parquet(ARITHMETIC), recipe)
    names = ["response_mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "advantages"]
    tokens = table.select(names).explode(names).filter(pl.col("response_mask") == 1)
    old, ref, infer, credit = (tokens[name].cast(pl.Float64) for name in names[1:])
    facts = summary.facts
    for name, values in (("ref_gap", old - ref), ("ref_gap_size", (old - ref).abs()),
                         ("engine_gap_size", (old - infer).abs())):  # fmt: skip
        assert facts[name]["all"]["mean"] == pytest.approx(values.mean())
    share = credit.clip(0).sum() / credit.abs().sum()
    assert facts["mass_positive"]["all"]["value"] == pytest.approx(share, rel=1e-5)
