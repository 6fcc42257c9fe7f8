"""Process rewards: part of the response's reward before its baseline, or added per token after."""

import math
from dataclasses import replace

import pytest
from reference import Response
from strategies import ESSENTIALS, to_table
from summaries import warnings_of, whole

import rlpost

GROUPED = ("grpo", "dr_grpo", "rloo", "opo", "raw", "reinforce_pp_baseline", "max_rl", "rae")
ROWS = [
    Response(group="p", reward=1.0, mask=[1, 0, 1], token_rewards=[0.5, 0.25, 0.0]),
    Response(group="p", reward=0.0, mask=[1, 1], token_rewards=[0.0, 1.0]),
    Response(group="p", reward=1.0, mask=[0, 1], token_rewards=[-0.5, 0.0]),
    Response(group="q", reward=1.0, mask=[1], token_rewards=[0.0]),
    Response(group="q", reward=1.0, mask=[1, 1], token_rewards=[0.0, 0.5]),
]


def enriched(rows, **options):
    table, summary = rlpost.enrich(to_table(rows), rlpost.Recipe(**options))
    return table, summary


def advantages(rows, **options):
    return enriched(rows, **options)[0].column("advantages").to_pylist()


def totals(rows):
    """One number a response: its reward and all of its process rewards."""
    return [r.reward + math.fsum(r.token_rewards) for r in rows]


@pytest.mark.parametrize("estimator", GROUPED)
def test_process_rewards_count_as_if_the_reward_had_them(estimator):
    within = [
        replace(r, reward=x, token_rewards=None) for r, x in zip(ROWS, totals(ROWS), strict=True)
    ]
    assert advantages(ROWS, estimator=estimator) == advantages(within, estimator=estimator)


@pytest.mark.parametrize("estimator", ["gae", "reinforce", "remax", "agentic_reinforce"])
def test_estimators_without_a_baseline_per_response_keep_them_on_their_tokens(estimator):
    values = {"values": [0.0], "reward_baseline": 0.0}
    rows = [replace(r, **{**values, "values": [0.0] * len(r.mask)}) for r in ROWS]
    options = {"estimator": estimator, "numerics": {"process_rewards": "token"}}
    table, summary = enriched(rows, estimator=estimator)
    assert summary["process_rewards"] == "token"
    assert table.column("advantages").to_pylist() == advantages(rows, **options)
    # The second token of the second response earns 1 and its reward 0.
    options = {"lam": 1.0} if estimator == "gae" else {}
    assert advantages(rows, estimator=estimator, **options)[1] == [1.0, 1.0]
    summed = {"process_rewards": "response"}
    got = advantages(rows, estimator=estimator, gamma=0.5, numerics=summed, **options)
    if estimator != "agentic_reinforce":
        assert got[0] == [0.875, 0.0, 1.75]


def test_the_summary_has_their_statistics():
    _, summary = enriched(ROWS)
    sums = [math.fsum(r.token_rewards) for r in ROWS]
    facts = whole(summary, "process_reward")
    assert summary["process_rewards"] == "response"
    assert facts["count"] == 5
    assert facts["mean"] == pytest.approx(sum(sums) / 5)
    assert (facts["min"], facts["max"]) == (min(sums), max(sums))
    assert whole(summary, "reward")["mean"] == pytest.approx(0.8)  # the raw reward is the file's
    _, summary = enriched([replace(r, token_rewards=None) for r in ROWS])
    assert ("process_reward" in summary["facts"], summary["process_rewards"]) == (False, None)


def test_equal_rewards_look_at_the_sum_and_difficulty_at_the_raw_reward():
    _, summary = enriched(ROWS, drop_equal_rewards=True)
    assert whole(summary, "dropped:equal_rewards")["total"] == 0
    assert whole(summary, "equal_rewards")["total"] == 0
    bare = [replace(r, token_rewards=None) for r in ROWS]
    assert whole(enriched(bare, drop_equal_rewards=True)[1], "equal_rewards")["total"] == 1
    _, summary = enriched(ROWS, drop_difficulty="0.1:0.95")
    assert whole(summary, "dropped:difficulty")["total"] == 2  # the mean of `q` is 1


@pytest.mark.parametrize("estimator", ["step_reinforce", "gigpo"])
def test_steps_earn_their_process_rewards(estimator):
    """The sum of a turn's process rewards is part of its step score."""
    rows = [
        replace(r, traj_id=traj, turn=turn, state_id="s", step_score=score, episode_score=score)
        for r, traj, turn, score in zip(
            ROWS, "aabcc", (0, 1, 0, 0, 1), (0, 1, 2, 3, 4), strict=True
        )
    ]
    options = {**ESSENTIALS[estimator], "estimator": estimator, "options": {"step_gamma": 0.5}}
    moved = [
        replace(r, step_score=r.step_score + math.fsum(r.token_rewards), token_rewards=None)
        for r in rows
    ]
    assert advantages(rows, **options) == advantages(moved, **options)


def test_estimators_without_rewards_warn_that_they_are_not_used():
    rows = [replace(r, components={"a": 1.0, "b": r.reward}) for r in ROWS]
    _, summary = enriched(rows, estimator="gdpo", reward_components=("a", "b"))
    assert "process rewards are not used: gdpo reads no reward" in warnings_of(summary)
    assert "process_reward" not in summary
