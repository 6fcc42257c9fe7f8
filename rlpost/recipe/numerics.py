"""Numerics: where frameworks that mean the same method compute different numbers."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from rlpost.recipe.base import OptionModel

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]


def _digit(value: Any) -> Any:
    return int(value) if value in ("0", "1") else value


# A command line says 0 and 1 in words.
Freedom = Annotated[Literal[0, 1], BeforeValidator(_digit)]


def _bound(value: Any) -> Any:
    return math.inf if value == "never" else value


def _bound_text(value: float) -> float | str:
    return "never" if math.isinf(value) else value


# JSON has no infinity, so a bound that is never reached has a name.
Bound = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(
        _bound, json_schema_input_type=Annotated[float, Field(gt=0)] | Literal["never"]
    ),
    PlainSerializer(_bound_text, return_type=float | str, when_used="json"),
]


class Numerics(OptionModel):
    """What frameworks do differently, each with rlpost's own choice as the default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    batch: Literal["step", "step_domain", "all"] = "step"
    """What one batch is: the rows of a step, of a step and domain, or the whole input."""

    penalty_length: Literal["policy", "row"] = "policy"
    """What the overlong penalty counts: policy tokens, or tool output with them."""
    penalty_floor: Literal["none", "factor"] = "none"
    """The overlong penalty beyond MAX_LEN: it goes on falling, or stops at -FACTOR."""
    norm_eps: NonNegative = 1e-6
    """Added to the deviation that divides rewards; matters where rewards nearly agree."""
    norm_ddof: Freedom = 1
    """The deviation of rewards divides by n - 1 (Bessel) or, with 0, by n."""
    norm_floor: NonNegative = 0.0
    """Deviations of rewards are at least this; keeps near-equal groups from large numbers."""
    single: Literal["zero", "zero_always", "raw", "normalise"] = "zero"
    """A group of one: 0 in group statistics, 0 in any, its plain reward, or plain arithmetic."""
    constant: Literal["zero", "divide"] = "zero"
    """A group of equal rewards: 0, or its (zero) deviation over the scope's standard deviation."""
    empty: Literal["count", "leave_out"] = "count"
    """Responses without a policy token: rows of their group like any other, or no part of it."""
    missing_components: Literal["error", "skip"] = "error"
    """A reward component that is NaN or null: an error, or a part that was not scored."""
    clip_stages: Literal["response_and_token", "response"] = "response_and_token"
    """The reward clip: on normalised rewards and again on token rewards, or on the former."""

    log_ratio_clamp: Bound = 40.0
    """|old - ref| is clamped to this before anything is exponentiated; never: it is not."""
    log_ratio_clamps: Literal["all", "k3"] = "all"
    """Which KL estimators see the clamped log ratio: all, or k3 alone."""
    kl_clamp: Bound = 10.0
    """KL estimates are clamped to this on both sides; never: they are not."""
    kl_clamps: Literal["k3", "all"] = "k3"
    """Which KL estimates are clamped: k3, which alone explodes, or all."""
    kl_policy: Literal["old", "current"] = "old"
    """Whose KL from the reference: of the policy that sampled, or of the one being trained."""
    kl_credit: Literal["return", "token", "response"] = "return"
    """KL reaches all earlier tokens, its own token's advantage, or the reward before its norm."""

    terminal_reward: Literal["last_policy_token", "last_token"] = "last_policy_token"
    """Where the response's reward lands. `last_token` loses it where that is an observation."""
    observations: Literal["skip", "states", "zero_states", "policy", "restart", "cut"] = "skip"
    """Observation tokens in scans: passed over; states with a step of γ and λ of their own; such
    states with value 0; as if the policy's own; where returns start anew; where the trace ends."""
    segment_reward: Literal["sum", "last"] = "sum"
    """What a policy segment earns in agentic_reinforce: all its rewards, or its last token's."""

    whiten_eps: NonNegative = 1e-8
    """The floor of the variance in whitening, inside the square root."""
    whiten_floor: Literal["add", "clamp"] = "add"
    """The variance's floor is added to it, or is the least that it may be."""
    whiten_ddof: Freedom = 1
    """The variance in whitening divides by n - 1 (Bessel) or, with 0, by n."""
    whiten_scale: Literal["std", "none"] = "std"
    """Whitening centres and divides by the deviation, or centres alone."""

    batch_eps: NonNegative = 1e-6
    """Added to the deviation where gdpo normalises over the batch."""
    otb_position: Literal["token", "policy_token"] = "token"
    """Positions of optimal_token_baseline: places in the row, or among its policy tokens."""
    otb_lone: Literal["baseline", "none"] = "baseline"
    """Where one response of a group is left, the baseline is its own return, or nothing."""
    otb_eps: NonNegative = 1e-8
    """Added to the sum of weights that divides an optimal token baseline."""
    episodes: Literal["trajectory", "row"] = "trajectory"
    """A trajectory counts in its group's episode statistics once, or once for each of its rows."""
    states: Literal["group", "batch"] = "group"
    """Which equal states gigpo compares: those of the same group, or of the whole batch."""
    rae_order: Literal["row", "group"] = "row"
    """rae goes through the rows in their order, or group by group, each where its first row is."""

    is_clamp: Bound = 40.0
    """|log| of importance weights is clamped to this before exp; never: it is not."""
    is_clamp_at: Literal["level", "token"] = "level"
    """What is_clamp binds: the sum or mean that a weight is made of, or each token's log ratio."""
    is_filter_clamp: Bound = 40.0
    """|old - infer| of each token is clamped to this in filters; never: it is not."""
    is_observations: Literal["zero", "one", "ratio"] = "zero"
    """Importance weights of observations: 0, for nothing is learnt there, 1, or their ratio."""
