"""The search finds the recipe of files that the frameworks' own code recorded.

`golden_search.py` prints the table of all entries; here is an entry of every framework.
"""

import numpy as np
import pyarrow as pa
import pytest
from golden_search import entries, recorded, searched, verdict

from rlpost import Recipe, enrich
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.rollouts import RolloutReader
from rlpost.analysis.replay.search import search
from rlpost.io.parquet.source import TableSource

# The framework's name among the cases, the estimator, a part of the entry's name.
SHORT = [("trl", "grpo", "adv"), ("primerl", "max_rl", "adv")]
LONG = [
    ("verl", "gae", "gae_g1.0_l1.0"),
    ("openrlhf", "dr_grpo", "adv"),
    ("nemo", "grpo", "adv"),
    ("slime", "grpo", "adv"),
    ("openinstruct", "grpo_standard", "adv"),
    ("roll", "gigpo", "gigpo_mean_std_g1.0"),
]
CHOSEN = [*SHORT, *(pytest.param(*case, marks=pytest.mark.nightly) for case in LONG)]
GOOD = ("right", "same")


def entry_of(peer, estimator, what):
    return next(
        (entry, one)
        for entry, one in entries()
        if entry["peer"] == peer
        and what in entry["what"]
        and estimator in (one.recipe.estimator_name, one.recipe.estimator)
    )


@pytest.mark.parametrize(("peer", "estimator", "what"), CHOSEN)
def test_the_framework_is_found(peer, estimator, what):
    entry, one = entry_of(peer, estimator, what)
    found = searched(entry, one)
    assert verdict(entry, one, found) in GOOD, found.named
    assert found.facts["share_equal"] == 1.0
    assert Recipe.of(found.recipe.model_dump()) == found.recipe


def rollouts_of(recipe: Recipe):
    """Rollouts with the numbers that a recipe computes for the rows of one of the inputs."""
    entry, one = entry_of("verl", "gae", "gae_g1.0_l1.0")
    table = recorded(entry, one).drop_columns(["advantages", "returns", "token_level_rewards"])
    written, _ = enrich(table, recipe.model_copy(update={"unit": "row"}))
    for name in ("advantages", "returns"):
        table = table.append_column(name, pa.chunked_array(written[name]))
    return RolloutReader.of(TableSource(table), NamedColumns.of({}), None, 4_000_000).rollouts(0)


@pytest.mark.nightly
def test_numbers_of_a_recipe_are_solved():
    """γ, λ and β come from the recorded numbers; none of them is in a list of values."""
    recipe = Recipe(estimator="gae", gamma=0.973, lam=0.88, kl_coef=0.037, kl_estimator="k2")
    given = {"estimator": "gae", "kl_estimator": "k2"}
    found = search(rollouts_of(recipe), tolerance=1e-4, given=given)
    assert found.facts["reproduces"]
    came = found.recipe
    assert np.allclose([came.gamma, came.lam, came.kl_coef], [0.973, 0.88, 0.037], rtol=1e-2)


def test_fields_that_were_typed_stay(monkeypatch):
    monkeypatch.setattr("rlpost.analysis.replay.search.RECIPES", 1)  # no other neighbours
    recipe = Recipe(estimator="reinforce", gamma=0.9)
    rollouts = rollouts_of(recipe)
    found = search(rollouts, tolerance=1e-4, given={"estimator": "max_rl", "kl_coef": 0.0})
    assert found.facts["best"]["estimator"] == "max_rl"
    assert not found.facts["reproduces"]


@pytest.mark.nightly
def test_the_most_exact_recipe_comes_first():
    """All presets' ε are within the tolerance; the recorded one is the nearest."""
    epsilon = 1e-9
    recipe = Recipe(estimator="grpo", numerics={"norm_eps": epsilon, "single": "raw"})
    found = search(rollouts_of(recipe), tolerance=1e-4)
    assert found.facts["reproduces"]
    assert found.recipe.numerics.norm_eps == epsilon, found.named


@pytest.mark.parametrize("framework", ["roll", pytest.param("slime", marks=pytest.mark.nightly)])
def test_of_equally_small_recipes_that_of_the_framework_is_named(framework):
    found = searched(*entry_of("verl", "opo", "adv_opo"), framework=framework)
    assert found.facts["reproduces"]
    assert found.facts["best"]["preset"] == framework, found.facts["same_numbers"]
