"""Estimators of users' own: a function in a file, or an entry point."""

from importlib.metadata import EntryPoint
from pathlib import Path
from unittest import mock

import pytest
from estimator_rows import close, responses, written
from runs import run
from strategies import to_table

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.estimators import estimator_named

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"
SOURCE = '''
def centred(rewards, offsets, *, gamma=1.0, norm_eps=0.5):
    """2(r - mean of the batch)"""
    return 2 * gamma * (rewards - rewards.mean())


def returns(token_rewards, values, offsets):
    return token_rewards - values, values


def wrong(reward_s):
    return reward_s


def sharp(rewards, offsets, *, gama=1.0):
    return gama * rewards


def own_groups(rewards, group):
    return rewards - rewards.mean()


def unfinished(
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE.removesuffix("def unfinished(\n"))
    return path


def test_a_function_in_a_file_is_an_estimator(file):
    advantages, returns = written(responses([1.0, 3.0]), f"{file}:centred")
    close(advantages, [-2] * 3 + [2] * 3)
    close(returns, advantages)


def test_a_function_of_tokens_may_return_its_own_returns(file):
    advantages, returns = written(responses([2.0]), f"{file}:returns")
    close(advantages, [-0.5, -0.5, 1.5])
    close(returns, [0.5] * 3)


def test_a_custom_estimator_needs_its_columns_and_has_its_first_line_as_formula(file):
    estimator = estimator_named(f"{file}:centred")
    assert (estimator.columns, estimator.level) == (("rewards",), "response")
    assert estimator.formula == "2(r - mean of the batch)"
    assert estimator.source == str(file)
    table = to_table(responses([1.0]), without=("values",))
    with pytest.raises(rlpost.errors.DataError, match="values"):
        rlpost.enrich(table, rlpost.Recipe(estimator=f"{file}:returns"))


def test_a_misspelt_function_or_column_names_close_ones(file):
    with pytest.raises(UsageError, match=r"has no 'centrd'; did you mean centred\?"):
        estimator_named(f"{file}:centrd")
    with pytest.raises(DataError, match="no column 'reward_s'; did you mean rewards"):
        written(responses([1.0]), f"{file}:wrong")


def test_an_estimator_that_compares_rows_itself_rejects_rollout_id(file):
    table = to_table(responses([1.0, 3.0])).append_column("fork", [["a", "a"]])
    for name in (f"{file}:own_groups", "rae", "gigpo", "hierarchical_grpo"):
        columns = dict.fromkeys(("step_score", "episode_score", "turn"), "reward")
        columns |= dict.fromkeys(("rollout", "state_id", "domain", "group"), "fork")
        recipe = rlpost.Recipe(estimator=name, unit="rollout", columns=columns)
        with pytest.raises(UsageError, match=r"--unit rollout: estimator .* compares rows itself"):
            rlpost.enrich(table, recipe)


def test_a_file_that_is_missing_or_cannot_be_imported_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no such Python file"):
        estimator_named(f"{tmp_path / 'none.py'}:f")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    with pytest.raises(UsageError, match="cannot be imported: SyntaxError"):
        estimator_named(f"{path}:centred")


def test_an_entry_point_is_found_by_name_and_listed():
    point = EntryPoint("theirs", "rlpost.estimators.groups:raw", "rlpost.estimators")
    with mock.patch("rlpost.recipe.estimators.entry_points", return_value=[point]):
        assert written(responses([2.0]), "theirs")[0].tolist() == [2.0] * 3
        assert "\ntheirs " in run("list", "estimators").out
        with pytest.raises(UsageError, match="did you mean theirs"):
            estimator_named("their")
