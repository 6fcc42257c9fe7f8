"""The stages of the off-policy correction: filters of tokens and responses, importance weights.

A filter of whole responses drops them like a sample mask: `kept` and `sample_mask` become false. A
filter of tokens or segments, or only of tokens of some advantages, removes tokens from the final
response mask. Advantages, returns and weights are 0 outside that mask, so that rejected tokens
reach no loss, whichever columns it uses. Statistics of earlier stages (normalisation, whitening)
count rejected tokens: these stages run before the filters. With the numerics `correction=first`,
the stages from token rewards to advantages run after the filters, on the tokens that they accept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.kernels.arrays import Array
from rlpost.kernels.corrections import (
    RESPONSE_LEVELS,
    Weights,
    divergence,
    importance_weights,
    log_weights,
    proximal_log_probs,
    reduce_responses,
    values_at,
)
from rlpost.kernels.moments import exact_sums
from rlpost.kernels.segments import count_true, spread
from rlpost.pipeline.stages.ages import VERSION, ages
from rlpost.pipeline.stages.responses import some_left
from rlpost.pipeline.stages.tokens import partial_mask
from rlpost.recipe.recipe import PROXIMAL, Filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.pipeline.data import Batch, Column, Responses
    from rlpost.recipe.recipe import Recipe

ACCEPTED = "is:accepted"
"""The column of responses with the number of policy tokens that all filters accept."""

_REJECTED = "is:rejected:"


def passed(number: int) -> str:
    """Return the name of the column of responses that a filter accepts."""
    return f"is:passed:{number}"


def rejected(number: int) -> str:
    """Return the name of the column of tokens that a filter rejects."""
    return f"{_REJECTED}{number}"


def roles(recipe: Recipe) -> frozenset[str]:
    """Return the roles that weights and filters read."""
    compared = {recipe.corrected_role, "infer_log_probs"} if recipe.compares_engine else set()
    return frozenset(compared | ({VERSION} if recipe.reads_ages else set()))


def corrected(batch: Batch, recipe: Recipe) -> Array:
    """Return the log-probs that weights and filters compare with the engine's, [T]."""
    values = batch[recipe.corrected_role]
    if recipe.is_policy not in PROXIMAL:
        return values
    infer = batch["infer_log_probs"]
    return proximal_log_probs(values, infer, ages(batch), how=recipe.is_policy)


def map_accepted_by(batch: Batch, *, recipe: Recipe) -> dict[str, Array]:
    """Return which responses each filter accepts, and how many tokens all of them accept."""
    mapped = {
        passed(number): _inside(batch, one, recipe)
        for number, one in enumerate(recipe.is_filter)
        if one.drops_responses
    }
    if recipe.numerics.correction == "first":
        accepted = [_accepted(batch, number, recipe) for number in range(len(recipe.is_filter))]
        chosen = batch.xp.stack([batch.mask, *accepted]).all(0)
        mapped[ACCEPTED] = count_true(chosen, batch.offsets)
    return mapped


def map_weights(batch: Batch, *, recipe: Recipe) -> dict[str, Array]:
    """Return the sum of each response's weights, and their number."""
    assert recipe.is_weight is not None
    level = recipe.is_weight.level
    weights, count = _weights(batch, recipe).values, batch.policy_tokens
    if level in RESPONSE_LEVELS:  # one weight for each response, not for its tokens
        total = reduce_responses(weights, batch.mask, batch.offsets, level="max")
        count = batch.xp.astype(count > 0, count.dtype)
    else:
        total = reduce_responses(weights, batch.mask, batch.offsets, level="sequence")
    return {"is:total": total, "is:count": count}


def _accepted(batch: Batch, number: int, recipe: Recipe) -> Array:
    """Return which tokens a filter accepts, [T] bool."""
    rule = recipe.is_filter[number]
    inside = _inside(batch, rule, recipe)
    return spread(inside, batch.offsets) if rule.by_response else inside


def drop_rejected(responses: Responses, *, recipe: Recipe) -> Responses:
    """Drop the responses that filters reject; `reached` are those that sample masks keep.

    Raises:
        DataError: no response is left.
    """
    flags = {
        str(one): responses[passed(number)]
        for number, one in enumerate(recipe.is_filter)
        if one.drops_responses
    }
    if not flags:
        return responses
    reached = responses["kept"]
    stays: Column = np.logical_and.reduce([*flags.values()])
    kept = reached & stays
    responses = some_left(responses, kept, flags, "widen the bounds of --is-filter")
    return responses.with_(
        **{"mask:off_policy": stays}, reached=reached, kept=kept, sample_mask=kept
    )


def mean_weights(responses: Responses) -> Responses:
    """Add `is_mean`, the mean that the weights of a batch are divided by.

    It is over policy tokens (over responses with one, if a response has one weight) of all
    responses that sample masks keep: filters do not change it.
    """
    reached = responses["reached" if "reached" in responses else "kept"]
    codes, count = responses["batch"], responses.count("batch")
    total = exact_sums(np.where(reached, responses["is:total"], 0.0), codes, count)
    units = np.where(reached, responses["is:count"], 0).astype(np.float64)
    mean = total / exact_sums(units, codes, count).clip(1)
    return responses.with_(is_mean=np.where(mean > 0, mean, 1.0)[codes])


def _of_accepted(batch: Batch) -> Batch:
    """Return the batch with a mask that is true only on kept tokens, which filters accept.

    Tokens that another row of their rollout trains stay.
    """
    hits = [x for name, x in batch.tokens.items() if name.startswith(_REJECTED)]
    accepted = {"accepted": ~batch.xp.stack(hits).any(0)} if hits else {}
    others = {name: x for name, x in batch.tokens.items() if name != "accepted"}
    mask = partial_mask(replace(batch, tokens=others | accepted))
    return batch if mask is None else replace(batch, mask=mask, full=False)


def map_accepted(stage: Callable[[Batch], dict[str, Array]], batch: Batch) -> dict[str, Array]:
    """Map the tokens that filters accept."""
    return stage(_of_accepted(batch))


def apply_accepted(stage: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """Apply a stage to the tokens that filters accept; the mask stays as it was."""
    return replace(stage(_of_accepted(batch)), mask=batch.mask, full=batch.full)


def reduce_accepted(stage: Callable[[Responses], Responses], responses: Responses) -> Responses:
    """Reduce with `tokens` as the number of tokens that filters accept."""
    tokens = np.where(responses["kept"], responses[ACCEPTED], 0)
    return stage(responses.with_(tokens=tokens)).with_(tokens=responses["tokens"])


ON_ACCEPTED: dict[str, Callable[..., Any]] = {
    "map": map_accepted,
    "reduce": reduce_accepted,
    "apply": apply_accepted,
}
"""What calls a part of a stage with the tokens that filters accept."""


def reject(batch: Batch, *, recipe: Recipe) -> Batch:
    """Add `accepted`, and a column of rejected tokens for each filter; set their credit to 0.

    Filters that drop whole responses add nothing.
    """
    xp, hits = batch.xp, dict[str, Array]()
    for number, one in enumerate(recipe.is_filter):
        if not one.drops_responses:
            outside = ~_accepted(batch, number, recipe)
            hits[rejected(number)] = batch.mask & outside & _rejectable(batch, one, recipe)
    if not hits:
        return batch
    accepted = ~xp.stack([*hits.values()]).any(0)
    accepted = accepted & batch["accepted"] if "accepted" in batch else accepted
    zeroed: dict[int, Array] = {}
    for name in ("advantages", "returns", "raw_advantages"):
        if name in batch and id(batch[name]) not in zeroed:
            zeroed[id(batch[name])] = xp.where(accepted, batch[name], 0.0)
    credit = {name: zeroed[id(x)] for name, x in batch.tokens.items() if id(x) in zeroed}
    return batch.with_(**hits, **credit, accepted=accepted)


def add_weights(batch: Batch, *, recipe: Recipe) -> Batch:
    """Add `is_weight`, 0 on rejected tokens and in dropped responses.

    The recipe's numerics set it on observations.
    """
    xp, weights = batch.xp, _weights(batch, recipe)
    values = weights.values
    if recipe.is_weight is not None and recipe.is_weight.normalised:
        values = values / spread(batch.responses["is_mean"], batch.offsets)
    if recipe.numerics.is_observations == "zero":
        values = xp.where(batch.mask, values, 0.0)
    if "accepted" in batch:
        values = xp.where(batch["accepted"], values, 0.0)
    if not batch.all_are("kept"):
        values = xp.where(spread(batch.responses["kept"], batch.offsets), values, 0.0)
    hits = {"is:truncated": weights.truncated, "is:masked": weights.masked}
    return batch.with_(**hits, is_weight=values)


def add_log_ratio(batch: Batch) -> Batch:
    """Add `engine_log_ratio`, old - infer, 0 on observations."""
    return batch.with_(
        engine_log_ratio=batch.only(batch["old_log_probs"] - batch["infer_log_probs"])
    )


def _rejectable(batch: Batch, one: Filter, recipe: Recipe) -> Array:
    """Return tokens that a filter may reject: all, those with A < 0, or with A·d > 0 (VACO)."""
    if one.where == "any":
        return batch.mask
    if "advantages" in batch:
        advantages = batch["advantages"]
    else:
        advantages = spread(batch.responses["credit"], batch.offsets)
    if one.where == "negative":
        return advantages < 0
    return advantages * (corrected(batch, recipe) - batch["infer_log_probs"]) > 0


def _inside(batch: Batch, one: Filter, recipe: Recipe) -> Array:
    """Return what a filter accepts: [T] bool, or [n] for a filter of responses."""
    values = _values(batch, one, recipe)
    return (values >= one.low) & (values <= one.high)


def _values(batch: Batch, one: Filter, recipe: Recipe) -> Array:
    """Return what a filter compares with its bounds: [T], or [n] for a filter of responses."""
    if one.measure == "age":
        return values_at(ages(batch), batch.mask, batch.offsets, level=one.level)
    return divergence(
        corrected(batch, recipe),
        batch["infer_log_probs"],
        batch.mask,
        batch.offsets,
        measure=one.measure,
        level=one.level,
        clamp=recipe.numerics.is_filter_clamp,
    )


def _weights(batch: Batch, recipe: Recipe) -> Weights:
    """Return the weights of all tokens, before they are divided by a mean."""
    assert recipe.is_weight is not None
    numerics = recipe.numerics
    logs = log_weights(
        corrected(batch, recipe),
        batch["infer_log_probs"],
        batch.mask,
        batch.offsets,
        level=recipe.is_weight.level,
        clamp=numerics.is_clamp.bound,
        clamp_at=numerics.is_clamp.which,
    )
    if numerics.is_observations == "one":
        logs = batch.xp.where(batch.mask, logs, 0.0)
    floor, cap = recipe.is_cap or (0.0, math.inf)
    return importance_weights(
        logs,
        cap=cap,
        floor=floor,
        bounds=recipe.is_mask or (0.0, math.inf),
    )
