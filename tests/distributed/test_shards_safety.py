"""Runs in shards: who may write what, what killed ones leave, and what the files say of the run."""

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from distributed_runs import (
    LOCAL,
    OVER,
    below,
    hidden,
    plan,
    rlpost_command,
    same_files,
    shard,
    steps_table,
    write_files,
)

import rlpost
from rlpost.analysis.verify import verify
from rlpost.distributed import shards, tasks
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.locks import FileLock, temporary_name


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "grpo", "length_weight": True},
        {"estimator": "gae", "norm_mean": "running", "norm_std": "running"},
    ],
)
def test_files_of_shards_are_what_they_claim(tmp_path, options):
    write_files(steps_table(), tmp_path / "in", 3)
    recipe = rlpost.Recipe(**options)
    plan(tmp_path, recipe)
    for index in range(2):
        shard(tmp_path, index, 2, replace(LOCAL, verify=True))
    told = verify([tmp_path / "out"])
    assert told["ok"], told
    assert len(told["files"]) == 4
    done = rlpost_command("verify", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(UsageError, match="belongs to a run of 4 files"):
        verify([tmp_path / "out" / "part-1.parquet"])


def test_a_single_file_is_planned_and_written_under_its_name(tmp_path):
    pq.write_table(steps_table(), tmp_path / "in.parquet")
    out = tmp_path / "new" / "out.parquet"
    shards.plan([tmp_path / "in.parquet"], out, tmp_path / "s", rlpost.Recipe(), LOCAL)
    assert shard(tmp_path, 0, 1, state="s")["responses"] == 60
    assert [path.name for path in out.parent.iterdir()] == ["out.parquet"]
    assert verify([out])["ok"]


def test_data_is_not_overwritten(tmp_path):
    write_files(steps_table(), tmp_path / "in", 2)
    write_files(steps_table(), tmp_path / "out", 2)
    with pytest.raises(UsageError, match="rlpost did not write"):
        plan(tmp_path, options=OVER)
    assert not (tmp_path / "state").exists()


def test_a_shard_waits_for_nobody_but_a_run_on_the_same_files(planned):
    """Shards of one plan go on side by side; the same shard twice, or another run, does not."""
    inside, go = threading.Event(), threading.Event()
    original = tasks.digest_of

    def held(place):
        inside.set()
        assert go.wait(60)
        return original(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "digest_of", held)
        first = threading.Thread(target=lambda: shard(planned, 0, 2))
        first.start()
        assert inside.wait(60)
        patch.undo()
        try:
            with pytest.raises(ReadWriteError, match="shard 0 of 2 is already running"):
                shard(planned, 0, 2)
            with pytest.raises(ReadWriteError, match="another rlpost process writes this file"):
                rlpost.advantages(planned / "in", planned / "out", None, LOCAL)
            with pytest.raises(ReadWriteError, match="another rlpost process writes this file"):
                plan(planned, state="other")
            assert shard(planned, 1, 2) is None
        finally:
            go.set()
            first.join()
    rlpost.advantages(planned / "in", planned / "local", None, LOCAL)
    assert shard(planned, 0, 2)["responses"] == 60
    same_files(planned / "out", planned / "local")
    assert hidden(planned) == []


def test_a_shard_of_a_run_that_is_being_published_leaves_it_to_that(planned):
    assert shard(planned, 0, 2) is None
    with FileLock([planned / "state" / "summary.json"]):
        assert shard(planned, 1, 2) is None
        assert not list((planned / "out").glob("*.parquet"))
    assert shard(planned, 1, 2)["responses"] == 60


@pytest.mark.parametrize("later", ["local", "plan"])
def test_of_two_runs_over_one_output_the_later_wins_and_the_earlier_says_so(planned, later):
    recipe = rlpost.Recipe(estimator="rloo")
    assert shard(planned, 0, 2) is None
    assert hidden(planned)
    if later == "local":
        rlpost.advantages(planned / "in", planned / "out", recipe, LOCAL)
        assert hidden(planned) == []
    else:
        plan(planned, recipe, state="other")
        shard(planned, 0, 1, state="other")
    wanted = {path.name: path.read_bytes() for path in (planned / "out").glob("*.parquet")}
    with pytest.raises(
        ReadWriteError, match="another run with the same output removed the staged file"
    ):
        shard(planned, 1, 2)
    now = {path.name: path.read_bytes() for path in (planned / "out").glob("*.parquet")}
    assert now == wanted
    assert hidden(planned) == []
    assert len(wanted) == 5


KILLED = '''
import os, signal
from pathlib import Path

def deadly(token_rewards, offsets):
    """The rewards; the process is killed, once."""
    try:
        (Path({folder!r}) / "killed").touch(exist_ok=False)
    except FileExistsError:
        return token_rewards
    os.kill(os.getpid(), signal.SIGKILL)
'''


def killed_shard(top, given, out):
    """A shard that is killed while it writes; the recipe that says so."""
    (top / "own.py").write_text(KILLED.format(folder=str(top)))
    recipe = rlpost.Recipe(estimator=f"{top / 'own.py'}:deadly")
    shards.plan([given], out, top / "state", recipe, rlpost.Options())
    words = ["--state-dir", "state", "--num-shards", "1", "--shard-index", "0"]
    words += ["--estimator", str(recipe.estimator)]
    argv = [Path(sys.executable).with_name("rlpost"), "advantages", *words]
    done = subprocess.run(argv, cwd=top, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    return recipe


def test_what_a_killed_shard_had_begun_goes_when_it_is_started_again(tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    recipe = killed_shard(tmp_path, tmp_path / "in", tmp_path / "out")
    assert [name for name in hidden(tmp_path) if name.endswith(".tmp")]
    stale = temporary_name("part-2.parquet", "0" * 8)
    (folder,) = (tmp_path / "out").glob(".rlpost-run-*")
    (folder / stale).touch()
    assert shard(tmp_path, 0, 2) is None
    assert [name for name in hidden(tmp_path) if "part-0" in name and name.endswith(".tmp")] == []
    assert shard(tmp_path, 0, 1)["responses"] == 60
    assert hidden(tmp_path) == []
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe)
    same_files(tmp_path / "out", tmp_path / "local")


def test_what_killed_shards_had_sent_to_a_store_goes_when_one_is_started_again(s3, tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    for path in (tmp_path / "in").iterdir():
        s3.put(f"in/{path.name}", path.read_bytes())
    killed_shard(tmp_path, "s3://lab/in/", "s3://lab/out/")
    assert len(s3.uploads()) == 1
    assert shard(tmp_path, 0, 1, rlpost.Options())["responses"] == 60
    assert s3.uploads() == []
    assert len(below(s3, "out/")) == 4


def test_a_later_plan_removes_what_an_earlier_one_sent_to_a_store(s3, tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    for path in (tmp_path / "in").iterdir():
        s3.put(f"in/{path.name}", path.read_bytes())
    killed_shard(tmp_path, "s3://lab/in/", "s3://lab/out/")
    assert shard(tmp_path, 0, 2, rlpost.Options()) is None
    s3.put("out/.rlpost-run-x/another.parquet", b"of a run over other files")
    left = below(s3, "out/.rlpost-run-")
    assert len(left) > 1
    recipe, own = rlpost.Recipe(estimator="rloo"), rlpost.Options()
    shards.plan(["s3://lab/in/"], "s3://lab/out/", tmp_path / "other", recipe, own)
    assert s3.uploads() == []
    left = below(s3, "out/.rlpost-run-")
    assert left == ["out/.rlpost-run-x/another.parquet"]
    with pytest.raises(
        ReadWriteError, match="another run with the same output removed the staged file"
    ):
        shard(tmp_path, 1, 2, own)
    assert below(s3, "out/part") == []


def test_a_bit_that_flips_on_the_disk_is_found_before_a_file_waits(planned, monkeypatch):
    complete = rlpost.io.staged.StagedFile.complete

    def harmed(self):
        complete(self)
        with self.path.open("rb+") as file:
            file.seek(40)
            byte = file.read(1)[0]
            file.seek(40)
            file.write(bytes([byte ^ 1]))

    monkeypatch.setattr("rlpost.io.staged.StagedFile.complete", harmed)
    with pytest.raises(ReadWriteError, match="reads back wrong"):
        shard(planned, 0, 1, replace(LOCAL, verify=True))
    monkeypatch.undo()
    assert shard(planned, 0, 1, replace(LOCAL, verify=True))["responses"] == 60
