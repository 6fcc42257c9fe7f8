"""Options of policy losses, as `rlpost loss` and the presets' [loss] tables have them.

What policy losses there are, in a line each, and their defaults: what is known without torch.

`rlpost --help` and the errors of LossOptions need it; the losses themselves are in rlpost.losses.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from rlpost.recipe.base import (
    Bound,
    Count,
    KlEstimator,
    NonNegative,
    OptionModel,
    Positive,
    Unit,
)
from rlpost.recipe.roles import closest

ABOUT = {
    "ppo": "PPO's clipped surrogate, with separate bounds and dual clip",
    "pg": "the plain policy gradient: no ratio, nothing clipped",
    "gspo": "PPO's surrogate with one ratio for a whole response",
    "cispo": "policy gradient whose importance weights are clipped; every token learns",
    "tis": "policy gradient with truncated importance weights",
    "topr": "plain gradient for good responses, truncated weights for the others",
    "kimi15": "plain gradient, held back by the squared log ratio",
    "geo_mean": "PPO's surrogate of the geometric mean of a response's clipped ratios",
    "sapo": "a smooth gate on the ratio in place of a clip",
    "gpg": "the plain policy gradient as a mean over all tokens",
    "dppo": "masks tokens whose probability moved far in the advantage's direction",
    "ipo": "masks tokens whose probability moved far in any direction",
    "ref_kl": "dppo with the log ratio to the reference in place of advantages",
}
ABOUT_AGGREGATIONS = {
    "token-mean": "sum over all policy tokens of a batch / their number",
    "seq-mean-token-sum": "sum over each response's tokens, then the mean over responses",
    "seq-mean-token-mean": "mean over each response's tokens, then the mean over responses",
    "seq-mean-token-sum-norm": "sum over all tokens / agg_length (agg_norm rows: / responses, too)",
}
# The values of options that a loss takes where nothing is asked for, as `resolved` has them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "dual_clip": "never",
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "pg": {"aggregation": "seq-mean-token-sum"},
    "gspo": {
        "pg_clip_low": 3e-4,
        "pg_clip_high": 4e-4,
        "dual_clip": "never",
        "ratio_clamp": 20.0,
        "ratio_cap": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "cispo": {
        "pg_clip_low": "never",
        "pg_clip_high": 4.0,
        "cispo_bounds": "offset",
        "cispo_mask": False,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "tis": {
        "tis_low": 0.0,
        "tis_high": 1.0,
        "ratio_clamp": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "topr": {
        "tis_low": 0.0,
        "tis_high": 1.0,
        "topr_positive": 1.0,
        "topr_negative": 1.0,
        "ratio_clamp": "never",
        "aggregation": "seq-mean-token-mean",
    },
    "kimi15": {"kimi_tau": 0.1, "aggregation": "seq-mean-token-mean"},
    "geo_mean": {
        "pg_clip": 0.4,
        "pg_clip_low": 0.4,
        "pg_clip_high": 0.4,
        "aggregation": "seq-mean-token-mean",
    },
    "sapo": {
        "sapo_tau_pos": 1.0,
        "sapo_tau_neg": 1.05,
        "ratio_clamp": 20.0,
        "aggregation": "seq-mean-token-mean",
    },
    "gpg": {"aggregation": "token-mean"},
    "dppo": {
        "prob_mask": 0.2,
        "prob_mask_low": 0.2,
        "prob_mask_high": 0.2,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "ipo": {
        "prob_mask": 0.1,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "ref_kl": {
        "prob_mask": 0.2,
        "prob_mask_low": 0.2,
        "square_coef": 1e-3,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
}


def word(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def defaults_of(option: str) -> str:
    """What the losses take for an option: `ppo 0.2; geo_mean 0.4`; empty where none has its own.

    >>> defaults_of("kimi_tau"), defaults_of("prob_mask"), defaults_of("agg_rows")
    ('0.1', 'dppo, ref_kl 0.2; ipo 0.1', '')
    """
    found: dict[str, list[str]] = {}
    for name, values in DEFAULTS.items():
        if option in values:
            found.setdefault(word(values[option]), []).append(name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)} {value}" for value, names in found.items())


Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


def _never(value: Any) -> Any:
    return math.inf if value == "never" else value


def _never_text(value: float | str) -> float | str:
    return "never" if value == math.inf else value


# A constant, 1 + 2·pg_clip, or never.
DualClip = Annotated[
    Annotated[float, Field(gt=1)] | Literal["twice"],
    BeforeValidator(
        _never, json_schema_input_type=Annotated[float, Field(gt=1)] | Literal["twice", "never"]
    ),
    PlainSerializer(_never_text, return_type=float | str, when_used="json"),
]
AGGREGATIONS = get_args(Aggregation)


class LossOptions(OptionModel):
    """Every option of a policy loss; a field left at None takes the loss's own default.

    Raises UsageError (through `LossOptions.of`) naming options that do not fit together.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
    )

    loss: str = "ppo"
    """What is made of ratios and advantages; --list tells of each."""
    behaviour: Literal["old", "infer"] = "old"
    """Whose log-probs the ratio divides by: the trainer's before the update, or the engine's."""
    pg_clip: Bound | None = None
    """Clip range ε: ratios count up to 1 ± ε; of geo_mean the log ratio, up to ± ε."""
    pg_clip_low: Bound | None = None
    """ε below 1, where it differs; never: no lower bound."""
    pg_clip_high: Bound | None = None
    """ε above 1, where it differs; never: no upper bound."""
    dual_clip: DualClip | None = None
    """Largest ratio that counts where the advantage is negative; twice: 1 + 2·pg_clip."""
    ratio_clamp: Bound | None = None
    """|log ratio| is clamped to this before it is exponentiated; never: it is not."""
    ratio_cap: Bound | None = None
    """A log ratio of gspo is at most this; never: it is not bounded."""

    cispo_bounds: Literal["offset", "ratio"] | None = None
    """What clip bounds of cispo are: an offset from 1, or the ratio itself."""
    cispo_mask: bool | None = None
    """Leave out tokens that the clip range of ppo would leave without gradient."""
    tis_low: NonNegative | None = None
    """Least importance weight of tis and topr."""
    tis_high: Positive | None = None
    """Greatest importance weight of tis and topr."""
    topr_positive: NonNegative | None = None
    """Weight of topr's responses with a reward above 0."""
    topr_negative: NonNegative | None = None
    """Weight of topr's other responses."""
    kimi_tau: NonNegative | None = None
    """τ of kimi15's squared log ratio."""
    sapo_tau_pos: Positive | None = None
    """How steep sapo's gate is where the advantage is positive."""
    sapo_tau_neg: Positive | None = None
    """How steep sapo's gate is elsewhere."""
    prob_mask: Unit | None = None
    """Change of a token's probability beyond which dppo and ipo leave it out."""
    prob_mask_low: Unit | None = None
    """That of dppo for falling probabilities, where it differs."""
    prob_mask_high: Unit | None = None
    """That of dppo for rising probabilities, where it differs."""
    square_coef: NonNegative | None = None
    """Coefficient of the squared log ratio that dppo and ipo add."""

    aggregation: Aggregation | None = None
    """How the losses of tokens become one number."""
    agg_length: Count | None = None
    """Divides in seq-mean-token-sum-norm; by default the longest response's length."""
    agg_rows: Literal["valid", "all"] = "valid"
    """What a mean over responses divides by: those with a policy token, or all."""
    agg_norm: Literal["length", "rows"] = "length"
    """seq-mean-token-sum-norm divides by agg_length alone, or by the number of responses, too."""

    kl_loss_coef: NonNegative = 0.0
    """Coefficient of the KL loss, from the reference; at 0 it is only measured."""
    kl_loss_estimator: KlEstimator = "k3"
    """Per-token KL of current against reference log-probs."""
    kl_loss_log_ratio_clamp: Bound = 40.0
    """|new - ref| is clamped to this before anything is exponentiated; never: it is not."""
    kl_loss_log_ratio_clamps: Literal["all", "k3"] = "all"
    """Which KL estimators see the clamped log ratio: all, or k3 alone."""
    kl_loss_clamp: Bound = 10.0
    """KL estimates are clamped to this on both sides; never: they are not."""
    kl_loss_clamps: Literal["k3", "all"] = "k3"
    """Which KL estimates are clamped: k3, which alone explodes, or all."""
    kl_loss_ratio: bool = False
    """Multiply the KL loss by the importance ratio, which makes its gradient unbiased."""

    @field_validator("loss")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ABOUT:
            hint = closest(name, ABOUT) or f"; there are {', '.join(ABOUT)}"
            raise ValueError(f"no policy loss {name!r}{hint}")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low = 0.0 if self.tis_low is None else self.tis_low
        high = 1.0 if self.tis_high is None else self.tis_high
        if low > high:
            raise ValueError(f"tis_low ({low}) must not exceed tis_high ({high})")
        return self

    @classmethod
    def called(cls, loc: tuple[int | str, ...]) -> str:
        """The field: what follows in `loc` is which of its kinds did not take the value."""
        return str(loc[0]) if loc else ""
