"""Stages of scans over rollouts: each row continues with what the next row of its rollout begins.

A scan of one row depends on later rows by two numbers, the value V' and the advantage A' of the
first step of the next row that has policy tokens. They are part of the reward of its last step:

    A₁ = a₁ + (γλ)ᵐ⁻¹·γ·(V' + λA')

where m is the number of steps of the row, and a₁ its first advantage if no row follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.segments import compact_offsets, count_true, policy_starts, positions_of
from rlpost.pipeline.rollout_order import order_of
from rlpost.pipeline.stages.tokens import estimate

if TYPE_CHECKING:
    from rlpost.estimators import Estimator
    from rlpost.kernels.arrays import Array
    from rlpost.kernels.moments import Floats
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.recipe.recipe import Recipe


def place_rollout_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `terminal`, the reward on the last policy token of each row, and `continues`, [N].

    The reward of a rollout is on its last row that has policy tokens, the only one that does not
    continue in another; with `--rollout-reward sum` each row has its own. The reward of a turn is
    on its row.
    """
    continues = np.ones(len(responses), np.bool_)
    continues[order_of(responses).last_of(responses["valid"] & (responses["tokens"] > 0))] = False
    terminal = responses["rewards"]
    if recipe.rollout_reward != "sum":
        terminal = np.where(continues, 0.0, terminal)
    if "turn_reward" in responses:
        terminal = terminal + np.nan_to_num(responses["turn_reward"])
    terminal = np.where(responses["valid"], terminal, 0.0)
    return responses.with_(terminal=terminal, continues=continues)


def map_heads(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> dict[str, Array]:
    """Return advantage, value and number of steps of each row as if no row followed it, [n]."""
    alone, mask, offsets, xp = (
        estimate(batch, recipe=recipe, estimator=estimator),
        batch.mask,
        batch.offsets,
        batch.xp,
    )
    turns = "mask" in estimator.parameters
    steps = count_true(policy_starts(mask, offsets), offsets) if turns else batch.policy_tokens
    policy = positions_of(mask)
    if not len(policy):
        zeros = xp.zeros(len(offsets) - 1, alone["advantages"])
        return {"head:advantage": zeros, "head:value": zeros, "head:steps": steps}
    first = policy[compact_offsets(mask, offsets)[:-1].clip(0, len(policy) - 1)]
    advantage, returns = (xp.where(steps > 0, alone[n][first], 0.0) for n in _CREDIT)
    return {
        "head:advantage": advantage,
        "head:value": returns - advantage,
        "head:steps": steps,
    }


_CREDIT = ("advantages", "returns")


def join_heads(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Add `behind`, γ·(V' + λA') of the rows that follow each row in its rollout, [N]."""
    rows, gamma = order_of(responses), recipe.gamma
    lam = recipe.lam if "lam" in estimator.keywords else 1.0
    steps = np.where(responses["valid"], responses["head:steps"], 0)
    heads = {name: responses[f"head:{name}"] for name in ("advantage", "value")}
    last = rows.offsets[1:] - 1
    place = last[rows.rollout[rows.order]] - np.arange(len(rows.order))
    behind = np.zeros(len(rows.order))
    carried: Floats = np.zeros(len(last))
    for distance in range(int(place.max(initial=-1)) + 1):
        row = rows.order[place == distance]
        own = rows.rollout[row]
        behind[row] = gamma * carried[own]
        decay = (gamma * lam) ** (steps[row] - 1).clip(0)
        advantage = heads["advantage"][row] + decay * behind[row]
        begins = heads["value"][row] + lam * advantage
        carried[own] = np.where(steps[row] > 0, begins, carried[own])
    return responses.with_(behind=behind)
