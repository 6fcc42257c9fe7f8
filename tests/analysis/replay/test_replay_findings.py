"""Findings of a replay name planted faults, and nothing in clean files."""

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from replay_faults import CLEAN, FAULTS
from replay_trainer import rollouts

import rlpost
from rlpost.analysis.replay import evidence
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.findings import FINDINGS
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.replay import replay_recipe
from rlpost.analysis.replay.rollouts import RolloutReader
from rlpost.io.parquet.source import TableSource


def findings(table, recipe):
    """The findings of a replay, best first, and whether the recipe reproduces the file."""
    sample = RolloutReader.of(
        TableSource(table), NamedColumns.of(recipe.columns), None, 10**8
    ).rollouts(0)
    result = replay_recipe(sample, recipe, "a recipe")
    return result["findings"], result["reproduced"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_first_finding_names_a_planted_fault(fault):
    found, reproduced = findings(fault.file(), fault.recipe())
    if not fault.expected:
        assert (found, reproduced) == ([], False)
        return
    assert found[0]["check"] in fault.expected, found
    assert 0.9 < found[0]["explains"] <= 1
    assert max(Counter(finding["check"] for finding in found).values()) == 1
    assert len(found) <= 5


OF_OTHER_TESTS = {"factor", "not-finite"}
"""Findings whose planted faults are in tests below, and in `test_replay`."""


def test_every_check_has_a_planted_fault():
    """A check without a fault that it alone names rightly fails here."""
    named = {name for fault in FAULTS for name in fault.expected if len(fault.expected) == 1}
    checks = {name if name in FINDINGS else name.partition(":")[0] for name in named}
    assert checks | OF_OTHER_TESTS == {*FINDINGS}
    assert not checks & OF_OTHER_TESTS


@pytest.mark.parametrize("name", FINDINGS)
def test_every_check_has_a_meaning_and_advice(name):
    check = FINDINGS[name]
    for text in (check.meaning, check.advice):
        assert re.fullmatch(r"[A-Z√`].*[^.]\.", text), text


@pytest.mark.parametrize("clean", CLEAN, ids=lambda clean: clean.name)
def test_clean_files_have_no_finding(clean):
    assert findings(clean.file(), clean.recipe()) == ([], True)


SAMPLED = ("eps-1e-4", "values-one-token-late", "gamma-and-lambda-exchanged", "kl-k3-for-k1")


@pytest.mark.parametrize(
    "fault", [one for one in FAULTS if one.name in SAMPLED], ids=lambda x: x.name
)
def test_a_sample_of_a_large_input_names_the_fault(fault, monkeypatch):
    monkeypatch.setattr(evidence, "_SAMPLE_TOKENS", 1_200)
    table, recipe = fault.file(), fault.recipe()
    sample = RolloutReader.of(
        TableSource(table), NamedColumns.of(recipe.columns), None, 10**8
    ).rollouts(0)
    replayer = Replayer(sample)
    stage = next(x for x in replayer.from_recorded(recipe) if not x.difference.equal)
    seen = evidence.Evidence(stage, recipe, replayer)
    assert 0 < len(seen.sample().replayer.rollouts) < len(seen.replayer.rollouts)
    found, _ = findings(table, recipe)
    assert found[0]["check"] in fault.expected


def with_advantages(change):
    """Rollouts with the advantages of trl's grpo, changed: [T] numbers and the row of each."""
    table = rollouts(301, responses=96)
    recipe = rlpost.preset("trl", estimator="grpo")
    made, _ = rlpost.enrich(
        table, rlpost.Recipe.of({**recipe.model_dump(), "emit": ["advantages"]})
    )
    advantages = made["advantages"].combine_chunks()
    values = np.asarray(advantages.values, np.float64)
    rows = np.repeat(np.arange(len(table)), np.diff(advantages.offsets))
    new = pa.array(change(values, rows).astype(np.float32))
    return table.append_column(
        "advantages", pa.ListArray.from_arrays(advantages.offsets, new)
    ), recipe


def recorded(table, recipe, *stages):
    """The table with columns that a recipe computes."""
    return rlpost.enrich(table, rlpost.Recipe.of({**recipe.model_dump(), "emit": stages}))[0]


def replaced(table, name, values):
    """The table with other values of a column."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(place).type))


def test_a_factor_is_found_beside_outliers_and_noise():
    rng = np.random.default_rng(1)

    def change(values, _rows):
        outliers = rng.random(len(values)) < 0.02
        return values * (1.37 + 1e-6 * rng.normal(size=len(values))) + outliers

    found, _ = findings(*with_advantages(change))
    assert found[0]["check"] == "factor"
    assert "1.37" in found[0]["text"]
    assert 0.95 <= found[0]["explains"] < 1


def test_numbers_without_a_relation_have_no_finding():
    recipe = rlpost.preset("verl", estimator="gae", lam=0.95)
    made = recorded(rollouts(305, responses=48), recipe, "returns")
    rng = np.random.default_rng(3)
    noisy = [[x + 0.01 * rng.normal() for x in row] for row in made["returns"].to_pylist()]
    assert findings(replaced(made, "returns", noisy), recipe) == ([], False)


def test_one_differing_response_has_no_relation():
    found, reproduced = findings(
        *with_advantages(lambda values, rows: np.where(rows == 7, 1.5 * values + 0.25, values))
    )
    assert not reproduced
    assert not {finding["check"] for finding in found} & {"factor", "sign"}


def test_a_finding_names_the_first_stage_that_differs_and_what_it_reproduces():
    true = rlpost.preset("slime", estimator="reinforce_plus_plus_baseline", kl_coef=0.013)
    table = recorded(rollouts(302, responses=96), true, "returns", "advantages")
    wrong = rlpost.Recipe.of({**true.model_dump(), "kl_coef": 0.0})
    found, _ = findings(table, wrong)
    assert (found[0]["check"], found[0]["stage"]) == ("option:kl_coef", "returns")
    assert found[0]["option"] == "--set kl_coef=0.013"
    assert found[0]["text"].startswith("`returns` and `advantages`: reproduced by `--set kl_coef")
