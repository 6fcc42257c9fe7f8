"""Locks on outputs: one run at a time, and no file of a lock is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from runs import rollout, run, save

from rlpost.cleanups import run_cleanups
from rlpost.errors import ReadWriteError
from rlpost.io.locks import LOCK_NAME, SCRATCH_PREFIX, FileLock, scratch_folder

HOLD = """
import sys, time
from pathlib import Path
from rlpost.io.locks import FileLock
lock = FileLock([Path(sys.argv[1])])
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_run_on_an_output_is_refused_until_the_first_is_dead(tmp_path):
    source, target = save(rollout(), tmp_path / "in.parquet"), tmp_path / "o.parquet"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, target], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    ran = run("advantages", source, target, "-q")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith(f"error: {target}: another rlpost process writes this file; ")
    assert run("advantages", source, tmp_path / "other.parquet", "-q").code == 0
    holder.kill()
    holder.communicate()
    assert run("advantages", source, target, "-q").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.parquet", "o.parquet", "other.parquet",
    ]  # fmt: skip


def test_claims_come_and_go_without_leaving_a_lock_file(tmp_path):
    first, second = FileLock([tmp_path / "a"]), FileLock([tmp_path / "b", tmp_path / "c"])
    with pytest.raises(ReadWriteError, match="another rlpost"):
        FileLock([tmp_path / "d", tmp_path / "c"])
    with FileLock([tmp_path / "d"]):
        first.release()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    second.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["open", "fstat", "close"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_signal_after_any_step_leaves_no_lock_file(tmp_path, monkeypatch, name, count):
    """The calls of a lock, in turn, each ended by a signal that comes while the system has it."""
    own, calls = getattr(os, name), 0

    def interrupted(*arguments, **options):
        nonlocal calls
        result, calls = own(*arguments, **options), calls + 1
        if calls == count:
            raise SystemExit(143)
        return result

    monkeypatch.setattr(os, name, interrupted)
    with suppress(SystemExit), FileLock([tmp_path / "a"]):
        pass
    monkeypatch.undo()
    run_cleanups()
    assert list(tmp_path.iterdir()) == []


def test_the_folders_of_killed_conversions_go_and_those_in_use_stay(tmp_path):
    dead = tmp_path / f"{SCRATCH_PREFIX}dead"
    (dead / "0").mkdir(parents=True)
    (dead / "0" / "part.parquet").write_text("x")
    (dead / LOCK_NAME).touch()
    (tmp_path / f"{SCRATCH_PREFIX}new").mkdir()  # killed before it was locked
    with scratch_folder(tmp_path) as mine:
        assert not dead.exists()
        (mine / "file").write_text("x")
        with scratch_folder(tmp_path) as other:
            assert {*tmp_path.iterdir()} == {mine, other}
        assert (mine / "file").exists()
    assert list(tmp_path.iterdir()) == []


def test_links_and_folders_of_others_are_no_scratch_folders(tmp_path):
    (tmp_path / "other").mkdir()
    top = tmp_path / "tmp"
    named = {name: top / f"{SCRATCH_PREFIX}{name}" for name in ("link", "mine", "file", "theirs")}
    (named["mine"] / "sub").mkdir(parents=True)
    named["theirs"].mkdir()
    named["link"].symlink_to(tmp_path / "other")
    for path in (
        tmp_path / "other/a",
        named["mine"] / "sub/a",
        named["file"],
        named["theirs"] / "a",
    ):
        path.write_text("precious")
    for folder in (tmp_path / "other", named["theirs"]):
        (folder / LOCK_NAME).touch()
    os.chown(named["theirs"], 12345, -1) if os.geteuid() == 0 else shutil.rmtree(named["theirs"])
    before = sorted(tmp_path.rglob("*"))
    with scratch_folder(top):
        pass
    assert sorted(tmp_path.rglob("*")) == before
