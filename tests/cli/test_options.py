"""Options of the command line: each sets its field and no other."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from recipe_options import CASES

from rlpost.cli.options import OF_PRESETS
from rlpost.recipe.recipe import Recipe


@pytest.mark.parametrize("field", CASES)
def test_a_flag_sets_its_field_and_no_other_and_a_field_is_written_as_flags(asked, field):
    words, value, needs = CASES[field]
    recipe = asked(*shlex.split(words), *shlex.split(needs))[2]
    beside = asked(*shlex.split(needs))[2].model_dump() if needs else {}
    assert recipe == Recipe.of({**beside, field: value})
    typed = getattr(recipe, field)
    typed = typed.model_dump(exclude_unset=True) if field == "numerics" else typed
    assert asked(*Recipe.words_of(field, typed), *shlex.split(needs))[2] == recipe


def test_the_cases_cover_every_field():
    lacks = sorted({*Recipe.model_fields} - {*OF_PRESETS, *CASES})
    assert not lacks, f"CASES of recipe_options lacks {lacks}: add words, value, what they need"


def test_without_any_option_the_recipe_is_the_default(asked):
    assert asked()[2] == Recipe()


def test_execution_options_come_from_flags_and_environment(asked, monkeypatch):
    monkeypatch.setenv("RLPOST_DEVICE", "cpu")
    monkeypatch.setenv("RLPOST_CHUNK_TOKENS", "77")
    inputs, output, _, options = asked("--overwrite", "--state", "s.json", "--chunk-tokens", "78")
    assert (inputs, output) == (["in.parquet"], "out.parquet")
    assert (options.device, options.chunk_tokens, options.overwrite) == ("cpu", 78, True)
    assert options.state == Path("s.json")
