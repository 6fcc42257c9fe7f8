"""Responses that statistics leave out, or count together: bad numbers, and rollouts in parts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from reference import Response
from strategies import to_table
from summaries import whole

import rlpost
from rlpost.errors import DataError

BAD = (math.nan, math.inf, -math.inf)


def close(got, want):
    np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=1e-5, atol=1e-6)


def flat(lists):
    return [x for xs in lists for x in xs]


def written(table, name):
    return table.column(name).to_pylist()


# Numbers that are not finite


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
        assert whole(summary, "left_out:nonfinite")["total"] == 0


def test_nothing_but_bad_numbers_is_an_error():
    rows = [replace(r, reward=math.nan) for r in responses()]
    with pytest.raises(DataError, match="no response is left"):
        rlpost.enrich(to_table(rows), rlpost.Recipe(nonfinite="mask"))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_difficulty_leaves_its_response_out_where_it_is_needed(bad):
    rows = responses()
    rows[1] = replace(rows[1], difficulty=bad)
    with pytest.raises(DataError, match="row 1: `difficulty`"):
        rlpost.enrich(to_table(rows), rlpost.Recipe(difficulty_weight=True))
    recipe = rlpost.Recipe(difficulty_weight=True, nonfinite="mask")
    table, summary = rlpost.enrich(to_table(rows), recipe)
    assert whole(summary, "left_out:nonfinite")["total"] == 1
    close(written(table, "sample_weight"), [1.0, 0.0, 1.0, 1.0])
