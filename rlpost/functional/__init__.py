"""The formulas as functions of torch tensors: for a trainer, a notebook or a test.

Tokens are ragged: [T] numbers of all responses one after the other, offsets [N+1] that say where
each begins, and a mask [T] that is 0 on tokens that are not the policy's. `padded` has the same
for [B, T] tensors. Rewards of responses are [N].

float32 or float64, CPU or CUDA; what comes out has the type and device of what went in. Inputs
are never changed. Numbers are those of the commands, which compute in float64.
"""

from __future__ import annotations

from rlpost.estimators import Credit
from rlpost.functional import padded
from rlpost.functional.groups import dr_grpo, gdpo, gpg, grpo, grpo_passk, max_rl, opo, rloo
from rlpost.functional.policy import PolicyLoss, aggregate, policy_loss
from rlpost.functional.scans import discounted_returns, gae, place_rewards, to_tokens
from rlpost.functional.tokens import importance_weights, kl, whiten
from rlpost.kernels.corrections import Weights

__all__ = [
    "Credit",
    "PolicyLoss",
    "Weights",
    "aggregate",
    "discounted_returns",
    "dr_grpo",
    "gae",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "importance_weights",
    "kl",
    "max_rl",
    "opo",
    "padded",
    "place_rewards",
    "policy_loss",
    "rloo",
    "to_tokens",
    "whiten",
]
