"""Locks on outputs: one run at a time, and no file of a lock is left."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from runs import rollout, run, save

from rlpost.cleanups import run_cleanups
from rlpost.io import locks
from rlpost.io.locks import LOCK_NAME, SCRATCH_PREFIX, BusyError, scratch_folder
from rlpost.io.outputs import OutputFile, OutputFiles

HOLD = """
import sys, time
from pathlib import Path
from rlpost.io.outputs import OutputFiles
with OutputFiles([Path(sys.argv[1])]):
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


@pytest.mark.parametrize("mine", ["0" * 8, "f" * 8])
def test_of_two_runs_that_begin_now_one_goes_on(tmp_path, monkeypatch, mine):
    """The one with the lower name waits until the other has given up."""
    names = iter([mine, "7" * 8])
    monkeypatch.setattr(locks.secrets, "token_hex", lambda _: next(names))
    monkeypatch.setattr(locks.time, "sleep", lambda _: other.discard())
    first, other = OutputFile(tmp_path / "a"), OutputFile(tmp_path / "a")
    if mine < "7":
        locks.claim({first.target: first.path})
    else:
        with pytest.raises(BusyError):
            locks.claim({first.target: first.path})
    first.discard()
    other.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_taken_for_a_leftover_before_it_was_locked_is_made_anew(
    tmp_path, monkeypatch
):
    lock, taken = locks.lock_file, []

    def late(file):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return lock(file)

    monkeypatch.setattr(locks, "lock_file", late)
    with OutputFile(tmp_path / "a") as file:
        assert [*tmp_path.iterdir()] == [file.path] != taken


def test_without_locks_nothing_is_removed_or_refused(tmp_path, monkeypatch):
    def no_locks(_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks, "lock_file", no_locks)
    with OutputFiles([tmp_path / "a"]), OutputFiles([tmp_path / "a"]):
        assert len([*tmp_path.iterdir()]) == 2


def test_more_outputs_than_files_may_be_open(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from rlpost.io.outputs import OutputFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 2048))\n"
        "with OutputFiles([Path(sys.argv[1], str(n)) for n in range(200)]): print('locked')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("locked\n", "")


@pytest.mark.parametrize("name", ["open", "fstat", "close"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_signal_after_any_step_leaves_no_file(tmp_path, monkeypatch, name, count):
    """The calls of a lock, in turn, each ended by a signal that comes while the system has it."""
    own, calls = getattr(os, name), 0

    def interrupted(*arguments, **options):
        nonlocal calls
        result, calls = own(*arguments, **options), calls + 1
        if calls == count:
            raise SystemExit(143)
        return result

    monkeypatch.setattr(os, name, interrupted)
    with suppress(SystemExit), OutputFiles([tmp_path / "a"]):
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
