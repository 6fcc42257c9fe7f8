"""Locks on outputs: one run at a time, and no file of a lock is left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from runs import rollout, run, save

from rlpost.cleanups import run_cleanups
from rlpost.io import locks
from rlpost.io.locks import SCRATCH, BusyError, scratch_folder, temporary_name
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
    names = "cafe0000", "cafe0001", "cafe0002"
    dead, linked, others = (tmp_path / f".{SCRATCH}-{name}" for name in names)
    for folder in (dead / "0", others, tmp_path / "precious"):
        folder.mkdir(parents=True)
        (folder / "part.parquet").write_text("x")
    linked.symlink_to(tmp_path / "precious")
    for name in names[:2]:  # the third has no file that could be locked
        (tmp_path / temporary_name(SCRATCH, name)).touch()
    with scratch_folder(tmp_path) as mine:
        assert not dead.exists()
        (mine / "file").write_text("x")
        with scratch_folder(tmp_path) as other:
            assert {mine, other} <= {*tmp_path.iterdir()}
        assert (mine / "file").exists()
        assert not other.exists()
    assert {*tmp_path.iterdir()} == {linked, others, tmp_path / "precious"}
    assert (tmp_path / "precious" / "part.parquet").exists()
