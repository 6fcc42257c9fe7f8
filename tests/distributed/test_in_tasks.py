"""Runs in tasks leave the files of a run in one process."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed_runs import LOCAL, check, in_tasks, same_files, steps_table, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import recipes, rollouts, to_table

import rlpost
from rlpost.errors import ReadWriteError
from rlpost.estimators import ESTIMATORS
from rlpost.pipeline.run import check_findings

pytestmark = pytest.mark.nightly


def spread_over(rows, steps):
    """The rows with these many steps, all mixed up."""
    order = np.random.default_rng(len(rows)).permutation(len(rows))
    mixed = [rows[place] for place in order]
    return [replace(row, batch=place % steps) for place, row in enumerate(mixed)]


@settings(max_examples=25)
@given(rollouts(), recipes(tuple(ESTIMATORS)), st.integers(1, 4), st.data())
def test_tasks_leave_the_bytes_of_a_run_in_one_process(rows, options, files, data):
    if data.draw(st.booleans()):
        rows = spread_over(rows, data.draw(st.integers(2, 5)))
    check(to_table(rows), rlpost.Recipe(**options), files)


@pytest.mark.parametrize("name", ["sample_mask", "loss_multiplier"])
@pytest.mark.parametrize("options", [{}, {"drop_equal_rewards": True, "replace": True}], ids=str)
def test_a_sample_mask_of_the_input_gives_the_same(name, options):
    mask = pa.array([float(i % 3 > 0) for i in range(60)])
    table = steps_table().append_column(name, mask)
    check(table, rlpost.Recipe(**options), files=2)
    computed = table.replace_schema_metadata({"rlpost.sample_mask": "computed"})
    check(computed, rlpost.Recipe(replace=True), files=2)
    nothing = table.set_column(table.num_columns - 1, name, pa.array([0] * 60))
    check(nothing, rlpost.Recipe(**options), files=2)


def test_the_state_is_that_of_a_local_run(tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    norms = {"norm_mean": "running", "norm_std": "running"}
    kl = {"kl_coef": 0.2, "kl_target": (0.01, 50)}
    recipe = rlpost.Recipe(estimator="gae", whiten_advantages=True, **norms, **kl)  # settles twice
    for name in ("local", "tasks"):
        (tmp_path / f"{name}.json").write_text(
            '{"version": 1, "semantics": 1, '
            '"running": {"math": {"count": 5, "mean": 0.5, "variance": 0.25}}}'
        )
    options = {n: replace(LOCAL, state=tmp_path / f"{n}.json") for n in ("local", "tasks")}
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, options["local"])
    in_tasks(tmp_path / "in", tmp_path / "tasks", recipe, options["tasks"])
    assert (tmp_path / "tasks.json").read_text() == (tmp_path / "local.json").read_text()
    assert json.loads((tmp_path / "tasks.json").read_text())["kl_coef"] != 0.2
    same_files(tmp_path / "tasks", tmp_path / "local")


@pytest.mark.parametrize("harm", ["touch", "remove"])
def test_an_input_that_changes_is_noticed_before_publishing(tmp_path, monkeypatch, harm):
    write_files(steps_table(), tmp_path / "in", 3)
    path = tmp_path / "in" / "part-0.parquet"

    def late(*arguments):
        if harm == "remove":
            path.unlink()
        else:
            pq.write_table(pq.read_table(path), path)
        return check_findings(*arguments)

    monkeypatch.setattr("rlpost.pipeline.run.check_findings", late)
    with pytest.raises(ReadWriteError, match="was changed or removed during the run"):
        in_tasks(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
