"""The search for a recipe: its table of fields, equal recipes, and numbers that it solves."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from replay_runs import rollouts_of, searched

from rlpost import Recipe, enrich, replay
from rlpost.analysis.replay.candidates import nested, value_of
from rlpost.analysis.replay.search import GRID, SOLVED, single_changes
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import merged, values_of

RESPONSES, GROUP = 32, 4
SAMPLE = Path(__file__).parents[3] / "sample_data" / "arithmetic.parquet"


def table(*, outlier=0.0):
    """Responses with log-probs of a teacher; one differs from the policy by `outlier`."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 9, RESPONSES)
    old = [-rng.exponential(1, n) for n in lengths]
    teacher = [one - rng.normal(0, 0.3, len(one)) for one in old]
    teacher[5][1] = old[5][1] - outlier
    lists = pa.list_(pa.float32())
    return pa.table(
        {
            "prompt_id": np.arange(RESPONSES) // GROUP,
            "reward": rng.random(RESPONSES).round(1).astype(np.float32),
            "response_mask": pa.array([[1] * n for n in lengths], pa.list_(pa.uint8())),
            "old_log_probs": pa.array(old, lists),
            "teacher_log_probs": pa.array(teacher, lists),
        }
    )


@pytest.mark.parametrize("name", GRID)
def test_values_of_the_grid_are_values_of_their_field(name):
    for value in GRID[name]:
        more = {"kl_coef": 0.1} if name == "kl_estimator" else {}
        assert value_of(Recipe.of(merged(more, nested({name: value}))), name) == value


@pytest.mark.parametrize("name", {**GRID, **SOLVED})
def test_names_of_the_search_are_fields_or_options_of_an_estimator(name):
    table, _, key = name.rpartition(".")
    options = {key for estimator in ESTIMATORS.values() for key in estimator.options}
    names = {"": Recipe.model_fields, "numerics": Numerics.model_fields, "options": options}
    assert key in names[table]


def test_changes_are_values_that_a_recipe_can_have_and_has_not():
    recipe, rollouts = Recipe(estimator="gae", reward_clip=5), rollouts_of(enrich(table())[0])
    tried = [*single_changes(recipe, rollouts, frozenset(GRID))]
    assert len(tried) > len(GRID)
    for changes in tried:
        assert any(value_of(recipe, name) != value for name, value in changes.items())
    assert {"reward_clip": None} in tried


def test_recipes_that_bound_log_ratios_differently_have_other_numbers():
    """The log ratio of one token is 60: the default bounds it by 40, some presets do not."""
    teachers = {"teacher_log_probs": 1.0}
    recipe = Recipe(estimator="opd", teachers=teachers)
    result, found = searched(table(outlier=60.0), recipe, teachers=teachers)
    assert result.reproduced
    assert found.numerics.log_ratio_clamp == ("all", 40.0)
    assert "nemo-rl" not in [recipe["preset"] for recipe in result.search["same_numbers"]]


@pytest.mark.parametrize("estimator", ["grpo", "grpo_passk"])
def test_an_epsilon_is_solved(estimator):
    recipe = Recipe(estimator=estimator, numerics={"norm_eps": 0.013})
    result, found = searched(table(), recipe, estimator=estimator)
    assert result.reproduced
    assert math.isclose(found.numerics.norm_eps, 0.013, rel_tol=0.05)


def test_a_kl_penalty_before_the_normalisation_is_solved():
    """In groups of equal rewards, advantages depend on the shares of KL alone, not on its size."""
    recipe = Recipe.of(merged(values_of("verl"), {"kl_coef": 0.05}))
    result, found = searched(pq.read_table(SAMPLE), recipe)
    assert result.reproduced
    assert math.isclose(found.kl_coef, 0.05, rel_tol=0.05)
    assert found.numerics.kl_credit == "response"


def test_rlposts_own_options_come_before_a_preset_with_as_many_changes():
    result, _ = searched(table(), Recipe(estimator="reinforce", gamma=0.9))
    assert result.search["best"]["preset"] == "default"
    assert 1 in [len(recipe["changes"]) for recipe in result.search["same_numbers"]]


def turns():
    """Rollouts of one to four rows; all rows of a rollout have its reward."""
    rng, rows = np.random.default_rng(0), []
    for group in range(8):
        for rollout in range(4):
            reward, count = rng.integers(0, 5) / 4, int(rng.integers(1, 5))
            rows += [(group, f"{group}-{rollout}", reward)] * count
    groups, ids, rewards = zip(*rows, strict=True)
    mask = pa.array([[1] * int(n) for n in rng.integers(3, 8, len(rows))], pa.list_(pa.uint8()))
    columns = {"prompt_id": groups, "rollout_id": ids, "reward": rewards}
    return pa.table(columns).append_column("response_mask", mask)


def test_a_trainer_that_counts_turns_as_responses_is_found_and_named():
    of_rows, of_rollouts = Recipe(unit="row"), Recipe()
    for true, other in ((of_rows, of_rollouts), (of_rollouts, of_rows)):
        result, found = searched(turns(), true, estimator=true.estimator)
        assert (result.reproduced, found.unit) == (True, true.unit)
        recorded = enrich(turns(), true)[0]
        (finding,) = replay(recorded, other).findings
        assert finding["check"] == "option:unit"
        assert f"--unit {true.unit or 'rollout'}" in finding["text"].partition("in place of")[0]


def test_a_recipe_whose_first_stage_differs_is_found_by_its_later_ones():
    """A preset has equal rewards and another KL; the recipe is one change from the default."""
    recipe = Recipe(estimator="grpo", numerics={"norm_ddof": 0})
    emit = ("response_level_rewards", "kl", "advantages")
    result, found = searched(
        pq.read_table(SAMPLE).slice(0, 64), recipe.model_copy(update={"emit": emit})
    )
    assert (result.reproduced, found.numerics.norm_ddof) == (True, 0)
