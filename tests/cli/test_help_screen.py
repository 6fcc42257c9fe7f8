"""The help of commands: the common options of many, all of few, equal to the declarations."""

from __future__ import annotations

import re

import pytest
from manual.program import commands
from runs import run

from rlpost.cli.app import COMMANDS
from rlpost.cli.help_screen import Panel
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def flags(text: str) -> set[str]:
    """The flags at the beginning of the rows of panels."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_has_the_common_options_or_all(command):
    short = run(command, "--help").out
    lines = short.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 66
    assert not re.search("[…\x1b]", short)
    options = [
        option
        for option in commands()[command].params
        if option.param_type_name == "option" and not option.hidden
    ]
    common = {
        option.opts[0]
        for option in options
        if not isinstance(option.rich_help_panel, Panel) or option.rich_help_panel.common
    }
    every_option = {option.opts[0] for option in options} | {"--help"}
    if "--help-all" in lines[-1]:
        assert flags(run(command, "--help-all").out) == every_option
        assert flags(short) == common | {"--help"}
        assert 10 <= len(common) <= 22
    else:
        assert flags(short) == every_option
        assert len(options) <= 40


def test_types_and_defaults_stand_beside_the_options():
    text = " ".join(run("advantages", "--help").out.split())
    assert "--kl-coef FLOAT KL coefficient" in text
    assert "(default: grpo)" in text
    assert "--kl-estimator k1|abs|k2|k3|k4 Measure KL" in text
    assert "--config PATH" in text
    assert "<" not in text


def test_descriptions_of_options_are_short():
    fields = {*Recipe.model_fields, *LossOptions.model_fields}  # described where they are
    for name, command in commands().items():
        for one in command.params:
            if one.param_type_name == "option" and one.name not in fields and not one.hidden:
                text = re.sub(r" \(default.*", "", one.help)
                assert 5 <= len(text) <= 60, (name, one.opts)


def test_the_program_alone_prints_the_commands_in_groups_within_a_screen():
    bare = run()
    assert bare.code == 0
    assert bare == run("--help")
    assert len(bare.out.splitlines()) <= 23
    words = bare.out.split()
    places = [words.index(name) for name in ("Compute", "Look", "Check", "Files", "About")]
    assert places == sorted(places)
    assert all(name in words or f"{name}," in words for name in COMMANDS)
