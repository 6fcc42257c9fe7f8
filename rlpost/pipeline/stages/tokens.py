"""Stages of tokens: KL, token rewards, estimators, whitening, clipping, baselines per position.

Every function is pure, and uses one batch only.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.estimators.base import option_values
from rlpost.kernels.arrays import Array, namespace, on_host
from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import token_moments
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import (
    add_at,
    compact_offsets,
    count_true,
    cut_segments,
    ends_of,
    last_true,
    policy_segments,
    positions_of,
    segment_owners,
    segment_sum,
    spread,
    spread_or_scalar,
    starts_after_observations,
)
from rlpost.pipeline.data import NEXT_VALUE
from rlpost.pipeline.stages.rewards import counted
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.estimators import Estimator
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe


def finite(batch: Batch) -> dict[str, Array]:
    """Return whether all numbers at policy tokens of each response are finite."""
    bad = batch.xp.zeros_like(batch.mask)
    for column in batch.tokens.values():
        bad = bad | ~batch.xp.isfinite(column)
    return {"finite": count_true(bad & batch.mask, batch.offsets) == 0}


def map_kl(batch: Batch, *, resolved: ResolvedRecipe) -> dict[str, Array]:
    """Return the mean KL over each response's policy tokens; 0 without any."""
    return {"kl_mean": mean_kl(add_kl(batch, resolved=resolved))}


def mean_kl(batch: Batch) -> Array:
    """Return the mean of `kl` over each response's policy tokens, [n]; 0 without any."""
    return segment_sum(batch["kl"], batch.offsets) / batch.policy_tokens.clip(1)


def add_kl(batch: Batch, *, resolved: ResolvedRecipe) -> Batch:
    """Add `kl`, 0 on observations; add `row_kl` with them if they count as policy tokens."""
    kl = _kl(batch, "ref_log_probs", resolved.recipe)
    masked = batch.with_(kl=batch.only(kl))
    counted_too = resolved.recipe.numerics.observations == "policy"
    return masked.with_(row_kl=kl) if counted_too else masked


def _kl(batch: Batch, reference: str, recipe: Recipe) -> Array:
    """Return the KL from the log-probs in a column, per token."""
    numerics, estimator = recipe.numerics, recipe.kl_kind
    bounded, log_ratio_clamp = numerics.log_ratio_clamp
    ratio: Array | float = 1.0
    if estimator == "k4" and "log_probs" in batch and "old_log_probs" in batch:
        ratio = batch.xp.exp(batch["log_probs"] - batch["old_log_probs"])
    return token_kl(
        batch["log_probs" if numerics.kl_policy == "current" else "old_log_probs"],
        batch[reference],
        estimator=estimator,
        log_ratio_clamp=log_ratio_clamp if bounded in (estimator, "all") else math.inf,
        clamp=numerics.kl_clamp.bound,
        clamps=numerics.kl_clamp.which,
        ratio=ratio,
    )


def add_distillation(batch: Batch, *, recipe: Recipe) -> Batch:
    """Add `distillation`: the weighted KL from all teachers, per token."""
    total: Array = 0.0
    for name, weight in recipe.teachers.items():
        total = total + weight * _kl(batch, f"teacher:{name}", recipe)
    return batch.with_(distillation=batch.only(total))


def place_rewards(batch: Batch, *, recipe: Recipe) -> Batch:
    """Add `token_level_rewards`: process rewards, the reward on the last token, minus β·KL.

    With a bound, also add `token_reward_clipped`, bool.
    """
    rows, process = batch.responses, batch.tokens.get("token_rewards")
    terminal = rows["terminal"] if "terminal" in rows else rows["rewards"]
    if recipe.kl_coef > 0 and recipe.numerics.kl_credit == "return":
        kl = batch.tokens.get("row_kl", batch["kl"])
        charge = spread_or_scalar(batch.responses["beta"], batch.offsets) * kl
        rewards = (0.0 if process is None else process) - charge
    else:
        rewards = batch.xp.zeros(len(batch.mask), terminal) if process is None else process
    rewards = add_at(rewards, _last(batch, recipe), terminal)
    bounds = recipe.reward_clip
    if bounds is not None and recipe.numerics.clip_stages == "response_and_token":
        unclipped, rewards = rewards, rewards.clip(*bounds)
        batch = batch.with_(token_reward_clipped=(rewards != unclipped) & batch.mask)
    return batch.with_(token_level_rewards=rewards)


def sum_process_rewards(batch: Batch) -> dict[str, Array]:
    """Return the sum of each response's process rewards, those of observation tokens included."""
    return {"process": segment_sum(batch["token_rewards"], batch.offsets)}


def _last(batch: Batch, recipe: Recipe) -> Array:
    """Return the position of each response's reward; -1 if it has no such token."""
    if recipe.numerics.terminal_reward == "last_policy_token" and not batch.full:
        return last_true(batch.mask, batch.offsets)
    return _ends(batch)


def _ends(batch: Batch) -> Array:
    """Return the position of each response's last token; -1 if it has none."""
    return batch.xp.where(batch.lengths > 0, batch.offsets[1:] - 1, -1)


def score(batch: Batch, *, recipe: Recipe) -> dict[str, Array]:
    """Return the sum of each response's token rewards; its reward if it has no token for it."""
    total = segment_sum(batch["token_level_rewards"], batch.offsets)
    without = _last(batch, recipe) < 0
    return {"score": batch.xp.where(without, batch.responses["rewards"], total)}


def kept_mask(batch: Batch) -> Array:
    """Return the response mask, false in dropped responses and on rejected tokens, [T]."""
    mask = batch.mask & batch["accepted"] if "accepted" in batch else batch.mask
    if batch.all_are("kept"):
        return mask
    return mask & spread(batch.responses["kept"], batch.offsets)


def partial_mask(batch: Batch) -> Array | None:
    """Return `kept_mask`, or None if it is true for all tokens."""
    whole = batch.full and "accepted" not in batch and batch.all_are("kept")
    return None if whole else kept_mask(batch)


def inside(values: Array, mask: Array | None) -> Array:
    """Return the values if the mask is true, else 0; all values without a mask."""
    return values if mask is None else namespace(values).where(mask, values, 0.0)


class _Segments(NamedTuple):
    """The tokens of a batch that an estimator gets, in segments."""

    offsets: Array
    """Of the segments that it scans."""
    chosen: Array | None = None
    """Positions of the tokens that it gets; None: all."""
    owners: Array | None = None
    """The response of each segment; None: segments are responses."""


_OF_STATES = ("states", "zero_states", "policy")  # observation tokens have places in the scan


def _segments(batch: Batch, recipe: Recipe) -> _Segments:
    mask, offsets, how = batch.mask, batch.offsets, recipe.numerics.observations
    if batch.full or how in _OF_STATES:
        return _Segments(offsets)
    if how == "cut":
        bounds = cut_segments(mask, offsets)
        return _Segments(bounds, None, segment_owners(bounds, offsets))
    policy, compact = positions_of(mask), compact_offsets(mask, offsets)
    if how == "skip":
        return _Segments(compact, policy)
    bounds = policy_segments(mask, offsets)
    return _Segments(bounds, policy, segment_owners(bounds, compact))


def estimate(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> Batch:
    """Add `advantages` and `returns`, per token.

    Observations are removed before the estimator and get 0. They stay if the recipe's numerics keep
    them, or if the estimator has a parameter `mask`.
    """
    masked = "mask" in estimator.parameters
    segments = _Segments(batch.offsets) if masked else _segments(batch, recipe)
    columns = {
        name: _column(batch, estimator.role_of(name), recipe, segments, masked=masked)
        for name in estimator.columns
    }
    credit = estimator(columns, segments.offsets, recipe, mask=batch.mask)
    estimator.check_finite(credit, partial(_counted_tokens, batch, segments))
    if segments.chosen is None:
        return batch.with_(advantages=credit.advantages, returns=credit.returns)
    size, placed = len(batch.mask), batch.xp.placed
    advantages = returns = placed(credit.advantages, segments.chosen, size)
    if credit.returns is not credit.advantages:
        returns = placed(credit.returns, segments.chosen, size)
    return batch.with_(advantages=advantages, returns=returns)


def _counted_tokens(batch: Batch, segments: _Segments) -> Array:
    """Return which of an estimator's numbers must be finite: those of responses that are valid."""
    counts = batch.mask & spread(batch.responses["valid"], batch.offsets)
    return counts if segments.chosen is None else counts[segments.chosen]


_IN_SCAN = ("policy", "cut")  # rewards of observation tokens are part of the scan


def _column(
    batch: Batch, name: str, recipe: Recipe, segments: _Segments, *, masked: bool = False
) -> Array:
    """Return a column of the tokens that the estimator gets, or of their segments."""
    if name in batch.responses:
        values = batch.responses[name]
        return values if segments.owners is None else values[segments.owners]
    rewards, how = name == "token_rewards", recipe.numerics.observations
    values = batch["token_level_rewards" if rewards else name]
    zero = rewards and (masked or how not in _IN_SCAN)
    if zero or how == "zero_states" or (name in LOG_PROBS and not masked):  # no action, ratio 1
        values = batch.only(values)
    if rewards and recipe.bootstrap is not None:
        of_policy = not batch.full and (masked or how not in _OF_STATES)
        ends = last_true(batch.mask, batch.offsets) if of_policy else _ends(batch)
        values = add_at(values, ends, recipe.gamma * _values_behind(batch, recipe))
    if rewards and "behind" in batch.responses:
        values = add_at(values, last_true(batch.mask, batch.offsets), batch.responses["behind"])
    return values if segments.chosen is None else values[segments.chosen]


def _values_behind(batch: Batch, recipe: Recipe) -> Array:
    """Return the value V of the state behind each response, [n]; 0 if it was not truncated.

    A scan needs V at its last token alone, where γ·V is a part of the reward:

        Gₜ = rₜ + γ·V;  δₜ = rₜ + γ·V - Vₜ
    """
    truncated = batch.responses["truncated"]
    if "continues" in batch.responses:
        truncated = truncated & ~batch.responses["continues"]
    if recipe.bootstrap == "column":
        return batch.xp.where(truncated, batch.responses[NEXT_VALUE], 0.0)
    values = batch["values"]
    if not len(values):
        return batch.xp.zeros(len(truncated), values)
    return batch.xp.where(truncated, values[_ends(batch).clip(0)], 0.0)


LOST = ("lost:reward", "lost:process")


def lost_rewards(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> dict[str, Array]:
    """Return which responses have a reward on a token from which no advantage gets it, [n].

    `lost:reward` is for the response's reward, `lost:process` for process rewards that are added to
    tokens. A response without policy tokens has no advantage that could get them; masks may still
    drop the others.
    """
    process = "token_rewards" in batch
    on_last = recipe.numerics.terminal_reward == "last_token"
    on_responses = estimator.level == "response" and not recipe.whiten_rewards
    if on_responses or not (process or on_last):
        return {}
    reached = _reached(batch, recipe, estimator)
    counted_rows = batch.policy_tokens > 0
    last = _last(batch, recipe)
    lost = batch.xp.zeros_like(counted_rows)
    if len(reached):
        lost = ~reached[last.clip(0)] & (batch.responses["rewards"] != 0) & counted_rows
    losses = {"lost:reward": lost}
    if process:
        outside = (batch["token_rewards"] != 0) & ~reached
        losses["lost:process"] = (count_true(outside, batch.offsets) > 0) & counted_rows
    return losses


def _reached(batch: Batch, recipe: Recipe, estimator: Estimator) -> Array:
    """Return the tokens whose rewards an estimator of tokens gets, [T] bool."""
    how, mask, xp = recipe.numerics.observations, batch.mask, batch.xp
    if not len(mask):  # an input without tokens
        return mask
    if reads_segment_ends(recipe, estimator):
        following = xp.concat([mask[1:], mask[:1]])
        return mask & ~xp.filled(following, ends_of(batch.offsets), False)  # noqa: FBT003
    if recipe.whiten_rewards or "mask" in estimator.parameters or how not in _IN_SCAN:
        return mask
    if how == "policy":
        return xp.ones_like(mask)
    return mask | ~starts_after_observations(mask, batch.offsets)


def reads_segment_ends(recipe: Recipe, estimator: Estimator) -> bool:
    """Return whether an estimator reads rewards at the last token of a policy segment only."""
    return not estimator.of_user and recipe.options.get("segment_reward") == "last"


def spread_credit(batch: Batch) -> Batch:
    """Add `advantages` and `returns`: each response's number on all of its policy tokens."""
    rows = batch.responses
    advantages, returns = (
        batch.only(spread(rows[name], batch.offsets)) for name in ("credit", "credit_returns")
    )
    return batch.with_(advantages=advantages, returns=returns)


def charge_tokens(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> Batch:
    """Subtract each token's own β·KL and its distillation KL from its advantage.

    β·KL is subtracted from returns, too, unless the estimator has its own.
    """
    advantages, charged = batch["advantages"], batch["returns"]
    if recipe.numerics.kl_credit == "token" and recipe.kl_coef > 0:
        charge = spread_or_scalar(batch.responses["beta"], batch.offsets) * batch["kl"]
        advantages = advantages - charge
        charged = charged if estimator.returns == "own" else charged - charge
    if "distillation" in batch:
        advantages = advantages - batch["distillation"]
    return batch.with_(advantages=advantages, returns=charged)


def map_moments(batch: Batch, *, column: str) -> dict[str, Array]:
    """Return count, sum and squared deviation of a column over kept policy tokens, [n] each."""
    moments = token_moments(batch[column], partial_mask(batch), batch.offsets)
    return {f"{column}:{name}": part for name, part in moments._asdict().items()}


def whiten(batch: Batch, *, column: str) -> Batch:
    """Replace a column x by (x - mean)·scale, with mean and scale of its batch."""
    shift = spread_or_scalar(batch.responses[f"{column}:mean"], batch.offsets)
    scale = spread_or_scalar(batch.responses[f"{column}:scale"], batch.offsets)
    before = {"raw_advantages": batch[column]} if column == "advantages" else {}
    whitened = batch.only((batch[column] - shift) * scale)
    return batch.with_(**before, **{column: whitened})


def returns_as_advantages(batch: Batch) -> Batch:
    """Replace returns by the advantages."""
    return batch.with_(returns=batch["advantages"])


def clip_and_mask(batch: Batch, *, recipe: Recipe) -> Batch:
    """Clamp advantages, and set advantages and returns to 0 outside kept policy tokens."""
    mask, advantages, returns = partial_mask(batch), batch["advantages"], batch["returns"]
    added = {"raw_advantages": inside(batch.tokens.get("raw_advantages", advantages), mask)}
    same = returns is advantages
    bound = recipe.advantage_clip
    if bound is not None:
        clipped = abs(advantages) > bound
        added["advantage_clipped"] = clipped if mask is None else clipped & mask
        advantages = advantages.clip(-bound, bound)
        same = False
    advantages = inside(advantages, mask)
    returns = advantages if same else inside(returns, mask)
    return batch.with_(**added, advantages=advantages, returns=returns)


def add_slots(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `slot`, the first slot of each response's group, and `counted`.

    A baseline of optimal_token_baseline is one number for each group and token position. A group
    has as many slots as its longest response has positions, all groups in one flat array without
    padding, which is much shorter than the tokens.
    """
    by_row = recipe.options["position"] == "token"
    size, group = responses["length" if by_row else "tokens"], responses["group"]
    longest = np.zeros(responses.count("group"), np.int64)
    np.maximum.at(longest, group, size)
    first = (longest.cumsum() - longest)[group]
    rows = counted(responses, recipe)
    if recipe.numerics.single == "raw":  # a group of one then has no baseline
        rows = rows & (np.bincount(group, rows)[group] > 1)
    responses = responses.with_(slot=first, counted=rows)
    return responses.noting(slots=int(longest.sum()))


def map_slots(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> dict[str, Array]:
    """Return slot, return times weight, and weight of each policy token that counts."""
    assert estimator.token_weights is not None
    policy, offsets = positions_of(batch.mask), compact_offsets(batch.mask, batch.offsets)
    returns = _returns(batch, recipe)[policy]
    columns = {name: batch[name][policy] for name in weight_roles(recipe, estimator)}
    options = option_values(estimator.token_weights, recipe)
    weights = estimator.token_weights(**columns, offsets=offsets, **options)
    mask, bounds = on_host(batch.mask), on_host(batch.offsets)
    own = spread(batch.table["counted"], on_host(offsets))
    counts = spread(batch.responses["counted"], offsets)
    counts = batch.xp.with_host(counts, lambda: own)
    there = positions_of(counts)
    return {
        "slot": _slots(batch.table["slot"], mask, bounds, recipe, estimator)[mask][own],
        "above": (returns * weights)[there],
        "below": weights[there],
    }


def _returns(batch: Batch, recipe: Recipe) -> Array:
    """Return the return-to-go of each token, as `estimate` passes rewards to a scan, [T]."""
    segments = _segments(batch, recipe)
    rewards = _column(batch, "token_rewards", recipe, segments)
    returns = reverse_scan(rewards, segments.offsets, recipe.gamma)
    if segments.chosen is None:
        return returns
    return batch.xp.placed(returns, segments.chosen, len(batch.mask))


def weight_roles(recipe: Recipe, estimator: Estimator) -> frozenset[str]:
    """Return the token roles that weights need; the engine's log-probs only with a ratio_cap."""
    capped = recipe.options.get("ratio_cap") is not None
    unused = set() if capped else {"infer_log_probs"}
    return frozenset(estimator.weight_columns) - unused


def gather_baselines(
    responses: Responses,
    parts: Iterable[dict[str, Array]],
    *,
    recipe: Recipe,
    estimator: Estimator,
) -> Responses:
    """Add the baselines of all slots to the numbers that batches share."""
    function = estimator.position_baselines
    assert function is not None
    above, below, number = np.zeros((3, responses.notes["slots"]))
    for part in parts:
        np.add.at(above, part["slot"], part["above"])
        np.add.at(below, part["slot"], part["below"])
        np.add.at(number, part["slot"], 1.0)
    baselines = function(above, below, number, **option_values(function, recipe))
    return responses.sharing(position_baselines=baselines)


def add_baselines(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> Batch:
    """Add `position_baseline`, per token; 0 on observations."""
    baselines = batch.shared["position_baselines"]
    slots = _slots(batch.responses["slot"], batch.mask, batch.offsets, recipe, estimator)
    if len(baselines):
        values = batch.only(baselines[batch.xp.where(batch.mask, slots, 0)])
    else:
        values = batch.xp.zeros(len(batch.mask), baselines)
    return batch.with_(position_baseline=values)


def _slots(
    first: Array, mask: Array, offsets: Array, recipe: Recipe, estimator: Estimator
) -> Array:
    """Return the slot of each token, [T]; for observations only if their positions count.

    Args:
        first: [n] the first slot of each response's group.
        mask: [T] bool.
        offsets: [n+1].
        recipe: has the options.
        estimator: has `token_positions`.
    """
    positions = estimator.token_positions
    assert positions is not None
    return spread(first, offsets) + positions(mask, offsets, **option_values(positions, recipe))
