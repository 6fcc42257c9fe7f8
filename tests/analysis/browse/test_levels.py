"""Lists of steps, groups and responses: what polars computes, in order."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from response_index import ARITHMETIC, CALCULATOR, index_of

from rlpost.analysis.browse import filters
from rlpost.analysis.browse.levels import Listings


@pytest.mark.parametrize("kept", [None, "reward > 0"])
def test_lists_are_what_polars_says(kept):
    index = index_of(CALCULATOR, measured=["kl"])
    mask = np.ones(len(index), dtype=bool) if kept is None else filters.rows_where(kept, index)
    frame = pl.read_parquet(CALCULATOR).filter(pl.Series(mask))
    steps, listing = frame.group_by("step").len().sort("step"), Listings(index, mask).steps()
    visible = {column.name: column.values for column in listing.columns}
    assert visible["n"].tolist() == steps["len"].to_list()
    groups = frame.group_by("step", "prompt_id", maintain_order=True).agg(
        pl.len(),
        mean=pl.col("reward").mean(),
        std=pl.col("reward").std().fill_null(0),
        equal=(pl.col("reward").n_unique() == 1) & (pl.len() > 1),
    )
    equal = groups.group_by("step").agg(pl.col("equal").sum()).sort("step")["equal"]
    assert visible["no signal"].tolist() == equal.to_list()
    listing = Listings(index, mask).groups(None)
    visible = {column.name: column.values for column in listing.columns}
    assert visible["n"].tolist() == groups["len"].to_list()
    np.testing.assert_allclose(visible["reward"], groups["mean"].to_numpy(), atol=1e-12)
    np.testing.assert_allclose(visible["std"], groups["std"].to_numpy(), atol=1e-12)
    responses = Listings(index, mask).responses(None)
    assert responses.ids.tolist() == np.flatnonzero(mask).tolist()


def test_names_sort_as_names_and_nan_last():
    index = index_of(ARITHMETIC)
    index.reward[7] = np.nan
    listing = Listings(index, np.ones(512, dtype=bool)).responses(None)
    by_name = listing.sorted_by("prompt", descending=True)
    assert by_name.cells(0)[2] == max(pl.read_parquet(ARITHMETIC)["prompt_id"])
    for descending in (True, False):
        assert listing.sorted_by("reward", descending=descending).id(511) == 7
