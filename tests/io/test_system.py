"""Systems other than Linux: runs of processes from which the names that Linux alone has are hidden.

`.ci/run` has the type checker look for names that macOS lacks. A process without those names must
do the same here, to the byte.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import rollout, save

LINUX_ALONE = {
    "os": ["sched_getaffinity", "process_cpu_count", "fdatasync", "posix_fadvise",
           "POSIX_FADV_DONTNEED", "copy_file_range"],
    "time": ["CLOCK_BOOTTIME"],
}  # fmt: skip

HIDE = """
import os, sys
platform = sys.argv.pop(1)
# Libraries are imported first: theirs are builds for Linux.
import fsspec, polars, pyarrow.parquet, textual.app, torch, typer, _signal, asyncio, tempfile

for module, names in {hidden}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)

sys.platform = platform
"""
PROGRAM = "from rlpost.cli.app import main; main()"


def start(platform, *words, program=PROGRAM, stdin=None):
    """Start `rlpost WORDS` on Linux, or without the names that another system lacks."""
    hide = "import sys; del sys.argv[1]\n"
    if platform != "linux":
        hide = HIDE.replace("{hidden}", str(LINUX_ALONE))
    argv = [sys.executable, "-c", hide + program, platform, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=stdin, stdout=pipe, stderr=pipe, text=True)


def run(platform, *words, **options):
    process = start(platform, *words, **options)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder of three files whose groups span them."""
    top = tmp_path_factory.mktemp("inputs")
    table = rollout(6_000, 8)
    table = table.append_column("log_probs", table["ref_log_probs"])
    for index in range(3):
        save(table.slice(index * 2_000, 2_000), top / f"{index}.parquet", rows=500)
    return top


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def advantages(inputs, out, *words):
    return ("advantages", inputs, out, "-q", "--estimator", "grpo", "--chunk-tokens", 2000,
            "--workers", 2, *words)  # fmt: skip


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory):
    """The files of a run on Linux."""
    out = tmp_path_factory.mktemp("expected")
    run("linux", *advantages(inputs, out))
    return contents(out)


@pytest.mark.nightly
def test_advantages_writes_the_same_bytes(inputs, expected, tmp_path):
    platform = "darwin"
    run(platform, *advantages(inputs, tmp_path))
    assert contents(tmp_path) == expected
    run(platform, *advantages(inputs, tmp_path, "--overwrite"))
    assert contents(tmp_path) == expected


LOCK = """
import sys
from pathlib import Path
from rlpost.io.locks import scratch_folder
from rlpost.io.outputs import OutputFiles
with OutputFiles(map(Path, sys.argv[1:])), scratch_folder(Path(sys.argv[1]).parent):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["darwin", "freebsd14"])
def test_two_runs_on_one_output(platform, inputs, tmp_path):
    """The second is refused until the first ends."""
    out = tmp_path / "out.parquet"
    words = ("advantages", inputs / "0.parquet", out, "-q", "--estimator", "grpo")
    holder = start(platform, out, tmp_path / "b", program=LOCK, stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "locked\n"
    (scratch,) = tmp_path.glob(".rlpost-dump-*")
    second = start(platform, *words)
    _, err = second.communicate(timeout=300)
    assert second.returncode == 4, err
    assert "another rlpost process writes this file" in err
    run(platform, tmp_path / "c", program=LOCK, stdin=subprocess.DEVNULL)
    assert scratch.exists()
    holder.communicate()
    assert not scratch.exists()
    run(platform, *words)
    assert contents(tmp_path).keys() == {"out.parquet"}
