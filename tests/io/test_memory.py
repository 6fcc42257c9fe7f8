"""Tables of other libraries: the same numbers come back in a table of the same library."""

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import UsageError
from rlpost.io.memory import arrow_table

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)
TABLES = {
    "arrow": lambda: pq.read_table(SAMPLE),
    "record batch": lambda: pq.read_table(SAMPLE).combine_chunks().to_batches()[0],
    "polars": lambda: FRAME,
    "lazy polars": FRAME.lazy,
    "pandas": FRAME.to_pandas,
    "duckdb": lambda: duckdb.read_parquet(SAMPLE),
}


@pytest.fixture(scope="module")
def expected():
    table, summary = rlpost.enrich(TABLES["arrow"]())
    return pl.from_arrow(table), summary


@pytest.mark.parametrize("library", TABLES)
def test_a_table_comes_back_in_its_own_type_with_the_same_numbers(library, expected):
    table = TABLES[library]()
    enriched, summary = rlpost.enrich(table)
    assert type(enriched) is type(table)
    frame = pl.from_arrow(arrow_table(enriched))
    assert frame.columns == expected[0].columns
    for name in ("advantages", "returns", "response_level_rewards", "reward"):
        assert frame[name].to_list() == expected[0][name].to_list()
    assert summary == expected[1]


def test_a_dataset_comes_back_with_the_rows_that_it_shows(expected):
    datasets = pytest.importorskip("datasets")
    reversed_rows = datasets.Dataset.from_dict(FRAME.to_dict(as_series=False)).select(
        range(FRAME.height - 1, -1, -1)
    )
    enriched, _ = rlpost.enrich(reversed_rows)
    assert type(enriched) is datasets.Dataset
    assert enriched["advantages"][:][::-1] == expected[0]["advantages"].to_list()


def test_an_index_of_a_pandas_frame_stays_its_index(expected):
    frame = FRAME.to_pandas().set_index("prompt_id")
    enriched, summary = rlpost.enrich(frame)
    assert enriched.index.equals(frame.index)
    assert summary["facts"] == expected[1]["facts"]
    pd.testing.assert_series_equal(enriched["reward"], frame["reward"])


def test_other_objects_are_an_error_that_names_what_is_needed():
    with pytest.raises(UsageError, match="dict came; a table with Arrow's interface"):
        rlpost.enrich({"reward": [1.0]})
    with pytest.raises(UsageError, match="write a stream of record batches to a file"):
        rlpost.enrich(iter(TABLES["arrow"]().to_batches()))
