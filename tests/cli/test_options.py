"""Options of the command line: each sets its field and no other."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from recipe_options import CASES
from runs import run

from rlpost.cli.options import RECIPE
from rlpost.recipe.recipe import Recipe


@pytest.mark.parametrize("field", CASES)
def test_a_flag_sets_its_field_and_no_other(asked, field):
    words, value, needs = CASES[field]
    recipe = asked(*shlex.split(words), *shlex.split(needs))[2]
    beside = asked(*shlex.split(needs))[2].model_dump() if needs else {}
    assert recipe == Recipe.of({**beside, field: value})


def test_the_cases_and_the_options_cover_every_field():
    fields = {*Recipe.model_fields} - {"estimator_name"}  # set by presets
    lacks, without = sorted(fields - {*CASES}), sorted(fields - {*RECIPE})
    assert not lacks, f"CASES of recipe_options lacks {lacks}: add words, value, what they need"
    assert not without, f"RECIPE in rlpost/cli/options.py lacks {without}: declare the options"
    assert not {*CASES, *RECIPE} - fields


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
    assert text.startswith(f"error: {name} ")
    assert f"tip: add {other}" in text
    config = tmp_path / "recipe.toml"
    config.write_text(f"kl-coef = 0.1\n{name.removeprefix('--')} = {value}\n")
    assert asked("--config", config)  # a file may have it for every input


def test_without_any_option_the_recipe_is_the_default(asked):
    assert asked()[2] == Recipe()


def test_execution_options_come_from_flags_and_environment(asked, monkeypatch):
    monkeypatch.setenv("RLPOST_DEVICE", "cpu")
    monkeypatch.setenv("RLPOST_CHUNK_TOKENS", "77")
    inputs, output, _, options = asked("--overwrite", "--state", "s.json", "--chunk-tokens", "78")
    assert (inputs, output) == (["in.parquet"], "out.parquet")
    assert (options.device, options.chunk_tokens, options.overwrite) == ("cpu", 78, True)
    assert options.state == Path("s.json")
