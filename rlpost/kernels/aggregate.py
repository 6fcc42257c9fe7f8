"""Aggregation of token losses to one number: means over tokens or over responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.codes import joint_codes, ordinals_of

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


BY_SIGN = "token-mean-by-sign"
"""The aggregation that is a mean over the tokens of A > 0 plus a mean over the others."""
OF_UNITS = {"prompt-mean": "group", "rollout-mean": "rollout"}
"""By aggregation over units of several responses: the role that has the unit of each response."""


def denominator(
    *,
    how: str,
    tokens: Array,
    valid: Array,
    rows: Array,
    longest: Array,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> Array:
    """Return what the sum of the responses' contributions is divided by, int64, like `tokens`.

        token-mean               Σ over responses of Σ loss           / policy tokens
        token-mean-by-sign       the same, of tokens with A > 0, plus that of the others
        token-sum                Σ over responses of Σ loss
        seq-mean-token-sum       Σ over responses of Σ loss           / responses
        seq-mean-token-mean      Σ over responses of Σ loss / tokens  / responses
        seq-mean-token-sum-norm  Σ over responses of Σ loss           / length [/ responses]
        prompt-mean              Σ over responses of Σ loss / tokens of its prompt   / prompts
        rollout-mean             Σ over responses of Σ loss / tokens of its rollout  / rollouts

    Args:
        how: one of the eight.
        tokens: number of policy tokens; with token-mean-by-sign, of those of a sign.
        valid: number of responses, prompts or rollouts with a policy token.
        rows: number of responses, prompts or rollouts.
        longest: length of the longest response, observation tokens included.
        count_rows: which responses count: `valid` ones or `all`.
        norm: seq-mean-token-sum-norm divides by `length` (ROLL), or by length and number of
            responses (`rows`; verl; Dr. GRPO, arXiv 2503.20783).
        length: the length of seq-mean-token-sum-norm; None for `longest`.
    """
    responses = valid if count_rows == "valid" else rows
    if how in ("token-mean", BY_SIGN):
        return tokens
    if how == "token-sum":
        return namespace(tokens).ones_like(tokens)
    if how != "seq-mean-token-sum-norm":
        return responses
    divisor = longest
    if length is not None:
        divisor = namespace(responses).full(responses.shape, length, responses)
    return divisor * responses if norm == "rows" else divisor


def weights_in(
    unit: Integers,
    tokens: Integers,
    *,
    how: str,
    responses: Integers,
    lengths: Integers,
    group: Integers | None = None,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> Floats:
    """Return the weight of a token of each response in the loss of its unit, [N] float64.

    The loss of a unit is Σ weight · loss over its tokens; see `aggregate.denominator`. A response
    without tokens has the weight 0.

    Args:
        unit: [N] codes from 0, of the step, for the loss of a step.
        tokens: [N] policy tokens; with token-mean-by-sign those of a sign.
        how: the aggregation.
        responses: [N] policy tokens of either sign.
        lengths: [N] tokens, observation tokens included.
        group: [N] the prompt or rollout of each response, for a mean over these.
        count_rows: as of `denominator`.
        norm: likewise.
        length: likewise.
    """
    if not len(unit):
        return np.zeros(0)
    counted, first = responses, np.ones(len(unit), np.bool_)
    if how in OF_UNITS and group is not None:
        of = joint_codes(unit, group)
        counted = np.bincount(of, responses)[of].astype(np.int64)
        first = ordinals_of(of) == 0
    longest = np.zeros(int(unit.max()) + 1, np.int64)
    np.maximum.at(longest, unit, lengths)
    totals = (np.bincount(unit, x).astype(np.int64) for x in (tokens, first & (counted > 0), first))
    sums = dict(zip(("tokens", "valid", "rows"), totals, strict=True))
    below = denominator(
        how=how, **sums, longest=longest, count_rows=count_rows, norm=norm, length=length
    )
    own = counted.clip(1) if how == "seq-mean-token-mean" or how in OF_UNITS else 1
    return np.where(tokens > 0, 1 / (own * below.clip(1)[unit]), 0.0)
