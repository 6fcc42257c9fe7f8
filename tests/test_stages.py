"""The pipeline through `enrich` against the references: as a whole, and stage by stage."""

import numpy as np
import pytest
import rlpost
from hypothesis import given, settings
from reference_pipeline import pipeline
from rlpost.errors import DataError
from strategies import TOKEN_COLUMNS, recipes, rollouts, to_table
from hypothesis import strategies as st
from dataclasses import replace


def lists(table, name):
    return table.column(name).to_pylist()


def close(got, want):
    np.testing.assert_allclose(
        np.array(got, dtype=float), np.array(want, dtype=float), rtol=1e-5, atol=1e-6
    )


def close_lists(got, want):
    assert [len(xs) for xs in got] == [len(xs) for xs in want]
    close([x for xs in got for x in xs], [x for xs in want for x in xs])


@st.composite
def rollouts_with_roles(draw):
    rows = draw(rollouts())
    for name in draw(
        st.sampled_from([(), ("token_rewards",), ("token_rewards",), ("token_rewards", "ref")])
    ):
        rows = [replace(r, **{name: None}) for r in rows]
    return rows


EMIT = (
    "advantages",
    "returns",
    "response_level_rewards",
    "raw_advantages",
    "token_level_rewards",
    "final_response_mask",
    "sample_mask",
)


@settings(max_examples=int(__import__("os").environ.get("N", "100")))
@given(rollouts_with_roles(), recipes())
def test_the_pipeline_is_the_composition_of_its_stages(rows, options):
    kl = rows[0].ref is not None
    if not kl:
        options = {k: v for k, v in options.items() if k not in ("kl_coef", "kl_target")}
    want = pipeline(rows, options)
    emit = EMIT + (("kl",) if kl else ())
    if options.get("difficulty_weight") or options.get("length_weight"):
        emit += ("sample_weight",)
    recipe = rlpost.Recipe(**options, emit=emit, replace=True)
    table = to_table(rows)
    if not any(r.kept for r in want.rows):
        with pytest.raises(DataError, match="no response is left"):
            rlpost.enrich(table, recipe)
        return
    got, _ = rlpost.enrich(table, recipe)
    assert got.column("sample_mask").to_pylist() == [r.kept for r in want.rows]
    close(lists(got, "response_level_rewards"), want.rewards)
    if kl:
        close_lists(lists(got, "kl"), want.kl)
    close_lists(lists(got, "token_level_rewards"), want.token_rewards)
    close_lists(lists(got, "returns"), want.returns)
    close_lists(lists(got, "raw_advantages"), want.raw_advantages)
    close_lists(lists(got, "advantages"), want.advantages)
    if "sample_weight" in emit:
        close(lists(got, "sample_weight"), want.weights)
