"""A sample file, and tables with new columns of its rows."""

import numpy as np
import polars as pl
import pyarrow.parquet as pq

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)
IDS = FRAME.with_row_index("row")


def lists(seed=0):
    """A table with new columns of several kinds, a row for each of the sample."""
    generator = np.random.default_rng(seed)
    lengths = FRAME["response_mask"].list.len().to_list()
    return pl.DataFrame(
        {
            "row": pl.Series(range(len(lengths)), dtype=pl.UInt32),
            "scores": [generator.random(n).tolist() for n in lengths],
            "label": [None if i % 7 == 0 else f"label {i}" for i in range(len(lengths))],
            "kind": pl.Series([f"k{i % 3}" for i in range(len(lengths))], dtype=pl.Categorical),
            "pair": [{"a": i, "b": [i, None]} for i in range(len(lengths))],
            "when": pl.Series(range(len(lengths))).cast(pl.Datetime("us", "UTC")),
        }
    )


def written(frame, path, **options):
    pq.write_table(frame.to_arrow(), path, **options)
    return path
