"""Estimators by agent role, against the same rows of each role alone."""

import numpy as np
import pyarrow as pa
import pytest

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline import run
from rlpost.pipeline.coupling import coupling_of

ROLES = ("solver", "judge", "planner")


def table(seed=1, count=48):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, count)
    return pa.table(
        {
            "prompt_id": [f"p{i % 4}" for i in range(count)],
            "step": np.arange(count) // 24,
            "agent_role": [ROLES[n] for n in rng.integers(0, 3, count)],
            "reward": rng.choice([0.0, 0.5, 1.0], count),
            "response_mask": [[1] * n for n in lengths],
        }
    )


def advantages(data, **options):
    return rlpost.enrich(data, rlpost.Recipe(**options))[0]["advantages"].to_pylist()


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("grpo", "raw", {}),
        ("rloo", "reinforce_pp_baseline", {}),
        ("max_rl", "rae", {"advantage_clip": 0.4}),
        ("dr_grpo", "grpo", {"whiten_advantages": True, "mask_before_norm": True}),
    ],
)
def test_each_role_has_the_numbers_of_its_rows_alone(first, second, options):
    data = table()
    roles = np.array(data["agent_role"].to_pylist())
    both = advantages(data, estimator=first, estimator_for={"judge": second}, **options)
    for role in ROLES:
        rows = np.flatnonzero(roles == role)
        name = second if role == "judge" else first
        assert advantages(data.take(rows), estimator=name, **options) == [both[i] for i in rows]


@pytest.mark.parametrize("options", [{}, {"rollout_reward": "last"}, {"whiten_advantages": True}])
@pytest.mark.parametrize("first", ["grpo", "dr_grpo"])
def test_the_rows_of_a_rollout_are_one_unit_for_each_role(first, options):
    """Roles of one rollout have rewards of their own, and count once in their groups."""
    data = table(seed=3)
    count = data.num_rows
    names = [f"r{i // 5}" for i in range(count)]
    roles = data["agent_role"].to_pylist()
    rewards = [len(name + role) % 3 / 2 for name, role in zip(names, roles, strict=True)]
    data = data.set_column(0, "prompt_id", pa.array([f"p{i // 15}" for i in range(count)]))
    data = data.set_column(1, "step", pa.array([i // 15 // 2 for i in range(count)]))
    data = data.set_column(3, "reward", pa.array(rewards)).append_column("id", pa.array(names))
    options = options | {"columns": {"rollout": "id"}}
    both = advantages(data, estimator=first, estimator_for={"judge": "rloo"}, **options)
    for role in ROLES:
        rows = np.flatnonzero(np.array(roles) == role)
        name = "rloo" if role == "judge" else first
        assert advantages(data.take(rows), estimator=name, **options) == [both[i] for i in rows]


def test_estimators_of_roles_are_those_of_rllm():
    """rLLM, trainer/algorithms/advantage.py: `estimator_map` by role, groups of a task and role.

    REINFORCE gives the reward, RLOO the reward minus the mean of the others of the group, GRPO
    without the deviation the reward minus the group's mean.
    """
    data = table()
    rewards, want = data["reward"].to_pylist(), []
    keys = keys_of(data)
    for i, key in enumerate(keys):
        others = [rewards[j] for j, other in enumerate(keys) if other == key and j != i]
        solver = {"solver": rewards[i], "judge": rewards[i] - np.mean(others or [rewards[i]])}
        own = rewards[i] - np.mean([*others, rewards[i]])
        want.append(solver.get(key[2], own))
    recipe = rlpost.Recipe(
        estimator="dr_grpo",
        estimator_for={"solver": "raw", "judge": "rloo"},
        emit=("response_advantage",),
    )
    found = rlpost.enrich(data, recipe)[0]["response_advantage"].to_numpy()
    np.testing.assert_allclose(found, want, atol=1e-6)


def keys_of(data):
    """The batch, the prompt and the agent role of each row."""
    columns = (data[name].to_pylist() for name in ("step", "prompt_id", "agent_role"))
    return list(zip(*columns, strict=True))


def test_groups_are_those_of_a_role():
    data = table()
    names = ("group_mean", "group_size")
    recipe = rlpost.Recipe(estimator="grpo", estimator_for={"judge": "raw"}, emit=names)
    found = rlpost.enrich(data, recipe)[0]
    keys, rewards = keys_of(data), data["reward"].to_pylist()
    for i, key in enumerate(keys):
        own = [r for r, other in zip(rewards, keys, strict=True) if other == key]
        assert found["group_size"][i].as_py() == len(own)
        assert found["group_mean"][i].as_py() == pytest.approx(np.mean(own), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"estimator": "grpo", "estimator_for": {"judge": "gae"}}, "estimator gae"),
        ({"estimator": "grpo", "estimator_for": {"judge": "raw"}, "gamma": 0.9}, "grpo"),
        (
            {"estimator": "raw", "estimator_for": {"judge": "rloo"}, "norm_mean": "running"},
            "running",
        ),
    ],
)
def test_roles_need_one_advantage_per_response(options, says):
    data = table().append_column("values", table()["response_mask"])
    with pytest.raises(UsageError, match=f"--estimator-for.*{says}"):
        advantages(data, **options)


def test_an_estimator_of_no_name_and_an_input_without_roles_are_errors():
    with pytest.raises(UsageError, match="did you mean grpo"):
        rlpost.Recipe(estimator_for={"judge": "gpro"})
    with pytest.raises(DataError, match="agent_role"):
        advantages(table().drop_columns("agent_role"), estimator_for={"judge": "raw"})


def test_a_role_that_no_row_has_is_an_error_with_the_closest():
    with pytest.raises(DataError, match=r"--estimator-for.*did you mean judge"):
        advantages(table(), estimator_for={"jugde": "raw"})


def test_the_summary_has_the_formula_of_each_role():
    recipe = rlpost.Recipe(estimator="raw", estimator_for={"judge": "grpo", "solver": "rloo"})
    words = rlpost.enrich(table(), recipe)[1]["computes"]
    assert words["advantages"].startswith("raw")
    assert words["agent role judge"].startswith("grpo")
    assert words["agent role judge"].count("group std") == 1
    assert words["agent role solver"].startswith("rloo")


def test_the_widest_coupling_of_a_role_is_that_of_the_recipe():
    def scope(**options):
        return coupling_of(run.bind(TableSource(table()), rlpost.Recipe(**options)).resolved).scope

    assert scope(estimator="raw", estimator_for={"judge": "rloo"}) == "group"
    assert scope(estimator="rloo", estimator_for={"judge": "reinforce_pp"}) == "batch"
    assert scope(estimator="rloo", estimator_for={"judge": "rae"}) == "run"
