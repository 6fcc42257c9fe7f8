"""A call of every function of `rlpost.functional`: names of its columns, and options."""

from __future__ import annotations

import numpy as np
from array_kinds import array_of

from rlpost import functional as F  # noqa: N812
from rlpost.losses import LOSSES

OFFSETS, MASK = np.array([0, 4, 4, 9]), np.array([1, 0, 1, 1, 1, 1, 0, 0, 1])
TOKENS = ("log_probs", "old", "ref", "infer", "values", "rewards")


def columns_of(kind="numpy", dtype="float64"):
    """Columns by name, as arrays of a kind."""
    random = np.random.default_rng(3)
    floats = {name: -random.random(9) for name in TOKENS}
    floats |= {"scores": np.arange(3.0), "components": np.array([[0.0, 1], [1, 1], [2, 0]])}
    whole = {
        "offsets": OFFSETS, "mask": MASK, "groups": [0, 0, 0], "lengths": [3, 0, 3],
        "rollouts": [4, 4, 5], "turns": [1, 0, 0],
    }  # fmt: skip
    return {name: array_of(kind, x, dtype) for name, x in floats.items()} | {
        name: array_of(kind, x) for name, x in whole.items()
    }


def call(name, *columns, **options):
    return name, columns, options


STEPS = ("turns", "rollouts", "groups")
CALLS = [
    call("gae", "rewards", "values", "offsets", "mask", gamma=0.9),
    call("gae", "rewards", "values", "offsets", "mask", length_adaptive_alpha=0.5),
    call("reinforce", "rewards", "offsets", "mask", gamma=0.5),
    call("reinforce_pp", "rewards", "offsets", "mask", gamma=0.5, whiten_ddof=0),
    call("reinforce_pp_baseline", "scores", "groups", "offsets", "mask", shift_mean=False),
    call("remax", "rewards", "scores", "offsets", "mask", gamma=0.5),
    call("turn_gae", "rewards", "values", "offsets", "mask", gamma=0.9),
    call("agentic_reinforce", "rewards", "offsets", "mask", gamma=0.5),
    call("vtrace", "rewards", "values", "old", "infer", "offsets", "mask", gamma=0.9),
    call(
        "optimal_token_baseline", "rewards", "old", "values", "groups", "offsets", "mask", eps=0.1
    ),
    call("opd", "values", "mask"),
    call("mt_grpo", "scores", "scores", *STEPS, norm_std="none"),
    call("turn_credit", "scores", "scores", *STEPS, "lengths"),
    call("gigpo", "scores", "scores", "turns", "rollouts", "lengths", "groups", states="batch"),
    call("step_reinforce", "scores", *STEPS, step_gamma=0.5, norm_mean="others"),
    call("gar", "scores", "scores", "groups"),
    call("place_rewards", "scores", "offsets", "mask"),
    call("response_rewards", "scores", "rewards", "offsets"),
    call("to_tokens", "scores", "offsets", "mask"),
    call("raw", "scores"),
    call("grpo", "scores", "groups"),
    call("dr_grpo", "scores", "groups"),
    call("hierarchical_grpo", "scores", "rollouts", "groups"),
    call("rae", "scores", "groups", "rollouts"),
    call("rloo", "scores", "groups"),
    call("opo", "scores", "lengths", "groups"),
    call("gpg", "scores", "groups"),
    call("grpo_passk", "scores", "groups"),
    call("max_rl", "scores", "groups"),
    call("gdpo", "components", "groups"),
    call("whiten", "values", "mask"),
    call("value_loss", "values", "old", "rewards", "mask", clip=0.3),
    call("kl", "log_probs", "ref", "mask", kl_estimator="k3"),
    call("importance_weights", "old", "infer", "offsets", "mask", level="segment", cap=1.1),
    call("accepted_tokens", "old", "infer", "offsets", "mask", filters=["token:k2::0.1"]),
    call("top_entropy", "values", "mask", quantile=0.5),
    call("proximal_log_probs", "old", "infer", "values", "mask"),
    call("aggregate", "values", "offsets", "mask", how="seq-mean-token-sum"),
    *(
        call("policy_loss", "log_probs", "old", "values", "offsets", "mask", loss=loss)
        for loss in LOSSES
        if loss not in ("ref_kl", "real")  # they need the reference and the groups
    ),
]


def called(name, columns, options, arrays, module=F):
    """The results of a call as a tuple."""
    result = getattr(module, name)(*(arrays[column] for column in columns), **options)
    return result if isinstance(result, tuple) else (result,)
