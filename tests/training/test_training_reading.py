"""Reading for training: windows in memory, numbers as they are, and rows that do not fit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import DataError, ReadWriteError
from rlpost.training import reading

if TYPE_CHECKING:
    from pathlib import Path


def test_some_windows_are_in_memory_and_none_is_in_the_pool_of_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, rows, window = 1000, 1200, 100_000
    monkeypatch.setattr(reading, "WINDOW", window)
    values = np.random.default_rng(0).normal(size=rows * tokens).astype(np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * tokens + 1, tokens, np.int32), values)
    pq.write_table(pa.table({"advantages": lists}), tmp_path / "in.parquet", row_group_size=50)
    pool, own = pa.default_memory_pool(), pa.system_memory_pool()
    before, most = own.bytes_allocated(), 0
    for batch in rlpost.load(tmp_path / "in.parquet", batch_tokens=7000, shuffle=1):
        most = max(most, own.bytes_allocated() - before)
        assert np.array_equal(batch["advantages"], values.reshape(rows, tokens)[batch["rows"]])
        time.sleep(0.002)  # as a step does, while the next window is read
    assert window < most / 4 < 5 * window, most / 4 / window
    assert pa.default_memory_pool().backend_name == pool.backend_name


def versions(path: Path, value: float, *, in_place: bool = False) -> None:
    """Write a file whose layout, size and footer are the same for all values."""
    rows = 4000
    lists = pa.array([[value] * 8] * rows, pa.list_(pa.float32()))
    table = pa.table({"advantages": lists, "response_mask": [[1] * 8] * rows})
    target = path if in_place else path.with_name("other")
    plain = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    pq.write_table(table, target, row_group_size=400, **plain)
    target.replace(path)


@pytest.mark.parametrize("in_place", [True, False])
def test_values_of_two_versions_of_a_file_are_never_in_one_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_place: bool
) -> None:
    monkeypatch.setattr(reading, "WINDOW", 1000)
    path = tmp_path / "in.parquet"
    versions(path, 1.0)
    loop = iter(rlpost.load(path, batch_tokens=800))
    seen = {*next(loop)["advantages"].flatten().tolist()}
    size = path.stat().st_size
    versions(path, 2.0, in_place=in_place)
    assert path.stat().st_size == size
    rest = (seen.update(batch["advantages"].flatten().tolist()) for batch in loop)
    with pytest.raises(ReadWriteError, match=r"in\.parquet: .*load it anew"):
        list(rest)
    assert seen == {1.0}


def test_an_object_that_is_written_again_during_an_epoch_is_named(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", 1000)
    versions(tmp_path / "a", 1.0)
    url = s3.put("in.parquet", (tmp_path / "a").read_bytes())
    loop = iter(rlpost.load(url, batch_tokens=800))
    next(loop)
    versions(tmp_path / "a", 2.0)
    s3.put("in.parquet", (tmp_path / "a").read_bytes())
    with pytest.raises(ReadWriteError, match=r"in\.parquet: .*load it anew"):
        list(loop)


def test_integers_and_bools_stay_what_they_are(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"response_mask": [[1], [1]], "id": [2**40, 2**40 + 1], "ok": [True, False]}
    )
    table.write_parquet(tmp_path / "in.parquet")
    (batch,) = rlpost.load(tmp_path / "in.parquet", batch_tokens=9, columns=["id", "ok"])
    with pytest.raises(DataError, match="has no advantages; rlpost advantages writes them"):
        rlpost.load(tmp_path / "in.parquet", batch_tokens=9)
    assert batch["id"].tolist() == [2**40, 2**40 + 1]
    assert batch["ok"].tolist() == [True, False]


def test_lists_of_other_lengths_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    table = pl.DataFrame({"response_mask": [[1, 1], [1]], "advantages": [[1.0, 2.0], [1.0, 2.0]]})
    table.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="row 1: `advantages` has 2 values but `response_mask`"):
        next(iter(rlpost.load(tmp_path / "bad.parquet", batch_tokens=9)))
