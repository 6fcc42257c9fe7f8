"""Policy losses of ms-swift and torchrl, and polgrad as a second opinion, with their gradients.

ms-swift's side runs the methods of its trainer from the installed file, without the modules that it
imports. Where they differ: torchrl clips log ratios to log(1 ± ε) and has no mask, so it gets the
policy tokens alone; ms-swift's `grpo`, `sapo` and `dr_grpo` divide by all responses (`agg_rows`),
and its `cispo` has the upper bound itself (`bounds="ratio"`); its `delta` bounds the ratio of
positive advantages, too, if it is below 1 + ε. polgrad's GSPO has the gradient
of the mean with RatioKind.SEQUENCE, which is rlpost's for equal advantages.
"""

import __future__

import ast
import inspect
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers.peer_rollouts import rollouts

from rlpost import functional

GROUP = 4


def mini_batch(seed, *, equal=False):
    """Rollouts with observations, each with a policy token.

    The advantages of a response are equal, or each token has its own.
    """
    data, rng = rollouts(seed, turns=True), np.random.default_rng(seed)
    each = rng.normal(size=len(data.lengths))
    masks = [np.r_[1, row[1:]] for row in data.columns["response_mask"]]
    return data.with_(
        response_mask=masks,
        advantages=[
            np.full(size, own) if equal else rng.normal(size=size)
            for own, size in zip(each, data.lengths, strict=True)
        ],
    )


def ours(data, **options):
    """The loss of rlpost and its gradient, padded."""
    names = ("log_probs", "old_log_probs", "advantages")
    flat = [torch.tensor(np.concatenate(data.columns[name])).double() for name in names]
    mask = torch.tensor(np.concatenate(data.columns["response_mask"]))
    flat[0].requires_grad_()
    loss = functional.policy_loss(
        *flat, torch.tensor([0, *np.cumsum(data.lengths)]), mask, ratio_clamp="never",
        ref_log_probs=torch.tensor(np.concatenate(data.columns["ref_log_probs"])).double(),
        units=np.arange(len(data.lengths)) // GROUP, **options,
    ).loss  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, flat[0])
    return loss.detach(), data.with_(gradient=[*gradient.split(data.lengths)]).padded("gradient")


def assert_same(found, loss, new):
    (gradient,) = torch.autograd.grad(loss, new)
    torch.testing.assert_close(found[0], loss.detach(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(found[1], gradient, rtol=1e-5, atol=1e-8)
    assert gradient.count_nonzero() > 20


def named(package, *cases):
    """Parameters of a framework, which are skipped without it."""
    missing = pytest.mark.skipif(
        find_spec(package) is None, reason=f"`python -m tests.peers {package}` runs this"
    )
    return [pytest.param(*case, id=f"{package}-{case[0]}", marks=missing) for case in cases]


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
    own = {
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
    return type("Trainer", (), {**own, **methods, **fields})()


MEAN = {"aggregation": "seq-mean-token-mean", "agg_rows": "all"}
SWIFT = (
    ("grpo", {}, {"loss": "ppo", **MEAN}),
    ("grpo-kl", {"beta": 0.1}, {"loss": "ppo", "kl_loss_coef": 0.1, **MEAN}),
    ("bnpo", {"epsilon_high": 0.05}, {"loss": "ppo", "pg_clip": (0.2, 0.05)}),
    ("dapo", {"delta": 1.3}, {"loss": "ppo", "dual_clip": 1.3}),
    ("dr_grpo", {"max_completion_length": 9}, {
        "loss": "ppo", "aggregation": "seq-mean-token-sum-norm", "agg_norm": "rows",
        "agg_length": 9, "agg_rows": "all"}),
    ("cispo", {"epsilon_high": 1.05}, {
        "loss": "cispo", "bounds": "ratio", "pg_clip": (None, 1.05)}),
    ("sapo", {}, {"loss": "sapo", **MEAN}),
    ("grpo-sequence_token", {"importance_sampling_level": "sequence_token", "epsilon_low": 0.01}, {
        "loss": "gspo", "pg_clip": (0.01, 0.2), **MEAN}),
    ("fipo", {}, {"loss": "fipo"}),
    ("fipo-bounds", {
        "delta": 1.25, "fipo_gamma": 0.5, "fipo_clip_range": 0.05, "fipo_clip_high_only": False,
        "fipo_safety_threshold": 1.02}, {
        "loss": "fipo", "dual_clip": 1.25, "half_life": 1,
        "influence": (0.95, 1.05), "safety": 1.02}),
    ("real", {}, {"loss": "real"}),
    ("real-tau", {"real_tau": 0.1}, {"loss": "real", "tau": 0.1}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "options"), named("swift", *SWIFT))
def test_losses_of_ms_swift(name, fields, options):
    data = mini_batch(5, equal=True)
    mask, new = data.padded("response_mask").bool(), data.padded("log_probs").double()
    new.requires_grad_()
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
    assert_same(ours(data, **options), loss, new)


@pytest.mark.parametrize(("clip",), named("torchrl", (0.05,), (0.2,)))  # noqa: PT006
def test_ppo_of_torchrl(clip):
    """Its actor is a stub: the log ratios are given."""
    objectives, data = import_module("torchrl.objectives"), mini_batch(6)
    keep = data.padded("response_mask").bool()
    new = data.padded("log_probs").double().requires_grad_()
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
    table = import_module("tensordict").TensorDict(
        {"advantage": data.padded("advantages").double()[keep][:, None]}, [int(keep.sum())]
    )
    theirs = inspect.unwrap(objectives.ClipPPOLoss.forward)(loss, table)["loss_objective"]
    assert_same(ours(data, loss="ppo", pg_clip=clip), theirs, new)


WAYS = {
    "token-mean": "TOKEN_MEAN",
    "seq-mean-token-mean": "SEQ_MEAN_TOKEN_MEAN",
    "seq-mean-token-sum": "SEQ_MEAN_TOKEN_SUM",
    "seq-mean-token-sum-norm": "TOKEN_SUM_NORM",
}
KINDS = {
    "ppo": ("TOKEN", "PG_CLIP", (0.1, 0.3, None), {"pg_clip": (0.1, 0.3)}),
    "ppo-dual": ("TOKEN", "PG_CLIP", (0.1, 0.1, 1.2), {"pg_clip": 0.1, "dual_clip": 1.2}),
    "gspo": ("SEQUENCE_TOKEN", "PG_CLIP", (0.01, 0.02, None), {
        "pg_clip": (0.01, 0.02)}),
    "cispo": ("TOKEN", "CISPO", (0.1, 0.1, None), {"pg_clip": (0.1, 0.1)}),
    "pg": ("TOKEN", "REINFORCE", None, {}),
}  # fmt: skip


def of_polgrad(how):
    """The aggregation of polgrad, and the options of rlpost's."""
    norm = how == "seq-mean-token-sum-norm"
    theirs = {"mode": getattr(import_module("polgrad").Aggregation, WAYS[how])}
    return theirs | {"norm_len": 9 if norm else None}, {"norm": "rows", "length": 9} if norm else {}


@pytest.mark.parametrize(("name", "how"), named("polgrad", *product(KINDS, WAYS)))
def test_losses_of_polgrad(name, how):
    polgrad, data = import_module("polgrad"), mini_batch(7)
    ratio, surrogate, clip, options = KINDS[name]
    way, own = of_polgrad(how)
    config = polgrad.PolicyLossConfig(
        ratio=polgrad.RatioKind[ratio],
        surrogate=polgrad.SurrogateKind[surrogate],
        clip=clip and polgrad.ClipConfig(*clip),
        aggregation=way["mode"],
        norm_len=way["norm_len"],
    )
    new = data.padded("log_probs").double().requires_grad_()
    columns = {"old_logprobs": "old_log_probs", "advantages": "advantages"}
    loss = polgrad.policy_loss(
        config,
        logprobs=new,
        **{key: data.padded(column).double() for key, column in columns.items()},
        response_mask=data.padded("response_mask").bool(),
    ).loss
    own = {f"agg_{key}": value for key, value in own.items()}
    found = ours(data, loss=name.partition("-")[0], aggregation=how, **own, **options)
    assert_same(found, loss, new)
