"""Presets against the frameworks that are installed: `python -m tests.peers` runs all of them."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import pytest

from rlpost.analysis.peers import PEERS, peer_of
from rlpost.analysis.peers.base import outcome, quiet
from rlpost.recipe import presets
from rlpost.recipe.recipe import load_toml

INSTALLED = [name for name in PEERS if find_spec(peer_of(name).package)]
pytestmark = pytest.mark.filterwarnings("ignore")


def parameters(values_of):
    """A parameter for each value of each installed framework; the others are skipped."""
    reason = "{0} is not installed; `python -m tests.peers {0}` runs this in an environment with it"
    found = []
    for name in PEERS:
        if name in INSTALLED:
            found += [pytest.param(name, x, id=f"{name}-{x}") for x in values_of(name)]
        else:
            skip = pytest.mark.skip(reason=reason.format(name))
            found.append(pytest.param(name, None, marks=skip, id=name))
    return found


@cache
def cases_of(name):
    return {case.name: case for case in peer_of(name).cases()}


def leaves(table, path=""):
    """The dotted paths of a TOML table's fields."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def part_of(path):
    return "loss" if path.split(".")[0] in ("loss", "losses") else "advantages"


def fields_of(name):
    """The fields of a preset, of the parts that have cases."""
    table = load_toml(presets.file_of(name))
    del table["source"]
    parts = {case.part for case in cases_of(name).values()}
    return [path for path in leaves(table) if part_of(path) in parts]


def without(table, path):
    """The table without the field at a dotted path."""
    head, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in table.items() if key != head}
    return {**table, head: without(table[head], rest)}


@pytest.mark.parametrize(("name", "case"), parameters(cases_of))
def test_the_preset_gives_the_numbers_of_the_framework(name, case):
    with quiet():
        found = outcome(cases_of(name)[case])
    assert found.passed, str(found)


def release_of(name):
    return [presets.source_of(name).release.removeprefix("v")]


@pytest.mark.parametrize(("name", "release"), parameters(release_of))
def test_the_preset_is_made_for_the_installed_release_and_covers_it(name, release):
    peer = peer_of(name)
    with quiet():
        assert peer.version() == release
        assert tuple(peer.uncovered()) == peer.left_out


@cache
def expected(name, case):
    return cases_of(name)[case].theirs()


@pytest.mark.parametrize(("name", "path"), parameters(fields_of))
def test_a_case_differs_if_a_field_of_the_preset_is_dropped(name, path, monkeypatch):
    variant = path.split(".")[1] if path.startswith(("estimators.", "losses.")) else ""
    read = presets.load_toml

    def mutated(file):
        return without(read(file), path) if file == presets.file_of(name) else read(file)

    monkeypatch.setattr(presets, "load_toml", mutated)
    with quiet():
        for case in cases_of(name).values():
            other = part_of(path) != case.part or (variant and case.variant != variant)
            if case.fault or other:
                continue
            found = outcome(replace(case, theirs=lambda key=case.name: expected(name, key)))
            if not found.equal:
                return
    pytest.fail(f"no case of {name} differs without {path}")
