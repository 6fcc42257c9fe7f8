"""An agentic run in tasks: what concerns several rows is the same, wherever those rows are."""

import pyarrow as pa
import pytest
from agentic_run import agentic_run
from distributed_runs import check

import rlpost

pytestmark = pytest.mark.nightly

OF_ROLLOUTS = {
    "grpo": {},
    "zero": {"failures": "zero"},
    "gae": {"estimator": "gae", "scan": "rollout", "bootstrap": "column"},
    "returns": {"estimator": "agentic_reinforce", "scan": "rollout", "rollout_reward": "last"},
    "mt_grpo": {"estimator": "mt_grpo"},
    "turn_credit": {"estimator": "turn_credit", "attempts": "newest"},
}
OF_ROWS = {
    "dropped": {"failures": "drop", "attempts": "newest"},
    "zero": {"failures": "zero", "drop_equal_rewards": True},
    "kept": {"failures": "keep", "norm_std": "batch"},
    "bootstrap": {"estimator": "gae", "bootstrap": "column"},
}


@pytest.fixture(scope="module")
def run():
    return agentic_run(steps=3, prompts=2, samples=4, restart=1, duplicates=0).table


@pytest.mark.parametrize("options", OF_ROLLOUTS.values(), ids=OF_ROLLOUTS)
def test_rows_of_a_rollout_in_several_files(run, options):
    recipe = rlpost.Recipe(unit="rollout", **options)
    assert rlpost.enrich(run, recipe)[1]["responses"] == run.num_rows
    check(run, recipe, files=3)


@pytest.mark.parametrize("options", OF_ROWS.values(), ids=OF_ROWS)
def test_labels_of_several_files(run, options):
    recipe, failed = rlpost.Recipe(**options), run["failure"].is_valid().to_pylist()
    reasons = [f"error {place % 8}" if one else None for place, one in enumerate(failed)]
    rows = run.drop_columns(["rollout_id", "failure"]).append_column("failure", pa.array(reasons))
    assert rlpost.enrich(rows, recipe)[1]["failures"]["reasons"]
    check(rows, recipe, files=3)
