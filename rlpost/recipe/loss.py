"""Options that policy losses share, and the names of losses.

Help, completion and errors need them without numpy; the loss functions, with the options of each,
are in `rlpost.losses`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from rlpost.recipe.base import (
    COMMON,
    Bound,
    Clamp,
    Count,
    InHelp,
    KlEstimator,
    NonNegative,
    Offsets,
    OptionModel,
    OptionValue,
    Parsed,
    never_text,
    or_never,
)
from rlpost.recipe.functions import Names
from rlpost.recipe.numerics import EstimateClamp

NAMES = (
    "ppo", "pg", "gspo", "cispo", "tis", "topr", "kimi15", "geo_mean", "sapo", "gpg", "dppo", "ipo",
    "ref_kl", "dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov", "vespo", "mask_pg", "rollout_is",
    "real", "fipo", "oreal", "kimi_k2",
)  # fmt: skip
"""The losses of rlpost; their functions are in `rlpost.losses`."""
KNOWN = Names("policy loss", "--loss", "rlpost.losses", NAMES)
"""They, and those of users."""
ABOUT_AGGREGATIONS = {
    "token-mean": "sum over all policy tokens of a batch / their number",
    "token-mean-by-sign": "mean over tokens with A > 0, plus the mean over the other policy tokens",
    "token-sum": "sum over all policy tokens of a batch",
    "seq-mean-token-sum": "sum over each response's tokens, then the mean over responses",
    "seq-mean-token-mean": "mean over each response's tokens, then the mean over responses",
    "seq-mean-token-sum-norm": "sum over tokens / --agg-length (--agg-norm rows: / responses, too)",
    "prompt-mean": "mean over the tokens of each prompt's responses, then the mean over prompts",
    "rollout-mean": "mean over the tokens of each rollout's rows, then the mean over rollouts",
}


def behaviour_role(behaviour: str) -> str:
    """Return the role of the log-probs that a behaviour policy has, or is interpolated from."""
    return "old_log_probs" if behaviour == "old" else "infer_log_probs"


def word(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


Aggregation = Literal[
    "token-mean", "token-mean-by-sign", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
    "seq-mean-token-sum-norm", "prompt-mean", "rollout-mean",
]  # fmt: skip


# A constant, 1 + 2·pg_clip, or never.
DualClip = Annotated[
    Annotated[float, Field(gt=1)] | Literal["twice"],
    BeforeValidator(
        or_never, json_schema_input_type=Annotated[float, Field(gt=1)] | Literal["twice", "never"]
    ),
    PlainSerializer(never_text, return_type=float | str, when_used="json"),
    InHelp("FLOAT|twice|never"),
]
OF_RATIO = ("pg_clip", "dual_clip", "ratio_clamp")
"""The fields of LossOptions that only some losses read."""


class KlClamp(Clamp):
    """A bound on the KL estimates of k3 or of all, or on their products with the ratio."""

    choices = ("all", "k3", "product", "k3-product")


class LossOptions(OptionModel):
    """The options that policy losses share; None is the default of the loss.

    `LossOptions.of` raises UsageError if a value is wrong; the options of a single loss, in
    `loss_options`, are checked with the loss.
    """

    panels: ClassVar = {"loss": "Policy loss"}

    loss: Annotated[str, AfterValidator(KNOWN.checked), InHelp("NAME", common=True)] = "ppo"
    """Policy loss (see rlpost list losses), or path/to/file.py:function."""
    loss_options: Annotated[dict[str, OptionValue], COMMON] = Field(default_factory=dict)
    """Option of the loss, see rlpost list losses NAME; repeatable."""
    behaviour: Literal["old", "infer", "loglinear", "linear"] = "old"
    """Policy that the ratio divides by: old, the rollout engine, or an
    interpolation of it and the current one by policy_version."""
    pg_clip: Annotated[Parsed[Offsets] | None, COMMON] = None
    """Clip range ε: ratio in 1 ± ε, or LOW below and HIGH above;
    geo_mean: log ratio in ± ε."""
    dual_clip: DualClip | None = None
    """Upper bound on r if A < 0 (mask_pg: any A); twice: 1 + 2·ε."""
    ratio_clamp: Bound | None = None
    """Bound on |log ratio| before exp, nats; never: no bound."""

    aggregation: Annotated[Aggregation | None, COMMON] = None
    """Aggregation of token losses to one number."""
    agg_length: Count | None = None
    """Divisor of seq-mean-token-sum-norm; default: longest response."""
    agg_rows: Literal["valid", "all"] = "valid"
    """Responses, prompts or rollouts in a mean: with a policy token (valid), or all."""
    agg_norm: Literal["length", "rows"] = "length"
    """Divide seq-mean-token-sum-norm by length, or by rows, too."""

    kl_loss_coef: Annotated[NonNegative, COMMON] = 0.0
    """Coefficient of the KL loss; 0: only measured."""
    kl_loss_estimator: KlEstimator = "k3"
    """Estimator of KL(current ‖ reference) per token."""
    kl_loss_log_ratio_clamp: Parsed[EstimateClamp] = EstimateClamp("all", 40.0)
    """Bound on |new - ref| before exp, nats: of all estimators, or of k3."""
    kl_loss_clamp: Parsed[KlClamp] = KlClamp("k3", 10.0)
    """Bound on |KL| per token, nats: of estimates k3 or all, or of their
    product with the ratio."""
    kl_loss_aggregation: Aggregation | None = None
    """Aggregation of the KL loss; default: that of the loss."""
    kl_loss_ratio: bool = False
    """Multiply the KL loss by the ratio, for an unbiased gradient."""
    kl_loss_ratio_policy: Literal["behaviour", "old", "infer", "current"] = "behaviour"
    """Policy that this ratio divides by; current: only the gradient."""

    def __hash__(self) -> int:
        """Return a hash of all but the table of own options, which has none."""
        return hash(tuple(x for name, x in self.__dict__.items() if name != "loss_options"))
