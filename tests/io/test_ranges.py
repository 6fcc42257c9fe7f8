"""Ranged reads of objects: what was announced, in few requests, in any order."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import long_rollout, save

from rlpost.errors import ReadWriteError
from rlpost.io import ranges
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import RemotePath

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


def test_only_announced_columns_are_fetched_and_in_few_requests(s3, cut, tmp_path):
    table = long_rollout().append_column("text", [["x" * 50] * 400])
    url = s3.put("in.parquet", save(table, tmp_path / "in.parquet", 100).read_bytes())
    proxy = cut(lambda _: None)
    source = Source(find_inputs([url]))
    before = len(proxy.requests)
    pieces = list(source.read(["reward", "response_mask"], 1 << 20, "response_mask"))
    assert pa.Table.from_batches([piece.table for piece in pieces]).equals(
        pq.read_table(tmp_path / "in.parquet", columns=["reward", "response_mask"])
    )
    assert len([line for line in proxy.requests[before:] if line.startswith("GET")]) == 8


@pytest.mark.parametrize("piece", [700, 3000, 1 << 20])
def test_ranges_are_the_bytes_of_the_file_in_any_order(s3, monkeypatch, piece):
    monkeypatch.setattr(ranges, "REQUEST_BYTES", piece)
    data = np.random.default_rng(1).bytes(40_000)
    file = ranges.PrefetchedFile(ranges.RemoteFile(RemotePath(s3.put("data", data))))
    file.announce(0, [(100, 9000), (9000, 30_000)])
    file.announce(1, [(30_000, 39_000)])
    for at, size in ((100, 10), (110, 5000), (9000, 50), (5110, 3890), (9050, 9000), (29_999, 2)):
        file.seek(at)
        assert file.read(size) == data[at : at + size]
        assert file.tell() == at + size
    file.forget(1)
    file.seek(-9000, os.SEEK_END)
    assert file.read() == data[-9000:]
    assert file.read(5) == b""
    file.seek(0)
    assert file.read(40_001) == data
    file.close()


def test_an_object_that_shrinks_is_an_error(s3):
    file = ranges.RemoteFile(RemotePath(s3.put("data", b"x" * 100)))
    s3.put("data", b"x" * 50)
    with pytest.raises(ReadWriteError, match=r"^s3://lab/data: changed during the run"):
        file.read_at(60, 0)
