"""The driver of a distributed run: times of its tasks, batches in order, nothing left."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed_runs import LOCAL, check, facts, in_tasks, same_files, steps_table, write_files

import rlpost
from rlpost.distributed import driver
from rlpost.errors import DataError

pytestmark = pytest.mark.nightly

STATEFUL = {
    "running moments": {"norm_mean": "running", "norm_std": "running"},
    "an adaptive coefficient": {"kl_coef": 0.1, "kl_target": 0.01},
    "one batch of all": {"numerics": {"batch": "all"}, "whiten_advantages": True},
    "rollouts of several rows": {"columns": {"rollout": "trajectory"}},
    "batches by domain": {"numerics": {"batch": "step_domain"}, "norm_mean": "batch"},
    "filters": {"is_filter": ("geometric:ratio:0.5:1.5",), "is_weight": "token"},
    "whitening twice": {"whiten_rewards": True, "whiten_advantages": True, "kl_coef": 0.1},
}


@pytest.mark.parametrize("options", STATEFUL.values(), ids=STATEFUL)
def test_what_goes_on_from_batch_to_batch_gives_the_same(options):
    recipe = rlpost.Recipe(**{"estimator": "reinforce", **options})
    check(steps_table(36), recipe, files=2, rows_a_bucket=9, divide=True)


@pytest.mark.parametrize("step", [int, lambda place: f"warm-{place}", lambda place: f"{place}"])
def test_steps_keep_the_order_of_the_input(step):
    check(steps_table(step=step), rlpost.Recipe(), files=4, rows_a_bucket=7)


def test_steps_that_are_numbers_in_one_file_and_names_in_another_are_one(tmp_path):
    write_files(steps_table(step=int), tmp_path / "in", 2)
    names = steps_table(step=lambda place: "all" if place == 2 else str(place))
    pq.write_table(names, tmp_path / "in" / "part-8.parquet")
    only = names.filter(pa.compute.equal(names["step"], "all"))
    pq.write_table(only, tmp_path / "in" / "part-9.parquet")
    recipe = rlpost.Recipe(estimator="rloo")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    with mock.patch.object(driver, "ROWS_A_BUCKET", 11):
        got = in_tasks(tmp_path / "in", tmp_path / "out", recipe)
    assert facts(got) == facts(want)
    assert len(got["facts"]["kept"]["step"]["label"]) == 7
    same_files(tmp_path / "out", tmp_path / "local")


def test_where_nothing_is_left_anywhere_the_error_is_that_of_one_process():
    table = steps_table().set_column(3, "reward", [pa.array([1.0] * 60)])
    recipe = rlpost.Recipe(drop_equal_rewards=True, drop_difficulty="0.1:0.95")
    check(table, recipe, files=2, rows_a_bucket=5)


def test_a_bundle_of_which_nothing_is_left_is_no_error():
    rewards = np.where(np.array(steps_table()["step"]) == "3", 1.0, np.arange(60) % 2)
    table = steps_table().set_column(3, "reward", [pa.array(rewards)])
    recipe = rlpost.Recipe(drop_equal_rewards=True)
    check(table, recipe, files=2, rows_a_bucket=1)


@pytest.mark.parametrize("rows_a_bucket", [1, 1000])
def test_rows_of_a_rollout_that_differ_are_named_as_in_one_process(rows_a_bucket):
    table = steps_table().set_column(1, "step", [[f"{row % 20}" for row in range(60)]])
    rewards = pa.array([float(row == 41) for row in range(60)])
    table = table.set_column(3, "reward", [rewards])
    table = table.set_column(14, "trajectory", [[f"{row % 20}" for row in range(60)]])
    table = table.set_column(0, "prompt_id", [["p"] * 60])
    recipe = rlpost.Recipe(columns={"rollout": "trajectory"})
    with pytest.raises(DataError, match=r"row 1, has a reward of 0\.0, but"):
        rlpost.enrich(table, recipe)
    check(table, recipe, files=2, rows_a_bucket=rows_a_bucket, divide=True)


def test_the_cpu_time_of_a_driver_is_added_to_that_of_its_tasks():
    note = {"busy": {"compute": 3.0}, "cpu": {"total": 2.0, "start_up": 0.5, "compute": 1.0}}
    found = driver.work_seconds([note, note], {"total": 7.0, "start_up": 6.0})
    assert found["busy"] == {"compute": 6.0}
    assert found["cpu"] == {"total": 11.0, "start_up": 6.0, "compute": 2.0}
