"""The search finds the recipe of files that the frameworks' own code recorded."""

import numpy as np
import pyarrow as pa
import pytest
from golden_cases import CASES
from golden_rules import runs_of
from golden_runs import Run
from replay_runs import rollouts_of as rollouts_in
from test_golden import defect_of

from rlpost import Recipe, enrich
from rlpost.analysis.replay.candidates import base_recipe
from rlpost.analysis.replay.search import search
from rlpost.analysis.replay.stages import STAGES
from rlpost.recipe.presets import PRESETS

FRAMEWORKS = {name.replace("-", ""): name for name in PRESETS}
FRAMEWORKS["nemo"] = "nemo-rl"


def entries():
    """Entries with advantages, and the run that gives their numbers."""
    for entry in CASES.entries:
        if not entry["expected"] or defect_of(entry):
            continue
        runs = runs_of(entry, CASES.table(entry["input"]))
        for run in runs if isinstance(runs, list) else []:
            if isinstance(run, Run) and "advantages" in run.columns.values():
                yield entry, run


def recorded(entry, run) -> pa.Table:
    """The input with the framework's numbers as recorded columns."""
    table, expected = run.prepare(CASES.table(entry["input"])), CASES.expected(entry)
    drop = [name for name in table.column_names if name in STAGES]
    table = table.drop_columns(drop)
    for name, stage in run.columns.items():
        if name not in expected or stage in table.column_names:
            continue
        column = expected[name]
        if column.level == "tokens":
            array = pa.array(column.rows, pa.list_(pa.float32()))
        else:
            flat = np.array([np.nan if row is None else row[0] for row in column.rows])
            array = pa.array(flat, pa.float32(), from_pandas=True)
        table = table.append_column(stage, array)
    return table


def read(table):
    return rollouts_in(table)


def searched(entry, run, **options):
    return search(read(recorded(entry, run)), tolerance=1e-4, **options)


def verdict(entry, run, found) -> str:
    """right: the framework and its estimator; same: with the same numbers; else other, or wrong."""
    framework = FRAMEWORKS[entry["peer"]]
    named = [found.facts["best"], *found.facts["same_numbers"]]
    if not found.facts["reproduces"]:
        return "wrong"
    names = [entry["config"].get(key) for key in ("adv_estimator", "advantage_estimator")]
    estimators = {run.recipe.estimator, run.recipe.estimator_name, *names}

    def right(which) -> bool:
        name = base_recipe(which["preset"], which["estimator"]).estimator
        return which["preset"] == framework and bool({which["estimator"], name} & estimators)

    if right(named[0]):
        return "right"
    return "same" if any(map(right, named[1:])) else "other"


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
        (entry, run)
        for entry, run in entries()
        if entry["peer"] == peer
        and what in entry["what"]
        and estimator in (run.recipe.estimator_name, run.recipe.estimator)
    )


@pytest.mark.parametrize(("peer", "estimator", "what"), CHOSEN)
def test_the_framework_is_found(peer, estimator, what):
    entry, run = entry_of(peer, estimator, what)
    found = searched(entry, run)
    assert verdict(entry, run, found) in GOOD, found.candidate.named
    assert found.facts["share_equal"] == 1.0
    assert Recipe.of(found.candidate.recipe.model_dump()) == found.candidate.recipe


def rollouts_of(recipe: Recipe):
    """Rollouts with the numbers that a recipe computes for the rows of run of the inputs."""
    entry, run = entry_of("verl", "gae", "gae_g1.0_l1.0")
    table = recorded(entry, run).drop_columns(["advantages", "returns", "token_level_rewards"])
    written, _ = enrich(table, recipe.model_copy(update={"unit": "row"}))
    for name in ("advantages", "returns"):
        table = table.append_column(name, pa.chunked_array(written[name]))
    return read(table)


@pytest.mark.nightly
def test_numbers_of_a_recipe_are_solved():
    """γ, λ and β come from the recorded numbers; none of them is in a list of values."""
    recipe = Recipe(estimator="gae", gamma=0.973, lam=0.88, kl_coef=0.037, kl_estimator="k2")
    given = {"estimator": "gae", "kl_estimator": "k2"}
    found = search(rollouts_of(recipe), tolerance=1e-4, given=given)
    assert found.facts["reproduces"]
    came = found.candidate.recipe
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
    """All presets' ε are within the tolerance; the recorded run is the nearest."""
    epsilon = 1e-9
    recipe = Recipe(estimator="grpo", numerics={"norm_eps": epsilon, "single": "raw"})
    found = search(rollouts_of(recipe), tolerance=1e-4)
    assert found.facts["reproduces"]
    assert found.candidate.recipe.numerics.norm_eps == epsilon, found.candidate.named


@pytest.mark.parametrize("framework", ["roll", pytest.param("slime", marks=pytest.mark.nightly)])
def test_of_equally_small_recipes_that_of_the_framework_is_named(framework):
    found = searched(*entry_of("verl", "opo", "adv_opo"), framework=framework)
    assert found.facts["reproduces"]
    assert found.facts["best"]["preset"] == framework, found.facts["same_numbers"]
