"""The table of estimators against what they do: columns they need, defaults, the divisor."""

import numpy as np
import pyarrow as pa
import pytest
from strategies import COMPONENTS, ESSENTIALS

import rlpost
from rlpost.errors import DataError
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.roles import ROLES

ROWS = 24
SCALED = (
    "reward", "reward_baseline", "step_score", "episode_score", "turn_reward", "values",
    *COMPONENTS,
)  # fmt: skip
BY_MEAN = {"max_rl"}
"""Estimators that divide by a mean reward."""
WITHOUT_REWARDS = {"opd"}
"""Estimators that read no reward."""


def lists(rng, lengths, low, high):
    return [rng.uniform(low, high, n).tolist() for n in lengths]


def table(name):
    """Two steps of three groups, each of two trajectories of two turns, in two domains."""
    rng = np.random.default_rng(1)
    row, lengths = np.arange(ROWS), rng.integers(1, 5, ROWS)
    columns = {
        "prompt_id": [f"p{n}" for n in row // 4],
        "step": row // 12,
        "domain": ["math" if n // 4 % 2 else "code" for n in row],
        "traj_id" if "rollout" in ESTIMATORS[name].roles else "trajectory": [
            f"t{n}" for n in row // 2
        ],
        "turn": row % 2,
        "state_id": [f"s{n}" for n in row % 2],
        "reward": rng.uniform(0.5, 2, ROWS),
        "reward_baseline": rng.uniform(0, 1, ROWS),
        "step_score": rng.uniform(0, 1, ROWS),
        "episode_score": np.repeat(rng.uniform(0, 1, ROWS // 2), 2),
        **{name: rng.uniform(0, 1, ROWS) for name in (*COMPONENTS, "turn_reward", "win_rate")},
        "hack": row % 8 == 7,
        "response_mask": [[1] * n for n in lengths],
        "values": lists(rng, lengths, -1, 1),
        "sum_pi_squared": lists(rng, lengths, 0, 1),
    }
    policies = ("old_log_probs", "ref_log_probs", "infer_log_probs", "log_probs", "teacher")
    return pa.table({**columns, **{name: lists(rng, lengths, -2, 0) for name in policies}})


def advantages(data, name, **options):
    own = {**ESSENTIALS.get(name, {}), "columns": {}, **options}
    own |= {"teachers": {"teacher": 1.0}} if name == "opd" else {}
    recipe = rlpost.Recipe(estimator=name, emit=("advantages",), **own)
    return rlpost.enrich(data, recipe)[0].column("advantages").combine_chunks().flatten().to_numpy()


def scaled(data, factor):
    for name in SCALED:
        column = data.column(name).combine_chunks()
        if pa.types.is_list(column.type):
            values = pa.array(column.flatten().to_numpy() * factor)
            column = pa.ListArray.from_arrays(column.offsets, values)
        else:
            column = pa.array(column.to_numpy() * factor)
        data = data.set_column(data.schema.get_field_index(name), name, column)
    return data


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_input_needs_the_roles_of_the_table_and_no_others(name):
    data, needed = table(name), set()
    for role, meaning in ROLES.items():
        column = next((one for one in meaning.aliases if one in data.column_names), None)
        if column is None or role == "mask":
            continue
        try:
            advantages(data.drop_columns(column), name)
        except DataError as error:
            assert f"no column for {role} (" in str(error)  # noqa: PT017
            needed.add(role)
    assert needed == {role for role in ESTIMATORS[name].roles if role in ROLES}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_defaults_of_the_table_are_what_an_estimator_does_without_the_options(name):
    data, one = table(name), ESTIMATORS[name]
    plain = advantages(data, name)
    for option, value in one.defaults.items():
        if one.normalises and option not in one.keywords and option != "whiten_advantages":
            continue  # its own functions normalise, and have no such choice
        np.testing.assert_array_equal(advantages(data, name, **{option: value}), plain)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scaled_rewards_scale_advantages_unless_the_table_has_a_divisor(name):
    data, one = table(name), ESTIMATORS[name]
    plain, larger = advantages(data, name), advantages(scaled(data, 4), name)
    assert np.abs(plain).max() > 0.01
    divides = one.defaults["norm_std"] != "none" or one.defaults["whiten_advantages"]
    divides = divides or one.over_batch is not None or name in BY_MEAN | WITHOUT_REWARDS
    np.testing.assert_allclose(larger, plain * (1 if divides else 4), rtol=1e-3, atol=1e-3)
