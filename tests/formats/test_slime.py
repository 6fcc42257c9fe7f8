"""Dumps of slime: rewards by position and in parts, aborted responses, pickles."""

from __future__ import annotations

import format_writers as writers
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from token_dumps import (
    WRITERS,
    converted,
    refused,
    refused_as,
)

from rlpost import preset, replay
from rlpost.errors import DataError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert


def test_slime_rewards_of_the_trainer_are_the_raw_ones_by_position(tmp_path):
    table = converted("slime_train", tmp_path)
    given = writers.made()
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["normalised_reward"].to_pylist() == [one.reward / 2 for one in given]
    assert table["data_parallel_rank"].to_pylist() == [i % 2 for i in range(len(given))]


def slime_whitened(dump) -> None:
    """Put in a dump what slime computes with `--normalize-advantages`, over all ranks."""
    held = torch.load(dump, weights_only=True)
    rewards = torch.tensor(held["raw_reward"]).reshape(-1, 4)
    normalised = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    for one, reward in zip(held["samples"], normalised.flatten(), strict=True):
        one["rewards"] = float(reward)
        one["kl"] = torch.zeros(one["response_lengths"])  # what slime stores without a penalty
        one["returns"] = one["advantages"] = reward.expand(one["response_lengths"]).clone()
    policy = torch.cat([one["returns"][one["loss_masks"] > 0] for one in held["samples"]])
    for one in held["samples"]:
        one["advantages"] = (one["returns"] - policy.mean()) * torch.rsqrt(policy.var() + 1e-8)
    writers.saved(dump, held)


def test_slime_advantages_are_whitened_over_all_ranks(tmp_path):
    dump = writers.slime_train(tmp_path, writers.made(groups=8))
    slime_whitened(dump)
    found = replay(dump, preset("slime", estimator="grpo"))
    assert found.first == "advantages"
    assert "not compared: `dumped_kl` is 0 in all rows" in " ".join(found.warnings)
    charged = replay(dump, preset("slime", estimator="grpo", kl_coef=0.1))
    assert charged.first == "kl"
    assert charged.stages[1]["column"] == "dumped_kl"
    assert found.findings[0]["check"] == "option:whiten_advantages"
    assert "reproduced by `--set whiten_advantages=true`" in found.findings[0]["text"]


def test_slime_raw_rewards_without_positions_are_not_guessed(tmp_path):
    dump = writers.slime_train(tmp_path / "in", writers.made())
    held = torch.load(dump, weights_only=True)
    for one in held["samples"]:
        del one["rollout_position"]
    writers.saved(dump, held)
    with pytest.raises(DataError, match=r"7\.pt, samples 0: `rollout_position` is None"):
        convert(dump, tmp_path / "out.parquet")
    convert(dump, tmp_path / "out.parquet", options=ReadOptions({"reward": "none"}))
    assert "reward" not in pq.read_table(tmp_path / "out.parquet").column_names


def test_slime_rewards_in_parts_need_one_to_be_picked(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    for one in held["samples"]:
        one["reward"] = {"format": 0.0, "answer": one["reward"]}
    dump = writers.saved(tmp_path / "7.pt", held)
    with pytest.raises(DataError, match=r"samples 0: `reward` has the parts format, answer"):
        convert(dump, tmp_path / "out.parquet")
    convert(dump, tmp_path / "out.parquet", options=ReadOptions({"reward": "reward.answer"}))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reward"].to_pylist() == [one.reward for one in writers.made()]


def test_slime_responses_that_were_aborted_have_no_tokens(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    held["samples"][0] |= {
        "response_length": 0, "loss_mask": None, "rollout_log_probs": None, "status": "aborted",
    }  # fmt: skip
    convert(writers.saved(tmp_path / "7.pt", held), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["infer_log_probs"][0].as_py() == []
    assert table["finish_reason"][:2].to_pylist() == ["aborted", "length"]


def test_numpy_numbers_in_a_pickle_are_plain_data(tmp_path):
    held = {"rollout_id": 7, "samples": [writers.slime_sample(one) for one in writers.made()]}
    for one in held["samples"]:
        one["reward"] = np.float64(one["reward"])
        one["rollout_log_probs"] = np.array(one["rollout_log_probs"], np.float32)
    convert(writers.saved(tmp_path / "7.pt", held), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["reward"].to_pylist() == [one.reward for one in writers.made()]
    assert table["infer_log_probs"].to_pylist() == [one.infer for one in writers.made()]


def test_a_sample_that_no_dump_contains_is_an_error(tmp_path):
    held = writers.slime_sample(writers.made()[0]) | {"rollout_id": None}
    with pytest.raises(DataError, match="`rollout_id` is null"):
        convert(writers.saved(tmp_path / "7.pt", held), tmp_path / "o.parquet", "slime-rollout")


SLIME = {
    "slime_rollout": ("response_length", "samples"),
    "slime_train": ("response_lengths", "samples"),
}


@pytest.mark.parametrize("writer", SLIME)
def test_a_sample_of_a_pickle_with_a_bad_field_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", writers.made())
    length, _ = SLIME[writer]
    cases = (
        (lambda one: one.pop(length), f"7.pt, samples 1: no field `{length}`"),
        (lambda one: one.update({length: 10**6}), "7.pt, samples 1: the response length is"),
        (lambda one: one.update(tokens=[[1, 2]]), "7.pt, samples 1: `tokens` is a list of lists"),
        (
            lambda one: one.update(rollout_log_probs=[0.5]),
            "7.pt, samples 1: `rollout_log_probs` has 1 entries",
        ),
    )
    for edit, told in cases:
        held = torch.load(dump, weights_only=True)
        edit(held["samples"][1])
        writers.saved(dump, held)
        assert told in refused(dump, tmp_path)
        dump = getattr(writers, writer)(tmp_path / "in", writers.made())


@pytest.mark.parametrize("writer", SLIME)
def test_a_pickle_that_is_cut_off_is_named(writer, tmp_path):
    dump = getattr(writers, writer)(tmp_path / "in", writers.made())
    dump.write_bytes(dump.read_bytes()[:-200])
    name, _ = WRITERS[writer]
    assert f"{dump}: not a torch.save file, or damaged" in refused_as(name, dump, tmp_path)
