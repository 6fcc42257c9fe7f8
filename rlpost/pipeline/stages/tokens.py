"""What stages do to the tokens of one batch; every function is pure and sees no other batch.

Baselines per group and position of a token, in one flat array that no padding enters.

A group has as many slots as its longest response has positions. What is summed over the input is
one number per slot, far fewer than there are tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import token_moments
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import (
    add_at,
    compact_offsets,
    count_true,
    last_true,
    offsets_of_starts,
    policy_starts,
    segment_owners,
    segment_sum,
    spread,
    spread_or_scalar,
    starts_after_observations,
)
from rlpost.pipeline.stages.rewards import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.estimators import Estimator
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.recipe.recipe import Recipe


def lay_out(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `slot`, the first slot of each response's group, and who `counted`."""
    by_row = recipe.numerics.otb_position == "token"
    size, group = responses["length" if by_row else "tokens"], responses["group"]
    longest = torch.zeros(responses.count("group"), dtype=torch.int64)
    longest = longest.scatter_reduce(0, group, size, "amax")
    first = (longest.cumsum(0) - longest)[group]
    rows = counted(responses, recipe)
    if recipe.numerics.single == "raw":  # a group of one then has no baseline
        rows = rows & (torch.bincount(group, rows)[group] > 1)
    responses = responses.with_(slot=first, counted=rows)
    return responses.noting(slots=int(longest.sum()))


def measure(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> dict[str, Tensor]:
    """Slot, return times weight, and weight of each policy token that counts."""
    assert estimator.token_weights is not None
    mask, offsets = batch.mask, compact_offsets(batch.mask, batch.offsets)
    returns = reverse_scan(batch["token_level_rewards"][mask], offsets, recipe.gamma)
    columns = {name: batch[name][mask] for name in reads(recipe, estimator)}
    weights = estimator.token_weights(**columns, offsets=offsets, otb_is_cap=recipe.otb_is_cap)
    there = spread(batch.responses["counted"], offsets)
    slot = _slots(batch, recipe)[mask]
    return {
        "slot": slot[there],
        "above": (returns * weights)[there],
        "below": weights[there],
    }


def reads(recipe: Recipe, estimator: Estimator) -> frozenset[str]:
    """The token roles that weights are made of; the engine's log-probs only where they weigh."""
    unused = set() if recipe.otb_is_cap is not None else {"infer_log_probs"}
    return frozenset(estimator.weight_columns) - unused


def gather(
    responses: Responses, parts: Iterable[dict[str, Tensor]], *, recipe: Recipe
) -> Responses:
    """Adds the baselines of all slots to what batches share."""
    numerics = recipe.numerics
    above, below, number = torch.zeros(3, responses.notes["slots"], dtype=torch.float64)
    for part in parts:
        above.index_add_(0, part["slot"], part["above"])
        below.index_add_(0, part["slot"], part["below"])
        number.index_add_(0, part["slot"], torch.ones_like(part["below"]))
    baselines = above / (below + numerics.otb_eps)
    if numerics.otb_lone == "none":
        baselines = torch.where(number > 1, baselines, 0.0)
    return responses.sharing(position_baselines=baselines)


def add_baselines(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `position_baseline`, per token; 0 on observations."""
    baselines = batch.shared["position_baselines"]
    found = baselines[torch.where(batch.mask, _slots(batch, recipe), 0)] if len(baselines) else 0.0
    return batch.with_(position_baseline=torch.where(batch.mask, found, 0.0))


def _slots(batch: Batch, recipe: Recipe) -> Tensor:
    """The slot of each token, [T]; of observations only where positions are those of the row."""
    first = spread(batch.responses["slot"], batch.offsets)
    if recipe.numerics.otb_position == "token":
        place = torch.arange(batch.mask.numel(), device=batch.mask.device)
        return first + place - spread(batch.offsets[:-1], batch.offsets)
    before = compact_offsets(batch.mask, batch.offsets)[:-1]
    return first + batch.mask.cumsum(0) - 1 - spread(before, batch.offsets)


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
    return segment_sum(batch["kl"], batch.offsets) / batch.policy_tokens.clamp(min=1)


def add_kl(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `kl`, per token, 0 on observations; `row_kl` is not, where they count as policy's."""
    kl = _kl(batch, "ref_log_probs", recipe)
    masked = batch.with_(kl=batch.only(kl))
    return masked.with_(row_kl=kl) if recipe.numerics.observations == "policy" else masked


def _kl(batch: Batch, reference: str, recipe: Recipe) -> Tensor:
    """KL from the log-probs in a column, per token."""
    numerics, estimator = recipe.numerics, recipe.kl_estimator
    bounded = numerics.log_ratio_clamps in (estimator, "all")
    ratio: Tensor | float = 1.0
    if estimator == "k4" and "log_probs" in batch:
        ratio = (batch["log_probs"] - batch["old_log_probs"]).exp()
    return token_kl(
        batch["log_probs" if numerics.kl_policy == "current" else "old_log_probs"],
        batch[reference],
        estimator=estimator,
        log_ratio_clamp=numerics.log_ratio_clamp if bounded else torch.inf,
        clamp=numerics.kl_clamp,
        clamps=numerics.kl_clamps,
        ratio=ratio,
    )


def add_distillation(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `distillation`: the weighted KL from all teachers, per token."""
    total = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
    for name, weight in recipe.teachers.items():
        total = total + weight * _kl(batch, f"teacher:{name}", recipe)
    return batch.with_(distillation=batch.only(total))


def place_rewards(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `token_level_rewards`: the response's reward on its last token, process rewards, KL.

    Also `token_reward_clipped`, bool, where there is a bound.
    """
    rewards = _process_rewards(batch)
    if recipe.kl_coef > 0 and recipe.numerics.kl_credit == "return":
        kl = batch.tokens.get("row_kl", batch["kl"])
        beta = spread_or_scalar(batch.responses["beta"], batch.offsets)
        rewards = torch.addcmul(rewards, beta, kl, value=-1.0)
    elif rewards.numel() != batch.mask.numel():
        rewards = rewards.new_zeros(batch.mask.shape)
    add_at(rewards, _last(batch, recipe), batch.responses["rewards"])
    bounds = recipe.reward_bounds
    if bounds is not None and recipe.numerics.clip_stages == "response_and_token":
        unclipped, rewards = rewards, rewards.clamp(*bounds)
        batch = batch.with_(token_reward_clipped=(rewards != unclipped) & batch.mask)
    return batch.with_(token_level_rewards=rewards)


def _process_rewards(batch: Batch) -> Tensor:
    """New tensor of the rewards that tokens have of their own, [T]; one 0 where there are none."""
    rewards = batch.tokens.get("token_rewards")
    if rewards is None:
        return torch.zeros(1, dtype=torch.float64, device=batch.mask.device)
    return torch.where(batch.mask, rewards, 0.0)


def _last(batch: Batch, recipe: Recipe) -> Tensor:
    """Where each response's reward lands; -1 where there is no such token."""
    if recipe.numerics.terminal_reward == "last_policy_token" and not batch.full:
        return last_true(batch.mask, batch.offsets)
    return torch.where(batch.lengths > 0, batch.offsets[1:] - 1, -1)


def score(batch: Batch, *, recipe: Recipe) -> dict[str, Tensor]:
    """The sum of each response's token rewards; its reward where no token is there to hold it."""
    total = segment_sum(batch["token_level_rewards"], batch.offsets)
    return {"score": torch.where(_last(batch, recipe) < 0, batch.responses["rewards"], total)}


def kept_mask(batch: Batch) -> Tensor:
    """The response mask, false in dropped responses and on tokens that a filter rejected, [T]."""
    kept = batch.responses["kept"]
    mask = batch.mask & batch["accepted"] if "accepted" in batch else batch.mask
    if bool(kept.all()):
        return mask
    return mask & spread(kept, batch.offsets)


def partial_mask(batch: Batch) -> Tensor | None:
    """As `kept_mask`, or None where it would be true throughout."""
    whole = batch.full and "accepted" not in batch and bool(batch.responses["kept"].all())
    return None if whole else kept_mask(batch)


def inside(values: Tensor, mask: Tensor | None) -> Tensor:
    """The values where a mask is true, 0 elsewhere; all of them without a mask."""
    return values if mask is None else torch.where(mask, values, 0.0)


class _Scanned(NamedTuple):
    """What an estimator of tokens sees of a batch."""

    offsets: Tensor
    """Of the stretches that it scans."""
    chosen: Tensor | None = None
    """Positions of the tokens that it sees; None: all."""
    owners: Tensor | None = None
    """The response that each stretch belongs to; None: stretches are responses."""


def _scanned(batch: Batch, how: str) -> _Scanned:
    mask, offsets = batch.mask, batch.offsets
    if batch.full or how in ("states", "zero_states", "policy"):
        return _Scanned(offsets)
    if how == "cut":
        bounds = offsets_of_starts(starts_after_observations(mask, offsets))
        return _Scanned(bounds, None, segment_owners(bounds, offsets))
    policy, compact = mask.nonzero().squeeze(1), compact_offsets(mask, offsets)
    if how == "skip":
        return _Scanned(compact, policy)
    bounds = offsets_of_starts(policy_starts(mask, offsets)[policy])
    return _Scanned(bounds, policy, segment_owners(bounds, compact))


def estimate(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> Batch:
    """Adds `advantages` and `returns`, per token.

    Observations are taken out before the estimator sees the tokens and get 0, or they stay in,
    as the recipe's numerics say, or because the estimator asks for the mask.
    """
    how = recipe.numerics.observations
    masked = "mask" in estimator.parameters
    seen = _Scanned(batch.offsets) if masked else _scanned(batch, how)
    columns = {name: _column(batch, name, how, seen) for name in estimator.columns}
    credit = estimator(columns, seen.offsets, recipe, mask=batch.mask)
    if seen.chosen is None:
        return batch.with_(advantages=credit.advantages, returns=credit.returns)
    nothing = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
    advantages = nothing.index_copy(0, seen.chosen, credit.advantages)
    returns = advantages
    if credit.returns is not credit.advantages:
        returns = nothing.index_copy(0, seen.chosen, credit.returns)
    return batch.with_(advantages=advantages, returns=returns)


def _column(batch: Batch, name: str, how: str, seen: _Scanned) -> Tensor:
    """A column of the tokens that the estimator sees, or of their stretches."""
    if name in batch.responses:
        values = batch.responses[name]
        return values if seen.owners is None else values[seen.owners]
    values = batch["token_level_rewards" if name == "token_rewards" else name]
    if how == "zero_states" or (name == "token_rewards" and how != "policy"):
        values = batch.only(values)
    return values if seen.chosen is None else values[seen.chosen]


def spread_credit(batch: Batch) -> Batch:
    """Adds `advantages` and `returns`: the one number of each response on all its tokens."""
    rows = batch.responses
    advantages, returns = (
        batch.only(spread(rows[name], batch.offsets)) for name in ("credit", "credit_returns")
    )
    return batch.with_(advantages=advantages, returns=returns)


def charge_tokens(batch: Batch, *, recipe: Recipe, returns: bool) -> Batch:
    """Takes from each token's advantage its own KL and what the teachers hold against it.

    Returns are charged the KL, too, with `returns`.
    """
    advantages, charged = batch["advantages"], batch["returns"]
    if recipe.numerics.kl_credit == "token" and recipe.kl_coef > 0:
        charge = spread_or_scalar(batch.responses["beta"], batch.offsets) * batch["kl"]
        advantages = advantages - charge
        charged = charged - charge if returns else charged
    if "distillation" in batch:
        advantages = advantages - batch["distillation"]
    return batch.with_(advantages=advantages, returns=charged)


def measure_moments(batch: Batch, *, column: str) -> dict[str, Tensor]:
    """Count, sum and squared deviation of a column over each response's kept policy tokens."""
    moments = token_moments(batch[column], partial_mask(batch), batch.offsets)
    return {f"{column}:{name}": part for name, part in moments._asdict().items()}


def whiten(batch: Batch, *, column: str) -> Batch:
    """(x - mean)·scale with the batch's numbers."""
    shift = spread_or_scalar(batch.responses[f"{column}:mean"], batch.offsets)
    scale = spread_or_scalar(batch.responses[f"{column}:scale"], batch.offsets)
    before = {"raw_advantages": batch[column]} if column == "advantages" else {}
    whitened = batch.only((batch[column] - shift).mul_(scale))
    return batch.with_(**before, **{column: whitened})


def returns_as_advantages(batch: Batch) -> Batch:
    """Replaces returns by the advantages."""
    return batch.with_(returns=batch["advantages"])


def clip_and_mask(batch: Batch, *, recipe: Recipe) -> Batch:
    """Clamps advantages, and sets advantages and returns to 0 outside the kept policy tokens."""
    mask, advantages, returns = partial_mask(batch), batch["advantages"], batch["returns"]
    added = {"raw_advantages": inside(batch.tokens.get("raw_advantages", advantages), mask)}
    same = returns is advantages
    bound = recipe.advantage_clip
    if bound is not None:
        clipped = advantages.abs() > bound
        added["advantage_clipped"] = clipped if mask is None else clipped & mask
        advantages = advantages.clamp(-bound, bound)
        same = False
    advantages = inside(advantages, mask)
    returns = advantages if same else inside(returns, mask)
    return batch.with_(**added, advantages=advantages, returns=returns)
