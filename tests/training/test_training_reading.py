"""Reading for training: windows in memory, numbers as they are, and rows that do not fit."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import DataError, ReadWriteError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_some_windows_are_in_memory_and_none_is_in_the_pool_of_pyarrow(tmp_path: Path) -> None:
    tokens, rows, window = 1000, 1200, 100_000
    values = np.random.default_rng(0).normal(size=rows * tokens).astype(np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * tokens + 1, tokens, np.int32), values)
    pq.write_table(pa.table({"advantages": lists}), tmp_path / "in.parquet", row_group_size=50)
    pool, own = pa.default_memory_pool(), pa.system_memory_pool()
    before, most = own.bytes_allocated(), 0
    for batch in rlpost.load(tmp_path / "in.parquet", batch_size=7, shuffle=1, window=window):
        most = max(most, own.bytes_allocated() - before)
        assert np.array_equal(batch["advantages"], values.reshape(rows, tokens)[batch["rows"]])
        time.sleep(0.002)  # as a step does, while the next window is read
    assert window < most / 4 < 5 * window, most / 4 / window
    assert pa.default_memory_pool().backend_name == pool.backend_name


def test_a_file_that_is_written_again_during_a_loop_is_named(
    enriched: Path, tmp_path: Path
) -> None:
    shutil.copy(enriched, tmp_path / "in.parquet")
    batches = iter(rlpost.load(tmp_path / "in.parquet", batch_size=4, window=50))
    next(batches)
    size = (tmp_path / "in.parquet").stat().st_size
    (tmp_path / "in.parquet").write_bytes(b"PAR1" * (size // 4))
    with pytest.raises(ReadWriteError, match=r"in.parquet: cannot be read .*written again"):
        list(batches)


def test_integers_and_bools_stay_what_they_are(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"response_mask": [[1], [1]], "id": [2**40, 2**40 + 1], "ok": [True, False]}
    )
    table.write_parquet(tmp_path / "in.parquet")
    (batch,) = rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id", "ok"])
    with pytest.raises(DataError, match="has no advantages; rlpost advantages writes them"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2)
    with pytest.raises(UsageError, match="no column of prompt groups"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id"], keep_groups=True)
    assert batch["id"].tolist() == [2**40, 2**40 + 1]
    assert batch["ok"].tolist() == [True, False]


def test_lists_of_other_lengths_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    table = pl.DataFrame({"response_mask": [[1, 1], [1]], "advantages": [[1.0, 2.0], [1.0, 2.0]]})
    table.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="row 1: `advantages` has 2 values but `response_mask`"):
        next(iter(rlpost.load(tmp_path / "bad.parquet", batch_size=2)))
