"""Statistics of responses and prompt groups: those of the summary and of plain computations."""

from __future__ import annotations

import polars as pl
import pytest
from inspected_files import SAMPLES, spread

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect.facts import inspect


def test_responses_and_rewards_equal_those_of_the_summary(facts, summary):
    assert facts.responses == summary["responses"]
    assert facts.tokens == summary["tokens"]
    assert spread(facts.rewards.spread) == summary["reward"]


def test_groups_equal_those_of_the_summary(facts, summary):
    groups = summary["groups"]
    found = facts.groups
    assert {name: getattr(found, name) for name in groups} == groups


@pytest.mark.parametrize("key", ["step", "domain"])
def test_steps_and_domains_equal_those_of_the_summary(key, facts, summary):
    found = {"step": facts.steps, "domain": facts.domains}[key]
    wanted = summary[f"{key}s"]
    assert [one.label for one in found] == [one[key] for one in wanted]
    for one, want in zip(found, wanted, strict=True):
        assert one.responses == want["responses"]
        assert one.tokens == want["tokens"]
        assert spread(one.reward) == want["reward"]
        assert one.kl == pytest.approx(want["kl"]["mean"], rel=1e-9, abs=1e-15)


def test_lengths_and_their_correlation_equal_a_plain_computation(sample, facts):
    frame = pl.read_parquet(sample).with_columns(tokens=pl.col("response_mask").list.sum())
    lengths, found = frame["tokens"], facts.lengths
    assert found.spread.mean == pytest.approx(lengths.mean())
    assert found.quantiles["p95"] == lengths.quantile(0.95, "linear")
    assert sum(found.histogram.counts) == len(lengths)
    cut = frame["finish_reason"] == "length"
    assert (facts.truncated.responses, facts.truncated.share) == (cut.sum(), cut.mean())
    by = ["step", "prompt_id"]
    centred = frame.select(pl.col("tokens", "reward") - pl.col("tokens", "reward").mean().over(by))
    want = {
        "pearson": frame.select(pl.corr("tokens", "reward")).item(),
        "spearman": frame.select(pl.corr("tokens", "reward", method="spearman")).item(),
        "within_groups": centred.select(pl.corr("tokens", "reward")).item(),
    }
    assert {name: found.reward_correlation[name] for name in want} == pytest.approx(want)


def test_pass_rates_equal_a_plain_computation(sample, facts):
    passed = pl.col("reward") >= 1
    groups = pl.read_parquet(sample).group_by("step", "prompt_id").agg(passed.mean())
    rates = groups["reward"].to_numpy()
    found = facts.groups
    assert found.pass_rate == pytest.approx(rates.mean())
    assert found.all_pass == (rates == 1).sum()
    assert found.all_fail == (rates == 0).sum()
    assert found.pass_rates[0].groups == (rates == 0).sum()
    assert found.pass_rates[-1].groups == (rates == 1).sum()
    assert sum(one.groups for one in found.pass_rates) == len(rates)
    assert found.pass_at_k[0].value == pytest.approx(rates.mean())


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
    assert (found.responses, found.groups.of) == (919, "rollout")
    assert found.groups.sizes == {8: 32} == dict(groups["len"].value_counts().iter_rows())
    assert found.groups.pass_rate == pytest.approx((groups["passed"] / 8).mean())
    assert found.groups.no_signal == groups["equal"].sum()
    assert found.groups.all_pass == (groups["passed"] == 8).sum()
    best = found.groups.pass_at_k[-1]
    assert (best.k, best.value) == (8, pytest.approx((groups["passed"] > 0).mean()))
    rows = inspect([CALCULATOR], unit="row")
    assert rows.groups.of == "response"
    assert rows.groups.sizes.keys() != {8}
    assert (found.rollouts, rows.rollouts) == (256, None)
    spread = found.rewards.spread
    assert (spread.count, rows.rewards.spread.count) == (256, 919)
    assert (spread.mean, spread.std) == pytest.approx(
        (rollouts["reward"].mean(), rollouts["reward"].std())
    )
    assert found.truncated.responses == rollouts["cut"].sum() > 0
    of_steps = rollouts.group_by("step").agg(pl.mean("reward", "cut")).sort("step").rows()
    slices = [(one.label, one.reward.mean, one.truncated) for one in found.steps]
    assert [*map(list, slices)] == [pytest.approx([*one]) for one in of_steps]
    assert sum(one.responses for one in found.steps) == 919


@pytest.mark.parametrize("rule", ["equal", "last", "sum", "mean"])
def test_groups_of_rollouts_equal_those_of_the_summary(rule, tmp_path):
    """Also with a reward that is not finite, in the middle of a rollout."""
    frame = pl.read_parquet(CALCULATOR)
    if rule == "equal":
        frame = frame.with_columns(reward=pl.col("reward").last().over("traj_id"))
    rewards = frame["reward"].to_list()
    rewards[4] = float("nan")
    frame.with_columns(reward=pl.Series(rewards)).write_parquet(tmp_path / "in.parquet")
    ids, chosen = {"rollout": "traj_id"}, {"rollout_reward": rule}
    recipe = Recipe(estimator="grpo", nonfinite="mask", columns=ids, **chosen)
    summary = rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", recipe)
    found = inspect([tmp_path / "in.parquet"], columns_map=ids, **chosen)
    groups = summary["groups"]
    assert {name: getattr(found.groups, name) for name in groups} == groups
    assert spread(found.rewards.spread) == pytest.approx(summary["reward"])
