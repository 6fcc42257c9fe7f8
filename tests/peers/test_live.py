"""Presets against the frameworks that are installed: `python -m tests.peers` runs all of them."""

from dataclasses import replace
from functools import cache, reduce
from importlib.metadata import version
from importlib.util import find_spec
from operator import getitem
from typing import get_args

import numpy as np
import pytest
import torch
from peers import verl_loss_cases as verl_losses
from peers.comparison import PEERS, outcome, peer_of, quiet

from rlpost.recipe import presets
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.recipe import load_toml

INSTALLED = [name for name in PEERS if find_spec(peer_of(name).package)]
pytestmark = pytest.mark.filterwarnings("ignore")
# No case notices them: TRL has neither rollouts of several rows nor failed responses, and rewards
# that are equal to rounding are identical, since they are multiples of 1/8.
UNHELD = {"trl": ("unit", "failures", "numerics.constant"), "verl": ("numerics.constant",)}


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
    return [path for path in leaves(table) if part_of(path) in parts and path not in UNHELD[name]]


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
def test_the_preset_is_made_for_the_installed_release(name, release):
    assert version(peer_of(name).package) == release


@pytest.mark.parametrize(("name", "release"), parameters(release_of))
def test_the_preset_covers_the_framework(name, release):
    with quiet():
        assert not [*peer_of(name).uncovered()], release


@cache
def expected(name, case):
    return cases_of(name)[case].theirs()


OTHERS = {
    "kl_loss_clamp": "k3:0.05",
    "bounds": "ratio",
    "cov": "2:4",
    "pg_clip": "0.05:0.1",
    "prob_mask": 0.05,
}
"""Other values of options of losses that are texts."""


def other_value(path, value):
    """Another valid value of a field of a policy loss; None for fields of the recipe."""
    name = path.rpartition(".")[2]
    if part_of(path) != "loss" or name in OTHERS:
        return OTHERS.get(name)
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2
    if value == "never" or name not in LossOptions.model_fields:
        return 0.5
    choices = get_args(LossOptions.model_fields[name].annotation)
    flat = [y for x in choices for y in (get_args(x) or (x,))]
    return next((x for x in flat if isinstance(x, str) and x != value), None)


def with_value(table, path, value):
    """The table with another value of the field at a dotted path."""
    head, _, rest = path.partition(".")
    return {**table, head: with_value(table[head], rest, value) if rest else value}


def value_at(table, path):
    return reduce(getitem, path.split("."), table)


def noticed(name, path):
    """Whether a case of the preset that is loaded now differs."""
    named = path.startswith("corrections.")
    variant = path.split(".")[1] if named or path.startswith(("estimators.", "losses.")) else ""
    for case in cases_of(name).values():
        other = not named and part_of(path) != case.part
        other |= bool(variant) and case.variant != variant
        if case.fault or other:
            continue
        found = outcome(replace(case, theirs=lambda key=case.name: expected(name, key)))
        if not found.equal:
            return True
    return False


@pytest.mark.parametrize(("name", "path"), parameters(fields_of))
def test_a_case_differs_without_a_field_of_the_preset_or_with_another_value(
    name, path, monkeypatch
):
    """A field of a loss may be rlpost's default: then another value must be noticed."""
    table_of = presets.table_of
    table = table_of(name)
    mutants = [without(table, path)]
    if (value := other_value(path, value_at(table, path))) is not None:
        mutants.append(with_value(table, path, value))
    with quiet():
        for mutant in mutants:
            changed = {name: mutant}
            monkeypatch.setattr(
                presets, "table_of", lambda x, own=changed: own.get(x) or table_of(x)
            )
            if noticed(name, path):
                return
    pytest.fail(f"no case of {name} differs without {path}")


def random_clip_cov(data, seed):
    """rlpost's and verl's loss with a random choice of a tenth of the tokens."""
    tenth = {"share": 0.1}, {"clip_cov_ratio": 0.1}
    mine, config = verl_losses._both(tenth, verl_losses.BOUNDS)
    torch.manual_seed(seed)
    expected = verl_losses.theirs(data, "clip_cov", config)["loss"]
    chosen = presets.loss_preset("verl", loss="clip_cov", loss_options={**mine, "seed": seed})
    return float(verl_losses.differentiated(data, chosen)[0]), float(expected)


@pytest.mark.parametrize(
    "name", [pytest.param("verl", marks=[] if "verl" in INSTALLED else pytest.mark.skip)]
)
def test_random_choices_of_clip_cov_have_the_same_mean_and_spread(name):
    """The choices are made by other means; over 400 of them the losses agree statistically."""
    assert name in INSTALLED
    data = verl_losses.mini_batch(70, turns=True)
    with quiet():
        pairs = np.array([random_clip_cov(data, seed) for seed in range(400)])
    ours, theirs = pairs.T
    assert len({*ours}) > 100
    assert len({*theirs}) > 100
    error = np.sqrt((ours.var() + theirs.var()) / len(pairs))
    assert abs(ours.mean() - theirs.mean()) < 5 * error
    assert 0.7 < ours.std() / theirs.std() < 1.4
