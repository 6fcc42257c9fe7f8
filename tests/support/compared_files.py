"""Files of the sample data with advantages, and their comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

import rlpost
from rlpost.analysis.compare.compare import compare

SAMPLE = Path(__file__).parents[2] / "sample_data"
ARITHMETIC, CALCULATOR = SAMPLE / "arithmetic.parquet", SAMPLE / "calculator.parquet"


def enriched(path, out, estimator, **options):
    recipe = rlpost.Recipe(estimator=estimator, **options)
    return rlpost.advantages(path, out, recipe)


def compared(*paths, recipes=None, column=None, count=5):
    paths = [str(path) for path in paths]
    return compare(paths, {}, recipes or {}, column=column, count=count)


def measure(comparison, name, *sides):
    """The statistics of all numbers of a measure of some sides; of all of them by default."""
    return comparison["facts"][":".join([name, *(sides or comparison["sides"])])]["all"]


def plain(paths):
    """Means of policy tokens, and the tokens themselves, by polars; NaN if a side drops them."""
    frames = [pl.read_parquet(path).with_row_index() for path in paths]
    kept = pl.col("sample_mask") if "sample_mask" in frames[1].columns else pl.lit(value=True)
    assert "sample_mask" not in frames[0].columns
    tokens = [
        frame.explode("advantages", "response_mask")
        .filter(pl.col("response_mask") == 1)
        .with_columns(
            pl.when(kept if frame is frames[1] else pl.lit(value=True))
            .then(pl.col("advantages").cast(pl.Float64))
            .otherwise(float("nan"))
        )
        for frame in frames
    ]
    means = [one.group_by("index").agg(pl.col("advantages").mean()).sort("index") for one in tokens]
    return (
        [one["advantages"].to_numpy() for one in means],
        [one["advantages"].to_numpy() for one in tokens],
    )


def kept_by_both(left, right):
    both = np.isfinite(left) & np.isfinite(right)
    assert 0 < both.sum() < len(left)
    return left[both], right[both]
