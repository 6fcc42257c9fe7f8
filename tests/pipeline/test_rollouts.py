"""Rollouts of several rows: they count once, with one reward."""

import math
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Response
from reference_pipeline import pipeline
from strategies import rollouts, to_table
from summaries import warnings_of, whole
from test_left_out import close, flat, written

import rlpost
from rlpost.errors import DataError


@st.composite
def in_parts(draw):
    """Rows, and for each the rollout of its group that it is a part of."""
    rows = draw(rollouts(max_groups=3, max_batches=2))
    places = draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    return rows, [f"{r.batch}/{r.group}/{place}" for r, place in zip(rows, places, strict=True)]


@settings(max_examples=60)
@given(
    in_parts(),
    st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce"]),
    st.sampled_from(["last", "sum", "mean"]),
    st.fixed_dictionaries(
        {},
        optional={
            "kl_coef": st.just(0.3),
            "overlong_penalty": st.just((8, 4, 1.0)),
            "drop_difficulty": st.just((0.1, 0.95)),
            "drop_equal_rewards": st.sampled_from([True]),
            "mask_before_norm": st.sampled_from([True]),
            "whiten_advantages": st.booleans(),
        },
    ),
)
def test_rows_of_one_rollout_count_once_in_their_group(case, estimator, rule, options):
    rows, units = case
    options = {"estimator": estimator, "rollout_reward": rule, **options}
    want = pipeline(rows, options, units)
    table = to_table(rows).append_column("rollout", [units])
    recipe = rlpost.Recipe(**options, columns={"rollout": "rollout"})
    if not any(r.kept for r in want.rows):
        with pytest.raises(DataError, match="no response is left"):
            rlpost.enrich(table, recipe)
        return
    got, _ = rlpost.enrich(table, recipe)
    close(written(got, "response_level_rewards"), want.rewards)
    close(flat(written(got, "advantages")), flat(want.advantages))


@settings(max_examples=40)
@given(in_parts(), st.sampled_from(["grpo", "dr_grpo", "reinforce"]))
def test_rows_that_agree_need_no_rule_and_others_are_an_error(case, estimator):
    rows, units = [replace(r, token_rewards=None) for r in case[0]], case[1]
    first: dict[str, int] = {}
    differing = None
    for i, (row, unit) in enumerate(zip(rows, units, strict=True)):
        if differing is None and rows[first.setdefault(unit, i)].reward != row.reward:
            differing = first[unit], i
    recipe = rlpost.Recipe(estimator=estimator, columns={"rollout": "rollout"})
    table = to_table(rows).append_column("rollout", [units])
    if differing is None:
        got, _ = rlpost.enrich(table, recipe)
        want = pipeline(rows, {"estimator": estimator}, units)
        close(flat(written(got, "advantages")), flat(want.advantages))
        return
    one, other = (f"table, row {i}, has a reward of {rows[i].reward}" for i in differing)
    with pytest.raises(DataError) as error:
        rlpost.enrich(table, recipe)
    assert str(error.value).startswith(
        f"{one}, but {other}; both rows are one rollout by `rollout`"
    )
    assert "--rollout-reward" in str(error.value)


def turns(rewards, ids, steps=None, **columns):
    """Rows of one token and one group; in several steps if there are any."""
    steps = steps or [0] * len(rewards)
    rows = [
        Response(group="p", reward=x, mask=[1], batch=step)
        for x, step in zip(rewards, steps, strict=True)
    ]
    table = to_table(rows).append_column("traj", [ids])
    for name, values in columns.items():
        table = table.append_column(name, [values])
    return table


def test_ids_of_steps_are_no_rollouts_and_a_warning_names_the_column():
    """As slime's `rollout_id`, which counts the iterations of training."""
    table = turns([1.0, 1.0, 0.0, 0.0], ["0", "0", "1", "1"], steps=[0, 0, 1, 1])
    _, summary = rlpost.enrich(table, rlpost.Recipe(columns={"rollout": "traj"}))
    (found,) = [text for text in warnings_of(summary) if "--unit row" in text]
    assert "2 of 2 groups" in found
    assert "`traj`" in found
    _, summary = rlpost.enrich(table, rlpost.Recipe(columns={"rollout": "none"}))
    assert summary["unit"] == {"name": "row", "reason": ""}
    assert not [text for text in warnings_of(summary) if "rollout" in text]


def test_rewards_and_pass_rates_count_each_rollout_once():
    table = turns([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
    recipe = rlpost.Recipe(columns={"rollout": "traj"})
    _, summary = rlpost.enrich(table, recipe)
    assert summary["unit"] == {"name": "rollout", "reason": "`traj` identifies them"}
    assert (summary["rollouts"], whole(summary, "reward")["count"]) == (2, 2)
    assert summary["facts"]["reward"]["step"]["mean"] == [whole(summary, "reward")["mean"]] == [0.5]
    assert summary["facts"]["reward"]["of"] == "rollouts that count"
    assert summary["facts"]["equal_rewards"]["of"] == "prompt groups of several rollouts"
    assert whole(summary, "passed")["mean"] == 0.5
    _, summary = rlpost.enrich(table, recipe.model_copy(update={"unit": "row"}))
    assert summary["unit"] == {"name": "row", "reason": "the recipe sets unit row"}
    assert summary["rollouts"] is None
    assert summary["facts"]["reward"]["of"] == "responses that count"
    assert whole(summary, "passed")["mean"] == 0.75


def test_a_rollout_without_numbers_is_counted_but_not_in_rewards():
    table = turns([1.0, math.nan, 0.0, 0.0], ["a", "a", "b", "c"])
    options = {"columns": {"rollout": "traj"}, "nonfinite": "mask", "rollout_reward": "last"}
    _, summary = rlpost.enrich(table, rlpost.Recipe(**options))
    assert (summary["rollouts"], whole(summary, "reward")["count"]) == (3, 2)
    assert whole(summary, "reward")["mean"] == 0


def test_process_rewards_of_rows_must_agree_too_or_follow_the_rule():
    tokens = pa.array([[0.5], [1.5], [0.0], [0.0]])
    table = turns([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"], token_rewards=tokens)
    with pytest.raises(DataError, match=r"row 1, has process rewards that sum to 1\.5"):
        rlpost.enrich(table, rlpost.Recipe(columns={"rollout": "traj"}))
    for rule, reward in (("last", 2.5), ("sum", 4.0), ("mean", 2.0)):
        recipe = rlpost.Recipe(estimator="raw", columns={"rollout": "traj"}, rollout_reward=rule)
        got, _ = rlpost.enrich(table, recipe)
        assert written(got, "response_level_rewards")[:2] == [reward, reward]


@pytest.mark.parametrize("rule", ["last", "sum"])
def test_a_row_that_is_left_out_leaves_its_rollout_without_a_reward(rule):
    table = turns([2.0, math.nan, 0.0, 1.0], ["a", "a", "b", "b"])
    options = {"columns": {"rollout": "traj"}, "rollout_reward": rule, "nonfinite": "mask"}
    got, summary = rlpost.enrich(table, rlpost.Recipe(estimator="raw", **options))
    assert written(got, "response_level_rewards") == [0, 0, 1, 1]
    assert whole(summary, "left_out:nonfinite")["total"] == 2


def test_rows_that_differ_are_named_by_their_files(tmp_path):
    table = turns([0.0] * 6 + [1.0, 0.0], [str(i % 5) for i in range(8)])
    files = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path, first in zip(files, (0, 4), strict=True):
        pq.write_table(table.slice(first, 4), path)
    recipe = rlpost.Recipe(columns={"rollout": "traj"})
    with pytest.raises(DataError) as error:
        rlpost.advantages(files, tmp_path / "out", recipe)
    assert str(error.value).startswith(
        f"{files[0]}, row 1, has a reward of 0.0, but {files[1]}, row 2, has a reward of 1.0"
    )
