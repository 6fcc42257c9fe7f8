"""The columns that `rlpost inspect` reads: names of frameworks, and --map."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspected_files import RUN, SAMPLES

from rlpost.analysis.inspect.facts import inspect
from rlpost.cli.app import app_of
from rlpost.recipe.roles import resolve

ARITHMETIC = SAMPLES / "arithmetic.parquet"


def test_responses_with_sample_mask_0_and_columns_without_a_role_are_named(tmp_path):
    mask = [row % 4 != 0 for row in range(512)]
    frame = pl.read_parquet(ARITHMETIC).with_columns(
        sample_mask=pl.Series(mask), score=pl.col("reward")
    )
    frame.write_parquet(tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).left_out == 128
    shown = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet")]).stdout
    assert "128 responses with `sample_mask` 0 left out here, as of `rlpost advantages`" in shown
    assert "`score` ignored: reward is read from `reward` (--map reward=COLUMN)" in shown


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
    "openrlhf": {
        "scores": "reward", "action_mask": "mask", "action_log_probs": "old_log_probs",
        "base_action_log_probs": "ref_log_probs", "rollout_log_probs": "infer_log_probs",
        "values": "values", "truncated": "truncated", "rewards": None,
    },
    "prime-rl": {
        "problem_id": "group", "reward": "reward", "loss_mask": "mask", "step": "batch",
        "inference_logprobs": "infer_log_probs", "trainer_logprobs": "old_log_probs",
        "reference_logprobs": "ref_log_probs", "env_name": "domain",
    },
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_names_of_every_framework_find_their_roles(framework):
    names = FRAMEWORKS[framework]
    found = resolve([*names], {}, "a.parquet").columns
    assert found == {role: name for name, role in names.items() if role}


def test_ambiguous_names_alone_get_no_role(tmp_path):
    columns = {"logprobs": [[-1.0]], "rewards": [1.0], "status": ["ok"], "task_id": [1], "id": [1]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert inspect([tmp_path / "a.parquet"]).roles == {}


def test_a_map_overrides_the_names_of_a_framework():
    names = [*FRAMEWORKS["slime, of the trainer"]]
    roles = resolve(names, {"log_probs": "log_probs"}, "a.parquet").columns
    assert roles["log_probs"] == "log_probs"
    assert "old_log_probs" not in roles
