"""Columns of an input by the roles of a recipe, and errors that name what is missing."""

import pytest
from stage_runs import ROWS
from strategies import to_table

import rlpost
from rlpost.errors import DataError


def test_a_recipe_needs_its_columns():
    table = to_table(ROWS)
    for options, role in (
        ({"kl_coef": 0.1}, "old_log_probs"),
        ({"estimator": "gae"}, "values"),
    ):
        with pytest.raises(DataError, match=f"no column for {role}"):
            rlpost.enrich(table, rlpost.Recipe(**options))
    with pytest.raises(DataError, match="no column for group"):
        rlpost.enrich(table.drop_columns(["prompt_id"]))
    with pytest.raises(DataError, match="no column for difficulty"):
        rlpost.enrich(table.drop_columns(["difficulty"]), rlpost.Recipe(difficulty_weight=True))
