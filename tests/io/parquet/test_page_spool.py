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
from rlpost.io.parquet import splice
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.splice import PageSpool

SAMPLE = Path(__file__).parents[3] / "sample_data" / "arithmetic.parquet"
KIND = pa.list_(pa.float32())
ENCODER = Encoder(
    pa.schema({"a": KIND, "b": KIND, "c": pa.float32()}),
    aliases={"b": "a"},
    codec="snappy",
    level=None,
)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    lists = pa.array([rng.random(5, np.float32) for _ in range(count)], KIND)
    numbers = pa.array(rng.random(count, np.float32))
    return ENCODER.encode(pa.record_batch({"a": lists, "c": numbers}))


def pages(spool, encoded):
    return [[b"".join(spool.bytes_of(column)) for column in part.columns] for part in encoded]


@pytest.mark.parametrize("size", [0, 1500, 1 << 30], ids=["none", "some", "all"])
def test_rows_are_returned_unchanged_for_any_size_of_the_memory(tmp_path, monkeypatch, size):
    monkeypatch.setattr(splice, "SPOOL_BYTES", size)
    spool = PageSpool(tmp_path)
    for _ in range(2):  # one row group after another
        added = [rows(20, seed) for seed in range(5)]
        expected = [[b"".join(column.pages) for column in part.columns] for part in added]
        for part in added:
            spool.add(part)
        assert spool.rows == 100
        taken = spool.take()
        assert spool.rows == 0
        assert [column.meta for part in taken for column in part.columns] == [
            column.meta for part in added for column in part.columns
        ]
        assert pages(spool, taken) == expected
        spool.clear()
    assert not list(tmp_path.iterdir())


def test_columns_with_the_same_values_are_spooled_once(tmp_path, monkeypatch):
    monkeypatch.setattr(splice, "SPOOL_BYTES", 0)
    sizes = []
    write = splice.write_all
    monkeypatch.setattr(
        splice, "write_all", lambda *args: sizes.append(len(args[1])) or write(*args)
    )
    spool = PageSpool(tmp_path)
    part = rows(20, 0)
    spool.add(part)
    spool.clear()
    a, _, c = part.columns
    assert sum(sizes) == sum(len(page) for page in (*a.pages, *c.pages))


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@pytest.mark.parametrize("per_group", [50, 1000])
def test_spooling_does_not_change_the_file(tmp_path, monkeypatch, estimator, per_group):
    table = pq.read_table(SAMPLE)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=per_group)
    recipe = rlpost.Recipe(estimator=estimator)
    options = rlpost.Options(chunk_tokens=500)
    outputs = []
    for size in (1 << 30, 2000):
        monkeypatch.setattr(splice, "SPOOL_BYTES", size)
        out = tmp_path / f"{size}" / "out.parquet"
        out.parent.mkdir()
        rlpost.advantages(tmp_path / "in.parquet", out, recipe, options)
        outputs.append(out.read_bytes())
        assert os.listdir(out.parent) == [out.name]  # noqa: PTH208
    assert outputs[0] == outputs[1]


def test_a_folder_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(splice, "SPOOL_BYTES", 0)
    with pytest.raises(ReadWriteError, match="gone: cannot be written: No such file"):
        PageSpool(tmp_path / "gone").add(rows(1, 0))
