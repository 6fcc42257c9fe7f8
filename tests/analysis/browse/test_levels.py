"""Lists of steps, groups and responses: what polars computes, in order."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentic_run import agentic_run
from odd_files import ODD
from response_index import ARITHMETIC, CALCULATOR, index_of

import rlpost
from rlpost.analysis.browse.levels import Listings
from rlpost.analysis.browse.navigation import Navigation, preview_of
from rlpost.analysis.responses import views
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import COLOURS

GROUP = ("step", "prompt_id")


@pytest.mark.parametrize("kept", [False, True])
def test_lists_are_what_polars_says(kept):
    """Rollouts with a matching row count, each with the reward of its last row."""
    index = index_of(CALCULATOR, measured=["kl"], rollout_reward="last")
    mask = index.reward > 0 if kept else np.ones(len(index), dtype=bool)
    frame = pl.read_parquet(CALCULATOR).with_columns(match=pl.Series(mask))
    of_rollout = [*GROUP, "traj_id"]
    rollouts = frame.sort("turn", maintain_order=True).filter(
        pl.col("match").any().over(of_rollout)
    )
    rollouts, frame = rollouts.group_by(of_rollout).last(), frame.filter("match")
    steps, listing = rollouts.group_by("step").len().sort("step"), Listings(index, mask).steps()
    visible = {column.name: column.values for column in listing.columns}
    assert visible["n"].tolist() == steps["len"].to_list()
    statistics = rollouts.group_by(GROUP).agg(
        pl.len(),
        mean=pl.col("reward").mean(),
        std=pl.col("reward").std().fill_null(0),
        equal=(pl.col("reward").n_unique() == 1) & (pl.len() > 1),
    )
    groups = (
        frame.select(GROUP)
        .unique(maintain_order=True)
        .join(statistics, on=GROUP, how="left", maintain_order="left")
    )
    equal = groups.group_by("step").agg(pl.col("equal").sum()).sort("step")["equal"]
    assert visible["no signal"].tolist() == equal.to_list()
    listing = Listings(index, mask).groups(None)
    visible = {column.name: column.values for column in listing.columns}
    assert visible["n"].tolist() == groups["len"].to_list()
    np.testing.assert_allclose(visible["reward"], groups["mean"].to_numpy(), atol=1e-12)
    np.testing.assert_allclose(visible["std"], groups["std"].to_numpy(), atol=1e-12)
    responses = Listings(index, mask).responses(None)
    assert sorted(responses.ids) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"failures": "zero"}, {"attempts": "newest", "rollout_reward": "sum"}, {"mask": True}],
)
def test_steps_count_what_inspect_counts(options, tmp_path):
    """Failures, attempts, masks and rewards of rollouts, of a run that has them all."""
    table = agentic_run(3, steps=3, prompts=6).table
    if options.get("mask"):
        table = table.append_column("sample_mask", pa.array(np.arange(len(table)) % 5 > 0))
    options = {name: how for name, how in options.items() if name != "mask"}
    pq.write_table(table, tmp_path / "run.parquet")
    facts = rlpost.inspect(tmp_path / "run.parquet", **options).facts
    index = index_of(tmp_path / "run.parquet", **options)
    listing = Listings(index, np.ones(len(index), np.bool_)).steps()
    listed = {column.name: column.values for column in listing.columns}
    steps = [str(label) for label in facts["reward"]["step"]["label"]]
    assert [listing.cells(place)[0] for place in range(3)] == steps
    listed["no signal"] = listed["no signal"] / listed["groups"]
    for name, (measure, statistic) in {
        "reward": ("reward", "mean"),
        "std": ("reward", "std"),
        "truncated": ("truncated", "mean"),
        "no signal": ("equal_rewards", "mean"),
    }.items():
        np.testing.assert_allclose(listed[name], facts[measure]["step"][statistic], rtol=1e-12)


@pytest.mark.parametrize("case", ODD)
def test_unusual_files_are_browsed_and_shown(case, tmp_path, capsys):
    """Every level, item and order, with a filter and without; every way to choose a response."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(ODD[case]), path)
    index = index_of(path)
    measures = [name for name in ("reward", "kl", "advantage") if index.columns_of(name)]
    for name in measures:
        index.number(name)
    reader = ResponseReader(index, COLOURS, whole=True)
    navigation = Navigation(index, reader, next(iter(reader.measures), None))
    opened = True
    while opened:
        level = navigation.top
        for place in range(len(level.listing)):
            assert len(level.listing.cells(place)) == len(level.listing.columns)
            assert preview_of(navigation, level.level, level.listing.id(place))
        while navigation.next_column() is not None:
            navigation.sort(navigation.next_column(), descending=True)
        for kept in (np.arange(len(index)) % 2 == 0, np.ones(len(index), np.bool_)):
            navigation.keep(kept)
        opened = navigation.open()
    for choice in ({"row": len(index) - 1}, *({"top": name} for name in measures)):
        for how in ("table", "json", "markdown"):
            views.show([str(path)], columns_map={}, format=how, **choice)
    assert capsys.readouterr().out


def test_names_sort_as_names_and_nan_last():
    index = index_of(ARITHMETIC)
    index.reward[7] = np.nan
    listing = Listings(index, np.ones(512, dtype=bool)).responses(None)
    by_name = listing.sorted_by("prompt", descending=True)
    assert by_name.cells(0)[2] == max(pl.read_parquet(ARITHMETIC)["prompt_id"])
    for descending in (True, False):
        assert listing.sorted_by("reward", descending=descending).id(511) == 7
