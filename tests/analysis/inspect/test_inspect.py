"""`rlpost inspect`: its numbers, the names it knows, its screens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run
from typer.testing import CliRunner

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect import columns as decode
from rlpost.analysis.inspect.facts import inspect, stored
from rlpost.cli.commands.inspect import app
from rlpost.io.arrow import CellLocation

SAMPLES = Path(__file__).parents[3] / "sample_data"
ARITHMETIC = SAMPLES / "arithmetic.parquet"
RUN = CliRunner()


def spread(one):
    return {name: getattr(one, name) for name in ("mean", "std", "min", "max")}


# ---- the same numbers as `rlpost advantages` ----


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


def test_kl_and_mismatch_equal_those_of_the_summary(facts, summary):
    kl = {name: summary["kl"][name] for name in ("mean", "std", "min", "max")}
    assert spread(facts.token_facts.kl) == pytest.approx(kl, rel=1e-9, abs=1e-15)
    gap, want = facts.token_facts.mismatch, summary["correction"]
    assert gap.tokens == want["tokens"]
    assert (gap.k1, gap.k3) == pytest.approx((want["kl"]["k1"], want["kl"]["k3"]), rel=1e-9)
    assert gap.chi_square == pytest.approx(want["chi_square"]["token"], rel=1e-9)
    assert gap.ess == pytest.approx(want["ess"], rel=1e-12)
    assert gap.confident_disagreement == want["confident_disagreement"]
    assert gap.identical == want["identical"]


# ---- the same numbers as a plain computation ----


def policy_tokens(sample):
    lists = ["response_mask", "old_log_probs", "infer_log_probs", "ref_log_probs", "values"]
    frame = pl.read_parquet(sample).with_row_index("row")
    lengths = pl.int_ranges(pl.col("response_mask").list.len())
    tokens = frame.select("row", *lists, place=lengths).explode([*lists, "place"])
    tokens = tokens.filter(pl.col("response_mask") == 1)
    own = pl.int_range(pl.len()).over("row")
    return tokens.with_columns(pl.col(lists).cast(pl.Float64), place=own)


def test_token_facts_equal_a_plain_computation(sample, facts):
    tokens = policy_tokens(sample)
    for name in ("old_log_probs", "infer_log_probs", "ref_log_probs", "values"):
        one, column = facts.token_facts.columns[name], tokens[name]
        assert one.tokens == len(column)
        assert one.mean == pytest.approx(column.mean(), rel=1e-12)
        assert (one.min, one.max) == (column.min(), column.max())
        assert one.zero == (column == 0).sum()
    gap = (tokens["old_log_probs"] - tokens["infer_log_probs"]).to_numpy()
    found = facts.token_facts.mismatch
    assert found.mean_abs == pytest.approx(np.abs(gap).mean(), rel=1e-12)
    assert found.max_abs == np.abs(gap).max()
    assert found.k3 == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-6)


def test_masks_equal_a_plain_computation(sample, facts):
    masks = [np.array(mask) for mask in pl.read_parquet(sample)["response_mask"].to_list()]
    found = facts.masks
    every = sum(len(mask) for mask in masks)
    assert found.observation_share == pytest.approx(1 - sum(x.sum() for x in masks) / every)
    assert found.with_observations == sum(not mask.all() for mask in masks)
    assert found.trailing == sum(not mask[-1] for mask in masks)
    assert found.leading == sum(not mask[0] for mask in masks)
    turns = ["".join(map(str, mask)).strip("0") for mask in masks]
    assert found.gaps == sum("0" in turn for turn in turns)


def test_lengths_and_their_correlation_equal_a_plain_computation(sample, facts):
    frame = pl.read_parquet(sample).with_columns(tokens=pl.col("response_mask").list.sum())
    lengths, found = frame["tokens"], facts.lengths
    assert found.spread.mean == pytest.approx(lengths.mean())
    assert found.quantiles["p95"] == lengths.quantile(0.95, "linear")
    assert sum(found.histogram.counts) == len(lengths)
    cut = frame["finish_reason"] == "length"
    assert (found.truncated.responses, found.truncated.share) == (cut.sum(), cut.mean())
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


def test_long_responses_are_split_by_position(tmp_path):
    rng = np.random.default_rng(0)
    lengths = [1, 127, 128, 129, 256, 257, 1000, 0]
    old = [-rng.exponential(1, n) for n in lengths]
    infer = [values - rng.exponential(0.1, len(values)) for values in old]
    columns = {"prompt_id": ["a"] * 8, "reward": [0.0, 1.0] * 4}
    pq.write_table(
        pa.table({**columns, "old_log_probs": old, "infer_log_probs": infer}),
        tmp_path / "a.parquet",
    )
    found = inspect([tmp_path / "a.parquet"]).token_facts.mismatch.by_position
    bounds = [0, 128, 256, 512, 1000]
    assert [(one.first, one.end) for one in found] == [
        (0, 128),
        (128, 256),
        (256, 512),
        (512, None),
    ]
    for one, low, high in zip(found, bounds[:-1], bounds[1:], strict=True):
        gaps = np.concatenate([a[low:high] - b[low:high] for a, b in zip(old, infer, strict=True)])
        assert one.tokens == len(gaps)
        assert one.mean_abs == pytest.approx(np.abs(gaps).mean())
        assert one.k3 == pytest.approx((np.expm1(gaps) - gaps).mean())


def test_nonfinite_tokens_and_rows_of_unequal_lists_are_left_out(tmp_path):
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 60, 40)
    mask = [(rng.random(n) < 0.8).astype(np.uint8) for n in lengths]
    old = [-rng.exponential(1, n) for n in lengths]
    infer = [values - rng.exponential(0.3, len(values)) for values in old]
    old[3][0], old[7][-1], infer[9][0], infer[11][0] = np.nan, -np.inf, -np.inf, -1e6
    mask[3][0] = mask[7][-1] = mask[9][0] = mask[11][0] = 1
    infer[20] = infer[20][:-1]
    columns = {"prompt_id": ["a"] * 40, "reward": rng.random(40), "response_mask": mask}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns | {"old_log_probs": old, "infer_log_probs": infer}), path)
    facts = inspect([path]).token_facts

    rows = [row for row in range(40) if row != 20]
    chosen = np.concatenate([mask[row] for row in rows]) == 1
    left = np.concatenate([old[row] for row in rows])[chosen]
    right = np.concatenate([infer[row] for row in rows])[chosen]
    finite = left[np.isfinite(left)]
    assert facts.columns["old_log_probs"].tokens == len(finite)
    assert facts.columns["old_log_probs"].mean == pytest.approx(finite.mean())
    assert facts.columns["infer_log_probs"].unequal_rows == 1
    both = np.isfinite(left) & np.isfinite(right)
    sizes = np.abs(left[both] - right[both])
    gap = (left[both] - right[both]).clip(-40, 40)
    assert facts.mismatch.tokens == both.sum()
    assert facts.mismatch.mean_abs == pytest.approx(sizes.mean())
    assert (facts.mismatch.max_abs, facts.mismatch.clamped) == (sizes.max(), 1)
    assert facts.mismatch.k3 == pytest.approx((np.expm1(gap) - gap).mean())
    weights = np.exp(gap)
    ess = weights.sum() ** 2 / (len(gap) * (weights**2).sum())
    assert facts.mismatch.ess == pytest.approx(ess)


def test_the_layout_of_files_changes_no_number(sample, facts, tmp_path):
    table = pq.read_table(sample)
    order = np.random.default_rng(1).permutation(len(table))
    shuffled = table.take(order)
    pq.write_table(shuffled.slice(0, 100), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(shuffled.slice(100), tmp_path / "b.parquet")
    again, before = inspect([tmp_path]).as_json(), facts.as_json()
    for name in ("groups", "rewards", "masks", "steps", "domains", "responses", "tokens"):
        assert _rounded(again[name]) == _rounded(before[name]), name
    for name in ("columns", "mismatch", "kl", "identical"):
        assert _rounded(again["token_facts"][name]) == _rounded(before["token_facts"][name]), name
    assert again["lengths"]["spread"] == before["lengths"]["spread"]


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


# ---- rollouts of several rows ----

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
        .agg(reward=REWARD_OF[reward])
    )
    groups = rollouts.group_by(by).agg(
        pl.len(), passed=(pl.col("reward") >= 1).sum(), equal=pl.col("reward").n_unique() == 1
    )
    found = inspect([CALCULATOR], rollout_id="traj_id", rollout_reward=reward)
    assert (found.responses, found.groups.of) == (919, "rollout")
    assert found.groups.sizes == {8: 32} == dict(groups["len"].value_counts().iter_rows())
    assert found.groups.pass_rate == pytest.approx((groups["passed"] / 8).mean())
    assert found.groups.zero_variance == groups["equal"].sum()
    assert found.groups.all_pass == (groups["passed"] == 8).sum()
    best = found.groups.pass_at_k[-1]
    assert (best.k, best.value) == (8, pytest.approx((groups["passed"] > 0).mean()))
    rows = inspect([CALCULATOR])
    assert rows.groups.of == "response"
    assert rows.groups.sizes.keys() != {8}
    assert found.rewards == rows.rewards


@pytest.mark.parametrize("rule", ["equal", "last", "sum", "mean"])
def test_groups_of_rollouts_equal_those_of_the_summary(rule, tmp_path):
    """Also with a reward that is not finite, in the middle of a rollout."""
    frame = pl.read_parquet(CALCULATOR)
    if rule == "equal":
        frame = frame.with_columns(reward=pl.col("reward").last().over("traj_id"))
    rewards = frame["reward"].to_list()
    rewards[4] = float("nan")
    frame.with_columns(reward=pl.Series(rewards)).write_parquet(tmp_path / "in.parquet")
    chosen = {"rollout_id": "traj_id", "rollout_reward": rule}
    recipe = Recipe(estimator="grpo", nonfinite="mask", **chosen)
    groups = rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", recipe)["groups"]
    found = inspect([tmp_path / "in.parquet"], **chosen).groups
    assert {name: getattr(found, name) for name in groups} == groups


def test_the_screen_of_groups_counts_rollouts():
    chosen = ["--rollout-id", "traj_id", "--rollout-reward", "last"]
    shown = RUN.invoke(app, [str(CALCULATOR), *chosen]).stdout
    assert "32 groups of 8 rollouts, by step and prompt_id" in shown
    assert "0 single-rollout groups" in shown
    assert "turns_as_responses" in RUN.invoke(app, [str(CALCULATOR)]).stdout.split("Columns by")[0]


def test_responses_with_sample_mask_0_and_columns_without_a_role_are_named(tmp_path):
    mask = [row % 4 != 0 for row in range(512)]
    frame = pl.read_parquet(ARITHMETIC).with_columns(
        sample_mask=pl.Series(mask), score=pl.col("reward")
    )
    frame.write_parquet(tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).left_out == 128
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet")]).stdout
    assert "128 responses with `sample_mask` 0 count here, but are left out of training" in shown
    assert "`score` ignored: reward is read from `reward` (--map reward=COLUMN)" in shown


# ---- the names of frameworks ----

FRAMEWORKS = {
    "verl": {
        "uid": "group", "score": "reward", "response_mask": "mask", "step": "batch",
        "old_log_probs": "old_log_probs", "ref_log_prob": "ref_log_probs",
        "rollout_log_probs": "infer_log_probs", "values": "values", "data_source": "domain",
        "reward_baselines": "reward_baseline",
    },
    "trl": {
        "reward": "reward", "completion_mask": "mask", "old_per_token_logps": "old_log_probs",
        "ref_per_token_logps": "ref_log_probs", "sampling_per_token_logps": "infer_log_probs",
        "step": "batch", "prompt_id": "group",
    },
    "open-instruct": {
        "prompt_idx": "group", "reward": "reward", "logprobs": "infer_log_probs", "step": "batch",
        "finish_reason": "truncated", "dataset": "domain", "sample_idx": None,
    },
    "slime": {
        "group_index": "group", "reward": "reward", "loss_mask": "mask",
        "rollout_log_probs": "infer_log_probs", "status": "truncated", "rollout_id": None,
    },
    "slime, of the trainer": {
        "group_index": "group", "raw_reward": "reward", "loss_masks": "mask",
        "log_probs": "old_log_probs", "rollout_log_probs": "infer_log_probs",
        "ref_log_probs": "ref_log_probs", "values": "values", "truncated": "truncated",
        "rewards": None,
    },
    "nemo-rl": {
        "rewards": "reward", "token_loss_mask": "mask", "generation_logprobs": "infer_log_probs",
        "prev_logprobs": "old_log_probs", "reference_policy_logprobs": "ref_log_probs",
        "idx": None,
    },
    "nemo-rl, filtered": {
        "rewards": None, "filtered_rewards": "reward", "token_loss_mask": "mask",
        "generation_logprobs": "infer_log_probs",
    },
    "openrlhf": {
        "scores": "reward", "action_mask": "mask", "action_log_probs": "old_log_probs",
        "base_action_log_probs": "ref_log_probs", "rollout_log_probs": "infer_log_probs",
        "values": "values", "truncated": "truncated", "rewards": None,
    },
    "skyrl": {
        "rewards": "reward", "response_mask": "mask", "action_log_probs": "old_log_probs",
        "base_action_log_probs": "ref_log_probs", "rollout_logprobs": "infer_log_probs",
        "values": "values", "stop_reason": "truncated", "env_class": "domain",
    },
    "roll": {
        "traj_group_id": "group", "scores": "reward", "response_mask": "mask",
        "old_log_probs": "old_log_probs", "ref_log_probs": "ref_log_probs",
        "infer_logprobs": "infer_log_probs", "global_step": "batch", "tag": "domain",
        "difficulty": "difficulty",
    },
    "roll, rlvr dump": {
        "id": "group", "source": "domain", "scores": "reward", "case_type": None,
        "global_step": "batch", "difficulty": "difficulty",
    },
    "roll, logging board": {
        "reward": "reward", "new_response_mask": "mask", "logprobs": "old_log_probs",
        "ref_logprobs": "ref_log_probs", "token_rewards": "token_rewards", "step": "batch",
    },
    "prime-rl": {
        "problem_id": "group", "reward": "reward", "loss_mask": "mask", "step": "batch",
        "inference_logprobs": "infer_log_probs", "trainer_logprobs": "old_log_probs",
        "reference_logprobs": "ref_log_probs", "env_name": "domain",
    },
    "prime-rl, 2025": {
        "problem_id": "group", "rewards": "reward", "output_logprobs": "infer_log_probs",
        "step": "batch", "task_type": "domain", "length_penalties": None,
    },
    "areal": {
        "task_id": "group", "rewards": "reward", "loss_mask": "mask", "versions": None,
        "logprobs": "infer_log_probs", "prox_logp": "old_log_probs", "ref_logp": "ref_log_probs",
        "tail_version": None,
    },
    "tinker": {"group_idx": "group", "total_reward": "reward", "iteration": "batch"},
    "grail": {
        "rollout_group": "group", "total_reward": "reward", "token_logprobs": "infer_log_probs",
    },
}  # fmt: skip
KEYS = {"group", "domain", "batch", "truncated"}
NUMBERS = {"reward", "difficulty", "reward_baseline", None}


def foreign(roles):
    """A file with the column names of a framework."""
    rng = np.random.default_rng(0)
    columns = {}
    for name, role in roles.items():
        if role in KEYS:
            columns[name] = [
                "length" if role == "truncated" else f"{role}-{i // 4}" for i in range(8)
            ]
        elif role in NUMBERS:
            columns[name] = rng.random(8)
        elif role == "mask":
            columns[name] = [np.ones(5, np.int64)] * 8
        else:
            columns[name] = [-rng.random(5) for _ in range(8)]
    return pa.table(columns)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_names_of_every_framework_find_their_roles(framework, tmp_path):
    roles = FRAMEWORKS[framework]
    pq.write_table(foreign(roles), tmp_path / "a.parquet")
    done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--format", "json"])
    assert done.exit_code == 0, done.output
    found = {role: one["column"] for role, one in json.loads(done.stdout)["roles"].items()}
    assert found == {role: name for name, role in roles.items() if role}


def test_ambiguous_names_alone_get_no_role(tmp_path):
    columns = {"logprobs": [[-1.0]], "rewards": [1.0], "status": ["ok"], "task_id": [1], "id": [1]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).roles == {}


def test_a_map_overrides_the_names_of_a_framework(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(foreign(FRAMEWORKS["slime, of the trainer"]), path)
    roles = inspect([path], columns_map={"log_probs": "log_probs"}).roles
    assert roles["log_probs"].column == "log_probs"
    assert "old_log_probs" not in roles


# ---- inputs that are not as they should be ----


def test_a_dump_of_texts_alone_has_statistics(tmp_path):
    columns = {"input": ["a", "a"], "output": ["x", "y"], "score": [0.0, 1.0], "step": [1, 1]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = inspect([tmp_path / "a.parquet"])
    assert (found.responses, found.tokens, found.lengths) == (2, None, None)
    assert [finding.name for finding in found.findings] == ["no_groups"]


def test_an_empty_file_has_a_finding(tmp_path, sample):
    pq.write_table(pq.read_table(sample).slice(0, 0), tmp_path / "a.parquet")
    found = inspect([tmp_path / "a.parquet"])
    assert found.responses == 0
    assert [finding.name for finding in found.findings] == ["no_rows"]
    assert found.rewards.spread.mean is None
    for how in ("table", "json", "markdown"):
        done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--format", how])
        assert done.exit_code == 0, done.output


def test_a_file_without_useful_columns_has_findings(tmp_path):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    found = inspect([tmp_path / "a.parquet"])
    assert [finding.name for finding in found.findings] == ["no_reward", "no_groups"]


def test_hive_partitions_are_columns(tmp_path, sample):
    table = pq.read_table(sample).drop_columns(["step"])
    for step in (3, 10):
        (tmp_path / f"step={step}").mkdir()
        pq.write_table(table, tmp_path / f"step={step}" / "a.parquet")
    found = inspect([tmp_path])
    assert [one.label for one in found.steps] == [3, 10]
    assert found.responses == 2 * len(table)


def test_missing_numbers_and_null_lists_are_counted(tmp_path):
    columns = {
        "prompt_id": ["a", "a", "a"],
        "reward": [1.0, None, 0.0],
        "response_mask": [[1, 1], [1], [1, 0, 1]],
        "old_log_probs": [[-1.0, None], [-1.0], None],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = inspect([tmp_path / "a.parquet"])
    column = found.token_facts.columns["old_log_probs"]
    assert (column.null, column.nan, column.unequal_rows, column.tokens) == (1, 0, 1, 2)
    assert (found.rewards.nonfinite, found.rewards.spread.count) == (1, 2)
    assert found.groups.size["max"] == 2


def test_a_map_to_a_missing_column_is_an_error(sample):
    done = run("inspect", sample, "--map", "reward=rewards")
    assert done.code == 3
    assert "did you mean reward" in done.err


def test_keys_may_be_fractions(tmp_path):
    columns = {"prompt_id": [0.5, 0.5, 1.0], "reward": [0.0, 1.0, 1.0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).groups.sizes == {1: 1, 2: 1}


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
        pa.array([[1, 2], None, [], [3]], pa.large_list(pa.float64())),
        pa.array([[np.float16(1), np.float16(2)], None, [], [np.float16(3)]]),
        pa.array([[9], [1, 2], None, [], [3], [9]], pa.list_(pa.float32())).slice(1, 4),
    ],
    ids=lambda array: str(array.type),
)
def test_lists_of_every_type_are_read_with_nulls_as_empty(array):
    found = decode.lists_of(array, CellLocation("a", 0, "x"))
    assert found.offsets.tolist() == [0, 2, 2, 2, 3]
    assert found.values.tolist() == [1, 2, 3]


def test_keys_keep_their_nulls():
    found = decode.keys_of(pa.array([None, "a", None, "b"]), CellLocation("a", 0, "x"))
    assert found.to_list() == [None, "a", None, "b"]


def test_equal_lists_have_equal_fingerprints_and_others_do_not():
    rows = [[1, 2, 3], [1, 2, 3], [3, 2, 1], [1, 2], [1, 2, 3, 0], [0], [], [0, 0]]
    for kind in (pa.int32(), pa.int64(), pa.float32()):
        found = decode.fingerprints_of(pa.array(rows, pa.list_(kind)), CellLocation("a", 0, "x"))
        assert found[0] == found[1]
        assert len(set(found.tolist())) == len(rows) - 1


# ---- without reading everything ----


def test_without_tokens_other_statistics_are_the_same(sample, facts):
    found = inspect([sample], tokens=False)
    assert found.token_facts is None
    for name in ("groups", "rewards", "lengths", "masks", "responses", "tokens"):
        assert getattr(found, name) == getattr(facts, name)


def test_footers_have_bytes_codecs_and_types(sample):
    found, roles = stored([sample])
    footer = pq.read_metadata(sample)
    assert (found.rows, found.row_groups) == (footer.num_rows, footer.num_row_groups)
    assert found.bytes == sample.stat().st_size
    by_name = {one.name: one for one in found.columns}
    chunks = [
        footer.row_group(group).column(place)
        for group in range(footer.num_row_groups)
        for place in range(footer.num_columns)
    ]
    for name, one in by_name.items():
        own = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == name]
        assert one.bytes == sum(chunk.total_compressed_size for chunk in own)
        assert one.uncompressed == sum(chunk.total_uncompressed_size for chunk in own)
        assert one.codecs == ["zstd"]
    assert roles["mask"].type == "list<element: uint8>"


def test_files_written_by_rlpost_show_the_estimator(sample, tmp_path):
    rlpost.advantages(sample, tmp_path / "a.parquet", Recipe(estimator="rloo"))
    (file,) = stored([tmp_path / "a.parquet"])[0].files
    assert (file.rlpost["version"], file.rlpost["estimator"]) == (rlpost.__version__, "rloo")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--footer"]).stdout
    assert f"enriched with rloo by rlpost {rlpost.__version__}" in shown


def test_converted_files_show_the_missing_roles_of_their_dump(tmp_path):
    lacks = {"mask": "masks are not dumped"}
    metadata = {
        "rlpost.version": "1",
        "rlpost.format": "verl",
        "rlpost.missing_roles": json.dumps(lacks),
    }
    table = pa.table({"prompt_id": ["a"], "reward": [1.0]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "a.parquet")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet")]).stdout
    assert "converted from verl by rlpost 1" in shown
    assert "mask: masks are not dumped" in shown


def test_inspecting_does_not_import_torch():
    code = (
        "import sys; from rlpost.analysis.inspect.facts import inspect\n"
        "from rlpost.analysis.inspect import render\n"
        "for sample in sys.argv[1:]: render.show(inspect([sample]), 'table')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code, *SAMPLES.glob("*.parquet")], check=True, capture_output=True
    )
