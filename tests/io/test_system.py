"""Systems other than Linux: runs of processes from which the names that Linux alone has are hidden.

`.ci/run` has the type checker look for names that macOS or Windows lack. A process without those
names must do the same here, to the byte. The locks of Windows are translated to those of Linux, so
that the code that uses them runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import PureWindowsPath

import pytest
from runs import rollout, save

from rlpost.io import system
from rlpost.io.paths import RemotePath, parse_path

LINUX_ALONE = {
    "os": ["sched_getaffinity", "process_cpu_count", "fdatasync", "posix_fadvise",
           "POSIX_FADV_DONTNEED", "copy_file_range"],
    "time": ["CLOCK_BOOTTIME"],
}  # fmt: skip
POSIX_ALONE = {
    "os": [*LINUX_ALONE["os"], "pread", "pwrite", "sysconf", "O_CLOEXEC",
           "O_NOFOLLOW", "O_DIRECTORY"],
    "time": [*LINUX_ALONE["time"], "clock_gettime"],
    "signal": ["SIGHUP"],
    "_signal": ["SIGHUP"],
}  # fmt: skip
HIDDEN = {"darwin": LINUX_ALONE, "win32": POSIX_ALONE, "freebsd14": LINUX_ALONE}

HIDE = """
import fcntl, os, sys, types
platform, linux = sys.argv.pop(1), sys.platform
flock, exclusive = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
# Libraries are imported first: theirs are builds for Linux.
import fsspec, polars, pyarrow.parquet, textual.app, torch, typer, _signal, asyncio, tempfile

for module, names in {hidden}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)

def locking_of_windows(file, kind, size):
    try:
        flock(file, kind)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking_of_windows, LK_NBLCK=exclusive)
if platform == "win32":
    sys.modules["fcntl"] = None  # an import raises ImportError
sys.platform = platform
import rlpost.io.system
sys.platform = linux if platform == "win32" else platform
"""
PROGRAM = "from rlpost.cli.app import main; main()"


@pytest.fixture(params=["darwin", "win32"])
def platform(request):
    return request.param


def start(platform, *words, program=PROGRAM, stdin=None):
    """Start `rlpost WORDS` on Linux, or without the names that another system lacks."""
    names = HIDDEN.get(platform)
    hide = HIDE.replace("{hidden}", str(names)) if names else "import sys; del sys.argv[1]\n"
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
def test_advantages_writes_the_same_bytes(platform, inputs, expected, tmp_path):
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
@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
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


def test_reads_and_writes_at_offsets_without_calls_for_it(tmp_path, monkeypatch):
    for name in ("pread", "pwrite"):
        monkeypatch.delattr(os, name)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert system.write_at(file, memoryview(b"abcdef"), 2) == 6
    assert system.read_at(file, 3, 1) == b"\0ab"
    os.close(file)


# Text and paths


@pytest.mark.parametrize("text", [r"C:\dumps\a.parquet", "C:/dumps/a.parquet", "C://dumps/a"])
def test_a_drive_is_no_scheme(text):
    assert not isinstance(parse_path(text), RemotePath)


def test_a_file_url_of_windows_is_a_path_with_a_drive(monkeypatch):
    monkeypatch.setattr("rlpost.io.paths.Path", PureWindowsPath)
    monkeypatch.setattr("rlpost.io.paths.os.name", "nt")
    assert str(parse_path("file:///C:/dumps/a.parquet")) == r"C:\dumps\a.parquet"
