"""Recipe: defaults, where its values come from, what it refuses, and how it is kept."""

from __future__ import annotations

import math

import pytest
from runs import run

from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.recipe import Recipe


def test_a_reward_of_rollouts_needs_that_rollouts_count():
    words = ("--rollout-reward", "sum", "--unit", "row")
    code, _, err = run("advantages", "in.parquet", "out.parquet", *words)
    assert code == 2
    assert err.startswith("error: --rollout-reward has no effect")
    assert Recipe(rollout_reward="sum").unit is None  # as presets have it


# Keeping


@pytest.mark.parametrize(("name", "means"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")])
def test_kl_estimators_have_synonyms_of_other_frameworks(name, means):
    assert Recipe.of({"kl_estimator": name}).kl_estimator == means
    with_flag = run("advantages", "missing.parquet", "o", "--kl-estimator", name)
    assert with_flag.code == 4


# Refusing


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"gama": 1}, ["no option 'gama'", "did you mean", "gamma"]),
        ({"clip": 1}, ["no option 'clip'"]),
        ({"numerics": {"nrm_eps": 1}}, ["no option 'numerics.nrm_eps'", "norm_eps"]),
        ({"gamma": 2}, ["gamma is 2: must be less than or equal to 1"]),
        ({"gamma": math.nan}, ["gamma is nan"]),
        ({"drop_difficulty": "nan:1"}, ["drop_difficulty is 'nan:1'", "LOW:HIGH"]),
        ({"drop_difficulty": (0.9, 0.5)}, ["drop_difficulty is (0.9, 0.5)", "LOW under HIGH"]),
        ({"kl_coef": -1}, ["kl_coef is -1: must be greater than or equal to 0"]),
        ({"kl_coef": math.inf}, ["kl_coef is inf", "finite"]),
        ({"reward_clip": 0}, ["reward_clip is 0: must be "]),
        ({"drop_longer": 1.5}, ["drop_longer is 1.5"]),
        (
            {"norm_mean": "grup"},
            ["norm_mean is 'grup': must be 'batch', 'group', ", "did you mean group?"],
        ),
        ({"estimator": 3}, ["estimator is 3: must be a valid string"]),
        ({"columns": 3}, ["columns is 3: must be a valid dictionary"]),
        ({"overlong_penalty": [100, 20]}, ["overlong_penalty is [100, 20]: a value is missing"]),
        ({"overlong_penalty": 2}, ["overlong_penalty is 2: must be a valid tuple"]),
        ({"emit": 3}, ["emit is 3: must be a valid tuple"]),
        ({"overlong_penalty": [10, 20, 1]}, ["BUFFER", "MAX_LEN"]),
        ({"kl_target": 1}, ["--kl-target", "--kl-coef"]),
        ({"emit_only": True, "replace": True}, ["--emit-only", "--replace"]),
        ({"emit": []}, ["--emit: names no column"]),
        ({"emit": ["advantage"]}, ["no column 'advantage'", "did you mean", "advantages"]),
        ({"emit": ["kl", "kl"]}, ["emit", "kl", "twice"]),
    ],
    ids=str,
)
def test_the_error_for_a_wrong_value_has_source_and_value(values, parts):
    with pytest.raises(UsageError) as refused:
        Recipe.of(values, "recipe.toml")
    text = str(refused.value)
    assert text.startswith("recipe.toml: ")
    assert "\n" not in text
    for part in parts:
        assert part in text
    with pytest.raises(UsageError, match=r"^Recipe: "):
        Recipe(**values)


def test_the_names_of_estimators_are_those_that_exist():
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415

    assert tuple(ESTIMATORS) == NAMES
