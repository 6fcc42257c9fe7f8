"""Scans over the rows of a rollout, against plain loops over its joined tokens."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from estimator_rows import close
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_estimators import joined, segments
from strategies import BY_TRAJECTORY, rollouts, to_table
from summaries import warnings_of

import rlpost
from rlpost.errors import DataError, UsageError

KNOBS = {"gamma": 0.9, "lam": 0.5}


def paid(rows, rule, *, turns=True):
    """Token rewards: a rollout's on its last policy token, a turn's on that of its row."""
    out = [[0.0] * len(r.mask) for r in rows]
    for chain in joined(rows):
        ends = {
            i: max(t for t, m in enumerate(rows[i].mask) if m) for i in chain if any(rows[i].mask)
        }
        for i, end in ends.items():
            own = rows[i].reward if rule == "sum" else 0.0
            out[i][end] = own + ((rows[i].turn_reward or 0.0) if turns else 0.0)
        if ends and rule != "sum":
            last = [*ends][-1]
            out[last][ends[last]] += math.fsum(rows[i].reward for i in chain) / len(chain)
    return out


def session_gae(rows, rewards, gamma, lam):
    """xtuner, rl/advantage/gae.py, `_compute_session_gae` and `action_gae`.

    Segments of a session are concatenated in their order, and the recursion runs over the action
    tokens of all.
    """
    advantages = [[0.0] * len(r.mask) for r in rows]
    for chain in joined(rows):
        actions = [(i, t) for i in chain for t, m in enumerate(rows[i].mask) if m]
        next_value = next_advantage = 0.0
        for i, t in reversed(actions):
            delta = rewards[i][t] + gamma * next_value - rows[i].values[t]
            advantages[i][t] = next_advantage = delta + gamma * lam * next_advantage
            next_value = rows[i].values[t]
    return advantages


def session_turns(rows, rewards, gamma, lam, at):
    """The same with a step for each run of policy tokens; values at its first or last token."""
    advantages = [[0.0] * len(r.mask) for r in rows]
    for chain in joined(rows):
        turns = [(i, segment) for i in chain for segment in segments(rows[i].mask)]
        next_value = next_advantage = 0.0
        for i, segment in reversed(turns):
            value = 0.0 if at is None else rows[i].values[segment[at]]
            delta = math.fsum(rewards[i][t] for t in segment) + gamma * next_value - value
            next_advantage, next_value = delta + gamma * lam * next_advantage, value
            for t in segment:
                advantages[i][t] = next_advantage
    return advantages


def written(rows, table=None, **options):
    own = BY_TRAJECTORY if table is None else {}
    recipe = rlpost.Recipe(scan="rollout", **own, **options)
    data = to_table(rows) if table is None else table
    return rlpost.enrich(data, recipe)[0]["advantages"].combine_chunks().flatten().to_numpy()


def flat(lists):
    return np.array([x for xs in lists for x in xs])


def plain(rows):
    return [replace(r, token_rewards=None, finish_reason="stop") for r in rows]


@settings(max_examples=25, deadline=None)
@given(rollouts(max_groups=2), st.sampled_from(["mean", "sum"]), st.booleans())
def test_gae_of_a_session_is_gae_of_its_joined_tokens(rows, rule, turns):
    rows = plain(rows if turns else [replace(r, turn_reward=None) for r in rows])
    want = session_gae(rows, paid(rows, rule), **KNOBS)
    close(written(rows, estimator="gae", rollout_reward=rule, **KNOBS), flat(want))


@settings(max_examples=25, deadline=None)
@given(rollouts(max_groups=2), st.sampled_from(["first", "last"]))
def test_turn_gae_of_a_session_has_a_step_for_each_turn_of_all_rows(rows, which):
    rows = plain(rows)
    want = session_turns(rows, paid(rows, "mean"), at=0 if which == "first" else -1, **KNOBS)
    options = {"rollout_reward": "mean", "options": {"turn_value": which}}
    close(written(rows, estimator="turn_gae", **options, **KNOBS), flat(want))


@settings(max_examples=25, deadline=None)
@given(rollouts(max_groups=2))
def test_returns_over_turns_are_discounted_once_a_turn(rows):
    rows = plain(rows)
    want = session_turns(rows, paid(rows, "sum"), 0.9, 1.0, None)
    options = {"rollout_reward": "sum", "gamma": 0.9}
    close(written(rows, estimator="agentic_reinforce", **options), flat(want))


@settings(max_examples=15, deadline=None)
@given(rollouts(max_groups=2), st.sampled_from([1.0, 0.9]))
def test_returns_over_rollouts_go_on_in_the_next_row(rows, gamma):
    rows = plain(rows)
    free = [replace(r, values=[0.0] * len(r.mask)) for r in rows]
    want = session_gae(free, paid(rows, "mean"), gamma, 1.0)
    close(written(rows, estimator="reinforce", rollout_reward="mean", gamma=gamma), flat(want))


def by_hand():
    """Two rollouts of two rows; the first row of the file is the second turn of its rollout."""
    return pa.table(
        {
            "prompt_id": ["p"] * 4,
            "rollout_id": ["x", "x", "y", "y"],
            "turn": [1, 0, 0, 1],
            "reward": [1.0, 1.0, 2.0, 2.0],
            "response_mask": [[1, 0, 1], [1, 1, 0], [1], [1]],
            "values": [[0.5, 9.0, 0.25], [0.5, 0.5, 9.0], [1.0], [0.0]],
        }
    )


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"estimator": "rloo"}, "--scan rollout"),
        ({"estimator": "gigpo"}, "--scan rollout"),
        ({"estimator": "gae", "options": {"lambda_value": 1.0}}, "--option lambda_value"),
        ({"estimator": "gae", "options": {"length_adaptive_alpha": 0.05}}, "--option length_"),
        ({"estimator": "gae", "numerics": {"observations": "states"}}, "observations"),
        ({"estimator": "grpo", "rollout_reward": "sum"}, "--rollout-reward sum"),
    ],
)
def test_a_scan_that_cannot_go_on_in_the_next_row_is_an_error(options, flag):
    with pytest.raises(UsageError, match=flag):
        written([], by_hand(), **options)


@pytest.mark.parametrize("column", ["rollout_id", "turn"])
def test_a_scan_over_rollouts_needs_their_ids_and_turns(column):
    with pytest.raises(DataError, match="--scan rollout"):
        written([], by_hand().drop_columns(column), estimator="gae")


def test_a_rollout_without_policy_tokens_is_passed_over():
    table = by_hand().set_column(4, "response_mask", pa.array([[0, 0, 0], [1, 1, 0], [1], [0]]))
    got = written([], table, estimator="reinforce")
    assert got.tolist() == [0, 0, 0, 1, 1, 0, 2, 0]


def test_only_the_end_of_a_rollout_is_bootstrapped():
    table = by_hand().append_column("truncated", pa.array([True, True, True, False]))
    options = {"estimator": "gae", "lam": 0.5, "rollout_reward": "equal"}
    got = written([], table, bootstrap="last", **options)
    # x: 1 + 1/4 - 1/4; 1/4 - 1/2 + 1/2; 1/2 - 1/2 + 1/4/2; half of it
    assert got.tolist() == [0.25, 0, 1, 0.0625, 0.125, 0, 0, 2]


FORKED = {
    "prompt_id": ["p"] * 6,
    "rollout_id": ["a", "a", "a", "b", "b", "c"],
    "turn": [0, 1, 1, 0, 1, 0],
    "branch": ["x", "x", "y", "x", "y", "x"],
    "reward": [1.0, 1.0, 1.0, 0.0, 0.0, 0.5],
    "turn_reward": [0.0] * 6,
    "finish_reason": ["length", "stop", "length", "length", "stop", "length"],
    "response_mask": [[1, 1]] * 6,
    "values": [[0.5, 0.5]] * 6,
}


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "gae", "scan": "rollout"},
        {"estimator": "mt_grpo"},
        {"estimator": "turn_credit"},
    ],
)
def test_alternatives_of_one_turn_need_branches(options):
    table = pa.table(FORKED)
    rlpost.enrich(table, rlpost.Recipe(**options))
    with pytest.raises(DataError, match=r"row 1, has `turn` 1, and table, row 2, .*--map branch="):
        rlpost.enrich(table, rlpost.Recipe(**options, columns={"branch": "none"}))


def test_the_summary_names_the_scan_and_the_turn_rewards_that_it_adds():
    def words(table, **options):
        recipe = rlpost.Recipe(estimator="gae", **options)
        return rlpost.enrich(table, recipe)[1]["computes"]["advantages"]

    table = pa.table(FORKED)
    assert "rollouts" not in words(table)
    assert words(table, scan="rollout").endswith("over rollouts, turn rewards added")
    assert words(table.drop_columns("turn_reward"), scan="rollout").endswith("over rollouts")


@pytest.mark.parametrize("estimator", ["gae", "turn_gae", "reinforce"])
@pytest.mark.parametrize("ids", ["rollout", "turn"])
def test_a_scan_of_rows_that_are_turns_names_the_scan_over_rollouts(ids, estimator):
    """By the ids of rollouts, or by turns alone, and also with the unit of a preset."""
    rows = {
        "prompt_id": ["a"] * 4, "turn": [0, 1, 0, 1], "reward": [1.0, 1.0, 0.0, 0.0],
        "response_mask": [[1, 1]] * 4, "values": [[0.5, 0.25]] * 4,
    }  # fmt: skip
    rows |= {"rollout_id": ["x", "x", "y", "y"]} if ids == "rollout" else {}
    options = {"estimator": estimator, "gamma": 0.9}

    def texts(data, **more):
        summary = rlpost.enrich(pa.table(data), rlpost.Recipe(**options, **more))[1]
        return [x for x in warnings_of(summary) if "as if it were an episode of its own" in x]

    [text] = texts(rows)
    assert ("--map rollout=COLUMN" in text) == (ids == "turn")
    assert text.endswith("--scan rollout joins the rows")
    [text] = texts(rows, unit="row")
    assert text.endswith("--scan rollout --unit rollout joins the rows")
    assert not texts(rows | {"turn": [0] * 4, "rollout_id": [*"wxyz"]})
    if ids == "rollout":
        assert not texts(rows, scan="rollout")
    del options["gamma"]
    assert len(texts(rows)) == (estimator != "reinforce")
