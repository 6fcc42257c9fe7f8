"""A training step on batches of `rlpost.load`: loss and gradient are those of TRL's trainer."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import polars as pl
import pytest
import torch
from peers.trl_cases import save_model, tokenizer_of

import rlpost
from rlpost.functional import padded

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        find_spec("trl") is None,
        reason="trl is not installed; `python -m tests.peers trl` runs this with it",
    ),
]
SAMPLE = Path(__file__).parents[2] / "sample_data" / "calculator.parquet"
COLUMNS = ("advantages", "response_token_ids", "prompt_token_ids")
PARTS = 2


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """The micro-batches of a step, with masks of tools and responses of any length."""
    folder = tmp_path_factory.mktemp("step")
    pl.read_parquet(SAMPLE).head(32).write_parquet(folder / "in.parquet")
    rlpost.advantages(folder / "in.parquet", folder / "out.parquet", rlpost.Recipe(unit="row"))
    ranks = (
        rlpost.load(
            folder / "out.parquet", batch_tokens=10**6, shuffle=1, columns=COLUMNS, rank=rank,
            world=PARTS,
        )
        for rank in range(PARTS)
    )  # fmt: skip
    parts = [batch for rank in ranks for batch in rank]
    assert len(parts) == PARTS
    assert parts[0]["totals"]["rows"] == 32
    return parts


def trainer_of(folder, batches, loss_type):
    """TRL's trainer with a tiny Qwen2, which accumulates gradients."""
    trl, datasets = import_module("trl"), import_module("datasets")
    words = 1 + max(int(batch["input_ids"].max()) for batch in batches)
    save_model(str(folder), words)
    settings = trl.GRPOConfig(
        output_dir=str(folder), loss_type=loss_type, use_cpu=True, bf16=False, report_to="none",
        num_generations=2, per_device_train_batch_size=16, gradient_accumulation_steps=PARTS,
        steps_per_generation=PARTS, gradient_checkpointing=False, beta=0.0,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        processing_class=tokenizer_of(words),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["w0"]}),
    )
    trainer.current_gradient_accumulation_steps = PARTS
    return trainer


def log_probs_of(trainer, model, batch):
    """The log-probs of response tokens by TRL's function, [B, T]."""
    return trainer._get_per_token_logps_and_entropies(
        model, batch["input_ids"], batch["attention_mask"].long(), batch["mask"].shape[1]
    )[0]


def gradient(model, losses):
    model.zero_grad()
    total = sum(losses)
    total.backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return float(total.detach()), torch.cat(grads).double()


@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [("dapo", "token-mean"), ("grpo", "seq-mean-token-mean")],
    ids=["trl-dapo", "trl-grpo"],
)
def test_loss_and_gradient_of_a_step(batches, tmp_path, loss_type, aggregation):
    trainer = trainer_of(tmp_path, batches, loss_type)
    model = trainer.model.train()
    with torch.no_grad():
        old = [log_probs_of(trainer, model, batch) for batch in batches]
        for parameter in model.parameters():  # so that ratios are not 1, and some are clipped
            parameter.add_(torch.randn(parameter.shape), alpha=0.02)
    theirs = []
    for batch, before in zip(batches, old, strict=True):
        real = torch.arange(batch["mask"].shape[1]) < batch["lengths"][:, None]
        prompt = batch["prompt_token_ids"].shape[1]
        inputs = {
            "prompt_ids": batch["prompt_token_ids"],
            "prompt_mask": batch["attention_mask"][:, :prompt].long(),
            "completion_ids": batch["response_token_ids"],
            "completion_mask": real.long(),
            "tool_mask": batch["mask"].long(),
            "old_per_token_logps": before,
            "advantages": batch["advantages"],
            "num_items_in_batch": torch.tensor(batch["totals"]["tokens"]),
        }
        with mock.patch.object(trainer, "_metrics", trainer._metrics):
            theirs.append(trainer._compute_loss(model, inputs))
    expected, wanted = gradient(model, theirs)
    ours = [
        padded.policy_loss(
            log_probs_of(trainer, model, batch), before, batch["advantages"], batch["mask"],
            loss="ppo", aggregation=aggregation, totals=batch["totals"],
        ).loss
        for batch, before in zip(batches, old, strict=True)
    ]  # fmt: skip
    found, got = gradient(model, ours)
    assert found == pytest.approx(expected, rel=1e-5)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    assert float(wanted.norm()) > 0
