"""Filters and searches of lists: what polars keeps and finds."""

from __future__ import annotations

import polars as pl
import pytest
from response_index import CALCULATOR, index_of

from rlpost.analysis.browse import filters
from rlpost.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("reward<0", pl.col("reward") < 0),
        ("reward>=0.1 step=2", (pl.col("reward") >= 0.1) & (pl.col("step") == 2)),
        ("step>1", pl.col("step") > 1),
        ("prompt~OR-02", pl.col("prompt_id").str.contains("or-02")),
        ("domain!=mul", pl.col("domain") != "mul"),
        ("truncated=1", pl.col("finish_reason") == "length"),
        ("length>5", pl.col("response_mask").list.sum() > 5),
        ("std=0", pl.col("reward").std().over("step", "prompt_id") == 0),
        ("n>24", pl.len().over("step", "prompt_id") > 24),
        ("row<=3", pl.int_range(pl.len()) <= 3),
    ],
)
def test_filters_keep_what_polars_keeps(text, expression):
    frame = pl.read_parquet(CALCULATOR)
    kept = filters.filter_rows(text, index_of(CALCULATOR))
    assert kept.tolist() == frame.select(expression).to_series().to_list()
    assert text == "std=0" or 0 < kept.sum() < len(kept)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rewrad<1", "did you mean reward"),
        ("reward<a", "not a number"),
        ("reward", "write FIELD<NUMBER"),
        ("prompt<b", "no order"),
        ("reward~1", "is a number"),
    ],
)
def test_wrong_filters_say_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says):
        filters.filter_rows(text, index_of(CALCULATOR))


def test_a_search_finds_what_polars_finds():
    frame = pl.read_parquet(CALCULATOR)
    both = pl.col("prompt").str.contains("7*", literal=True) | pl.col("response").str.contains(
        "7*", literal=True
    )
    found = filters.search_rows("7*", index_of(CALCULATOR))
    assert found.tolist() == frame.select(both).to_series().to_list()
    assert 0 < found.sum() < len(found)
