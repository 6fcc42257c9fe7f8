"""Metrics that frameworks' own losses return, over micro-batches and ranks, and their replay."""

import json
from importlib import import_module
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest
import torch

from rlpost.analysis.peers import verl_losses
from rlpost.analysis.peers.rollouts import rollouts
from rlpost.analysis.replay.metrics.replay import replay_metrics
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import loss_values_of

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, ROWS = 3, 16


def needs(package):
    return pytest.param(
        package, id=package, marks=pytest.mark.skipif(not find_spec(package), reason=package)
    )


def data_of(seed):
    """Three steps of responses with observations, and advantages of tokens."""
    data, rng = rollouts(seed, turns=True, steps=STEPS), np.random.default_rng(seed)
    step = data.columns["step"]
    rows = np.concatenate([np.flatnonzero(step == one)[:ROWS] for one in range(STEPS)])
    data = part_of(data, rows)
    advantages = [rng.normal(size=size).astype(np.float32) for size in data.lengths]
    names = ("log_probs", "old_log_probs", "ref_log_probs")
    rounded = {name: [np.asarray(x, np.float32) for x in data.columns[name]] for name in names}
    return data.with_(advantages=advantages, **rounded)


def part_of(data, rows):
    """Some responses."""
    return data.with_(
        **{
            name: [column[row] for row in rows] if isinstance(column, list) else column[rows]
            for name, column in data.columns.items()
        }
    )


def verl_log(data, config, *, ranks, micro):
    """What verl's trainer logs: `ppo_loss` on each micro-batch, reduced as its workers do."""
    workers, losses = import_module(verl_losses.WORKERS), import_module(verl_losses.LOSSES)
    metric = import_module("verl.utils.metric").Metric
    assign = import_module(verl_losses.TENSORS).assign_non_tensor
    lines = []
    for step in range(STEPS):
        rows = np.flatnonzero(data.columns["step"] == step)
        whole = part_of(data, rows)
        of_ranks = []
        for own in np.array_split(rows, ranks):
            logged = {}
            for start in range(0, len(own), micro):
                part = part_of(data, own[start : start + micro])
                actor = workers.ActorConfig(
                    strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=micro, **config
                )
                new = verl_losses._rows(part, "log_probs")
                log_probs = torch.cat([torch.cat([x, x.new_zeros(1)]) for x in new])
                batch = verl_losses._tensors(part, counts=True)
                counts = {"batch_num_tokens": int(whole.mask.sum()), "global_batch_size": len(rows)}
                assign(batch, dp_size=ranks, **counts)
                _, found = losses.ppo_loss(actor, {"log_probs": log_probs}, batch)
                for name, value in found.items():
                    if isinstance(value, metric):
                        logged.setdefault(name, value.init_list()).append(value)
            of_ranks.append(logged)
        reduced = {
            name: float(metric.aggregate_dp([one[name] for one in of_ranks]))
            for name in of_ranks[0]
        }
        lines.append({"step": step, "data": reduced})
    return lines


def replayed(data, path, preset, options):
    """The replay of a log by a preset, and by the options of the loss that the run sets."""
    loss = LossOptions.of(loss_values_of(preset, options))
    return replay_metrics(data.table(), path, None, loss, stated=options)


VERL = [
    (
        {"loss_agg_mode": "token-mean"},
        {"pg_clip": 0.2},
        ["--pg-clip 0.2", "--aggregation token-mean"],
    ),
    (
        {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
        {"pg_clip_low": 0.1, "pg_clip_high": 0.3},
        ["--pg-clip-low 0.1 --pg-clip-high 0.3", "--aggregation seq-mean-token-mean"],
    ),
    (
        {"loss_agg_mode": "seq-mean-token-sum", "clip_ratio_c": 1.2, "clip_ratio": 0.15,
         "clip_ratio_low": 0.15, "clip_ratio_high": 0.15},
        {"pg_clip": 0.15},
        ["--pg-clip 0.15", "--dual-clip 1.2", "--aggregation seq-mean-token-sum"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "loss", "expected"), VERL)
@pytest.mark.parametrize("_package", [needs("verl")])
def test_verl(_package, config, loss, expected, tmp_path):
    data = data_of(3)
    for ranks, micro in ((1, ROWS), (1, 4), (2, 4)):
        lines = verl_log(data, config, ranks=ranks, micro=micro)
        path = tmp_path / f"{ranks}-{micro}.jsonl"
        path.write_text("\n".join(json.dumps(line) for line in lines))
        found = replayed(data, path, "verl", loss)
        text = " ".join(found["description"]["options"])
        assert found["reproduced"], (text, found["findings"])
        assert all(part in text for part in expected), text
        assert ("--micro-batch 4" in text) == (micro == 4), text


TRL = [
    (
        {"loss_type": "grpo", "beta": 0.04},
        {"loss": "grpo"},
        [
            "--aggregation seq-mean-token-mean",
            "--kl-loss-coef 0.04 --kl-loss-estimator k3 --kl-loss-ratio",
        ],
    ),
    (
        {"loss_type": "bnpo", "epsilon": 0.1, "epsilon_high": 0.28},
        {"loss": "bnpo"},
        ["--pg-clip-low 0.1 --pg-clip-high 0.28", "--aggregation token-mean"],
    ),
]


@pytest.mark.parametrize(("config", "loss", "expected"), TRL)
@pytest.mark.parametrize("_package", [needs("trl")])
def test_trl(_package, config, loss, expected, tmp_path):
    trl = import_module("rlpost.analysis.peers.trl")
    trainer = trl._step("GRPO", options=tuple(config.items())).trainer
    data = data_of(4)
    same = [np.full(len(row), row[0]) for row in data.columns["advantages"]]
    data = data.with_(advantages=same)
    lines = []
    for step in range(STEPS):
        rows = np.flatnonzero(data.columns["step"] == step)
        trainer._metrics["train"].clear()
        losses = [trl_loss(trainer, part_of(data, own)) for own in np.split(rows, ROWS // 4)]
        logged = {
            name: float(np.mean(values))
            for name, values in trainer._metrics["train"].items()
            if name.startswith(("kl", "clip_ratio"))
        }
        lines.append({"step": step, "loss": round(float(np.mean(losses)), 4), **logged})
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = replayed(data, path, "trl", loss)
    text = " ".join(found["description"]["options"])
    assert all(part in text for part in expected), text
    assert "--micro-batch 4" in text
    rows = {row["key"]: row["reproduced"] for row in found["metrics"]}
    assert rows.pop("clip_ratio/low_min", None) is None
    assert all(rows.values()), rows


def trl_loss(trainer, part):
    """TRL's loss of a micro-batch, whose metrics the trainer keeps."""
    real = part.real.long()
    size = real.shape[1]
    inputs = {
        "prompt_ids": torch.full((len(part), 1), 2),
        "prompt_mask": torch.ones(len(part), 1, dtype=torch.long),
        "completion_ids": torch.full((len(part), size), 3),
        "completion_mask": real,
        "tool_mask": part.mask.long(),
        "old_per_token_logps": part.padded("old_log_probs"),
        "ref_per_token_logps": part.padded("ref_log_probs"),
        "advantages": torch.tensor([row[0] for row in part.columns["advantages"]]),
        "num_items_in_batch": part.mask.sum(),
    }
    current = part.padded("log_probs")
    name, result = "_get_per_token_logps_and_entropies", (current, -current, None)
    with mock.patch.object(type(trainer).__mro__[1], name, return_value=result):
        return float(trainer.compute_loss(trainer.model, inputs))
