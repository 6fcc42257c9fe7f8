"""The benchmark of a device, tried on the CPU with small sizes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench import cuda, device_run, kernels
from tests.bench.inputs import WRITERS


def one_run(source, target, recipe, options):
    words = (str(source), str(target), json.dumps(recipe), json.dumps(options))
    return {"wall": 1.0, **device_run.run(*words)}


@pytest.fixture
def small(monkeypatch):
    """One call of each kernel; files and runs in this process."""
    monkeypatch.setattr(kernels, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "ROUNDS", 1)
    monkeypatch.setattr(cuda, "write_input", lambda kind, *words: WRITERS[kind](*words))
    monkeypatch.setattr(cuda, "one_run", one_run)


@pytest.mark.usefixtures("small")
def test_all_parts_are_measured_and_written(tmp_path, capsys):
    sizes = "--tokens 8000 --transfer-bytes 4096 --responses 16"
    counts = "--workers 1,2 --chunk-bits 12 --rounds 2"
    where = ["--device", "torch:cpu", "--out", str(tmp_path / "out")]
    words = [*where, *sizes.split(), *counts.split()]
    assert cuda.main(words) == 0
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    lines = (tmp_path / "out" / "bench.txt").read_text().splitlines()
    assert {*lines} <= {*capsys.readouterr().out.splitlines()}
    assert max(map(len, lines)) <= 80
    assert cuda.ON_CPU in lines
    assert {line.split("  ")[0] for line in lines} >= {*found["kernels"]["kernels"], *cuda.RECIPES}
    assert found["kernels"]["tokens"] > 1000
    assert all(row["milliseconds"] > 0 for row in found["kernels"]["kernels"].values())
    assert found["transfers"]["speeds"]["to_device"] > 0
    runs = found["runs"]["runs"]
    assert [(run["recipe"], run["workers"], run["chunk_tokens"]) for run in runs] == [
        *((name, workers, None) for workers in (1, 2) for name in cuda.RECIPES),
        ("gae + KL + whitening", 1, 1 << 12),
    ]
    assert all(len(run["walls"]) == 2 for run in runs)
    for name in cuda.RECIPES:
        assert len({one for run in runs if run["recipe"] == name for one in run["outputs"]}) == 1
    assert sum(found["runs"]["runs"][0]["bytes"].values()) > found["runs"]["tokens"] > 16


def test_outputs_that_differ_are_measured(tmp_path):
    for name, last in (("one", 0.5), ("other", 0.25)):
        numbers = pa.array([[1.0, -2.0], [last]], pa.list_(pa.float32()))
        pq.write_table(pa.table(dict.fromkeys(cuda.COLUMNS, numbers)), tmp_path / name)
    paths = tmp_path / "one", tmp_path / "other"
    gap = {"numbers": 3, "differ": 1, "largest": 0.25, "largest_relative": 0.5}
    assert cuda.differences(*paths) == dict.fromkeys(cuda.COLUMNS, gap)
    assert len({*map(cuda.hash_of_numbers, paths)}) == 2


def test_a_run_that_fails_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cuda, "write_input", lambda kind, *words: WRITERS[kind](*words))
    monkeypatch.setattr(cuda, "one_run", lambda *_: {"error": "no memory"})
    words = [
        "--device",
        "cpu",
        "--parts",
        "runs",
        "--responses",
        "8",
        "--workers",
        "1",
        "--chunk-bits",
        "",
    ]
    assert cuda.main([*words, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("failed: no memory") == 6


def test_a_device_that_is_not_there_is_one_line(capsys):
    assert cuda.main(["--device", "cuda:999"]) == 5
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "cuda:999" in printed.err


def test_workers_on_the_cpu_are_at_most_its_cores(monkeypatch):
    monkeypatch.setattr(cuda, "cores", lambda: 2)
    assert cuda.arguments_of(["--device", "torch:cpu"]).workers == [2, 1]
    assert cuda.arguments_of(["--device", "torch:cpu", "--workers", "8,1"]).workers == [8, 1]
    assert cuda.arguments_of([]).workers == [4, 16, 1, 8]
