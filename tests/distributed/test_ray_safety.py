"""Runs on Ray: who may write what, what killed ones leave, and what the files say of the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed_runs import (
    LOCAL,
    RAY,
    below,
    recipes_of,
    same_files,
    steps_table,
    write_files,
)

import rlpost
from rlpost.errors import ReadWriteError

# Ray's own, of what Ray itself does.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def hidden(folder):
    return sorted(path.name for path in folder.rglob(".*"))


def started(cluster, top, given, out):
    """A run of the command line, some of whose files are complete, while one task waits."""
    recipes_of(top, kill=False)
    words = [given, out, "--estimator", "own.py:deadly", "--kl-coef", "0.1", "--engine", "ray"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    argv += ["--ray-address", cluster.address]
    return subprocess.Popen(argv, cwd=top, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_what_a_killed_driver_leaves_goes_with_the_next_run(cluster, tmp_path):
    write_files(steps_table(120), tmp_path / "in", 6)
    out = tmp_path / "out"
    with started(cluster, tmp_path, "in", "out") as run:
        while not any(path.suffix == ".parquet" for path in out.rglob(".rlpost-run-*/*")):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.05)
        with pytest.raises(ReadWriteError, match="another rlpost process writes this file"):
            rlpost.advantages(tmp_path / "in", out, None, LOCAL)
        run.send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    assert list(out.glob("*.parquet")) == []
    assert hidden(out)
    rlpost.advantages(tmp_path / "in", out, None, RAY)
    rlpost.advantages(tmp_path / "in", tmp_path / "local", None, LOCAL)
    same_files(out, tmp_path / "local")


def to_store(s3, top, files):
    write_files(steps_table(), top / "in", files)
    for path in (top / "in").iterdir():
        s3.put(f"in/{path.name}", path.read_bytes())


def test_what_a_killed_worker_had_sent_to_a_store_does_not_stay(s3, tmp_path, monkeypatch):
    """Ray's workers get the environment of the driver: this cluster is one of the run's own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    to_store(s3, tmp_path, 3)
    recipes_of(tmp_path, kill=True)
    words = ["s3://lab/in/", "s3://lab/out/", "--estimator", "own.py:deadly", "--engine", "ray"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words, "--summary-json", "-"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert s3.uploads() == []
    assert len(below(s3, "out/")) == 4
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")


def test_what_a_killed_driver_had_sent_to_a_store_goes_with_the_next_run(s3, tmp_path):
    to_store(s3, tmp_path, 3)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    recipes_of(tmp_path, kill=False)
    words = ["s3://lab/in/", "s3://lab/out/", "--estimator", "own.py:deadly", "--engine", "ray"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as run:
        while not below(s3, "out/.rlpost-run-") and run.poll() is None:
            time.sleep(0.1)
        upload = {"Bucket": "lab", "Key": "out/.rlpost-run-0/part-0.parquet"}
        s3.client.create_multipart_upload(**upload)  # as of a large file
        run.send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    words = ["s3://lab/in/", "s3://lab/out/", "--engine", "ray", "--quiet"]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert s3.uploads() == []
    made = sorted(below(s3, "out/"))
    assert made == [f"out/part-{place}.parquet" for place in range(4)]
