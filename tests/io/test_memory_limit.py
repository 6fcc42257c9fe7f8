"""The memory limit: what it means, and what does not fit is an error that names it."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import rollout, run, save

from rlpost.errors import NotEnoughMemoryError, UsageError
from rlpost.formats.layout import as_vector
from rlpost.io import memory_limit as limits
from rlpost.io.memory_limit import KeptMemory, MemoryGate, MemoryLimit, limited_memory
from rlpost.io.parquet.decoded_size import decoded_size
from rlpost.io.parquet.footer import (
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Wire,
    decode,
    file_end,
)
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 50_000_000  # float32: 200 MB decoded, a few hundred bytes as stored


@contextmanager
def room(size: int) -> Iterator[None]:
    """Let data use so many bytes, whatever the process uses."""
    limit = MemoryLimit(size, "so much")
    limit.__dict__["used"] = 0
    token = limits._current.set(limit)
    try:
        yield
    finally:
        limits._current.reset(token)


def beyond_now(size: int) -> str:
    """Return a limit of so many bytes beyond what this process uses."""
    return str(limits._resident() + size)


def constant_list(count: int) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array([0, count], pa.int32()), pa.array(np.ones(count, "f4"))
    )


@pytest.fixture(scope="module")
def small_file(tmp_path_factory) -> Path:
    """A file of some hundred bytes with one list of 50 million equal numbers."""
    path = tmp_path_factory.mktemp("small") / "small.parquet"
    table = pa.table({"reward": [1.0], "old_log_probs": constant_list(MANY)})
    pq.write_table(table, path, compression="zstd", data_page_size=1 << 30)
    assert path.stat().st_size < 2000
    return path


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4e9), ("500MB", 5e8), ("1.5 GiB", 1.5 * 2**30), ("123", 123), ("2kb", 2000)],
)
def test_sizes_are_bytes_with_a_unit(text, size):
    assert limits.parse_limit(text) == size


def test_a_percentage_is_of_the_memory_of_the_machine_or_its_container(monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: (16 << 30, 1 << 30, 4 << 30))
    assert limits.parse_limit("50%") == 2 << 30
    assert limits.parse_limit(None) == 3 << 30
    monkeypatch.setattr(limits, "memory", lambda: (16 << 30, 1 << 30, None))
    assert limits.parse_limit("50%") == 8 << 30


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "4 apples", "-1GB", "nan", "GB", "1e9"])
def test_other_texts_are_an_error(text):
    with pytest.raises(UsageError, match="--max-memory"):
        limits.parse_limit(text)


def test_the_flag_and_the_variable_are_named(small_file, monkeypatch):
    ran = run("inspect", small_file, "--max-memory", "4x")
    assert (ran.code, "--max-memory 4x" in ran.err) == (2, True)
    monkeypatch.setenv("RLPOST_MAX_MEMORY", "5x")
    ran = run("inspect", small_file)
    assert (ran.code, "RLPOST_MAX_MEMORY=5x" in ran.err) == (2, True)
    assert "no option reads it" not in run("config", "show").err


# Columns of Parquet


def with_stated_values(path: Path, target: Path, values: int) -> Path:
    """Write a copy whose footer states another number of values."""
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    footer, _ = decode(data[-8 - size : -8])
    for group in footer.structs(FileMeta.ROW_GROUPS):
        for chunk in group.structs(RowGroup.COLUMNS):
            chunk.struct(ColumnChunk.META).put(ColumnMeta.VALUES, Wire.I64, values)
    target.write_bytes(data[: -8 - size] + file_end(footer))
    return target


def test_numbers_are_values_times_width_whatever_the_footer_states(small_file, tmp_path):
    reader = ParquetReader(small_file)
    size = reader._decoded_size(0, ["old_log_probs"])
    assert size.numbers == MANY * 4
    footer = reader.file.metadata.row_group(0)
    assert footer.column(1).total_uncompressed_size < 2000
    assert decoded_size(footer, ["old_log_probs"], None).numbers == MANY * 4
    lying = ParquetReader(with_stated_values(small_file, tmp_path / "lying.parquet", 1))
    assert lying._decoded_size(0, ["old_log_probs"]).numbers == MANY * 4


@pytest.mark.parametrize("values", [None, 1])
@pytest.mark.parametrize(
    "words", [["inspect"], ["inspect", "--row", "0"], ["report", "-o", "r.html"]]
)
def test_a_row_that_does_not_fit_is_not_decoded(small_file, tmp_path, monkeypatch, values, words):
    monkeypatch.chdir(tmp_path)
    path = small_file
    if values is not None:
        path = with_stated_values(small_file, tmp_path / "lying.parquet", values)
    before = pa.default_memory_pool().max_memory()
    ran = run(words[0], path, *words[1:], "--max-memory", beyond_now(500 << 20))
    assert ran.code == 5
    assert f"{path}: row group 0, row 0" in ran.err
    assert "--max-memory" in ran.err
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


def test_large_rows_are_read_a_few_at_a_time(tmp_path):
    table = pa.table(
        {"x": pa.array([[float(i)] * 100_000 for i in range(40)], pa.list_(pa.float32()))}
    )
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    with room(60 << 20):
        batches = [*ParquetReader(path).batches(1000, 0, ["x"])]
    assert max(len(batch) for batch in batches) <= 5
    assert pa.Table.from_batches(batches).equals(pq.read_table(path))


TEXT = "x" * 1_000_000


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(pa.array([0] * 500), pa.array([TEXT])),
        pa.array([["a", "b"], ["c"]] * 20).cast(pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    ],
)
def test_texts_that_a_dictionary_repeats_are_checked_batch_by_batch(tmp_path, column):
    path = tmp_path / "in.parquet"
    pq.write_table(
        pa.table({"text": column}), path, store_schema=False, dictionary_pagesize_limit=1 << 30
    )
    whole = pq.read_table(path)
    with room(60 << 20):
        batches = [*ParquetReader(path).batches(1000, 0, ["text"])]
    assert pa.Table.from_batches(batches).equals(whole)
    if whole.nbytes > 60 << 20:
        assert max(batch.nbytes for batch in batches) < 4 << 20


def test_keys_that_are_kept_of_all_responses_are_counted():
    with room(3000):
        kept = KeptMemory("in.parquet: keys")
        kept.add(900)
        with pytest.raises(NotEnoughMemoryError, match=r"^in\.parquet: keys"):
            kept.add(200)


def test_work_waits_until_there_is_room_beside_other_work():
    gate, most, now, lock = MemoryGate(10), [0], [0], threading.Lock()

    def work(size: int) -> None:
        with gate.admit(size):
            with lock:
                now[0] += size
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= size

    threads = [threading.Thread(target=work, args=(size,)) for size in [4, 5, 6, 7] * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 10
    with gate.admit(100):  # alone, it is admitted: it was checked when it was read
        pass


def test_results_do_not_depend_on_the_limit(tmp_path):
    path = save(rollout(), tmp_path / "in.parquet", rows=12)
    assert run("advantages", path, tmp_path / "a.parquet", "-q").code == 0
    with room(2500):
        pieces = [*ParquetReader(path).batches(100, 0, ["response_mask", "prompt_id"])]
        assert run("advantages", path, tmp_path / "b.parquet", "-q").code == 0
    assert len(pieces) > 1
    same = pq.read_table(path, columns=["response_mask", "prompt_id"])
    assert pa.Table.from_batches(pieces).equals(same)
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))


# Dumps


def test_a_line_that_does_not_fit_is_not_parsed(tmp_path):
    path = tmp_path / "in.jsonl"
    line = {"reward": 1.0, "values": [{}] * 1_000_000}
    path.write_text('{"reward": 1.0}\n' + json.dumps(line) + "\n")
    limit = beyond_now(100 << 20)
    ran = run("convert", path, tmp_path / "o.parquet", "--from", "jsonl", "--max-memory", limit)
    assert (ran.code, f"{path}, line 2" in ran.err) == (5, True)
    path.write_text("x" * 50_000_000)
    ran = run("convert", path, tmp_path / "o.parquet", "--from", "jsonl", "--max-memory", limit)
    assert (ran.code, f"{path}, line 1" in ran.err) == (5, True)
    path = tmp_path / "in.json"
    path.write_text(json.dumps([line]))
    ran = run("convert", path, tmp_path / "o.parquet", "--from", "jsonl", "--max-memory", limit)
    assert (ran.code, str(path) in ran.err) == (5, True)


def test_a_pickle_and_a_tensor_that_do_not_fit_are_not_rebuilt(tmp_path):
    path, limit = tmp_path / "0.pt", beyond_now(100 << 20)
    torch.save({"samples": [{} for _ in range(1_000_000)]}, path)
    ran = run(
        "convert", path, tmp_path / "o.parquet", "--from", "slime-rollout", "--max-memory", limit
    )
    assert (ran.code, str(path) in ran.err) == (5, True)
    wide = torch.zeros(1).expand(100_000_000).numpy()
    with limited_memory(limit), pytest.raises(NotEnoughMemoryError, match="`mask`"):
        as_vector("here", "mask", wide)


# A machine without memory


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce RLIMIT_AS")
@pytest.mark.parametrize("extra", [150, 400, 700])
def test_a_lack_of_memory_is_exit_code_5_and_no_damage(small_file, extra):
    code = (
        "import resource, sys; from pathlib import Path\n"
        "import pyarrow.parquet, polars, rlpost.interface.functions\n"
        "import rlpost.analysis.inspect.facts, rlpost.analysis.inspect.render\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * 4096\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + ({extra} << 20),) * 2)\n"
        f"sys.argv = ['rlpost', 'inspect', {str(small_file)!r}, '-q', '--max-memory', '100GB']\n"
        "from rlpost.cli.app import main; main()\n"
    )
    # Python cannot catch an allocation that fails in a thread of Arrow: one thread of each kind.
    threads = dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "ARROW_IO_THREADS"), "1")
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | threads,
    )  # fmt: skip
    assert ran.returncode == 5, ran.stderr
    assert "memory" in ran.stderr
    assert "damaged" not in ran.stderr


@pytest.mark.nightly
def test_the_limit_that_an_error_names_is_enough(tmp_path):
    sample = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"

    def run(limit):
        command = [sys.executable, "-m", "rlpost", "advantages", sample, tmp_path / "out.parquet"]
        return subprocess.run(
            [*map(str, command), "--max-memory", limit], capture_output=True, text=True, check=False
        )

    ran = run("1MB")
    assert ran.returncode == 5, ran.stderr
    named = re.search(r"--max-memory (\d+MB) permits it", ran.stderr)
    assert named, ran.stderr
    assert run(named[1]).returncode == 0
