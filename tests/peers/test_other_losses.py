"""Formulas of losses: of ms-swift, torchrl, OpenRLHF, of critics, and the mask of high entropies.

ms-swift's side runs the methods of its trainer from the installed file, without the modules that it
imports. Where they differ: torchrl clips log ratios to log(1 ± ε) and has no mask, so it gets the
policy tokens alone; ms-swift's `grpo`, `sapo` and `dr_grpo` divide by all responses (`agg_rows`),
and its `cispo` has the upper bound itself (`bounds="ratio"`); its `delta` bounds the ratio of
positive advantages, too, if it is below 1 + ε. Rejected tokens stay in the denominator of
OpenRLHF's loss, so in rlpost they have weight 0. TRL computes the quantile of entropies in float32,
and one over all processes.
"""

import __future__

import ast
import inspect
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers.parts import part
from peers.peer_rollouts import assert_same_loss, cases, mini_batch, rollouts
from peers.test_areal import areal as areal_module

from rlpost.functional import padded

GROUP = 4


def with_policy_tokens(data):
    """The rollouts, each with a policy token."""
    return data.with_(response_mask=[np.r_[1, x[1:]] for x in data.columns["response_mask"]])


def trainer_of_swift(**fields):
    """An object with the methods of the GRPOTrainer of ms-swift that its losses call."""
    package = Path(find_spec("swift").submodule_search_locations[0])
    file = package / "rlhf_trainers" / "grpo_trainer.py"
    wanted = ("_compute_fipo_influence", "_compute_loss_and_metrics",
              "_undo_gradient_accumulation_scaling", "WINDOW_NORMALIZED_LOSS_TYPES")  # fmt: skip
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (trainer,) = (x for x in tree.body if getattr(x, "name", "") == "GRPOTrainer")
    parts = [x for x in trainer.body if getattr(x, "name", "") in wanted]
    parts += [
        x
        for x in tree.body
        if isinstance(x, ast.Assign) and getattr(x.targets[0], "id", "") in wanted
    ]
    module = ast.Module(parts, [])
    names = {"torch": torch, "gather_object": list, "nanmin": torch.min, "nanmax": torch.max}
    flags = __future__.annotations.compiler_flag
    exec(compile(module, str(file), "exec", flags), names)  # noqa: S102 - of the installed wheel
    accelerator = SimpleNamespace(num_processes=1, gather_for_metrics=lambda x: x)
    args = SimpleNamespace(delta=fields.pop("delta", None))
    usual = {
        "model": SimpleNamespace(training=False), "accelerator": accelerator, "args": args,
        "compute_entropy": False, "overlong_filter": False, "kl_in_reward": False, "beta": 0.0,
        "rollout_importance_sampling_mode": None, "log_rollout_offpolicy_metrics": False,
        "disable_rollout_importance_sampling": True, "importance_sampling_level": "token",
        "_has_teacher": False, "off_policy_sequence_mask_delta": None, "sdar_loss_coef": 0.0,
        "epsilon_low": 0.2, "epsilon_high": 0.2, "num_generations": GROUP,
        "fipo_gamma": 2 ** (-1 / 32), "fipo_clip_range": 0.2, "fipo_clip_high_only": True,
        "fipo_safety_threshold": 4.0, "tau_pos": 1.0, "tau_neg": 1.05, "real_tau": 0.5,
    }  # fmt: skip
    methods = {name: names[name] for name in wanted[:3]}
    return type("Trainer", (), {**usual, **methods, **fields})()


MEAN = {"aggregation": "seq-mean-token-mean", "agg_rows": "all"}
SWIFT = {
    "grpo": ({}, {"loss": "ppo", **MEAN}),
    "grpo-kl": ({"beta": 0.1}, {"loss": "ppo", "kl_loss_coef": 0.1, **MEAN}),
    "bnpo": ({"epsilon_high": 0.05}, {"loss": "ppo", "pg_clip": (0.2, 0.05)}),
    "dapo": ({"delta": 1.3}, {"loss": "ppo", "dual_clip": 1.3}),
    "dr_grpo": ({"max_completion_length": 9}, {
        "loss": "ppo", "aggregation": "seq-mean-token-sum-norm", "agg_norm": "rows",
        "agg_length": 9, "agg_rows": "all"}),
    "cispo": ({"epsilon_high": 1.05}, {
        "loss": "cispo", "bounds": "ratio", "pg_clip": (None, 1.05)}),
    "sapo": ({}, {"loss": "sapo", **MEAN}),
    "grpo-sequence_token": ({"importance_sampling_level": "sequence_token", "epsilon_low": 0.01}, {
        "loss": "gspo", "pg_clip": (0.01, 0.2), **MEAN}),
    "fipo": ({}, {"loss": "fipo"}),
    "fipo-bounds": ({
        "delta": 1.25, "fipo_gamma": 0.5, "fipo_clip_range": 0.05, "fipo_clip_high_only": False,
        "fipo_safety_threshold": 1.02}, {
        "loss": "fipo", "dual_clip": 1.25, "half_life": 1,
        "influence": (0.95, 1.05), "safety": 1.02}),
    "real": ({}, {"loss": "real"}),
    "real-tau": ({"real_tau": 0.1}, {"loss": "real", "tau": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("name", cases("swift", SWIFT))
def test_losses_of_ms_swift(name):
    data, (fields, options) = with_policy_tokens(mini_batch(5, equal=True)), SWIFT[name]
    mask, new = data.mask.bool(), data.padded("log_probs").requires_grad_()
    trainer = trainer_of_swift(loss_type=name.partition("-")[0], **fields)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (new, None)
    batch = SimpleNamespace(
        completion_mask=mask,
        truncated_mask=torch.zeros(len(mask), dtype=torch.bool),
        old_per_token_logps=data.padded("old_log_probs"),
        ref_per_token_logps=data.padded("ref_log_probs"),
        rollout_per_token_logps=None,
        teacher_per_token_logps=None,
        advantages=data.padded("advantages"),
        num_items_in_batch=mask.sum(),
    )
    loss, _ = trainer._compute_loss_and_metrics(None, {}, batch)
    units = np.arange(len(data)) // GROUP
    assert_same_loss(data.policy_loss(ratio_clamp="never", units=units, **options), loss, new)


@pytest.mark.parametrize("clip", cases("torchrl", (0.05, 0.2)))
def test_ppo_of_torchrl(clip):
    """Its actor is a stub: the log ratios are given."""
    objectives, data = import_module("torchrl.objectives"), with_policy_tokens(mini_batch(6))
    keep, new = data.mask.bool(), data.padded("log_probs").requires_grad_()
    weight = (new - data.padded("old_log_probs"))[keep][:, None]
    parts = {
        "_log_weight": lambda *_, **__: (weight, None, weight, None),
        "_maybe_normalize_advantage": lambda x, *_, **__: x,
        "_reduce_loss": lambda x, _: x.mean(),
        "_clear_weakrefs": lambda *_: None,
    }
    loss = SimpleNamespace(
        tensor_keys=SimpleNamespace(advantage="advantage"),
        _clip_bounds=torch.tensor([1 - clip, 1 + clip]).double().log(),
        entropy_bonus=False,
        _has_critic=False,
        **parts,
    )
    advantages = {"advantage": data.padded("advantages")[keep][:, None]}
    table = import_module("tensordict").TensorDict(advantages, [int(keep.sum())])
    theirs = inspect.unwrap(objectives.ClipPPOLoss.forward)(loss, table)["loss_objective"]
    found = data.policy_loss(loss="ppo", pg_clip=clip, ratio_clamp="never")
    assert_same_loss(found, theirs, new)


GATES = {
    "ratio": ("ratio:0.9:1.1", (0.9, 1.1)),
    "tv": ("prob_gap::0.02", (0.0, 0.02)),
    "binary_kl": ("bkl::0.002", (0.0, 0.002)),
}
"""By OpenRLHF's name of a gate: rlpost's measure with its bounds, and the bounds."""
LEVELS = {"token": "token", "seq": "geometric"}


@pytest.mark.parametrize(("gate", "level"), cases("openrlhf", GATES, LEVELS))
def test_gates_of_openrlhf(gate, level):
    data, (measure, bounds) = mini_batch(3, empty=True, steps=2), GATES[gate]
    filters = {"is_weight": "token", "is_filter": (f"{LEVELS[level]}:{measure}",)}
    numerics = {"is_clamp": "never", "is_filter_clamp": "never"}
    written = data.enriched("is_weight", numerics=numerics, **filters)["is_weight"]
    absent = ("deepspeed", "flash_attn", "peft", "transformers")
    module = part("openrlhf.models.loss", bare=("openrlhf", "openrlhf.models"), absent=absent)
    loss = module.PolicyLoss(
        is_correction_level=level, is_correction_gating=gate, is_correction_threshold=bounds
    )
    new = data.padded("log_probs").requires_grad_()
    names = ("old_log_probs", "advantages", "response_mask", "infer_log_probs")
    expected = loss(new, *map(data.padded, names))[0]
    weights = torch.tensor([x for row in written.to_pylist() for x in row])
    assert_same_loss(data.policy_loss(is_weight=weights.double(), pg_clip=0.2), expected, new)


def verl(values, old, returns, mask, clip, _):
    core = import_module("verl.trainer.ppo.core_algos")
    return core.compute_value_loss(values, returns, old, mask, clip)


def areal(values, old, returns, mask, clip, kind):
    formulas = areal_module("utils.functional.functional")
    arguments = (values.float(), old.float(), returns.float(), clip, mask.bool(), kind)
    loss, stat = formulas.ppo_critic_loss_fn(*arguments)
    return loss, stat["clip_mask"].sum() / mask.sum()


def torchrl(values, old, returns, mask, clip, kind):
    utils = import_module("torchrl.objectives.utils")
    plain = utils.distance_loss(returns, values, kind)
    limit = torch.tensor(clip, dtype=values.dtype)
    loss, _ = utils._clip_value_loss(old, values, limit, returns, plain, kind)
    return (loss * mask).sum() / mask.sum() * (0.5 if kind == "l2" else 1), None


CRITICS = {
    "mse": (areal, inf, 0.5),
    "huber": (areal, 10.0, 0.5),
    "l2": (torchrl, inf, 0.2),
    "smooth_l1": (torchrl, 1.0, 0.2),
    "": (verl, inf, 0.5),
}
"""By the framework's word: its loss of a critic, rlpost's delta, and the clip."""


@pytest.mark.parametrize(
    ("kind", "scale"),
    [x for kind, row in CRITICS.items() for x in cases(row[0].__name__, (kind,), (1.0, 20.0))],
)
def test_the_value_loss_and_its_gradient(kind, scale):
    theirs, delta, clip = CRITICS[kind]
    mask = rollouts(5, turns=True).padded("response_mask")
    rng = np.random.default_rng(5)
    old, values, returns = (torch.tensor(rng.normal(0, scale, mask.shape)) for _ in range(3))
    values = (old + 0.05 * values).requires_grad_()
    loss, clipped = theirs(values, old, returns, mask, clip, kind)
    (wanted,) = torch.autograd.grad(loss, values)
    ours = padded.value_loss(values.detach(), old, returns, mask, clip=clip, delta=delta)
    assert ours.clipped.any() == (scale > 1)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # areal's are float32
    total = padded.aggregate(ours.loss, mask)
    torch.testing.assert_close(total, loss.detach().double(), **tolerance)
    torch.testing.assert_close(ours.gradient / mask.sum(), wanted, **tolerance)
    if clipped is not None:
        assert float(clipped) == pytest.approx(float(ours.clipped.sum() / mask.sum()), abs=1e-6)


@pytest.mark.parametrize(("share", "kind"), cases("trl", (0.05, 0.2, 0.5, 0.8), ("plain", "ties")))
def test_top_entropy_of_trl(share, kind):
    """The quantile is at a token, or between two."""
    data, rng = rollouts(21, turns=True, empty=True), np.random.default_rng(2)
    draw = {"plain": rng.random, "ties": lambda n: rng.choice([0.0, 0.25, 0.5, 1.5], n)}[kind]
    data = data.with_(entropy=[draw(n).astype(np.float32) for n in data.lengths])
    entropy, mask = data.padded("entropy", dtype=torch.float32), data.mask
    trainer = import_module("trl.trainer.grpo_trainer").GRPOTrainer
    gather = SimpleNamespace(pad_across_processes=lambda x, **_: x, gather=lambda x: x)
    single = SimpleNamespace(accelerator=gather)
    expected = trainer.get_high_entropy_mask(single, entropy, mask, 1 - share)
    assert torch.equal(padded.top_entropy(entropy, mask, quantile=share), expected)

    def advantages(**options):
        table = data.enriched("advantages", estimator="raw", numerics={"batch": "all"}, **options)
        return data.ragged(table["advantages"])

    found = advantages(top_entropy_quantile=share)
    assert torch.equal(found, torch.where(expected, advantages(), 0.0))
