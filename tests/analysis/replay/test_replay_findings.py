"""Findings of a replay name planted faults, and nothing in clean files."""

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from replay_faults import CLEAN, FAULTS, rollouts

import rlpost
from rlpost.analysis.replay import findings
from rlpost.analysis.replay.findings import CAUSES, NOT_FINITE

NOT_COUNTED = {
    "advantages-not-masked": "outside_differing",
    "mean-of-equal-rewards-rounded": "rounding",
}
"""Faults whose numbers are counted and are no difference, by the name of the count."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_first_finding_names_a_planted_fault(fault):
    result = rlpost.replay(fault.file(), fault.recipe())
    if not fault.expected:
        assert (result.findings, result.reproduced) == ([], fault.name in NOT_COUNTED)
        count = NOT_COUNTED.get(fault.name)
        assert count is None or sum(stage[count] for stage in result.stages) > 0
        return
    first = result.findings[0]
    assert first["check"] in fault.expected.split(), result.findings
    assert 0.9 < first["explains"] <= 1
    assert max(Counter(finding["check"] for finding in result.findings).values()) == 1
    assert len(result.findings) <= 5


def test_every_check_has_a_planted_fault():
    """A check without a fault that it alone names rightly fails here."""
    named = {fault.expected for fault in FAULTS if len(fault.expected.split()) == 1}
    assert {name if name in CAUSES else name.partition(":")[0] for name in named} == {*CAUSES}


@pytest.mark.parametrize("check", [*CAUSES.values(), NOT_FINITE], ids=lambda check: check.name)
def test_every_check_has_a_meaning_and_advice(check):
    for text in (check.meaning, check.advice):
        assert re.fullmatch(r"[A-Z√`].*[^.]\.", text), text


@pytest.mark.parametrize("clean", CLEAN, ids=lambda clean: clean.name)
def test_clean_files_have_no_finding(clean):
    result = rlpost.replay(clean.file(), clean.recipe())
    assert (result.findings, result.reproduced) == ([], True)


SAMPLED = ("eps-1e-4", "values-one-token-late", "gamma-and-lambda-exchanged", "kl-k3-for-k1")


@pytest.mark.parametrize("fault", [x for x in FAULTS if x.name in SAMPLED], ids=lambda x: x.name)
def test_a_sample_of_a_large_input_names_the_fault(fault, monkeypatch):
    monkeypatch.setattr(findings, "SAMPLE_TOKENS", 300)
    sizes, sampled = [], findings.sampled

    def sample(rows, *more):
        sizes.append((len(rows), len(part := sampled(rows, *more))))
        return part

    monkeypatch.setattr(findings, "sampled", sample)
    assert (
        rlpost.replay(fault.file(), fault.recipe()).findings[0]["check"] in fault.expected.split()
    )
    assert all(0 < part < whole for whole, part in sizes)


def recorded(table, recipe, stage, change):
    """The table with a stage of a recipe, changed: [T] numbers and the row of each."""
    fields = {**recipe.model_dump(), "emit": [stage], "replace": True}
    lists = rlpost.enrich(table, rlpost.Recipe.of(fields))[0][stage].combine_chunks()
    rows = np.repeat(np.arange(len(table)), np.diff(lists.offsets))
    values = pa.array(change(np.asarray(lists.values, np.float64), rows).astype(np.float32))
    return table.append_column(stage, pa.ListArray.from_arrays(lists.offsets, values))


def test_numbers_without_a_cause_have_no_finding():
    """Noise, and one response that differs."""
    rng = np.random.default_rng(3)
    noisy = "verl", "gae", "returns", lambda values, _: values + 0.01 * rng.normal(size=len(values))
    single = "trl", "grpo", "advantages", lambda x, rows: np.where(rows == 7, 1.5 * x + 0.25, x)
    for preset, estimator, stage, change in (noisy, single):
        recipe = rlpost.preset(preset, estimator=estimator)
        table = recorded(rollouts(305, responses=48), recipe, stage, change)
        result = rlpost.replay(table, recipe)
        assert (result.findings, result.reproduced) == ([], False)


def test_a_finding_names_the_first_stage_that_differs_and_what_it_reproduces():
    true = rlpost.preset("slime", estimator="reinforce_plus_plus_baseline", kl_coef=0.013)
    emit = rlpost.Recipe.of({**true.model_dump(), "emit": ("returns", "advantages")})
    table = rlpost.enrich(rollouts(302, responses=96), emit)[0].replace_schema_metadata()
    found = rlpost.replay(table, rlpost.Recipe.of({**true.model_dump(), "kl_coef": 0.0})).findings
    assert (found[0]["check"], found[0]["stage"]) == ("option:kl_coef", "returns")
    assert found[0]["option"] == "--kl-coef 0.013"
    assert found[0]["text"].startswith("`returns` and `advantages`: reproduced by `--kl-coef")
