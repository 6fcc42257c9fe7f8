"""Replays of what verl recorded by the function of the manual, and of completions of TRL."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from peers import trl_cases as trl
from peers import verl_cases as verl
from peers.comparison import quiet
from peers.peer_rollouts import rollouts

import rlpost
from rlpost.analysis.replay.candidates import base_recipe

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(rlpost.__file__).parent / "manual" / "replay.md"
STEPS = 3
VERL = [
    ("gae", {}, ("k1", 0.01), "--kl-coef 0.01"),
    ("grpo", {}, None, ""),
    ("reinforce_plus_plus", {"gamma": 0.9}, None, "--gamma 0.9"),
    ("remax", {}, None, ""),
    ("rloo", {}, None, ""),
    ("optimal_token_baseline", {}, None, ""),
]
"""Estimators, options of AlgoConfig, the KL penalty, and options that the search must find."""


def cases(package, of):
    skip = pytest.mark.skipif(not find_spec(package), reason=f"{package} is not installed")
    return [pytest.param(*one, id=f"{package}-{one[0]}", marks=skip) for one in of]


def recorder():
    """The module that the manual prints."""
    found = re.search(r"```py\n(# record_verl\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names = {}
    exec(found[1], names)  # noqa: S102 - the code of our own page
    return names


def recorded(folder, estimator, config, kl):
    """Batches of verl's trainer, each in the file that the manual's function writes."""
    module = recorder()
    module["COMPONENTS"][:] = verl.COMPONENTS if estimator == "gdpo" else []
    for number in range(STEPS):
        turns = estimator != "optimal_token_baseline"  # verl's own fault, see rlpost's cases
        step = verl.VerlStep(estimator, rollouts(number, turns=turns), config=config, kl=kl)
        with quiet():
            batch = verl.their_batch(step)
        module["record"](batch, number, folder / f"{number}.parquet")
    return folder


def named(found, framework):
    """Return (estimator of rlpost, options) of the recipes found that are the framework's."""
    recipes = [found.search["best"], *found.search["same_numbers"]]
    return [
        (base_recipe(one["preset"], one["estimator"]).estimator, one["named"])
        for one in recipes
        if one["preset"] == framework
    ]


@pytest.mark.parametrize(("estimator", "config", "kl", "options"), cases("verl", VERL))
def test_what_verl_recorded_is_found(estimator, config, kl, options, tmp_path):
    found = rlpost.replay(recorded(tmp_path, estimator, config, kl))
    assert found.reproduced, found.search["best"]
    right = base_recipe("verl", estimator).estimator
    assert any(name == right and options in text for name, text in named(found, "verl"))


@pytest.mark.parametrize("estimator", cases("verl", [("gdpo",)]))
def test_token_rewards_beside_components_are_those_of_the_reward(estimator, tmp_path):
    recipe = rlpost.preset("verl", estimator=estimator, reward_components=verl.COMPONENTS)
    found = rlpost.replay(recorded(tmp_path, estimator, {}, None), recipe)
    assert found.reproduced
    assert {one["stage"] for one in found.stages} == {
        "token_level_rewards", "returns", "advantages"
    }  # fmt: skip


TRL = [
    ("group", {}, {}),
    ("batch", {}, {"norm_std": "batch"}),
    ("weights", {"reward_weights": (2.0, 0.5)}, {"component_weights": (2.0, 0.5)}),
    ("apart", {"multi_objective_aggregation": "normalize_then_sum"}, {"estimator": "gdpo"}),
]
"""Names, options of GRPOConfig, and options of rlpost."""


@pytest.mark.parametrize(("name", "config", "options"), cases("trl", TRL))
def test_completions_of_trl_are_replayed(name, config, options, tmp_path):
    """Those of one reward function are found without a preset, too."""
    functions = 1 if name in ("group", "batch") else 2
    scale = {"scale_rewards": name} if functions == 1 else {}
    logs = {"output_dir": str(tmp_path), "log_completions": True, "logging_strategy": "steps"}
    several = {"reward_components": trl.COMPONENTS} if functions == 2 else {}
    with quiet():
        trl._step("GRPO", functions, options=tuple({**config, **scale, **logs}.items()))
    recipe = rlpost.preset("trl", **{"estimator": "grpo", **several, **options})
    assert rlpost.replay(tmp_path / "completions", recipe).reproduced
    if functions == 1:
        found = rlpost.replay(tmp_path / "completions")
        assert found.reproduced
        assert named(found, "trl")
