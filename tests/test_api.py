"""rlpost.enrich of a stream of record batches."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout

import rlpost
from rlpost import api as streams
from rlpost.errors import DataError, ReadWriteError, UsageError

TABLE = rollout(24, 4)
RECIPE = rlpost.Recipe(estimator="reinforce_pp_baseline", kl_coef=0.1)


def batches(table=TABLE, rows=5):
    yield from table.to_batches(max_chunksize=rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The directory of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "given",
    [
        batches,
        lambda: list(batches()),
        lambda: pa.RecordBatchReader.from_batches(TABLE.schema, batches()),
        lambda: pq.ParquetFile(pa.BufferReader(stored())).iter_batches(batch_size=7),
    ],
)
def test_a_stream_and_a_table_have_the_same_result(given):
    reader, summary = rlpost.enrich(given(), RECIPE)
    table, own = rlpost.enrich(TABLE, RECIPE)
    found = reader.read_all()
    assert found.schema.equals(table.schema)
    assert found.equals(table.combine_chunks())
    assert own.items() <= summary.items()


def stored():
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def test_groups_span_batches_and_the_order_is_kept():
    reader, _ = rlpost.enrich(batches(rows=1), rlpost.Recipe(estimator="dr_grpo"))
    rows = [row for batch in reader for row in batch.to_pylist()]
    assert [row["prompt_id"] for row in rows] == TABLE["prompt_id"].to_pylist()
    for start in range(0, len(rows), 4):
        own = rows[start : start + 4]
        mean = sum(row["reward"] for row in own) / 4
        assert own[0]["response_level_rewards"] == own[0]["reward"]
        assert own[0]["advantages"][0] == pytest.approx(own[0]["reward"] - mean)


def test_column_types_and_metadata_are_kept():
    count = TABLE.num_rows
    odd = TABLE.append_column("domain", pa.array(["a"] * count).dictionary_encode())
    odd = odd.append_column("when", pa.array([1] * count, pa.timestamp("ms", "UTC")))
    odd = odd.append_column(
        "large", pa.array([[np.float16(1.5)]] * count, pa.large_list(pa.float16()))
    )
    odd = odd.append_column("fixed", pa.array([[1, 2]] * count, pa.list_(pa.int8(), 2)))
    odd = odd.replace_schema_metadata({"made": "by hand"})
    reader, _ = rlpost.enrich(batches(odd), RECIPE)
    found = reader.read_all()
    assert found.select(odd.column_names).equals(odd.unify_dictionaries())
    assert found.schema.metadata[b"made"] == b"by hand"


def test_emit_only_drops_the_other_columns():
    reader, _ = rlpost.enrich(batches(), rlpost.Recipe(emit_only=True, emit=("advantages",)))
    assert reader.schema.names == ["prompt_id", "advantages"]


def test_no_temporary_files_remain(folder):
    reader, _ = rlpost.enrich(batches(), RECIPE)
    assert [*folder.iterdir()] == []
    assert reader.read_next_batch().num_rows
    del reader  # before it was read to the end
    gc.collect()
    assert not [link for link in open_files() if str(folder) in link]


def open_files():
    links = Path("/proc/self/fd").iterdir()
    return [str(link.readlink()) for link in links if link.is_symlink()]


def test_no_temporary_files_remain_after_an_error(folder):
    bad = TABLE.set_column(1, "reward", pa.array([float("nan")] * TABLE.num_rows, pa.float32()))
    with pytest.raises(DataError) as raised:
        rlpost.enrich(batches(bad), RECIPE)
    assert str(raised.value).startswith("batches, row 0")
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (lambda: iter(()), DataError, "no rows"),
        (lambda: pa.RecordBatchReader.from_batches(TABLE.schema, []), DataError, "no rows"),
        (lambda: iter(["reward"]), UsageError, "str came; record batches"),
        (lambda: {"reward": [1]}, UsageError, "dict came; a table"),
        (
            lambda: [*batches(), *batches(TABLE.drop_columns(["reward"]))],
            DataError,
            "batch 5 (from 0) has columns prompt_id: string, response_mask",
        ),
    ],
)
def test_errors_of_bad_streams(given, error, words):
    with pytest.raises(error) as raised:
        rlpost.enrich(given(), RECIPE)
    assert words in str(raised.value)


def test_a_full_disk_is_a_read_write_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streams, "_spill", full)
    with pytest.raises(ReadWriteError, match="No space left on device"):
        rlpost.enrich(batches(), RECIPE)


def test_memory_does_not_grow_with_the_stream(monkeypatch):
    monkeypatch.setattr(streams, "_GROUP_BYTES", 1 << 18)
    monkeypatch.setattr(streams, "_BATCH_BYTES", 1 << 16)
    before = pa.total_allocated_bytes()
    most = 0

    table = rollout(96, 4)
    places = pa.array(range(96))

    def watched(count):
        nonlocal most
        for _ in range(count):
            yield from batches(table.take(places), rows=96)  # new memory each time
            most = max(most, pa.total_allocated_bytes() - before)

    reader, summary = rlpost.enrich(watched(1000), RECIPE)
    assert summary["responses"] == 1000 * 96
    assert most < table.nbytes * 1000 / 4
    assert sum(batch.num_rows for batch in reader) == 1000 * 96
