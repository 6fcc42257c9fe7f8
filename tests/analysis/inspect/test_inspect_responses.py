"""Statistics of responses and prompt groups: those of the summary and of plain computations."""

from __future__ import annotations

import polars as pl
import pytest
from inspected_files import SAMPLES
from summaries import same_numbers

from rlpost.analysis.inspect.facts import inspect


def test_the_numbers_equal_those_of_the_summary(facts, summary):
    names = same_numbers(facts, summary)
    assert {"policy_tokens", "reward", "passed", "group_size", "kl", "engine_k3"} <= names


def test_lengths_equal_a_plain_computation(sample, facts):
    frame = pl.read_parquet(sample).with_columns(tokens=pl.col("response_mask").list.sum())
    lengths = frame["tokens"]
    assert facts.whole("policy_tokens")["mean"] == pytest.approx(lengths.mean())
    assert sum(facts.histograms["policy_tokens"].counts) == len(lengths)
    cut = frame["finish_reason"] == "length"
    assert (facts.whole("truncated")["total"], facts.whole("truncated")["mean"]) == (
        cut.sum(),
        cut.mean(),
    )


CALCULATOR = SAMPLES / "calculator.parquet"
REWARD_OF = {
    "last": pl.col("reward").last(),
    "sum": pl.col("reward").sum(),
    "mean": pl.col("reward").mean(),
}


@pytest.mark.parametrize("reward", REWARD_OF)
def test_statistics_of_groups_count_a_rollout_once(reward):
    by = ["step", "prompt_id"]
    rollouts = (
        pl.read_parquet(CALCULATOR)
        .group_by([*by, "traj_id"], maintain_order=True)
        .agg(reward=REWARD_OF[reward], cut=pl.col("finish_reason").last() == "length")
    )
    groups = rollouts.group_by(by).agg(
        pl.len(), passed=(pl.col("reward") >= 1).sum(), equal=pl.col("reward").n_unique() == 1
    )
    found = inspect([CALCULATOR], rollout_reward=reward)
    assert (found.responses, found.unit) == (919, "rollout")
    assert found.prompt_groups.sizes == {8: 32} == dict(groups["len"].value_counts().iter_rows())
    assert found.prompt_groups.pass_at_k[0].value == pytest.approx((groups["passed"] / 8).mean())
    assert found.whole("equal_rewards")["total"] == groups["equal"].sum()
    best = found.prompt_groups.pass_at_k[-1]
    assert (best.k, best.value) == (8, pytest.approx((groups["passed"] > 0).mean()))
    rows = inspect([CALCULATOR], unit="row")
    assert rows.unit == "response"
    assert rows.prompt_groups.sizes.keys() != {8}
    assert (found.rollouts, rows.rollouts) == (256, None)
    numbers = found.whole("reward")
    assert (numbers["count"], rows.whole("reward")["count"]) == (256, 919)
    assert (numbers["mean"], numbers["std"]) == pytest.approx(
        (rollouts["reward"].mean(), rollouts["reward"].std())
    )
    assert found.whole("truncated")["total"] == rollouts["cut"].sum() > 0
    of_steps = rollouts.group_by("step").agg(pl.mean("reward", "cut")).sort("step")
    assert found.labels("step") == of_steps["step"].to_list()
    assert found.by("step", "reward") == pytest.approx(of_steps["reward"].to_list())
    assert found.by("step", "truncated") == pytest.approx(of_steps["cut"].to_list())
    assert sum(found.by("step", "counted", "count")) == 919
