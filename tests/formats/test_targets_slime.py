"""`--to slime`: samples as slime loads them, and its advantage hook."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from exported_rows import rollouts
from exports import load_debug_rollout_data

import rlpost


def rollout_data(samples):
    """What slime's trainer has when it calls the hook, without what the hook does not read."""
    lengths = [sample.response_length for sample in samples]
    return {
        "kl": [torch.zeros(n) for n in lengths],
        "response_lengths": lengths,
        "total_lengths": [len(sample.tokens) for sample in samples],
        "metadata": [sample.train_metadata for sample in samples],
    }


@pytest.fixture
def hook(tmp_path, monkeypatch):
    def advantages(*args):
        monkeypatch.syspath_prepend(tmp_path / "o")
        monkeypatch.delitem(sys.modules, "rlpost_advantages", raising=False)
        import rlpost_advantages  # noqa: PLC0415

        return rlpost_advantages.advantages(*args)

    return advantages


def test_slime_loads_the_samples_and_gets_our_advantages(source, tmp_path, hook):
    found = rlpost.export(source, tmp_path / "o", "slime")
    assert found.lost == {}
    rows = rollouts().to_pylist()
    for step in (5, 6):
        own = [row for row in rows if row["step"] == step]
        samples = load_debug_rollout_data(str(tmp_path / "o" / "{rollout_id}.pt"), step)
        for sample, row in zip(samples, own, strict=True):
            assert sample.tokens == row["prompt_token_ids"] + row["response_token_ids"]
            assert sample.response_length == len(sample.loss_mask) == len(row["response_mask"])
            assert sample.rollout_log_probs == row["infer_log_probs"]
            assert sample.remove_sample == (not row["sample_mask"])
            assert (sample.status == "truncated") == (row["finish_reason"] == "length")
            assert (sample.reward, sample.loss_mask) == (row["reward"], row["response_mask"])
        groups = [sample.group_index for sample in samples]
        for i, j in np.ndindex(len(own), len(own)):
            assert (groups[i] == groups[j]) == (own[i]["prompt_id"] == own[j]["prompt_id"])
        order = np.random.default_rng(step).permutation(len(own))  # a rank has some, in any order
        data = rollout_data([samples[i] for i in order])
        hook(SimpleNamespace(), data)
        for name in ("advantages", "returns"):
            assert [one.tolist() for one in data[name]] == [own[i][name] for i in order]


def test_the_hook_cuts_out_a_rank_s_tokens(source, tmp_path, hook, monkeypatch):
    rlpost.export(source, tmp_path / "o", "slime")
    module = ModuleType("slime.backends.megatron_utils.cp_utils")
    module.slice_log_prob_with_cp = lambda x, *_: x[:2]
    for name in ("slime", "slime.backends", "slime.backends.megatron_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    samples = load_debug_rollout_data(str(tmp_path / "o" / "{rollout_id}.pt"), 5)
    long = [sample for sample in samples if sample.response_length > 2]
    data = rollout_data(long)
    data["kl"] = [torch.zeros(2) for _ in long]
    hook(SimpleNamespace(qkv_format="thd"), data)
    expected = [sample.train_metadata["advantages"][:2].tolist() for sample in long]
    assert [one.tolist() for one in data["advantages"]] == expected
    data["response_lengths"][0] += 1
    with pytest.raises(ValueError, match="response tokens"):
        hook(SimpleNamespace(qkv_format="thd"), data)


def test_convert_reads_the_samples(source, tmp_path):
    rlpost.export(source, tmp_path / "o", "slime")
    summary = rlpost.convert(tmp_path / "o", tmp_path / "back.parquet")
    assert summary["format"] == "slime-rollout"
    back, rows = pq.read_table(tmp_path / "back.parquet"), rollouts().sort_by("step")
    same = ("step", "reward", "finish_reason", "prompt", "prompt_token_ids", "response_token_ids",
            "response_mask", "infer_log_probs")  # fmt: skip
    assert back.select(same).to_pylist() == rows.select(same).to_pylist()


def test_without_advantages_slime_computes_its_own(tmp_path):
    frame = pl.from_arrow(rollouts()).filter(pl.col("step") == 5)
    result = rlpost.export(frame, tmp_path / "one", "slime")
    template = f"--load-debug-rollout-data '{tmp_path}/one/{{rollout_id}}.pt'"
    assert result.use.startswith(f"{template} --custom-advantage-function-path rlpost_advantages.")
    result = rlpost.export(frame.drop("advantages"), tmp_path / "one", "slime", overwrite=True)
    assert result.use == template
    assert result.outputs == [str(tmp_path / "one" / "5.pt")]
    assert result.warnings == [
        "no advantages: slime computes its own; `rlpost advantages` writes them"
    ]
