"""The help of commands: short by default, complete with --help-all, equal to the declarations."""

from __future__ import annotations

import re

import pytest
from manual.program import commands
from runs import run

from rlpost.cli.app import COMMANDS
from rlpost.cli.help_screen import ALL, Panel
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import Recipe

COMMANDS_WITH_MORE = ("advantages", "inspect", "plan", "loss", "replay", "report")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def flags(text: str) -> set[str]:
    """The flags at the beginning of the rows of panels."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen_of_80_by_60(command):
    lines = run(*command.split(), "--help").out.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60


@pytest.mark.parametrize("command", COMMANDS_WITH_MORE)
def test_short_help_ends_with_the_way_to_all_options(command):
    short, full = run(command, "--help").out, run(command, ALL).out
    options = [
        one
        for one in commands()[command].params
        if one.param_type_name == "option" and not one.hidden
    ]
    assert f"{ALL} prints all {len(options)}" in short.rstrip().splitlines()[-1]
    every = {one.opts[0] for one in options}
    common = {
        one.opts[0]
        for one in options
        if not isinstance(one.rich_help_panel, Panel) or one.rich_help_panel.common
    }
    assert flags(short) == common | {"--help"}
    assert flags(full) == every | {"--help"}
    assert 10 <= len(common) <= 22


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*COMMANDS_WITH_MORE}))
def test_other_commands_have_all_options_in_their_help(command):
    text = run(command, "--help").out
    assert ALL not in text
    params = commands()[command].params
    assert flags(text) == {"--help"} | {
        one.opts[0] for one in params if one.param_type_name == "option" and not one.hidden
    }


def test_types_and_defaults_stand_beside_the_options():
    text = " ".join(run("advantages", ALL).out.split())
    assert "--gamma FLOAT Discount" in text
    assert "(default: 1)" in text
    assert "--kl-estimator k1|abs|k2|k3|k4 KL" in text
    assert "--chunk-tokens INT" in text
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


def test_all_of_the_program_has_its_options_too():
    ran = run(ALL)
    assert ran.code == 0
    assert {"--version", "--install-completion", "--show-completion"} <= flags(ran.out)
    assert all(text in " ".join(ran.out.split()) for text in COMMANDS.values())
