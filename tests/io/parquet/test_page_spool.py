"""The page spool: new pages stay in memory or in a temporary file until their row group ends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import ReadWriteError
from rlpost.io.parquet import sink
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.footer import ColumnMeta, chunk_extent
from rlpost.io.parquet.sink import PageSpool

SAMPLE = Path(__file__).parents[3] / "sample_data" / "arithmetic.parquet"
KIND = pa.list_(pa.float32())
ENCODER = Encoder(pa.schema({"a": KIND, "b": KIND, "c": pa.float32()}), aliases={"b": "a"})


def rows(count, seed):
    rng = np.random.default_rng(seed)
    lists = pa.array([rng.random(5, np.float32) for _ in range(count)], KIND)
    numbers = pa.array(rng.random(count, np.float32))
    return ENCODER.encode(pa.record_batch({"a": lists, "c": numbers}))


@pytest.mark.parametrize("size", [0, 1500, 1 << 30], ids=["none", "some", "all"])
def test_pages_are_returned_unchanged_for_any_size_of_the_memory(tmp_path, monkeypatch, size):
    monkeypatch.setattr(sink, "SPOOL_BYTES", size)
    spool = PageSpool(tmp_path)
    for _ in range(2):  # one row group after another
        added = [rows(20, seed) for seed in range(5)]
        for part in added:
            spool.add(part)
        assert spool.rows == 100
        for place, (meta, pages) in enumerate(spool.chunks()):
            extents = [(memoryview(p.data), *chunk_extent(p.metas[place])) for p in added]
            expected = b"".join(data[begin:end] for data, begin, end in extents)
            assert b"".join(pages) == expected
            assert meta.integer(ColumnMeta.COMPRESSED) == len(expected)
        spool.clear()
        assert spool.rows == 0
    assert not list(tmp_path.iterdir())


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


def test_a_folder_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sink, "SPOOL_BYTES", 0)
    with pytest.raises(ReadWriteError, match="gone: cannot be written: No such file"):
        PageSpool(tmp_path / "gone").add(rows(1, 0))
