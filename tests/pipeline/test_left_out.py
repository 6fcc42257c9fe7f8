"""Responses that statistics leave out, or count together: bad numbers, and rollouts in parts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import Response
from reference_pipeline import pipeline
from strategies import JOINING, recipes, rollouts, to_table

import rlpost
from rlpost.errors import DataError

BAD = (math.nan, math.inf, -math.inf)


def close(got, want):
    np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=1e-5, atol=1e-6)


def domains(rows):
    return list(dict.fromkeys(r.domain for r in rows))


def flat(lists):
    return [x for xs in lists for x in xs]


def written(table, name):
    return table.column(name).to_pylist()


# Numbers that are not finite


@st.composite
def poisoned(draw):
    """Rows, a recipe, and which bad number to put where: in what this recipe reads."""
    rows = draw(rollouts(max_groups=3, max_group_size=4, max_batches=2, max_tokens=6))
    options = draw(recipes())
    names = ["reward", "old", "ref", "token_rewards"]
    names += ["values"] if options["estimator"] == "gae" else []
    bad = st.tuples(st.sampled_from(names), st.sampled_from(BAD))
    places = st.integers(0, len(rows) - 1)
    return rows, options, draw(st.dictionaries(places, bad, min_size=1, max_size=4))


def with_bad(row, name, bad):
    """The row with its reward, or the value at its first policy token, replaced."""
    if name == "reward" or 1 not in row.mask:
        return replace(row, reward=bad)
    values = list(getattr(row, name))
    values[row.mask.index(1)] = bad
    return replace(row, **{name: values})


FACTS = ("reward", "response_level_reward", "reward_clip", "token_reward_clip", "advantage",
         "return", "advantage_clip", "kl", "groups")  # fmt: skip


def same_facts(got, want):
    """Equal to 1e-9, number by number."""
    if isinstance(want, dict):
        assert set(got) == set(want)
        for key, value in want.items():
            same_facts(got[key], value)
    elif isinstance(want, list):
        for one, other in zip(got, want, strict=True):
            same_facts(one, other)
    elif want is None or isinstance(want, str):
        assert got == want
    else:
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


@settings(max_examples=60)
@given(poisoned())
def test_a_response_with_a_bad_number_is_as_if_it_were_not_there(case):
    rows, options, places = case
    assume("reward_components" not in options)  # its recipes read components, not the reward
    assume(options["estimator"] not in JOINING)  # a row that is left out leaves out its rollout
    spoilt = [with_bad(r, *places[i]) if i in places else r for i, r in enumerate(rows)]
    others = [r for i, r in enumerate(rows) if i not in places]
    assume({r.batch for r in others} == {r.batch for r in rows})
    assume(any(r.kept for r in pipeline(others, options).rows))
    if options.get("numerics", {}).get("batch") == "step_domain":  # in order of appearance
        assume(domains(rows) == domains(others))
    recipe = rlpost.Recipe(**options, nonfinite="mask")
    got, summary = rlpost.enrich(to_table(spoilt), recipe)
    want, expected = rlpost.enrich(to_table(others), recipe)
    stay = [i for i in range(len(rows)) if i not in places]
    for name in ("advantages", "returns"):
        close(flat(written(got.take(stay), name)), flat(written(want, name)))
        assert not any(flat(written(got.take(sorted(places)), name)))
    for name in ("response_level_rewards", "sample_weight"):
        if name in want.schema.names:
            close(written(got.take(stay), name), written(want, name))
            assert not any(written(got.take(sorted(places)), name)), name
    assert written(got.take(stay), "sample_mask") == written(want, "sample_mask")
    assert not any(written(got.take(sorted(places)), "sample_mask"))
    assert summary["masked"]["nonfinite"]["responses"] == len(places)
    assert summary["responses"] == len(rows)
    for name in FACTS:
        same_facts(summary.get(name), expected.get(name))


def responses(size=4):
    return [
        Response(group="p", reward=float(i), mask=[1] * (i + 1), old=[-1.0] * (i + 1),
                 ref=[-1.5] * (i + 1), difficulty=0.5, finish_reason="stop")
        for i in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["reward", "old", "ref"])
def test_a_bad_number_is_an_error_that_names_its_place(name, bad):
    rows = responses()
    value = bad if name == "reward" else [-1.0, bad, -1.0]
    rows[2] = replace(rows[2], **{name: value})
    column = {"reward": "reward", "old": "old_log_probs", "ref": "ref_log_probs"}[name]
    with pytest.raises(DataError, match=f"row 2: `{column}` .*--nonfinite mask"):
        rlpost.enrich(to_table(rows), rlpost.Recipe(kl_coef=0.1))


def test_a_bad_number_outside_the_mask_or_in_a_column_that_is_not_read_does_not_matter():
    rows = responses()
    rows[2] = replace(rows[2], mask=[1, 0, 1], old=[-1.0, math.nan, -1.0], infer=None)
    for nonfinite in ("error", "mask"):
        recipe = rlpost.Recipe(kl_coef=0.1, nonfinite=nonfinite)
        _, summary = rlpost.enrich(to_table(rows), recipe)
        assert summary["masked"]["nonfinite"]["responses"] == 0


def test_nothing_but_bad_numbers_is_an_error():
    rows = [replace(r, reward=math.nan) for r in responses()]
    with pytest.raises(DataError, match="no response is left"):
        rlpost.enrich(to_table(rows), rlpost.Recipe(nonfinite="mask"))


@pytest.mark.parametrize("estimator", ["raw", "dr_grpo", "gae"])
def test_a_left_out_response_gets_no_penalty_either(estimator):
    rows = [replace(r, values=[0.0] * len(r.mask)) for r in responses()]
    rows[3] = replace(rows[3], reward=math.nan)
    recipe = rlpost.Recipe(estimator=estimator, overlong_penalty=(3, 2, 1.0), nonfinite="mask")
    table, _ = rlpost.enrich(to_table(rows), recipe)
    assert written(table, "response_level_rewards") == [0.0, 0.5, 1.0, 0.0]


def test_a_left_out_response_does_not_stretch_the_lengths_that_weights_compare():
    rows = responses()
    rows[3] = replace(rows[3], reward=math.nan)
    recipe = rlpost.Recipe(length_weight=True, nonfinite="mask")
    table, _ = rlpost.enrich(to_table(rows), recipe)
    close(written(table, "sample_weight"), [1.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_difficulty_leaves_its_response_out_where_it_is_needed(bad):
    rows = responses()
    rows[1] = replace(rows[1], difficulty=bad)
    with pytest.raises(DataError, match="row 1: `difficulty`"):
        rlpost.enrich(to_table(rows), rlpost.Recipe(difficulty_weight=True))
    recipe = rlpost.Recipe(difficulty_weight=True, nonfinite="mask")
    table, summary = rlpost.enrich(to_table(rows), recipe)
    assert summary["masked"]["nonfinite"]["responses"] == 1
    close(written(table, "sample_weight"), [1.0, 0.0, 1.0, 1.0])
