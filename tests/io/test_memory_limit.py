"""The memory limit: what it means, and what does not fit is an error that names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import rollout, run, save

from rlpost.errors import NotEnoughMemoryError, UsageError
from rlpost.formats.rows import tables
from rlpost.io import memory_limit as limits
from rlpost.io.memory_limit import KeptMemory, MemoryLimit, limited_memory
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 50_000_000  # float32: 200 MB decoded, a few hundred bytes as stored


@contextmanager
def room(size: int) -> Iterator[None]:
    """Let data use so many bytes, whatever the process uses, and a response beside its columns."""
    limit = MemoryLimit(size, "so much")
    limit.__dict__["used"] = 0
    token = limits._current.set(limit)
    try:
        with mock.patch.object(limits, "_ROW", 0):
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


def test_what_is_kept_names_the_memory_of_all_rows_before_they_are_read():
    with room(1000), pytest.raises(NotEnoughMemoryError, match="here: needs about 12 kB"):
        KeptMemory("here", 4, 100).add(300, 10)


@pytest.mark.parametrize("command", ["inspect", "advantages"])
def test_a_step_of_each_response_counts_with_the_numbers_of_a_step(command, tmp_path):
    count, path = 100_000, tmp_path / "in.parquet"
    rows = {"prompt_id": np.arange(count), "reward": np.arange(count) % 2, "step": np.arange(count)}
    pq.write_table(pa.table(rows), path)
    output = [tmp_path / "o.parquet"] if command == "advantages" else []
    ran = run(command, path, *output, "--max-memory", beyond_now(300 << 20))
    named = re.search(r"--max-memory (\d+)MB  # permits it", ran.err)
    assert (ran.code, bool(named)) == (5, True), ran.err
    assert 8_000 * count < 1e6 * int(named[1])


# Columns of Parquet


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--row", "0"], ["report", "r.html"]])
def test_a_row_that_does_not_fit_is_not_decoded(small_file, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    before = pa.default_memory_pool().max_memory()
    ran = run(words[0], small_file, *words[1:], "--max-memory", beyond_now(500 << 20))
    assert ran.code == 5
    assert f"{small_file}: row group 0, row 0" in ran.err
    assert "--max-memory" in ran.err
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


def test_results_do_not_depend_on_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_SMALLEST", 0)
    path = save(rollout(), tmp_path / "in.parquet", rows=12)
    assert run("advantages", path, tmp_path / "a.parquet", "-q").code == 0
    with room(2500):
        pieces = [*ParquetReader(path).batches(100, 0, ["response_mask", "prompt_id"])]
    with room(25_000):
        assert run("advantages", path, tmp_path / "b.parquet", "-q").code == 0
    assert len(pieces) > 1
    same = pq.read_table(path, columns=["response_mask", "prompt_id"])
    assert pa.Table.from_batches(pieces).equals(same)
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))


REPEATED = pa.DictionaryArray.from_arrays(pa.array([None, *[0] * 999], pa.int32()), ["q" * 100_000])
TEXTS = {
    "text": REPEATED.cast(pa.string()),
    "codes": REPEATED,
    "lists": pa.ListArray.from_arrays(pa.array([0, 0, *range(999)], pa.int32()), REPEATED),
    "structs": pa.StructArray.from_arrays([REPEATED], ["content"]),
}


@pytest.mark.parametrize("stored", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("column", TEXTS.values(), ids=TEXTS)
def test_a_text_that_is_stored_once_counts_for_each_row(column, stored, tmp_path):
    path, limit = tmp_path / "in.parquet", 64 << 20
    use = {"use_dictionary": True}
    if stored == "DELTA_BYTE_ARRAY":
        leaf = {"lists": "a.list.element", "structs": "a.content"}
        kind = next(name for name, values in TEXTS.items() if values is column)
        use = {"use_dictionary": False, "column_encoding": {leaf.get(kind, "a"): stored}}
    pq.write_table(pa.table({"a": column}), path, store_schema=False, **use)
    assert pq.read_metadata(path).row_group(0).total_byte_size < 1 << 20
    with room(limit):
        sizes = [batch.nbytes for batch in ParquetReader(path).batches(1000, 0, ["a"])]
    assert max(sizes) <= limit // 64 < sum(sizes)


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
    path, limit = tmp_path / "0.pt", beyond_now(50 << 20)
    torch.save({"samples": [{0: 0} for _ in range(2_000_000)]}, path)
    ran = run(
        "convert", path, tmp_path / "o.parquet", "--from", "slime-rollout", "--max-memory", limit
    )
    assert (ran.code, str(path) in ran.err) == (5, True)
    wide = torch.zeros(1).expand(100_000_000).numpy()
    with limited_memory(limit), pytest.raises(NotEnoughMemoryError, match="here: its lists"):
        [*tables([("here", {"mask": wide}, {})], "")]


# A machine without memory


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
    named = re.search(r"--max-memory (\d+MB)  # permits it", ran.stderr)
    assert named, ran.stderr
    assert run(named[1]).returncode == 0


def many_responses(path: Path) -> Path:
    """A million responses of one token in groups of eight."""
    count, part = 1_000_000, 100_000
    masks = pa.ListArray.from_arrays(
        pa.array(np.arange(part + 1), pa.int32()), pa.array(np.ones(part, "i1"))
    )
    rows = {"prompt_id": np.arange(part) // 8, "reward": np.arange(part) % 7 / 7}
    table = pa.table(rows | {"response_mask": masks})
    with pq.ParquetWriter(path, table.schema) as writer:
        for number in range(count // part):
            keys = pa.array(np.arange(part) // 8 + number * part)
            writer.write_table(table.set_column(0, "prompt_id", keys))
    return path


def many_steps(path: Path) -> Path:
    """5,000 steps of 16 responses."""
    count, length = 80_000, 50
    offsets = pa.array(np.arange(0, count * length + 1, length), pa.int32())
    values = -np.random.default_rng(0).exponential(0.5, count * length).astype("f4")
    log_probs = pa.ListArray.from_arrays(offsets, pa.array(values))
    rows = {"step": np.arange(count) // 16, "prompt_id": np.arange(count) // 8}
    rows |= {"reward": np.arange(count) % 3 / 2, "old_log_probs": log_probs}
    pq.write_table(pa.table(rows | {"log_probs": log_probs}), path, row_group_size=8000)
    return path


def long_response(path: Path) -> Path:
    """One response of 20 million tokens beside a short one."""
    log_probs = pa.concat_arrays([constant_list(20_000_000), constant_list(5)])
    rows = {"prompt_id": [0, 0], "reward": [0.0, 1.0], "old_log_probs": log_probs}
    pq.write_table(pa.table(rows | {"log_probs": log_probs}), path)
    return path


MEASURED = """
import sys
from pathlib import Path
from rlpost.cli.app import main

try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(x for x in lines if x.startswith("VmHWM")), file=sys.stderr)
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("command", ["inspect", "advantages", "loss"])
@pytest.mark.parametrize("shape", [many_responses, many_steps, long_response])
def test_a_limit_holds_or_is_an_error(shape, command, tmp_path):
    """Of each command that has it, and within 10 %."""
    path, codes = shape(tmp_path / "in.parquet"), []
    if command == "loss" and shape is many_responses:
        pytest.skip("it has no log-probs")
    words = [command, path, "-q"]
    words += [tmp_path / "out.parquet", "--overwrite"] if command == "advantages" else []
    words += ["--estimator", "grpo"] if command == "loss" else []
    for limit in (250, 350, 500, 3000):
        ran = subprocess.run(
            [sys.executable, "-c", MEASURED, *words, "--max-memory", f"{limit}MB"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", ran.stderr)[1])
        assert ran.returncode in (0, 5), ran.stderr
        assert peak * 1024 <= 1.1e6 * limit
        codes.append(ran.returncode)
    assert 0 in codes or shape is long_response


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="others have no such limit")
@pytest.mark.parametrize("command", ["inspect", "advantages", "report", "loss"])
def test_an_address_space_that_is_limited_holds_or_is_an_error(command, tmp_path):
    """No library ends the process, and no traceback shows."""
    path, report = many_steps(tmp_path / "in.parquet"), tmp_path / "out.html"
    words = {
        "report": [path, report], "advantages": [path, tmp_path / "out.parquet"],
        "loss": [path, "--estimator", "grpo"],
    }.get(command, [path])  # fmt: skip
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({0} << 20,) * 2); "
    code += "from rlpost.cli.app import main; main()"
    for size in (1200, 1500, 3000):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(size), command, *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode in (0, 2, 5), (size, ran.stderr)
        assert "Traceback" not in ran.stderr
    assert ran.returncode in (0, 2)
