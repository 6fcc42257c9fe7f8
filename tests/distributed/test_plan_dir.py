"""The directory of a plan: of one version, of one run, and of inputs that have not changed."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from distributed_runs import (
    LOCAL,
    OVER,
    hidden,
    plan,
    shard,
    steps_table,
    write_files,
)

import rlpost
from rlpost.analysis.verify import verify
from rlpost.distributed import shards
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.own_files import seal, unseal


def test_an_input_that_changed_since_the_plan_is_refused(planned):
    path = planned / "in" / "part-1.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(ReadWriteError, match=r"part-1\.parquet: was changed"):
        shards.shard(planned / "state", 0, 1, LOCAL)
    assert not list((planned / "out").glob("*.parquet"))


def test_two_plans_do_not_share_a_folder(planned):
    with pytest.raises(UsageError, match="has a plan already"):
        shards.plan([planned / "in"], planned / "b", planned / "state", rlpost.Recipe(), LOCAL)
    assert shards.shard(planned / "state", 0, 1, LOCAL)
    over = replace(LOCAL, overwrite=True)
    shards.plan([planned / "in"], planned / "b", planned / "state", rlpost.Recipe(), over)
    assert shards.shard(planned / "state", 0, 2, LOCAL) is None


def test_a_shard_needs_a_plan_of_this_version(planned, tmp_path):
    with pytest.raises(ReadWriteError, match="rlpost plan"):
        shards.shard(tmp_path / "none", 0, 1, LOCAL)
    with pytest.raises(UsageError, match="0 to 2 is needed"):
        shards.shard(planned / "state", 3, 3, LOCAL)
    path = planned / "state" / "plan.json"
    text = path.read_text()
    path.write_text(text.replace(f'"rlpost": "{rlpost.__version__}"', '"rlpost": "0.0.0"'))
    with pytest.raises(UsageError, match=r"rlpost 0\.0\.0"):
        shards.shard(planned / "state", 0, 1, LOCAL)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="`rlpost plan` did not write this file"):
        shards.shard(planned / "state", 0, 1, LOCAL)


@pytest.mark.parametrize("file", ["plan.json", "done/000000.json", "summary.json"])
def test_a_damaged_file_of_a_plan_is_an_error(planned, file):
    if file == "done/000000.json":
        shards.shard(planned / "state", 0, 2, LOCAL)
    if file == "summary.json":
        assert shards.shard(planned / "state", 0, 1, LOCAL)
    (path,) = (planned / "state").rglob(file)
    data = path.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    for damaged in (changed, data[:middle], b"[" * 100_000, b"\xff", b"[]", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            shards.shard(planned / "state", 0, 1, LOCAL)
    plan(planned, options=OVER)
    assert shard(planned, 0, 1)["responses"] == 60


def test_the_run_of_a_plan_is_a_name_and_no_path(planned):
    (planned / "victim").mkdir()
    path = planned / "state/plan.json"
    table = unseal(path.read_bytes())
    before = sorted(planned.rglob("*"))
    for run in ("x/../../../victim", "../victim", "", "0" * 15, 3, [], "*" * 16):
        path.write_text(seal({**table, "run": run}))
        with pytest.raises(DataError, match=r"plan\.json"):
            shards.shard(planned / "state", 0, 1, LOCAL)
        assert sorted(planned.rglob("*")) == before
    plan(planned, options=OVER)
    assert (planned / "victim").exists()


def test_a_block_of_a_plan_is_in_the_folder_of_the_run(planned):
    path = planned / "state/plan.json"
    table = unseal(path.read_bytes())
    table["batches"][0][0][0] = f"../{table['batches'][0][0][0]}"
    path.write_text(seal(table))
    with pytest.raises(DataError, match=r"plan\.json"):
        shards.shard(planned / "state", 0, 1, LOCAL)


def test_a_plan_that_fails_leaves_nothing(tmp_path):
    write_files(steps_table().drop_columns("reward"), tmp_path / "in", 2)
    with pytest.raises(rlpost.errors.DataError, match="reward"):
        plan(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["in"]
    assert list((tmp_path / "state").rglob("*")) == []


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
