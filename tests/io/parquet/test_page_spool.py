"""The page spool: new pages stay in memory or in a temporary file until their row group ends."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.io.parquet import sink

SAMPLE = Path(__file__).parents[3] / "sample_data" / "arithmetic.parquet"


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@pytest.mark.parametrize("per_group", [50, 1000])
def test_spooling_does_not_change_the_file(tmp_path, monkeypatch, estimator, per_group):
    table = pq.read_table(SAMPLE)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=per_group)
    recipe = rlpost.Recipe(estimator=estimator)
    options = rlpost.Options(chunk_tokens=500)
    outputs = []
    for size in (1 << 30, 2000):
        monkeypatch.setattr(sink, "SPOOL_BYTES", size)
        out = tmp_path / f"{size}" / "out.parquet"
        out.parent.mkdir()
        rlpost.advantages(tmp_path / "in.parquet", out, recipe, options)
        outputs.append(out.read_bytes())
        assert os.listdir(out.parent) == [out.name]  # noqa: PTH208
    assert outputs[0] == outputs[1]
