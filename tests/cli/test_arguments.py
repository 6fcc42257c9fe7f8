"""Settings: files, variables and flags, which has precedence, and errors that name the source."""

from __future__ import annotations

import json
import shlex

import pytest
from recipe_options import CASES
from runs import run

from rlpost.errors import ReadWriteError, UsageError
from rlpost.recipe.recipe import Numerics, Recipe


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


def test_files_may_have_dashes_for_underscores_in_every_table(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("kl-coef = 0.5\n[numerics]\nnorm-eps = 0.5\n")
    assert Recipe.from_toml(path) == Recipe(kl_coef=0.5, numerics=Numerics(norm_eps=0.5))


def test_the_error_of_a_flag_does_not_name_the_file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("lam = 0.5\n")
    ran = run("advantages", "a", "b", "--config", path, "--gamma", "2")
    assert ran.code == 2
    assert "--gamma 2:" in ran.err
    assert "recipe.toml" not in ran.err


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ReadWriteError, match=r"none\.toml: cannot read the recipe"):
        Recipe.from_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_bytes(b"gamma = \xff")
    with pytest.raises(UsageError, match=r"broken\.toml: not valid TOML"):
        Recipe.from_toml(tmp_path / "broken.toml")
