"""Recipe: defaults, where its values come from, what it refuses, and how it is kept."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest
from runs import run

from rlpost.cli.options import RECIPE
from rlpost.errors import ReadWriteError, UsageError
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.recipe import EXTRA, WRITTEN, Numerics, Recipe

OWN = Path(__file__).parents[1] / "support" / "own_estimator.py"

# Words, environment and file to Recipe

# field: (words on the command line, the field's value, words that it needs beside it)
CASES = {
    "estimator": ("--estimator rloo", "rloo", ""),
    "gamma": ("--gamma 0.5", 0.5, ""),
    "lam": ("--lam 0.25", 0.25, "--estimator gae"),
    "lambda_policy": ("--lambda-policy 0.5", 0.5, "--estimator gae"),
    "lambda_value": ("--lambda-value 1", 1.0, "--estimator gae"),
    "length_adaptive_alpha": ("--length-adaptive-alpha 0.05", 0.05, "--estimator gae"),
    "step_gamma": ("--step-gamma 0.9", 0.9, "--estimator gigpo"),
    "episode_weight": ("--episode-weight 2", 2.0, "--estimator gigpo"),
    "step_weight": ("--step-weight 0.5", 0.5, "--estimator gigpo"),
    "f_norm": ("--f-norm 2", 2.0, "--estimator gpg"),
    "ema_decay": ("--ema-decay 0.5", 0.5, "--estimator rae"),
    "otb_is_cap": ("--otb-is-cap 2", 2.0, "--estimator optimal_token_baseline"),
    "episode_domains": (
        "--episode-domains math,code",
        ("math", "code"),
        "--estimator hierarchical_grpo",
    ),
    "options": ("--option beta=2", {"beta": 2.0}, f"--estimator {OWN}:scaled"),
    "teachers": ("--teacher large=0.5 --teacher ref=1", {"large": 0.5, "ref": 1.0}, ""),
    "reward_components": ("--reward-components right,form", ("right", "form"), ""),
    "component_weights": (
        "--component-weights 1,0.5",
        (1.0, 0.5),
        "--reward-components right,form",
    ),
    "reward_scale": ("--reward-scale -1 1 0 2", (-1.0, 1.0, 0.0, 2.0), ""),
    "truncation_penalty": ("--truncation-penalty -0.5", -0.5, ""),
    "group_length_penalty": ("--group-length-penalty 0.5 0 0.1", (0.5, 0.0, 0.1), ""),
    "reward_clip_low": ("--reward-clip-low -2", -2.0, "--reward-clip 5"),
    "max_len_mask": ("--max-len-mask", True, "--max-response-length 8"),
    "max_response_length": ("--max-response-length 8", 8, ""),
    "difficulty_mask": ("--difficulty-mask", True, ""),
    "difficulty_low": ("--difficulty-low 0.2", 0.2, "--difficulty-mask"),
    "difficulty_high": ("--difficulty-high 0.9", 0.9, "--difficulty-mask"),
    "error_max_len_clip": ("--error-max-len-clip 64", 64, ""),
    "drop_zero_variance": ("--drop-zero-variance", True, ""),
    "drop_single": ("--drop-single", True, ""),
    "drop_truncated": ("--drop-truncated", True, ""),
    "mask_before_norm": ("--mask-before-norm", True, "--drop-truncated"),
    "overlong_penalty": ("--overlong-penalty 16 4 0.5", (16, 4, 0.5), ""),
    "norm_mean": ("--norm-mean batch", "batch", ""),
    "norm_std": ("--norm-std none", "none", ""),
    "reward_clip": ("--reward-clip 5", 5.0, ""),
    "kl_coef": ("--kl-coef 0.125", 0.125, ""),
    "kl_estimator": ("--kl-estimator k3", "k3", ""),
    "kl_target": ("--kl-target 0.5", 0.5, "--kl-coef 0.1"),
    "kl_horizon": ("--kl-horizon 100", 100.0, "--kl-coef 0.1 --kl-target 1"),
    "whiten_rewards": ("--whiten-rewards", True, ""),
    "whiten_advantages": ("--whiten-advantages", True, ""),
    "advantage_clip": ("--advantage-clip 2.5", 2.5, ""),
    "difficulty_weight": ("--difficulty-weight", True, ""),
    "length_weight": ("--length-weight", True, ""),
    "columns": ("--map reward=r --map group=g", {"reward": "r", "group": "g"}, ""),
    "tokenizer": ("--tokenizer Qwen/Qwen3-8B", "Qwen/Qwen3-8B", ""),
    "rollout_id": ("--rollout-id traj", "traj", ""),
    "rollout_reward": ("--rollout-reward last", "last", "--rollout-id traj"),
    "nonfinite": ("--nonfinite mask", "mask", ""),
    "emit": ("--emit advantages,kl", ("advantages", "kl"), ""),
    "emit_only": ("--emit-only", True, ""),
    "replace": ("--replace", True, ""),
    "pass_threshold": ("--pass-threshold 0.5", 0.5, ""),
    "is_weight": ("--is-weight geometric", "geometric", ""),
    "is_cap": ("--is-cap 2", 2.0, "--is-weight token"),
    "is_floor": ("--is-floor 0.5", 0.5, "--is-weight token"),
    "is_mask": ("--is-mask 0.5 2", (0.5, 2.0), "--is-weight token"),
    "is_normalise": ("--is-normalise", True, "--is-weight token"),
    "is_filter": (
        "--is-filter sum:ratio:0.5:2 --is-filter max:k3::0.3",
        ("sequence:ratio:0.5:2.0", "max:k3::0.3"),
        "",
    ),
    "is_filter_where": ("--is-filter-where negative", "negative", "--is-filter max:k3::0.3"),
    "numerics": ("--numerics single=raw", Numerics(single="raw"), ""),
}


@pytest.mark.parametrize("field", CASES)
def test_a_flag_sets_its_field_and_no_other(asked, field):
    words, value, needs = CASES[field]
    recipe = asked(*shlex.split(words), *shlex.split(needs))[2]
    beside = asked(*shlex.split(needs))[2].model_dump() if needs else {}
    assert recipe == Recipe.of({**beside, field: value})


@pytest.mark.parametrize("field", CASES)
def test_an_environment_variable_sets_its_field(asked, monkeypatch, field):
    words, value, needs = CASES[field]
    flag, *values = shlex.split(words)
    text = " ".join(word for word in values if word != flag) or "1"
    monkeypatch.setenv("RLPOST_" + flag[2:].upper().replace("-", "_"), text)
    assert getattr(asked(*shlex.split(needs))[2], field) == value


def toml_of(field, value) -> str:
    if isinstance(value, Numerics):
        value = {"single": value.single}
    if isinstance(value, dict):
        pairs = "".join(f"{name} = {json.dumps(text)}\n" for name, text in value.items())
        return f"[{field}]\n{pairs}"
    return f"{field} = {json.dumps(value)}\n"


@pytest.mark.parametrize("field", CASES)
def test_a_file_sets_its_field(asked, tmp_path, field):
    _, value, needs = CASES[field]
    path = tmp_path / "recipe.toml"
    path.write_text(toml_of(field, value))
    recipe = asked("--config", path, *shlex.split(needs))[2]
    assert getattr(recipe, field) == value


def test_the_cases_and_the_options_cover_every_field():
    fields = {*Recipe.model_fields} - {"estimator_name"}  # set by presets
    lacks, without = sorted(fields - {*CASES}), sorted(fields - {*RECIPE})
    assert not lacks, f"CASES of this file lacks {lacks}: add the words, the value, what it needs"
    assert not without, f"RECIPE in rlpost/cli/options.py lacks {without}: declare the options"
    assert not {*CASES, *RECIPE} - fields


def test_a_reward_of_rollouts_needs_their_ids():
    code, _, err = run("advantages", "in.parquet", "out.parquet", "--rollout-reward", "sum")
    assert code == 2
    assert (
        "--rollout-reward: no effect without --rollout-id; add --rollout-id, or leave"
        in " ".join(err.split())
    )
    assert Recipe(rollout_reward="sum").rollout_id is None  # as presets have it


@pytest.mark.parametrize(
    ("words", "other"),
    [
        ("--difficulty-low 0.2", "--difficulty-mask"),
        ("--difficulty-high 0.9", "--difficulty-mask"),
        ("--kl-coef 0.1 --kl-horizon 100", "--kl-target"),
    ],
)
def test_an_option_of_another_one_that_is_off_is_an_error(asked, tmp_path, words, other):
    ran = run("advantages", "in.parquet", "out.parquet", *words.split())
    name, value = words.split()[-2:]
    assert ran.code == 2
    text = " ".join(ran.err.split())
    assert text.startswith(f"rlpost: {name}: ")
    assert text.endswith(f"; add {other}, or leave {name} out")
    config = tmp_path / "recipe.toml"
    config.write_text(f"kl-coef = 0.1\n{name.removeprefix('--')} = {value}\n")
    assert asked("--config", config)  # a file may have it for every input


def test_without_any_option_the_recipe_is_the_default(asked):
    assert asked()[2] == Recipe()


@pytest.mark.parametrize(
    ("field", "file", "env", "words", "expected"),
    [
        ("gamma", "gamma = 0.1", {}, "", 0.1),
        ("gamma", "gamma = 0.1", {"RLPOST_GAMMA": "0.2"}, "", 0.2),
        ("gamma", "gamma = 0.1", {"RLPOST_GAMMA": "0.2"}, "--gamma 0.3", 0.3),
        ("kl_coef", "kl-coef = 0.5", {}, "--kl-coef 0", 0.0),
        ("emit_only", "emit_only = true", {}, "--no-emit-only", False),
        ("emit_only", "", {"RLPOST_EMIT_ONLY": "1"}, "--no-emit-only", False),
        ("emit_only", "emit_only = true", {"RLPOST_EMIT_ONLY": "0"}, "", False),
        ("whiten_advantages", "whiten_advantages = true", {}, "--no-whiten-advantages", False),
        ("overlong_penalty", "", {"RLPOST_OVERLONG_PENALTY": "9 3 1"}, "", (9, 3, 1.0)),
        ("columns", "columns = {group = 'g'}", {}, "--map reward=r", {"group": "g", "reward": "r"}),
        ("columns", "", {"RLPOST_MAP": "group=g reward=r"}, "", {"group": "g", "reward": "r"}),
        ("columns", "", {"RLPOST_MAP": "group=g"}, "--map group=h", {"group": "h"}),
        ("emit", "emit = ['kl']", {}, "--emit advantages", ("advantages",)),
    ],
)
def test_flags_override_the_environment_which_overrides_the_file(
    asked, monkeypatch, tmp_path, field, file, env, words, expected
):
    (tmp_path / "c.toml").write_text(file)
    monkeypatch.setenv("RLPOST_CONFIG", str(tmp_path / "c.toml"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert getattr(asked(*shlex.split(words))[2], field) == expected


def test_execution_options_come_from_flags_and_environment(asked, monkeypatch):
    monkeypatch.setenv("RLPOST_DEVICE", "cpu")
    monkeypatch.setenv("RLPOST_CHUNK_TOKENS", "77")
    inputs, output, _, options = asked("--overwrite", "--state", "s.json", "--chunk-tokens", "78")
    assert (inputs, output) == (["in.parquet"], "out.parquet")
    assert (options.device, options.chunk_tokens, options.overwrite) == ("cpu", 78, True)
    assert options.state == Path("s.json")


# Defaults

DEFAULTS = {
    "step_gamma": 1.0,
    "episode_weight": 1.0,
    "step_weight": 1.0,
    "f_norm": 1.0,
    "ema_decay": 0.9,
    "episode_domains": (),
    "options": {},
    "teachers": {},
    "estimator": "grpo",
    "gamma": 1.0,
    "lam": 0.95,
    "difficulty_low": 0.1,
    "difficulty_high": 0.95,
    "kl_coef": 0.0,
    "kl_estimator": "k1",
    "kl_horizon": 10_000.0,
    "rollout_reward": "equal",
    "nonfinite": "error",
    "pass_threshold": 1.0,
    "is_filter": (),
    "is_filter_where": "any",
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
        "kl_clamp": 10.0,
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


def test_files_may_have_dashes_for_underscores_in_every_table(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("kl-coef = 0.5\n[numerics]\nnorm-eps = 0.5\n")
    assert Recipe.from_toml(path) == Recipe(kl_coef=0.5, numerics=Numerics(norm_eps=0.5))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gama": 1}, "Recipe: no option 'gama'; did you mean gamma?"),
        ({"kl_estimator": "k9"}, "Recipe: kl_estimator is 'k9': input should be 'k1', 'abs', "),
        ({"reward_clip": -1, "lam": 2}, "Recipe: lam is 2: input should be less than or equal to"),
        ({"numerics": {"norm_esp": 1}}, "'numerics.norm_esp'; did you mean norm_eps?"),
        ({"kl_target": 1}, "Recipe: --kl-target needs --kl-coef above 0"),
        ({"emit": ("advantage",)}, "Recipe: --emit: no column 'advantage' to write; did you mean"),
    ],
)
def test_python_gets_the_same_errors(values, said):
    with pytest.raises(UsageError) as refused:
        Recipe(**values)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == len(values)
    with pytest.raises(UsageError, match=r"^Numerics: norm_eps is -1: input should be greater"):
        Numerics(norm_eps=-1)


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
        ({"gamma": 2}, ["gamma is 2", "less than or equal to 1"]),
        ({"gamma": math.nan}, ["gamma is nan"]),
        ({"difficulty_low": math.nan}, ["difficulty_low is nan"]),
        ({"difficulty_high": math.nan}, ["difficulty_high is nan"]),
        ({"kl_coef": -1}, ["kl_coef is -1", "greater than or equal to 0"]),
        ({"kl_coef": math.inf}, ["kl_coef is inf", "finite"]),
        ({"reward_clip": 0}, ["reward_clip is 0", "greater than 0"]),
        ({"max_response_length": 1.5}, ["max_response_length is 1.5"]),
        ({"norm_mean": "grup"}, ["norm_mean is 'grup'", "'group'"]),
        ({"estimator": 3}, ["estimator is 3", "string"]),
        ({"columns": 3}, ["columns is 3", "dictionary"]),
        ({"overlong_penalty": [100, 20]}, ["overlong_penalty"]),
        ({"overlong_penalty": [10, 20, 1]}, ["BUFFER", "MAX_LEN"]),
        ({"max_len_mask": True}, ["--max-len-mask", "--max-response-length"]),
        ({"kl_target": 1}, ["--kl-target", "--kl-coef"]),
        (
            {"difficulty_low": 0.9, "difficulty_high": 0.5},
            ["--difficulty-low", "--difficulty-high"],
        ),
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


def test_every_problem_has_a_line():
    with pytest.raises(UsageError) as refused:
        Recipe.of({"gamma": 2, "lam": -1, "nosuch": 0})
    assert len(str(refused.value).splitlines()) == 3


def test_the_error_of_a_flag_does_not_name_the_file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("lam = 0.5\n")
    ran = run("advantages", "a", "b", "--config", path, "--gamma", "2")
    assert ran.code == 2
    assert "gamma is 2.0" in ran.err
    assert "recipe.toml" not in ran.err


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ReadWriteError, match=r"none\.toml: cannot read the recipe"):
        Recipe.from_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_bytes(b"gamma = \xff")
    with pytest.raises(UsageError, match=r"broken\.toml: not valid TOML"):
        Recipe.from_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize("name", [*WRITTEN, *EXTRA])
def test_emit_accepts_every_column_that_can_be_written(name):
    assert Recipe(emit=(name,)).emit == (name,)


def test_the_names_of_estimators_are_those_that_exist():
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415

    assert tuple(ESTIMATORS) == NAMES


def test_an_unknown_estimator_is_no_recipe():
    with pytest.raises(UsageError, match=r"no estimator 'groo'; did you mean .*grpo"):
        Recipe(estimator="groo")
    assert Recipe(estimator="mine.py:function").estimator == "mine.py:function"


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("emit", "kl", "a list is needed"),
        ("overlong_penalty", [1], "a list of 3 is needed"),
        ("overlong_penalty", [1, 2, 3, 4], "a list of 3 is needed"),
        ("overlong_penalty", 2, "a list of 3 is needed"),
    ],
)
def test_a_list_of_the_wrong_length_is_one_plain_error(name, value, needed):
    with pytest.raises(UsageError) as raised:
        Recipe.of({name: value}, "r.toml")
    assert str(raised.value) == f"r.toml: {name} is {value!r}: {needed}"
