"""The sample data, and an index of the responses of files."""

from __future__ import annotations

from pathlib import Path

from rlpost.analysis.responses.index import build_index

SAMPLE = Path(__file__).parents[2] / "sample_data"
ARITHMETIC, CALCULATOR = SAMPLE / "arithmetic.parquet", SAMPLE / "calculator.parquet"


def index_of(*paths, measured=(), roles=(), **counting):
    index = build_index([str(path) for path in paths], dict(roles), **counting)
    for name in measured:
        index.number(name)
    return index
