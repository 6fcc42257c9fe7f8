"""The formulas as functions of arrays, of numpy or torch, for a trainer, a notebook or a test.

Tokens are ragged: arrays [T] of the tokens of all responses in a row, `offsets` [N+1] with the
first token of each response, and `mask` [T], 0 on observation tokens. `padded` has the same
functions for [B, T] arrays. Numbers of responses are [N].

Arrays are float32 or float64; tensors may be on any device. Results have the library, type and
device of the input. Inputs are never changed. The numbers are those of the commands, which compute
in float64. A log-prob that is NaN or infinite at a policy token, such as the -inf of a token that
the sampler excludes, is an error that names the token.
"""

from __future__ import annotations

from rlpost.estimators import Credit
from rlpost.functional import padded
from rlpost.functional.groups import dr_grpo, gdpo, gpg, grpo, grpo_passk, max_rl, opo, rloo
from rlpost.functional.masks import accepted_tokens, top_entropy
from rlpost.functional.policy import PolicyLoss, aggregate, policy_loss
from rlpost.functional.rollouts import (
    gar,
    mt_grpo,
    over_rollouts,
    per_rollout,
    turn_credit,
    turn_returns,
)
from rlpost.functional.scans import agentic_reinforce, discounted_returns, gae, turn_gae, vtrace
from rlpost.functional.tokens import (
    importance_weights,
    kl,
    place_rewards,
    proximal_log_probs,
    response_rewards,
    to_tokens,
    value_loss,
    whiten,
)
from rlpost.kernels.corrections import Weights
from rlpost.kernels.values import ValueLoss

__all__ = [
    "Credit",
    "PolicyLoss",
    "ValueLoss",
    "Weights",
    "accepted_tokens",
    "agentic_reinforce",
    "aggregate",
    "discounted_returns",
    "dr_grpo",
    "gae",
    "gar",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "importance_weights",
    "kl",
    "max_rl",
    "mt_grpo",
    "opo",
    "over_rollouts",
    "padded",
    "per_rollout",
    "place_rewards",
    "policy_loss",
    "proximal_log_probs",
    "response_rewards",
    "rloo",
    "to_tokens",
    "top_entropy",
    "turn_credit",
    "turn_gae",
    "turn_returns",
    "value_loss",
    "vtrace",
    "whiten",
]
