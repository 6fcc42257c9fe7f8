"""Stages of rewards: shaping, normalisation and clipping, and statistics of groups and batches.

Every function is pure. Statistics do not depend on the order of the responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels import rewards
from rlpost.kernels.arrays.numpy_arrays import canonical_order
from rlpost.kernels.codes import dense_codes
from rlpost.kernels.moments import (
    ROUNDING,
    Moments,
    equal_to_rounding,
    first_values,
    group_moments,
    group_offsets,
    keyed_moments,
    last_values,
)
from rlpost.kernels.rewards import divisor, others_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.estimators import Estimator
    from rlpost.kernels.moments import Floats, Integers, Mask
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.pipeline.data import Column, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.pipeline.running_state import RunState
    from rlpost.recipe.recipe import Recipe


def countable(responses: Responses, recipe: Recipe) -> Mask:
    """Return which responses statistics of raw rewards count, [N] bool: masks use these."""
    rows = responses["valid"]
    return rows & (responses["tokens"] > 0) if recipe.numerics.empty == "leave_out" else rows


def counted(responses: Responses, recipe: Recipe) -> Mask:
    """Return which responses reward statistics count after the masks, [N] bool."""
    rows = countable(responses, recipe)
    return rows & responses["kept"] if recipe.mask_before_norm else rows


def total_rewards(responses: Responses) -> Floats:
    """Return the raw reward of each response, and the sum of its process rewards if it has any."""
    raw = responses["reward"]
    return raw + responses["process"] if "process" in responses else raw


def shape_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add `rewards`: the raw reward, rescaled, minus penalties for length and truncation."""
    shaped = responses.columns.get("row_reward", responses["reward"])
    numerics = recipe.numerics
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
    shaped = np.where(responses["valid"], shaped, 0.0)
    return responses.with_(rewards=shaped, shaped=shaped)


def _group_length_penalty(responses: Responses, shaped: Floats, recipe: Recipe) -> Floats:
    weights = recipe.group_length_penalty
    assert weights is not None
    policy, row = (responses[name].astype(np.float64) for name in ("tokens", "length"))
    turns = responses["turn"] + 1 if "turn" in responses else np.ones_like(row)
    columns = {"rewards": shaped, "output": policy, "input": row - policy, "turns": turns}

    def penalty(columns: dict[str, Column], offsets: Integers) -> Floats:
        lengths = np.stack([columns[name] for name in ("output", "input", "turns")], axis=1)
        return rewards.group_length_penalty(columns["rewards"], lengths, offsets, weights=weights)

    return per_group(responses, columns, penalty, rows=counted(responses, recipe))


def reward_column(estimator: Estimator) -> str:
    """Return the column of Responses with the reward from which an estimator's rewards are made.

    It is `step_score` for an estimator that computes its rewards from the scores of steps.
    """
    return "step_score" if "step_score" in estimator.reward_columns else "rewards"


def add_process_rewards(responses: Responses, *, resolved: ResolvedRecipe) -> Responses:
    """Set `process` to 0 for responses that are left out; add it to the estimator's rewards.

    Process rewards of tokens are added later.
    """
    process = np.where(responses["valid"], responses["process"], 0.0)
    if resolved.process == "token":
        return responses.with_(process=process)
    column = reward_column(resolved.estimator)
    return responses.with_(**{"process": process, column: responses[column] + process})


def make_rewards(responses: Responses, *, resolved: ResolvedRecipe) -> Responses:
    """Replace `rewards` by those that the estimator computes from columns of steps."""
    recipe, estimator = resolved.recipe, resolved.estimator
    rows = counted(responses, recipe)
    columns = {
        name: responses[name][rows] for name in estimator.reward_columns if name in responses
    }
    computed = np.zeros_like(responses["rewards"])
    computed[rows] = estimator.make_rewards(columns, recipe)
    return responses.with_(rewards=computed)


def normalise_rewards(
    responses: Responses, *, resolved: ResolvedRecipe, state: RunState
) -> Responses:
    """Replace `rewards` by (r - mean) / (std + ε); responses that do not count get 0.

    Args:
        responses: all.
        resolved: has the scopes of mean and deviation, and the numerics.
        state: has the running statistics of each domain at the start.
    """
    mean_of, std_of = resolved.norm
    if mean_of == std_of == "none":
        return responses
    recipe = resolved.recipe
    values, rows, numerics = responses["rewards"], counted(responses, recipe), recipe.numerics
    moments: dict[str, Moments] = {}
    scopes = {mean_of, std_of}
    if "batch" in scopes:
        moments["batch"] = batch_moments(responses, values, rows)
    if "running" in scopes:
        responses, moments["running"] = _running(responses, values, rows, state.running)
    if "others" in scopes:
        moments["others"] = _others(responses, values, rows, numerics.constant)
    single = constant = np.zeros(len(responses), np.bool_)
    if scopes & {"group", "others"} or numerics.single == "zero_always":
        moments["group"], equal = group_statistics(responses, values, rows=rows)
        single = moments["group"].number == 1
        constant = equal if numerics.constant == "zero" else rows & (moments["group"].std == 0)
        responses = responses.with_(equal=equal & ~single & (mean_of in ("group", "others")))
    out = values if mean_of == "none" else values - moments[mean_of].mean
    if std_of != "none":
        out = out / divisor(
            moments[std_of],
            std_of,
            norm_eps=numerics.norm_eps,
            norm_floor=numerics.norm_floor,
            norm_ddof=numerics.norm_ddof,
        )
    if numerics.constant != "divide":
        scoped = std_of in moments and std_of != "others"
        flat = constant | (moments[std_of].std == 0) if scoped else constant
        out = np.where(flat & ~single, 0.0, out)
    if numerics.single in ("zero", "zero_always"):
        out = np.where(single, 0.0, out)
    elif numerics.single == "raw":
        out = np.where(single, values, out)
    return responses.with_(rewards=np.where(rows, out, 0.0))


def _others(responses: Responses, values: Floats, rows: Mask, constant: str) -> Moments:
    rounding = ROUNDING if constant == "zero" else 0.0

    def others(columns: dict[str, Column], offsets: Integers) -> Floats:
        return np.stack(others_moments(columns["values"], offsets, rounding), axis=1)

    return Moments(*per_group(responses, {"values": values}, others, rows=rows).T)


def batch_moments(responses: Responses, values: Floats, rows: Mask) -> Moments:
    """Return the moments of each response's batch, of the responses that count."""
    codes = responses["batch"]
    return keyed_moments(values[rows], codes[rows], responses.count("batch")).at(codes)


def _running(
    responses: Responses, values: Floats, rows: Mask, start: Mapping[str, RunningMoments]
) -> tuple[Responses, Moments]:
    """Return running moments of each response's domain, its own batch included."""
    domains = responses.count("domain")
    both = responses["batch"] * domains + responses["domain"]
    sets, codes = dense_codes(both, responses.count("batch") * domains)
    of_sets = keyed_moments(values[rows], codes[rows], len(sets))
    labels = [str(label) for label in responses.labels["domain"]]
    begin = {code: start[label] for code, label in enumerate(labels) if label in start}
    mean, std, after = rewards.running_statistics(of_sets, (sets % domains).tolist(), begin)
    responses = responses.noting(running={labels[code]: state for code, state in after.items()})
    return responses, Moments(of_sets.number, mean, std).at(codes)


def clip_rewards(responses: Responses, *, recipe: Recipe) -> Responses:
    """Clamp `rewards`; add `reward_clipped`, true if the reward changed."""
    if recipe.reward_clip is None:
        return responses
    values = responses["rewards"]
    clipped = values.clip(*recipe.reward_clip)
    return responses.with_(rewards=clipped, reward_clipped=clipped != values)


def per_group(
    responses: Responses,
    columns: dict[str, Column],
    function: Callable[[dict[str, Column], Integers], Floats],
    *,
    rows: Mask,
) -> Floats:
    """Call a function once for all groups, and return its numbers in the order of the responses.

    Args:
        responses: have the codes of groups.
        columns: [N] float64 each; the first is the reward.
        function: its arguments are the columns sorted by group, [M], and group offsets [G+1]; it
            returns [M] or [M, k].
        rows: [N] bool, the responses that count; the others get 0.

    Returns:
        [N] or [N, k] float64.
    """
    chosen = np.flatnonzero(rows)
    codes = responses["group"][chosen]
    values = {name: column[chosen] for name, column in columns.items()}
    order = canonical_order(codes, *values.values())
    offsets = group_offsets(codes, responses.count("group"))
    results = function({name: column[order] for name, column in values.items()}, offsets)
    unsorted = np.empty_like(results)
    unsorted[order] = results
    out = np.zeros((len(responses), *results.shape[1:]))
    out[chosen] = unsorted
    return out


def group_statistics(responses: Responses, values: Floats, *, rows: Mask) -> tuple[Moments, Mask]:
    """Return the moments of each response's group, and whether its values are equal, [N].

    They are if they differ by rounding alone; a deviation is 0 only if they are identical.
    """
    codes = responses["group"]
    low = int(codes.min()) if len(codes) else 0  # in one file of thousands they may not begin at 0
    codes = codes - low if low else codes
    groups, equal = _by_group(codes, values, rows)
    moments = groups.at(codes)
    if rows.all():
        return moments, equal[codes]
    return Moments(*(np.where(rows, part, 0.0) for part in moments)), equal[codes] & rows


def _by_group(codes: Integers, values: Floats, rows: Mask) -> tuple[Moments, Mask]:
    """Return the moments of each group, and whether its values are equal to rounding, [G]."""
    count, taken = int(codes.max()) + 1 if len(codes) else 0, values
    if not rows.all():
        codes, taken = codes[rows], values[rows]
    offsets = group_offsets(codes, count)
    ascending = taken[canonical_order(codes, taken)]
    low, high = first_values(ascending, offsets), last_values(ascending, offsets)
    return group_moments(ascending, offsets, low == high), equal_to_rounding(low, high)
