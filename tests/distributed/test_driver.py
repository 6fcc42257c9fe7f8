"""The driver of a run in tasks: one table of all parts, and times of its tasks."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed_runs import LOCAL, check, facts, in_tasks, same_files, steps_table, write_files

import rlpost
from rlpost.distributed.passes import parts_of
from rlpost.errors import DataError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source

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
    check(steps_table(36), rlpost.Recipe(**{"estimator": "reinforce", **options}), files=2)


def test_steps_that_are_numbers_in_one_file_and_names_in_another_are_one(tmp_path):
    write_files(steps_table(step=int), tmp_path / "in", 2)
    names = steps_table(step=lambda place: "all" if place == 2 else str(place))
    pq.write_table(names, tmp_path / "in" / "part-8.parquet")
    recipe = rlpost.Recipe(estimator="rloo")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    got = in_tasks(tmp_path / "in", tmp_path / "out", recipe)
    assert facts(got) == facts(want)
    assert len(got["facts"]["kept"]["step"]["label"]) == 7
    same_files(tmp_path / "out", tmp_path / "local")


def test_a_column_that_is_unreadable_in_one_file_is_read_in_none(tmp_path):
    table = steps_table(20)
    for place, reasons in enumerate((["stop"] * 20, [{"why": "stop"}] * 20)):
        (tmp_path / "in").mkdir(exist_ok=True)
        path = tmp_path / "in" / f"{place}.parquet"
        pq.write_table(table.append_column("finish_reason", [reasons]), path)
    recipe = rlpost.Recipe(estimator="gae")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    assert "finish_reason" not in [x["column"] for x in want["roles"].values()]
    assert facts(in_tasks(tmp_path / "in", tmp_path / "out", recipe)) == facts(want)
    same_files(tmp_path / "out", tmp_path / "local")


def test_rows_of_a_rollout_that_differ_are_named_as_in_one_process():
    table = steps_table().set_column(1, "step", [[f"{row % 20}" for row in range(60)]])
    rewards = pa.array([float(row == 41) for row in range(60)])
    table = table.set_column(3, "reward", [rewards])
    table = table.set_column(14, "trajectory", [[f"{row % 20}" for row in range(60)]])
    table = table.set_column(0, "prompt_id", [["p"] * 60])
    recipe = rlpost.Recipe(columns={"rollout": "trajectory"})
    with pytest.raises(DataError, match=r"row 1, has a reward of 0\.0, but"):
        rlpost.enrich(table, recipe)
    check(table, recipe, files=2)


@pytest.mark.parametrize(("slots", "begins"), [(1, [0, 6, 9]), (64, [*range(13)])])
def test_small_files_go_together(tmp_path, slots, begins):
    write_files(steps_table(240), tmp_path / "in", 12)
    pq.write_table(steps_table(600), tmp_path / "in" / "part-5.parquet")
    source = Source(find_inputs([tmp_path / "in"]))
    parts = parts_of(source, [file.path for file in source.files], slots)
    assert [file for part in parts for file in part.files] == source.files
    assert [part.first for part in parts] == [source.first_rows[part.number] for part in parts]
    assert sum(part.rows for part in parts) == source.rows
    assert [part.number for part in parts] == begins
