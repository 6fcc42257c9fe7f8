"""Runs in shards: what has changed beside them since the plan is found before files appear."""

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
    shard,
    steps_table,
    write_files,
)

import rlpost
from rlpost.analysis.verify import verify
from rlpost.distributed import shards
from rlpost.errors import ReadWriteError

FOREIGN = pytest.mark.parametrize("foreign", [b"notes of somebody", b""])


@FOREIGN
def test_a_file_that_came_after_the_plan_is_not_replaced(planned, foreign):
    assert shard(planned, 0, 2) is None
    path = planned / "out" / "part-2.parquet"
    path.write_bytes(foreign)
    for _ in range(2):
        with pytest.raises(ReadWriteError, match=r"part-2\.parquet: exists now, and did not"):
            shard(planned, 1, 2)
        assert [one.name for one in (planned / "out").glob("*.parquet")] == [path.name]
        assert path.read_bytes() == foreign
    path.unlink()
    assert shard(planned, 1, 2)["responses"] == 60
    assert verify([planned / "out"])["ok"]
    assert hidden(planned) == []


def test_the_result_of_a_run_between_plan_and_shards_is_not_replaced(planned):
    rlpost.advantages(planned / "in", planned / "out", rlpost.Recipe(estimator="rloo"), LOCAL)
    wanted = {path.name: path.read_bytes() for path in (planned / "out").glob("*.parquet")}
    with pytest.raises(ReadWriteError, match="exists now, and did not when the run began"):
        shard(planned, 0, 1)
    now = {path.name: path.read_bytes() for path in (planned / "out").glob("*.parquet")}
    assert now == wanted


@FOREIGN
def test_a_file_that_came_after_a_plan_with_overwrite_is_replaced(tmp_path, foreign):
    write_files(steps_table(), tmp_path / "in", 4)
    plan(tmp_path, options=OVER)
    (tmp_path / "out" / "part-2.parquet").write_bytes(foreign)
    assert shard(tmp_path, 0, 1)["responses"] == 60
    assert verify([tmp_path / "out"])["ok"]


def test_publishing_that_was_stopped_midway_is_gone_on_with(planned, monkeypatch):
    """What has its name already is of this plan, by its digest."""
    replace_file, done = Path.replace, []

    def stopped(self, target):
        if Path(target).suffix == ".parquet" and Path(target).parent.name == "out":
            done.append(target)
            if len(done) == 3:
                raise KeyboardInterrupt
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        shard(planned, 0, 1)
    monkeypatch.undo()
    assert len([*(planned / "out").glob("*.parquet")]) == 2
    assert shard(planned, 0, 1)["responses"] == 60
    assert verify([planned / "out"])["ok"]


def test_an_object_that_came_after_the_plan_is_not_replaced(s3, tmp_path):
    write_files(steps_table(), tmp_path / "in", 2)
    out, own = "s3://lab/out/", rlpost.Options()
    shards.plan([tmp_path / "in"], out, tmp_path / "state", rlpost.Recipe(), own)
    assert shard(tmp_path, 0, 2, own) is None
    s3.put("out/part-1.parquet", b"of somebody")
    with pytest.raises(ReadWriteError, match=r"part-1\.parquet: exists now, and did not"):
        shard(tmp_path, 1, 2, own)
    assert below(s3, "out/part-") == ["out/part-1.parquet"]
    assert s3.get("out/part-1.parquet") == b"of somebody"


@pytest.mark.parametrize("harm", ["touch", "remove", "cut"])
@pytest.mark.parametrize("lot", ["written", "to come"])
def test_an_input_that_changes_while_shards_write_is_noticed_before_publishing(planned, harm, lot):
    own = shards.planned(planned / "state").partitions
    assert shard(planned, 0, 2) is None
    path = own[0 if lot == "written" else 1].files[0].path
    if harm == "remove":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        pq.write_table(pq.read_table(path), path)
    with pytest.raises(ReadWriteError, match=r"removed since .*; plan again") as told:
        shard(planned, 1, 2)
    assert str(told.value).startswith(f"{path}: ")
    assert "run again" not in str(told.value)
    assert [*(planned / "out").glob("*.parquet")] == []


@pytest.mark.parametrize("where", ["in", "in/state", "out"])
def test_a_state_among_the_data_is_refused(tmp_path, where):
    write_files(steps_table(), tmp_path / "in", 2)
    words = ("plan", "in/", "out", "--state-dir", where)
    done = rlpost_command(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"--state-dir {where}: is {'OUT' if where == 'out' else 'IN (in/)'}" in done.stderr
    assert sorted(tmp_path.iterdir()) == [tmp_path / "in"]
    assert all(path.suffix == ".parquet" for path in (tmp_path / "in").iterdir())
