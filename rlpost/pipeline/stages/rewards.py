"""What stages do to the reward of each response; every function is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels import rewards
from rlpost.kernels.moments import Moments, keyed_moments
from rlpost.kernels.rewards import divisor, others_moments
from rlpost.pipeline.groups import group_statistics, per_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.estimators import Estimator
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.data import Responses
    from rlpost.recipe.recipe import Recipe, Scope


def counted(responses: Responses, recipe: Recipe) -> Tensor:
    """Which responses take part in reward statistics, [N] bool."""
    rows = responses["kept"] if recipe.mask_before_norm else responses["valid"]
    return rows & (responses["tokens"] > 0) if recipe.numerics.empty == "leave_out" else rows


def shape_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `rewards`: the raw reward, rescaled, and what length and truncation cost."""
    shaped, numerics = responses["reward"], recipe.numerics
    if recipe.reward_scale is not None:
        shaped = rewards.rescale(shaped, scale=recipe.reward_scale)
    if recipe.overlong_penalty is not None:
        max_len, buffer, factor = recipe.overlong_penalty
        shaped = shaped + rewards.overlong_penalty(
            responses["tokens" if numerics.penalty_length == "policy" else "length"],
            max_len=max_len,
            buffer=buffer,
            factor=factor,
            floor=numerics.penalty_floor,
        )
    if recipe.truncation_penalty is not None:
        shaped = rewards.truncation_penalty(
            shaped, responses["truncated"], penalty=recipe.truncation_penalty
        )
    if recipe.group_length_penalty is not None:
        shaped = shaped - _group_length_penalty(responses, shaped, recipe)
    shaped = torch.where(responses["valid"], shaped, 0.0)
    return responses.with_(rewards=shaped, shaped=shaped)


def _group_length_penalty(responses: Responses, shaped: Tensor, recipe: Recipe) -> Tensor:
    weights = recipe.group_length_penalty
    assert weights is not None
    policy, row = (responses[name].to(torch.float64) for name in ("tokens", "length"))
    turns = responses["turn"] + 1 if "turn" in responses else torch.ones_like(row)
    columns = {"rewards": shaped, "output": policy, "input": row - policy, "turns": turns}

    def penalty(found: dict[str, Tensor], offsets: Tensor) -> Tensor:
        lengths = torch.stack([found[name] for name in ("output", "input", "turns")], dim=1)
        return rewards.group_length_penalty(found["rewards"], lengths, offsets, weights=weights)

    return per_group(responses, columns, penalty, rows=counted(responses, recipe))


def make_rewards(responses: Responses, *, recipe: Recipe, estimator: Estimator) -> Responses:
    """Replaces `rewards` by what the estimator makes of the columns of steps."""
    assert estimator.rewards is not None
    rows = counted(responses, recipe)
    columns = {name: responses[name][rows] for name in estimator.reward_columns}
    made = torch.zeros_like(responses["rewards"])
    made[rows] = estimator.make_rewards(columns, recipe)
    return responses.with_(rewards=made)


def normalise_rewards(
    responses: Responses,
    *,
    recipe: Recipe,
    mean_of: Scope,
    std_of: Scope,
    running: Mapping[str, RunningMoments],
) -> Responses:
    """Replaces `rewards` by (r - mean) / (std + ε); responses that do not count get 0."""
    if mean_of == std_of == "none":
        return responses
    values, rows, numerics = responses["rewards"], counted(responses, recipe), recipe.numerics
    found: dict[str, Moments] = {}
    scopes = {mean_of, std_of}
    if "batch" in scopes:
        found["batch"] = batch_moments(responses, values, rows)
    if "running" in scopes:
        responses, found["running"] = _running(responses, values, rows, running)
    if "others" in scopes:
        found["others"] = _others(responses, values, rows)
    single = constant = torch.zeros(len(responses), dtype=torch.bool)
    if scopes & {"group", "others"} or numerics.single == "zero_always":
        found["group"], constant = group_statistics(responses, values, rows=rows)
        single = found["group"].number == 1
    out = values if mean_of == "none" else values - found[mean_of].mean
    if std_of != "none":
        out = out / divisor(
            found[std_of],
            std_of,
            norm_eps=numerics.norm_eps,
            norm_floor=numerics.norm_floor,
            norm_ddof=numerics.norm_ddof,
        )
    if numerics.constant == "zero":
        flat = constant if std_of in ("none", "others") else constant | (found[std_of].std == 0)
        out = torch.where(flat & ~single, 0.0, out)
    if numerics.single in ("zero", "zero_always"):
        out = torch.where(single, 0.0, out)
    elif numerics.single == "raw":
        out = torch.where(single, values, out)
    return responses.with_(rewards=torch.where(rows, out, 0.0))


def _others(responses: Responses, values: Tensor, rows: Tensor) -> Moments:
    def others(columns: dict[str, Tensor], offsets: Tensor) -> Tensor:
        return torch.stack(others_moments(columns["values"], offsets), dim=1)

    return Moments(*per_group(responses, {"values": values}, others, rows=rows).unbind(1))


def batch_moments(responses: Responses, values: Tensor, rows: Tensor) -> Moments:
    """Moments of each row's own batch, over the rows that count."""
    codes = responses["batch"]
    return keyed_moments(values[rows], codes[rows], responses.count("batch")).at(codes)


def _running(
    responses: Responses, values: Tensor, rows: Tensor, start: Mapping[str, RunningMoments]
) -> tuple[Responses, Moments]:
    """Running moments of each row's domain as they stand once its batch is folded in."""
    domains = responses.count("domain")
    both = responses["batch"] * domains + responses["domain"]
    sets, codes = torch.unique(both, return_inverse=True)
    own = keyed_moments(values[rows], codes[rows], sets.numel())
    labels = [str(label) for label in responses.labels["domain"]]
    begin = {code: start[label] for code, label in enumerate(labels) if label in start}
    mean, std, after = rewards.running_statistics(own, (sets % domains).tolist(), begin)
    responses = responses.noting(running={labels[code]: state for code, state in after.items()})
    return responses, Moments(own.number, mean, std).at(codes)


def clip_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Clamps `rewards`; `reward_clipped` says where."""
    bounds = recipe.reward_bounds
    if bounds is None:
        return responses
    values = responses["rewards"]
    clipped = values.clamp(*bounds)
    return responses.with_(rewards=clipped, reward_clipped=clipped != values)
