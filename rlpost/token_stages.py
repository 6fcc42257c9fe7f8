"""What stages do to the tokens of one batch; every function is pure and sees no other batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, keep, last_true, put_at, segment_sum, spread

if TYPE_CHECKING:
    from rlpost.batch import Batch
    from rlpost.estimators import Estimator
    from rlpost.recipe import Recipe


def finite(batch: Batch) -> dict[str, Tensor]:
    """Whether all masked-in numbers of a response are finite."""
    bad = torch.zeros_like(batch.mask)
    for column in batch.tokens.values():
        bad |= ~torch.isfinite(column)
    return {"finite": count_true(bad & batch.mask, batch.offsets) == 0}


def measure_kl(batch: Batch, *, recipe: Recipe) -> dict[str, Tensor]:
    """Mean KL over each response's policy tokens; 0 where there are none."""
    return {"kl_mean": mean_kl(add_kl(batch, recipe=recipe))}


def mean_kl(batch: Batch) -> Tensor:
    """Mean of the `kl` column over each response's policy tokens, [n]; 0 where there are none."""
    tokens = count_true(batch.mask, batch.offsets)
    return segment_sum(batch["kl"], batch.offsets) / tokens.clamp(min=1)


def add_kl(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `kl`, per token, 0 on observations."""
    kl = token_kl(
        batch["old_log_probs"],
        batch["ref_log_probs"],
        estimator=recipe.kl_estimator,
        log_ratio_clamp=recipe.numerics.log_ratio_clamp,
        clamp=recipe.numerics.kl_clamp,
    )
    return batch.with_(kl=torch.where(batch.mask, kl, 0.0))


def place_rewards(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `token_level_rewards`: the response's reward on its last token, process rewards, KL.

    Also `token_reward_clipped`, bool, where there is a bound.
    """
    rewards = batch.tokens.get("token_rewards")
    if rewards is None:
        rewards = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
    rewards = torch.where(batch.mask, rewards, 0.0)
    rewards = put_at(rewards, _last(batch, recipe), batch.responses["rewards"])
    if recipe.kl_coef > 0:
        rewards = rewards - spread(batch.responses["beta"], batch.offsets) * batch["kl"]
    bound = recipe.reward_clip
    if bound is not None:
        clipped = (rewards.abs() > bound) & batch.mask
        batch = batch.with_(token_reward_clipped=clipped)
        rewards = rewards.clamp(-bound, bound)
    return batch.with_(token_level_rewards=rewards)


def _last(batch: Batch, recipe: Recipe) -> Tensor:
    """Where each response's reward lands; -1 where there is no such token."""
    if recipe.numerics.terminal_reward == "last_policy_token":
        return last_true(batch.mask, batch.offsets)
    return torch.where(batch.lengths > 0, batch.offsets[1:] - 1, -1)


def score(batch: Batch, *, recipe: Recipe) -> dict[str, Tensor]:
    """The sum of each response's token rewards; its reward where no token is there to hold it."""
    total = segment_sum(batch["token_level_rewards"], batch.offsets)
    return {"score": torch.where(_last(batch, recipe) < 0, batch.responses["rewards"], total)}


def kept_mask(batch: Batch) -> Tensor:
    """The response mask, false throughout the responses that a sample mask dropped, [T] bool."""
    kept = batch.responses["kept"]
    if bool(kept.all()):
        return batch.mask
    return batch.mask & spread(kept, batch.offsets)


def estimate(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> Batch:
    """Adds `advantages` and `returns`, per token.

    Observations are taken out before the estimator sees the tokens and get 0, or they stay in
    as states of their own, as the recipe's numerics say.
    """
    rewards = torch.where(batch.mask, batch["token_level_rewards"], 0.0)
    columns = {
        name: rewards if name == "token_rewards" else batch[name] for name in estimator.columns
    }
    if recipe.numerics.observations == "states" or bool(batch.mask.all()):
        credit = estimator(columns, batch.offsets, recipe)
        return batch.with_(advantages=credit.advantages, returns=credit.returns)
    policy = batch.mask.nonzero().squeeze(1)
    offsets = keep(batch.mask, batch.offsets)
    credit = estimator({name: x[policy] for name, x in columns.items()}, offsets, recipe)
    advantages = torch.zeros_like(rewards).index_copy(0, policy, credit.advantages)
    returns = advantages
    if credit.returns is not credit.advantages:
        returns = torch.zeros_like(rewards).index_copy(0, policy, credit.returns)
    return batch.with_(advantages=advantages, returns=returns)


def measure_moments(batch: Batch, *, column: str) -> dict[str, Tensor]:
    """Count, sum and squared deviation of a column over each response's kept policy tokens."""
    moments = token_moments(batch[column], kept_mask(batch), batch.offsets)
    return {f"{column}:{name}": part for name, part in moments._asdict().items()}


def whiten(batch: Batch, *, column: str) -> Batch:
    """(x - mean)·scale with the batch's numbers."""
    shift = spread(batch.responses[f"{column}:mean"], batch.offsets)
    scale = spread(batch.responses[f"{column}:scale"], batch.offsets)
    before = {"raw_advantages": batch[column]} if column == "advantages" else {}
    return batch.with_(**before, **{column: (batch[column] - shift) * scale})


def clip_and_mask(batch: Batch, *, recipe: Recipe) -> Batch:
    """Clamps advantages, and sets advantages and returns to 0 outside the kept policy tokens."""
    mask, advantages, returns = kept_mask(batch), batch["advantages"], batch["returns"]
    added = {"raw_advantages": torch.where(mask, batch.tokens.get("raw_advantages", advantages), 0)}
    same = returns is advantages
    bound = recipe.advantage_clip
    if bound is not None:
        added["advantage_clipped"] = (advantages.abs() > bound) & mask
        advantages = advantages.clamp(-bound, bound)
        same = False
    advantages = torch.where(mask, advantages, 0.0)
    returns = advantages if same else torch.where(mask, returns, 0.0)
    return batch.with_(**added, advantages=advantages, returns=returns)
