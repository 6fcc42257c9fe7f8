"""Pages that wait for their row group: what does not fit into memory lies in a file meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import ReadWriteError
from rlpost.io.parquet import splice as waiting
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


def pages(store, parts):
    return [[b"".join(store.bytes_of(piece)) for piece in part.pieces] for part in parts]


@pytest.mark.parametrize("room", [0, 1500, 1 << 30], ids=["none", "some", "all"])
def test_rows_come_back_as_they_were_however_little_stays_in_memory(tmp_path, monkeypatch, room):
    monkeypatch.setattr(waiting, "ROOM", room)
    store = PageSpool(tmp_path)
    for _ in range(2):  # one row group after another
        added = [rows(20, seed) for seed in range(5)]
        want = [[b"".join(piece.pages) for piece in part.pieces] for part in added]
        for part in added:
            store.add(part)
        assert store.rows == 100
        taken = store.take()
        assert store.rows == 0
        assert [piece.meta for part in taken for piece in part.pieces] == [
            piece.meta for part in added for piece in part.pieces
        ]
        assert pages(store, taken) == want
        store.clear()
    assert not list(tmp_path.iterdir())


def test_columns_of_the_same_values_lie_there_once(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "ROOM", 0)
    written = []
    write = waiting.write_all
    monkeypatch.setattr(
        waiting, "write_all", lambda *given: written.append(len(given[1])) or write(*given)
    )
    store = PageSpool(tmp_path)
    part = rows(20, 0)
    store.add(part)
    store.clear()
    a, _, c = part.pieces
    assert sum(written) == sum(len(page) for page in (*a.pages, *c.pages))


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@pytest.mark.parametrize("per_group", [50, 1000])
def test_a_file_is_the_same(tmp_path, monkeypatch, estimator, per_group):
    table = pq.read_table(SAMPLE)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=per_group)
    recipe = rlpost.Recipe(estimator=estimator)
    options = rlpost.Options(chunk_tokens=500)
    made = []
    for room in (1 << 30, 2000):
        monkeypatch.setattr(waiting, "ROOM", room)
        out = tmp_path / f"{room}" / "out.parquet"
        out.parent.mkdir()
        rlpost.advantages(tmp_path / "in.parquet", out, recipe, options)
        made.append(out.read_bytes())
        assert os.listdir(out.parent) == [out.name]  # noqa: PTH208
    assert made[0] == made[1]


def test_a_folder_that_takes_no_file_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "ROOM", 0)
    with pytest.raises(ReadWriteError, match="gone: cannot be written: No such file"):
        PageSpool(tmp_path / "gone").add(rows(1, 0))
