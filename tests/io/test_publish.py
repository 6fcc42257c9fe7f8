"""Publication: files appear complete and all together, or nothing is left of them."""

import subprocess
import sys

import pytest

from rlpost.errors import ReadWriteError
from rlpost.io.locks import BusyError, temporary_name
from rlpost.io.outputs import OutputFiles


def below(top):
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def test_files_appear_when_the_last_is_complete(tmp_path):
    targets = [tmp_path / "new" / "folder" / "a", tmp_path / "b"]
    (tmp_path / "b").write_text("old")
    (tmp_path / temporary_name("b", "0" * 8)).write_text("of a killed run")
    with OutputFiles(targets) as files:
        assert not (tmp_path / temporary_name("b", "0" * 8)).exists()
        for target in targets:
            files.stage(target).write(0, target.name.encode())
        files.complete()
        with pytest.raises(BusyError):
            OutputFiles([targets[1]]).__enter__()
        assert (tmp_path / "b").read_text() == "old"
        files.publish()
    assert [target.read_text() for target in targets] == ["a", "b"]
    assert below(tmp_path) == {"b", "new", "new/folder", "new/folder/a"}


def test_what_is_not_published_is_undone(tmp_path):
    (tmp_path / "b").write_text("old")
    with OutputFiles([tmp_path / "new" / "folder" / "a", tmp_path / "b"]) as files:
        for target in files.targets:
            files.stage(target).write(0, b"begun")
    assert below(tmp_path) == {"b"}
    assert (tmp_path / "b").read_text() == "old"


@pytest.mark.skipif(sys.platform != "linux", reason="others do not name an open file")
def test_a_folder_that_is_renamed_meanwhile_keeps_nothing(tmp_path):
    (tmp_path / "old").mkdir()
    with OutputFiles([tmp_path / "old" / "a"]) as files:
        files.stage(tmp_path / "old" / "a").write(0, b"begun")
        (tmp_path / "old").rename(tmp_path / "new")
        files.complete()
        with pytest.raises(ReadWriteError):
            files.publish()
    assert below(tmp_path) == {"new"}


SIGNALLED = """
import os, sys
from pathlib import Path
from rlpost.io import shutdown
from rlpost.io.outputs import OutputFiles
replace = Path.replace

def signalled(self, target):
    os.kill(os.getpid(), 15)
    return replace(self, target)

Path.replace = signalled
shutdown.install_handlers()
top = Path(sys.argv[1])
with OutputFiles([top / "a", top / "b"]) as files:
    for target in files.targets:
        files.stage(target).write(0, b"x")
    files.complete()
    files.publish()
    print("went on")
"""


def test_a_signal_waits_until_all_files_are_published(tmp_path):
    words = [sys.executable, "-c", SIGNALLED, tmp_path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")
    assert below(tmp_path) == {"a", "b"}


PAGE = """
import os, sys
from pathlib import Path
from rlpost.io import outputs, shutdown

def signalled(folder):
    os.kill(os.getpid(), 15)
    print("synced", flush=True)

outputs.sync_folder = signalled
shutdown.install_handlers()
outputs.write_file(Path(sys.argv[1]) / "page.html", b"page")
print("went on")
"""


def test_a_signal_waits_until_the_name_of_a_single_file_is_on_the_disk(tmp_path):
    words = [sys.executable, "-c", PAGE, tmp_path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "synced\n", "")
    assert below(tmp_path) == {"page.html"}
    assert (tmp_path / "page.html").read_bytes() == b"page"


STOPPED = """
import os, signal, sys
from rlpost.cli.commands import compute
compute.write_json = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
from rlpost.cli.main import leave
leave()
"""


def test_a_run_that_a_signal_ends_after_its_output_says_so(tmp_path):
    words = ["advantages", "sample_data/arithmetic.parquet", tmp_path / "out.parquet", "--quiet"]
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED, *words, "--summary-json", tmp_path / "s.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 143
    assert ended.stderr == f"rlpost: a signal ended it after it wrote {tmp_path / 'out.parquet'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]
