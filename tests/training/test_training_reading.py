"""Reading for training: windows in memory, numbers as they are, and rows that do not fit."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

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
    with pytest.raises(ReadWriteError, match=r"in.parquet: .*written again"):
        list(batches)


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
@pytest.mark.parametrize("workers", [0, 2])
def test_values_of_two_versions_of_a_file_are_never_in_one_epoch(
    tmp_path: Path, workers: int, *, in_place: bool
) -> None:
    path = tmp_path / "in.parquet"
    versions(path, 1.0)
    data = rlpost.load(path, batch_size=100, window=1000)
    state = data.state_dict()
    seen = set()
    loop = iter(DataLoader(data, batch_size=None, num_workers=workers))
    seen.update(next(loop)["advantages"].flatten().tolist())
    size = path.stat().st_size
    versions(path, 2.0, in_place=in_place)
    assert path.stat().st_size == size
    rest = (seen.update(batch["advantages"].flatten().tolist()) for batch in loop)
    with pytest.raises(ReadWriteError, match=r"in\.parquet: .*load it anew"):
        list(rest)
    assert seen == {1.0}
    with pytest.raises(UsageError, match=r"in.parquet was written again"):
        rlpost.load(path, batch_size=100, window=1000).load_state_dict(state)


def test_an_object_that_is_written_again_during_an_epoch_is_named(tmp_path: Path, s3: Any) -> None:
    versions(tmp_path / "a", 1.0)
    url = s3.put("in.parquet", (tmp_path / "a").read_bytes())
    data = rlpost.load(url, batch_size=100, window=1000)
    state = data.state_dict()
    rlpost.load(url, batch_size=100, window=1000).load_state_dict(state)
    loop = iter(data)
    next(loop)
    versions(tmp_path / "a", 2.0)
    s3.put("in.parquet", (tmp_path / "a").read_bytes())
    with pytest.raises(ReadWriteError, match=r"in\.parquet: .*load it anew"):
        list(loop)
    with pytest.raises(UsageError, match=r"in.parquet was written again"):
        rlpost.load(url, batch_size=100, window=1000).load_state_dict(state)


def test_integers_and_bools_stay_what_they_are(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"response_mask": [[1], [1]], "id": [2**40, 2**40 + 1], "ok": [True, False]}
    )
    table.write_parquet(tmp_path / "in.parquet")
    (batch,) = rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id", "ok"])
    with pytest.raises(DataError, match="has no advantages; rlpost advantages writes them"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2)
    with pytest.raises(UsageError, match="no column of prompt groups"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id"], together="group")
    assert batch["id"].tolist() == [2**40, 2**40 + 1]
    assert batch["ok"].tolist() == [True, False]


def test_lists_of_other_lengths_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    table = pl.DataFrame({"response_mask": [[1, 1], [1]], "advantages": [[1.0, 2.0], [1.0, 2.0]]})
    table.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="row 1: `advantages` has 2 values but `response_mask`"):
        next(iter(rlpost.load(tmp_path / "bad.parquet", batch_size=2)))


def test_rows_of_a_rollout_are_in_one_batch_if_the_run_counted_rollouts(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "prompt_id": [0] * 6 + [1] * 6,
            "rollout_id": [0, 1, 0, 1, 0, 1] * 2,  # an id within its group
            "reward": [1.0, 0.0, 1.0, 0.0, 1.0, 0.0] * 2,
            "response_mask": [[1, 1]] * 12,
        }
    )
    rows.write_parquet(tmp_path / "in.parquet")

    def batches(unit: str | None, **options: Any) -> set[frozenset[int]]:
        out = tmp_path / f"{unit}.parquet"
        if not out.exists():
            rlpost.advantages(tmp_path / "in.parquet", out, rlpost.Recipe(unit=unit))
        data = rlpost.load(out, batch_size=3, last="keep", **options)
        return {frozenset(batch["rows"].tolist()) for batch in data}

    rollouts = {frozenset(range(first, first + 6, 2)) for first in (0, 1, 6, 7)}
    assert batches(None) == batches(None, shuffle=3) == rollouts
    assert batches("row") == {frozenset(range(first, first + 3)) for first in (0, 3, 6, 9)}
    assert batches("row", together="rollout") == rollouts
    assert batches(None, together="group") == {frozenset(range(6)), frozenset(range(6, 12))}
    assert len(batches(None, together="response")) == 4
