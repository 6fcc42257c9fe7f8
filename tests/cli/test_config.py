"""`rlpost config`: where values come from, and what files may hold."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from runs import rollout, run, save
from typer.main import get_command

from rlpost.cli.app import COMMANDS, app_of
from rlpost.cli.commands.config import json_schema
from rlpost.cli.environment import unknown_variables
from rlpost.cli.options import RUN
from rlpost.recipe.flags import FLAGS, variable_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import PRESETS, file_of, loss_preset, preset, toml_lines
from rlpost.recipe.recipe import TABLES, Recipe, load_toml


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLPOST_CONFIG", raising=False)


def shown(*words: str) -> dict[str, tuple[object, str]]:
    """The fields, with their values and sources."""
    return changed(*words, "--all")


def changed(*words: str) -> dict[str, tuple[object, str]]:
    """The fields that are set."""
    ran = run("config", "show", *words, "--format", "json")
    assert ran.code == 0, ran.err
    return {row["field"]: (row["value"], row["from"]) for row in json.loads(ran.out)}


# Where values come from

FILE = """gamma = 0.9
lam = 0.8
kl-coef = 0.3
emit_only = true
emit = ["kl"]
[numerics]
norm-eps = 1e-3
[columns]
mask = "m"
"""
VARIABLES = {
    "RLPOST_KL_COEF": "0.1", "RLPOST_LAM": "0.7", "RLPOST_EMIT_ONLY": "0",
    "RLPOST_OVERLONG_PENALTY": "9 3 1", "RLPOST_MAP": "group=g reward=r",
}  # fmt: skip
SOURCES = {
    "gamma": (0.9, "r.toml"),
    "kl_coef": (0.1, "RLPOST_KL_COEF"),
    "lam": (0.6, "--lam"),
    "estimator": ("gae", "--estimator"),
    "emit": (["advantages"], "--emit"),
    "emit_only": (False, "RLPOST_EMIT_ONLY"),
    "overlong_penalty": ([9, 3, 1.0], "RLPOST_OVERLONG_PENALTY"),
    "whiten_advantages": (True, "preset verl"),
    "whiten_rewards": (False, "--no-whiten-rewards"),
    "numerics.norm_eps": (1e-3, "r.toml"),
    "numerics.single": ("raw", "preset verl"),
    "numerics.norm_ddof": (1, "default"),
    "norm_mean": ("none", "default of gae"),
    "columns.mask": ("m", "r.toml"),
}


def test_flags_override_variables_which_override_the_file_the_preset_and_the_estimator(monkeypatch):
    Path("r.toml").write_text(FILE)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    words = ("--config", "r.toml", "--preset", "verl", "--estimator", "gae", "--lam", "0.6")
    words += ("--no-whiten-rewards", "--emit", "advantages")
    assert SOURCES.items() <= shown(*words).items()
    assert shown(*words)["columns.reward"] == ("r", "RLPOST_MAP")
    typed = shown(*words, "--map", "reward=score")
    assert typed["columns.reward"] == ("score", "--map")
    assert "columns.group" not in typed
    monkeypatch.delenv("RLPOST_EMIT_ONLY")
    assert shown(*words)["emit_only"] == (True, "r.toml")


def test_every_field_is_listed_or_only_those_that_are_set():
    fields = {*Recipe.model_fields} - {*TABLES}
    assert {*shown()} == fields | {f"numerics.{name}" for name in Numerics.model_fields}
    assert {source for _, source in shown().values()} == {"default", "default of grpo"}
    assert changed("--gamma", "0.5").keys() == {"gamma"}
    assert changed("--norm-mean", "group") == {"norm_mean": ("group", "--norm-mean")}
    assert changed() == {}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--preset verl --estimator gae",
        "--preset openrlhf --estimator rloo --is-weight token",
        "--is-weight token --is-mask 0.5:inf --numerics kl_clamp=never",
        "--map reward=a --teacher big=0.5 --emit advantages,kl",
    ],
)
def test_the_toml_gives_the_same_recipe(words):
    plain = run("config", "show", *words.split(), "--format", "toml", "--all")
    assert plain.code == 0, plain.err
    Path("out.toml").write_text(plain.out)
    again = {name: value for name, (value, _) in shown("--config", "out.toml").items()}
    assert again == {name: value for name, (value, _) in shown(*words.split()).items()}


# Environment variables


def parameters(command):
    yield from command.params
    for one in getattr(command, "commands", {}).values():
        yield from parameters(one)


def test_every_variable_that_an_option_reads_is_known():
    read = {
        variable
        for name in COMMANDS
        for one in parameters(get_command(app_of(name)))
        for variable in ([one.envvar] if isinstance(one.envvar, str) else one.envvar or [])
    }
    assert {"RLPOST_GAMMA", "RLPOST_MAP", "RLPOST_PG_CLIP", "RLPOST_DEVICE"} <= read
    known = (*Recipe.model_fields, *LossOptions.model_fields, *RUN)
    assert unknown_variables(dict.fromkeys(read, "1"), known) == []
    assert variable_of("columns") == "RLPOST_MAP"
    assert FLAGS["columns"] == "--map"


def test_warnings_about_unknown_variables_name_the_closest_one(monkeypatch, tmp_path):
    path = save(rollout(), tmp_path / "in.parquet")
    monkeypatch.setenv("RLPOST_GAMA", "0.5")
    ran = run("advantages", path, tmp_path / "out.parquet")
    assert ran.code == 0
    assert "RLPOST_GAMA is set, but no option reads it; did you mean RLPOST_GAMMA?" in ran.err
    quiet = run("advantages", path, tmp_path / "quiet.parquet", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")


# The schema

SCHEMA = json_schema()
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def problems(text: str) -> list[str]:
    return [error.message for error in CHECK.iter_errors(tomllib.loads(text))]


def test_every_field_is_described():
    fields = SCHEMA["properties"] | SCHEMA["$defs"]["Numerics"]["properties"]
    fields |= SCHEMA["$defs"]["LossOptions"]["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []
    named = {*Recipe.model_fields, *Numerics.model_fields, *LossOptions.model_fields}
    assert {*fields} == named | {"preset", "loss", "$schema"}


@pytest.mark.parametrize("name", PRESETS)
def test_recipes_of_presets_fit(name):
    for estimator in [None, *load_toml(file_of(name)).get("estimators", {})]:
        asked = {"estimator": estimator} if estimator else {}
        recipe = preset(name, **asked)
        text = "\n".join(toml_lines(recipe, loss_preset(name)))
        assert problems(text) == []
        assert max(map(len, text.split("\n"))) <= 80


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('preset = "verl"\nestimator = "gae"\n[loss]\nloss = "gspo"\ndual_clip = "never"', True),
        ('"$schema" = "./rlpost.schema.json"\nkl_estimator = "low_var_kl"', True),
        ("is_weight = 'token'\nis_mask = [0.5, 2.0]\n[numerics]\nkl_clamp = 'never'", True),
        ("overlong_penalty = [2048, 512, 1.0]\n[columns]\nreward = 'score'", True),
        ("gama = 0.5", False),
        ("gamma = 2.0", False),
        ('preset = "verk"', False),
        ('kl_estimator = "k5"', False),
        ("[numerics]\nwhiten = 1", False),
    ],
)
def test_the_schema_fits_what_the_command_takes(text, fits):
    Path("recipe.toml").write_text(text)
    assert (problems(text) == []) == fits
    assert run("config", "show", "--config", "recipe.toml").code == (0 if fits else 2)
    assert json.loads(run("config", "schema").out) == SCHEMA


# Presets


def test_a_named_correction_is_overridden_by_options(tmp_path):
    name = "verl:decoupled_geo_rs_seq_tis"
    values = shown("--correction", name, "--is-cap", "3")
    assert values["is_weight"] == ("sequence", f"--correction {name}")
    assert values["is_cap"] == (3.0, "--is-cap")
    assert values["numerics.correction"] == ("first", f"--correction {name}")
    path = tmp_path / "recipe.toml"
    path.write_text('correction = "verl:decoupled_token_is"\nis_cap = 5.0\n')
    values = shown("--config", str(path))
    assert (values["is_weight"][0], values["is_cap"][0]) == ("token", 5.0)
    ran = run("config", "--correction", "verl:bypass_pg_is")
    assert (ran.code, "rlpost loss" in ran.err) == (2, True)
    assert run("config", "--correction", "verl:bypass").code == 2


def test_a_difference_has_what_it_changes_in_a_file_alone(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    words = ("config", "diff", "verl", "trl", source, "--estimator", "grpo", "--format", "json")
    effects = {row["field"]: row["effect"] for row in json.loads(run(*words).out)}
    first, *_, last = effects.values()
    assert first["share"] > last["share"] == 0
    assert 0 < effects["norm_eps"]["largest"] < 0.1
    assert "changes  by at most" in run(*words[:-2]).out
