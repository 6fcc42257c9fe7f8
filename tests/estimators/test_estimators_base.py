"""What the table says of each estimator, and what it says of one's own."""

import math

import numpy as np
import pytest

import rlpost
from rlpost.estimators import ESTIMATORS, base, estimator_named


def double(xs):
    return np.array(xs, dtype=np.float64)


WHITENED = {"reinforce_pp", "reinforce_pp_baseline"}
OWN_RETURNS = {"gae", "turn_gae", "vtrace", "remax", "optimal_token_baseline"}
OF_GROUPS = {"gdpo", "gigpo", "mt_grpo"}
CONSTANT = {
    "reinforce", "grpo", "reinforce_pp", "gigpo", "step_reinforce", "agentic_reinforce", "mt_grpo",
    "turn_credit",
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_table_has_the_defaults_of_the_papers(name):
    one = ESTIMATORS[name]
    scope = "group" if name in {"grpo", "step_reinforce"} else "none"
    mean = "group" if name in OF_GROUPS else scope
    std = "group" if one.normalises else scope
    assert one.defaults == {
        "norm_mean": mean, "norm_std": std, "whiten_advantages": name in WHITENED,
    }  # fmt: skip
    assert (one.returns == "own") == (name in OWN_RETURNS)
    assert (one.returns == "whitened") == (name == "reinforce_pp_baseline")
    assert bool(one.over_batch) == (name == "gdpo")
    assert one.beyond_steps == (name == "rae")
    assert one.undiscounted_is_constant == (name in CONSTANT)
    assert one.normalises == (name in OF_GROUPS | {"grpo_passk"})


def test_a_mean_of_the_others_needs_groups():
    others = base.Estimator("mine", ESTIMATORS["raw"].function, "r", "", norm_std="others")
    assert others.roles == ("reward", "group")


def test_a_custom_function_becomes_an_estimator():
    def mine(rewards):
        """Twice the reward.

        More of it.
        """
        return 2 * rewards

    found = base.as_estimator(mine, "mine", "here")
    assert (found.name, found.formula, found.source) == ("mine", "Twice the reward.", "here")
    assert (found.returns, found.beyond_steps) == ("own", True)
    knobs = rlpost.Recipe()
    credit = found({"rewards": double([1.0])}, None, knobs)
    assert (credit.advantages.tolist(), credit.returns.tolist()) == ([2.0], [2.0])
    nan = found({"rewards": double([1.0, math.nan])}, None, knobs)
    with pytest.raises(rlpost.errors.DataError, match=r"estimator mine .* 1 of 2 responses"):
        found.check_finite(nan)
    found.check_finite(nan, lambda: np.array([True, False]))


def test_the_error_of_a_custom_function_names_the_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def deep(x):\n    return x / (1 // 0)\n\n\ndef f(rewards):\n    return deep(1)\n"
    )
    found = estimator_named(f"{path}:f")
    with pytest.raises(rlpost.errors.UsageError, match=r"mine\.py:f, line 2: ZeroDivisionError: "):
        found({"rewards": double([1.0])}, None, rlpost.Recipe())


def test_a_folder_or_a_file_that_is_not_python_is_an_error(tmp_path):
    (tmp_path / "mine.txt").write_text("")
    (tmp_path / "folder.py").mkdir()
    for name in ("mine.txt", "folder.py"):
        with pytest.raises(rlpost.errors.UsageError, match="there is no such Python file"):
            estimator_named(f"{tmp_path / name}:f")
