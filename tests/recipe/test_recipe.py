"""Recipe: defaults, where its values come from, what it refuses, and how it is kept."""

from __future__ import annotations

import json
import math

import pytest
from runs import run

from rlpost.errors import UsageError
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.recipe import EXTRA, WRITTEN, Numerics, Recipe


def test_a_reward_of_rollouts_needs_that_rollouts_count():
    words = ("--rollout-reward", "sum", "--unit", "row")
    code, _, err = run("advantages", "in.parquet", "out.parquet", *words)
    assert code == 2
    assert err.startswith("error: --rollout-reward has no effect")
    assert Recipe(rollout_reward="sum").unit is None  # as presets have it


# Defaults


DEFAULTS = {
    "scan": "row",
    "options": {},
    "teachers": {},
    "estimator": "grpo",
    "gamma": 1.0,
    "lam": 0.95,
    "kl_coef": 0.0,
    "rollout_reward": "equal",
    "failures": "drop",
    "attempts": "newest",
    "nonfinite": "error",
    "pass_threshold": 1.0,
    "is_filter": (),
    "is_policy": "old",
    "columns": {},
    "numerics": Numerics(),
}


def test_the_default_is_grpo_with_everything_else_off():
    for name, value in Recipe():
        assert value in ([DEFAULTS[name]] if name in DEFAULTS else [None, False]), name


def test_the_defaults_of_numerics_are_those_of_the_documentation():
    assert Numerics().model_dump() | {} == {
        **Numerics().model_dump(),
        "norm_eps": 1e-6,
        "whiten_eps": 1e-8,
        "log_ratio_clamp": 40.0,
        "kl_clamp": "k3:10",
        "terminal_reward": "last_policy_token",
        "observations": "skip",
        "batch": "step",
        "single": "zero",
        "constant": "zero",
    }


# Keeping


SEVERAL = {
    "estimator": "gae",
    "gamma": 0.1,
    "overlong_penalty": [100, 20, 0.5],
    "kl_coef": 1e-300,
    "kl_target": 0.30000000000000004,
    "columns": {"group": 'a column, "quoted"'},
    "emit": ["kl"],
    "numerics": {"norm_eps": 0.0, "single": "raw"},
}


@pytest.mark.parametrize(
    "values", [{}, SEVERAL, {"numerics": dict.fromkeys(["log_ratio_clamp", "kl_clamp"], math.inf)}]
)
def test_a_recipe_survives_json(values):
    recipe = Recipe.of(values)
    text = recipe.model_dump_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert Recipe.model_validate_json(text) == recipe
    assert Recipe.of(recipe.model_dump(mode="json")) == recipe


def test_a_file_and_python_give_the_same_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        """
        estimator = "gae"
        gamma = 0.1
        overlong-penalty = [100, 20, 0.5]
        kl-coef = 1e-300
        kl_target = 0.30000000000000004
        columns = {group = 'a column, "quoted"'}
        emit = ["kl"]
        [numerics]
        norm_eps = 0
        single = "raw"
        """
    )
    assert Recipe.from_toml(path) == Recipe.of(SEVERAL)


def test_recipes_are_immutable_and_compare_by_value():
    assert Recipe() == Recipe(gamma=1)
    with pytest.raises(ValueError, match="frozen"):
        Recipe().gamma = 0.5


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


def test_every_problem_has_a_line():
    with pytest.raises(UsageError) as refused:
        Recipe.of({"gamma": 2, "lam": -1, "nosuch": 0})
    assert len(str(refused.value).splitlines()) == 3
    with pytest.raises(
        UsageError, match=r"^Numerics: norm_eps is -1: must be greater than or equal to 0"
    ):
        Numerics(norm_eps=-1)


def test_emit_accepts_every_column_that_can_be_written():
    assert all(Recipe(emit=(name,)).emit == (name,) for name in (*WRITTEN, *EXTRA))


def test_the_names_of_estimators_are_those_that_exist():
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415

    assert tuple(ESTIMATORS) == NAMES


def test_an_unknown_estimator_is_no_recipe():
    with pytest.raises(UsageError, match=r"no estimator 'groo'; did you mean .*grpo"):
        Recipe(estimator="groo")
    assert Recipe(estimator="mine.py:function").estimator == "mine.py:function"
