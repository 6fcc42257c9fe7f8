"""A command that processes a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run, save


@pytest.fixture
def process(tmp_path):
    """Runs a table through a file, and gives the output as a table."""

    def work(table: pa.Table, *words: object, rows: int = 5) -> pa.Table:
        source, target = save(table, tmp_path / "in.parquet", rows), tmp_path / "out.parquet"
        ran = run("advantages", source, target, "-q", "--overwrite", *words)
        assert ran == (0, "", "")
        return pq.read_table(target)

    return work
