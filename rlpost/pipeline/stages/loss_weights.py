"""The weight of each token in the loss of a step, and the gradient of that loss."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS, weights_in
from rlpost.kernels.arrays import namespace
from rlpost.kernels.codes import joint_codes, ordinals_of
from rlpost.kernels.segments import count_true, spread
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.tokens import kept_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.losses.base import Surrogate
    from rlpost.losses.config import LossConfig
    from rlpost.losses.kl import KlLoss
    from rlpost.losses.tokens import Tokens
    from rlpost.pipeline.data import Batch, Responses

WEIGHT = "weight of a token: "
"""How the names of the columns of responses begin that have the weights of a loss."""
SIGNED = (" if A > 0", " if A <= 0")
"""How names end that are by the sign of the advantage."""


def weight_name(config: LossConfig, *, kl: bool = False) -> str:
    """Return the column of responses that has the weights of a loss, or of its KL loss.

    Losses with the same name have the same weights. Means by sign have two columns: see `SIGNED`.
    """
    options = config.options
    words = (aggregation_of(config, kl), options.agg_rows, options.agg_norm, options.agg_length)
    return WEIGHT + " ".join(map(str, words))


def signs_of(how: str) -> tuple[str, ...]:
    """Return the endings of the names of an aggregation's weights."""
    return SIGNED if how == BY_SIGN else ("",)


def weight_stages(
    configs: Sequence[LossConfig], *, weighted: bool, grouped: bool, rejects: bool
) -> list[Stage]:
    """Return the stages that count the tokens of units and add the weight of a token.

    Args:
        configs: the losses.
        weighted: the gradient of the loss of a step is needed, and so the weights.
        grouped: the input has prompt groups.
        rejects: single tokens of responses may be rejected.
    """
    ways = {weight_name(x, kl=kl): (x, kl) for x in configs for kl in (False, True)}
    by_sign = weighted and any(aggregation_of(*way) == BY_SIGN for way in ways.values())
    stages = [
        Stage(f"tokens of each {role}", reduce=partial(unit_tokens, role=role, grouped=grouped))
        for role in dict.fromkeys(role for config in configs for role in config.units.values())
    ]
    if weighted:
        add = partial(add_weights, ways=ways, grouped=grouped)
        stages.append(Stage("weights of tokens", reduce=add))
    if not by_sign and not (rejects and stages):
        return stages
    uses = frozenset({"advantages"}) if by_sign else frozenset[str]()
    return [Stage("tokens in the loss", map=map_tokens, uses=uses), *stages]


def unit_tokens(responses: Responses, *, role: str, grouped: bool) -> Responses:
    """Add `ROLE:tokens`, those of each response's prompt or rollout that no mask drops.

    `ROLE:first` is true for the first response of each. Both are within a batch, and a rollout
    within a prompt group if the input has them.
    """
    kept = np.where(responses["kept"], responses["tokens"], 0)
    unit = joint_codes(responses["group" if grouped else "batch"], responses[role])
    tokens = np.bincount(unit, responses.columns.get("kept_tokens", kept))[unit]
    first = ordinals_of(unit) == 0
    return responses.with_(**{f"{role}:tokens": tokens, f"{role}:first": first})


def aggregation_of(config: LossConfig, kl: bool) -> str:  # noqa: FBT001 - of a pair
    """Return the aggregation of a loss, or of its KL loss."""
    return config.kl_aggregation if kl else config.aggregation


def map_tokens(batch: Batch) -> dict[str, Array]:
    """Return the tokens of each response that no mask drops, and those of them with A > 0, [n]."""
    kept = kept_mask(batch)
    numbers = {"kept_tokens": count_true(kept, batch.offsets)}
    if "advantages" in batch:
        numbers["positive_tokens"] = count_true(kept & (batch["advantages"] > 0), batch.offsets)
    return numbers


def add_weights(
    responses: Responses, *, ways: Mapping[str, tuple[LossConfig, bool]], grouped: bool
) -> Responses:
    """Add the weight of a token of each response in the loss of its step, for each loss.

    Args:
        responses: all of the input.
        ways: by the name of weights: a loss that has them, and whether those are of its KL loss.
        grouped: the input has prompt groups.
    """
    kept = np.where(responses["kept"], responses["tokens"], 0)
    tokens = responses.columns.get("kept_tokens", kept)
    positive = responses.columns.get("positive_tokens", tokens)
    columns: dict[str, Any] = {}
    for name, way in ways.items():
        options, how = way[0].options, aggregation_of(*way)
        group = responses[OF_UNITS[how]] if how in OF_UNITS else None
        if group is not None and grouped:
            group = joint_codes(responses["group"], group)
        counts = (positive, tokens - positive) if how == BY_SIGN else (tokens,)
        for sign, count in zip(signs_of(how), counts, strict=True):
            columns[f"{name}{sign}"] = weights_in(
                responses["batch"],
                count,
                how=how,
                responses=tokens,
                lengths=responses["length"],
                group=group,
                count_rows=options.agg_rows,
                norm=options.agg_norm,
                length=options.agg_length,
            )
    return responses.with_(**columns)


def step_gradient(
    config: LossConfig,
    tokens: Tokens,
    surrogate: Surrogate,
    columns: Mapping[str, Array],
    kl_loss: KlLoss,
    weights: dict[str, Array] | None = None,
) -> Array:
    """Return the derivative of the loss of a step by the log-prob of each token, [T].

        ∂/∂log π of Σ weight · loss + coefficient · Σ KL weight · KL loss

    Args:
        config: the loss; its KL loss counts if its coefficient is above 0.
        tokens: of whole responses.
        surrogate: the losses of these tokens.
        columns: [n] each, of responses, with the weights.
        kl_loss: the KL losses.
        weights: keeps those of tokens, by name, for other losses that have the same.
    """
    weights, coefficient = {} if weights is None else weights, config.options.kl_loss_coef
    parts = []
    for kl in (False, True)[: 2 if coefficient else 1]:
        name, how = weight_name(config, kl=kl), aggregation_of(config, kl)
        if name not in weights:
            rows = [spread(columns[f"{name}{sign}"], tokens.offsets) for sign in signs_of(how)]
            of_sign = (
                rows[0] if len(rows) == 1 else tokens.xp.where(tokens.advantage_positive, *rows)
            )
            weights[name] = tokens.xp.where(tokens.mask, of_sign, 0.0)
            if "sample_weight" in columns:
                factor = spread(rounded(columns["sample_weight"]), tokens.offsets)
                weights[name] = weights[name] * factor
        parts.append(weights[name])
    gradient = config.loss.gradient(tokens, config.options, surrogate, parts[0])
    return gradient if not coefficient else gradient + coefficient * (parts[1] * kl_loss.gradient)


def rounded(values: Array) -> Array:
    """Return float64 numbers as a file stores them, in float32."""
    xp = namespace(values)
    return xp.astype(xp.astype(values, xp.float32), xp.float64)
