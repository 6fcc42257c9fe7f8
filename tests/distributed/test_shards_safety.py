"""Runs in shards: who may write what, what killed ones leave, and what the files say of the run."""

import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

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
from rlpost.distributed import partition as partitions
from rlpost.distributed import shards, tasks
from rlpost.distributed.driver import divided_files
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.locks import FileLock, temporary_name
from rlpost.io.parquet import source
from rlpost.io.parquet.footer import ColumnMeta, FileMeta, Wire, file_end, read_footer
from rlpost.io.parquet.splice_plan import column_metas


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


def test_a_plan_that_fails_leaves_nothing(tmp_path):
    write_files(steps_table().drop_columns("reward"), tmp_path / "in", 2)
    with pytest.raises(rlpost.errors.DataError, match="reward"):
        plan(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["in"]
    assert list((tmp_path / "state").rglob("*")) == []


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


def test_a_plan_of_another_version_is_removed_by_a_new_one(planned):
    manifest = planned / "state" / "plan.json"
    manifest.write_text("{}")
    before = [path.name for path in (planned / "state").iterdir() if path.is_dir()]
    plan(planned, options=OVER)
    after = [path.name for path in (planned / "state").iterdir() if path.is_dir()]
    assert (len(before), len(after), before == after) == (1, 1, False)
    assert shard(planned, 0, 1)["responses"] == 60
    assert hidden(planned) == []


def test_a_plan_over_a_plan_takes_what_that_had_complete_with_it(planned):
    assert shard(planned, 0, 2) is None
    before = set(hidden(planned))
    plan(planned, rlpost.Recipe(estimator="rloo"), OVER)
    assert not before & set(hidden(planned))
    assert len([path for path in (planned / "state").iterdir() if path.is_dir()]) == 1
    assert shard(planned, 0, 1)["recipe"]["estimator"] == "rloo"
    assert verify([planned / "out"])["ok"]


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


@pytest.fixture
def divided(tmp_path, monkeypatch):
    """A folder with one file of 12 row groups, planned in parts of one, and a small file."""
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    write_files(steps_table(36), tmp_path / "in", 1)
    found = plan(tmp_path)
    assert found["partitions"] > 9
    return tmp_path


def parts_of(top):
    run = top / "state" / shards.planned(top / "state").run
    return sorted(path.name for path in (run / "blocks").glob("encoded-*"))


@pytest.mark.parametrize("options", [{}, {"emit_only": True}, {"replace": True}])
def test_a_large_file_is_written_in_parts_and_joined(tmp_path, monkeypatch, options):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    table = steps_table(36)
    if "replace" in options:
        table = table.append_column("advantages", [[0.5]] * 36)
    write_files(table, tmp_path / "in", 1)
    recipe = rlpost.Recipe(estimator="gae", length_weight=True, **options)
    assert plan(tmp_path, recipe)["partitions"] > 9
    assert shard(tmp_path, 1, 2, replace(LOCAL, verify=True)) is None
    assert parts_of(tmp_path)
    assert shard(tmp_path, 0, 2, replace(LOCAL, verify=True))["responses"] == 36
    assert parts_of(tmp_path) == []
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    same_files(tmp_path / "out", tmp_path / "local")


def shared_chunks(path, one, other):
    """Let a column have its values in the chunks of another."""
    with path.open("rb") as file:
        footer, end = read_footer(file.fileno(), path.stat().st_size)
    for group in footer.structs(FileMeta.ROW_GROUPS):
        metas = {
            meta.values_of(ColumnMeta.PATH, Wire.BINARY)[0]: meta for meta in column_metas(group)
        }
        own, name = metas[one.encode()], metas[one.encode()][ColumnMeta.PATH]
        own.update(metas[other.encode()])
        own[ColumnMeta.PATH] = name
    path.write_bytes(path.read_bytes()[:end] + file_end(footer))


def test_a_file_whose_chunks_cannot_be_copied_is_not_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    write_files(steps_table(), tmp_path / "in", 1)
    shared_chunks(tmp_path / "in" / "part-0.parquet", "format", "correctness")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", None, LOCAL)
    assert want["rewritten"]
    assert plan(tmp_path)["partitions"] <= 2
    assert shard(tmp_path, 0, 1)["rewritten"] == want["rewritten"]
    same_files(tmp_path / "out", tmp_path / "local")


def test_bad_data_in_a_part_is_named_by_its_row_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    table = steps_table(36)
    values = table["values"].to_pylist()
    values[29] = values[29][:-1]
    place = table.schema.get_field_index("values")
    write_files(table.set_column(place, "values", [values]), tmp_path / "in", 1)
    recipe = rlpost.Recipe(estimator="gae")
    with pytest.raises(rlpost.errors.DataError) as caught:
        rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    told = str(caught.value)
    assert "part-0.parquet, row 29: " in told
    plan(tmp_path, recipe)
    with pytest.raises(rlpost.errors.DataError, match=re.escape(told)):
        shard(tmp_path, 0, 1)


def test_a_shard_that_ends_where_parts_are_missing_leaves_them_to_the_last(divided):
    for index in range(4):
        assert shard(divided, index, 5) is None
        assert [path.name for path in (divided / "out").glob("*.parquet")] == []
    assert shard(divided, 4, 5)["responses"] == 36
    assert verify([divided / "out"])["ok"]


def test_a_shard_that_is_killed_while_it_joins_is_gone_on_with(divided, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlpost.distributed.tasks.summary_of", killed)
    with pytest.raises(KeyboardInterrupt):
        shard(divided, 0, 1)
    monkeypatch.undo()
    assert len(parts_of(divided)) > 9
    counted = mock.Mock()
    assert shard(divided, 3, 9, replace(LOCAL, reporter=counted))["responses"] == 36
    assert counted.advance.mock_calls == []
    rlpost.advantages(divided / "in", divided / "local", None, LOCAL)
    same_files(divided / "out", divided / "local")


def test_a_file_that_is_being_joined_is_left_to_that_shard(divided):
    (own,) = divided_files(shards.planned(divided / "state").partitions)
    done = divided / "state" / shards.planned(divided / "state").run / "done"
    with FileLock([done / f"{own.start:06d}-{own.stop:06d}.json"]):
        assert shard(divided, 0, 1) is None
    assert shard(divided, 0, 1)["responses"] == 36
