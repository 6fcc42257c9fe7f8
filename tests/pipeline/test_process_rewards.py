"""Process rewards: part of the response's reward before its baseline, or added per token after."""

import math
from dataclasses import replace

import pytest
from reference import Response
from strategies import to_table
from summaries import warnings_of, whole

import rlpost

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


def test_the_summary_has_their_statistics():
    _, summary = enriched(ROWS)
    sums = [math.fsum(r.token_rewards) for r in ROWS]
    facts = whole(summary, "process_reward")
    assert summary["process_rewards"] == "response"
    assert enriched(ROWS, estimator="reinforce")[1]["process_rewards"] == "token"
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


def test_estimators_without_rewards_warn_that_they_are_not_used():
    rows = [replace(r, components={"a": 1.0, "b": r.reward}) for r in ROWS]
    _, summary = enriched(rows, estimator="gdpo", reward_components=("a", "b"))
    assert "process rewards are not used: gdpo reads no reward" in warnings_of(summary)
    assert "process_reward" not in summary
