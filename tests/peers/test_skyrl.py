"""What the manual says of SkyRL 0.3, which has no preset.

SkyRL's side runs `RayPPOTrainer.apply_reward_kl_penalty` and `compute_advantages_and_returns`, and
functions of its loss registry on advantages that `apply_loss_reduction_to_advantages_minibatch`
divides, on right-aligned float64 tensors.

- the last step of a trajectory has its reward (`rollout_reward="last"`)
- a KL penalty is subtracted from a response's reward before its baseline (`kl_credit="response"`)
- `cispo` and `rollout_is` divide by the rollout engine (`behaviour="infer"`)
- sequence_mean and prompt_mean divide by all responses and prompts (`agg_rows`)
"""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers.parts import part
from peers.peer_rollouts import assert_same_loss, cases, mini_batch, rollouts

TRAIN = "skyrl.backends.skyrl_train"
BARE = ("skyrl", "skyrl.backends", TRAIN, f"{TRAIN}.utils", "skyrl.train", "skyrl.train.dataset")
ABSENT = (
    *(f"{TRAIN}.{name}" for name in ("distributed", "inference_servers", "workers", "utils.io")),
    *(f"skyrl.train.{name}" for name in ("evaluate", "generators", "utils")),
    "skyrl_gym",
    "transformers",
)
GRPO = {"single": "raw", "outcome": "response"}


def skyrl(name):
    return part(name, bare=BARE, absent=ABSENT)


def losses():
    return skyrl(f"{TRAIN}.utils.ppo_utils")


def right(data, rows):
    """Rows of tokens as SkyRL has them: [N, T] float64, padded on the left."""
    out = torch.zeros(len(data), max(data.lengths), dtype=torch.float64)
    for i, row in enumerate(rows):
        out[i, out.shape[1] - len(row) :] = torch.as_tensor(np.asarray(row))
    return out


class Batch(dict):
    """What the trainer reads of its TrainingInputBatch."""

    def __init__(self, data, **metadata):
        scores = torch.zeros(len(data), max(data.lengths), dtype=torch.float64)
        scores[:, -1] += data.of_responses("reward")
        super().__init__(
            rewards=scores,
            response_mask=right(data, [np.ones(length) for length in data.lengths]),
            loss_mask=right(data, data.columns["response_mask"]),
            values=right(data, data.columns["values"]),
            action_log_probs=right(data, data.columns["old_log_probs"]),
            base_action_log_probs=right(data, data.columns["ref_log_probs"]),
        )
        self.metadata = {"uids": data.columns["prompt_id"], "avg_response_length": 0.0, **metadata}

    def to(self, _):
        return self


def by_prompt(data):
    """The rollouts sorted by prompt."""
    order = np.argsort(data.columns["prompt_id"], kind="stable")
    rows = {k: [x[i] for i in order] for k, x in data.columns.items() if isinstance(x, list)}
    return data.with_(**{k: x[order] for k, x in data.columns.items() if k not in rows}, **rows)


def assert_advantages(data, steps=None, *, kl=False, options, **algorithm):
    """Advantages and returns are those of SkyRL's trainer on policy tokens."""
    trainer, utils = skyrl("skyrl.train.trainer").RayPPOTrainer, losses()
    config = SimpleNamespace(
        trainer=SimpleNamespace(algorithm=utils.AlgorithmConfig(**algorithm)),
        generator=SimpleNamespace(step_wise_trajectories=steps is not None),
    )
    self = SimpleNamespace(cfg=config, all_metrics={}, reward_kl_controller=None)
    batch = Batch(data, is_last_step=steps)
    batch = trainer.apply_reward_kl_penalty(self, batch) if kl else batch
    batch = trainer.compute_advantages_and_returns(self, batch)
    table = data.enriched("advantages", "returns", **options)
    mask = batch["loss_mask"] > 0
    assert mask.sum() > 60
    for name in ("advantages", "returns"):
        ours = right(data, table[name].to_pylist())
        torch.testing.assert_close(ours[mask], batch[name][mask], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("kl", "apart"), cases("skyrl", ("k1", "k2", "k3", "abs"), (1.0, 60.0)))
def test_kl_in_the_reward(kl, apart):
    numerics = {**GRPO, "log_ratio_clamp": "k3:20", "kl_credit": "response"}
    options = {"estimator": "grpo", "kl_estimator": kl, "kl_coef": 0.05, "numerics": numerics}
    data = rollouts(6, turns=True, apart=apart)
    theirs = {"kl_estimator_type": kl, "kl_loss_coef": 0.05}
    assert_advantages(data, kl=True, options=options, **theirs)


@pytest.mark.parametrize(("estimator", "seed"), cases("skyrl", ("grpo", "rloo"), (0, 1)))
def test_last_step_of_a_trajectory(estimator, seed):
    data, rng = by_prompt(rollouts(seed, turns=True)), np.random.default_rng(seed)
    groups = data.columns["prompt_id"]
    ends = rng.random(len(data)) < 0.5
    ends[:-1] |= groups[1:] != groups[:-1]
    ends[-1] = True
    data = data.with_(rollout=np.concatenate([[0], np.cumsum(ends)[:-1]]))
    options = {"unit": "rollout", "columns": {"rollout": "rollout"}, "rollout_reward": "last"}
    options |= {"estimator": estimator, "numerics": GRPO if estimator == "grpo" else {}}
    assert_advantages(data, ends.tolist(), options=options, advantage_estimator=estimator)


REDUCTIONS = {
    "token_mean": {"aggregation": "token-mean"},
    "sequence_mean": {"aggregation": "seq-mean-token-mean", "agg_rows": "all"},
    "seq_mean_token_sum_norm": {
        "aggregation": "seq-mean-token-sum-norm",
        "agg_norm": "rows",
        "agg_rows": "all",
        "agg_length": 40,
    },
    "prompt_mean": {"aggregation": "prompt-mean", "agg_rows": "all"},
}
CLIPS = {"cispo_eps_clip_low": 0.3, "cispo_eps_clip_high": 0.4}
LOSSES = {
    "cispo": ({"loss": "cispo", "pg_clip": (0.3, 0.4)}, {"cispo": ("CISPOConfig", CLIPS)}),
    "rollout_is": (
        {"loss": "rollout_is", "behaviour": "infer", "pg_clip": (0.1, 0.3)},
        {"eps_clip_low": 0.1, "eps_clip_high": 0.3},
    ),
}


@pytest.mark.parametrize(("name", "reduction"), cases("skyrl", LOSSES, REDUCTIONS))
def test_losses(name, reduction):
    data, (options, fields) = by_prompt(mini_batch(7, empty=True)), LOSSES[name]
    utils, config = losses(), skyrl("skyrl.train.config.config")
    tables = {k: getattr(config, x[0])(**x[1]) for k, x in fields.items() if k == "cispo"}
    algorithm = config.AlgorithmConfig(
        policy_loss_type=name, loss_reduction=reduction, **{**fields, **tables}
    )
    mask, prompts = right(data, data.columns["response_mask"]), data.columns["prompt_id"]
    starts = [0, *(np.flatnonzero(prompts[1:] != prompts[:-1]) + 1).tolist(), len(data)]
    advantages = utils.apply_loss_reduction_to_advantages_minibatch(
        right(data, data.columns["advantages"]), mask, reduction, 1, 40, [*pairwise(starts)]
    )
    new = right(data, data.columns["log_probs"]).requires_grad_()
    old, infer = (right(data, data.columns[x]) for x in ("old_log_probs", "infer_log_probs"))
    loss, _ = utils.PolicyLossRegistry.get(name)(new, old, advantages, algorithm, mask, infer)
    found, gradient = data.policy_loss(units=prompts, **REDUCTIONS[reduction], **options)
    rows = (row[:size] for row, size in zip(gradient, data.lengths, strict=True))
    assert_same_loss((found, right(data, [*rows])), loss, new)
