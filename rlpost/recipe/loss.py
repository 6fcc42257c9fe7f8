"""Options of policy losses, with a line about each loss and its defaults.

Help, completion and errors need them without numpy; the loss functions are in `rlpost.losses`.
"""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from rlpost.errors import OptionValueError, no_such
from rlpost.recipe.base import (
    COMMON,
    Bound,
    Count,
    Finite,
    InHelp,
    KlEstimator,
    NonNegative,
    OptionModel,
    OptionValue,
    Positive,
    Share,
    Unit,
)

ABOUT = {
    "ppo": "PPO's clipped surrogate, with separate bounds and dual clip",
    "pg": "plain policy gradient: no ratio, nothing clipped",
    "gspo": "PPO's surrogate with one ratio for a whole response",
    "cispo": "policy gradient with clipped importance weights; keeps all gradients",
    "tis": "policy gradient with truncated importance weights",
    "topr": "plain gradient if reward > 0, truncated importance weights otherwise",
    "kimi15": "plain policy gradient with a penalty on the squared log ratio",
    "geo_mean": "PPO's surrogate of the geometric mean of a response's clipped ratios",
    "sapo": "smooth gate on the ratio in place of a clip",
    "gpg": "plain policy gradient, as a mean over all tokens",
    "dppo": "masks tokens whose probability moved too far along the advantage",
    "ipo": "masks tokens whose probability moved too far in any direction",
    "ref_kl": "dppo with the log ratio to the reference as the advantage",
    "dppo_tv": "truncated weights; masks tokens whose π moved too far along A",
    "dppo_kl": "truncated weights; masks tokens whose binary KL is too high, along A",
    "dro": "plain policy gradient with a penalty on the squared log ratio",
    "clip_cov": "ppo; drops some tokens of high covariance of advantage and log-prob",
    "kl_cov": "surrogate of the ratio; KL penalty on tokens of high covariance",
    "vespo": "smooth weights of whole responses, by the product of their ratios",
    "mask_pg": "clipped importance weights; 0 for tokens of a high ratio",
    "rollout_is": "importance weights; 0 for tokens outside the bounds",
    "real": "classifies the responses of a prompt group by their mean log ratios",
    "fipo": "ppo, weighted by how far the rest of the response moved",
    "oreal": "ppo with a factor for each sign of A, and imitation if A > 0",
    "kimi_k2": "policy gradient with truncated weights and the advantage A - τ·log r",
}
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
# The default options of each loss, in the form of `LossConfig.resolved`.
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
    "dppo_tv": {
        "prob_mask": 0.15,
        "prob_mask_low": 0.15,
        "prob_mask_high": 0.15,
        "tis_high": 20.0,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "dppo_kl": {
        "kl_mask": 0.05,
        "kl_mask_low": 0.05,
        "kl_mask_high": 0.05,
        "tis_high": 20.0,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "dro": {"dro_beta": 0.1, "aggregation": "token-mean"},
    "clip_cov": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "cov_low": 1.0,
        "cov_high": 5.0,
        "cov_share": 2e-4,
        "cov_seed": 0,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "kl_cov": {
        "kl_cov_coef": 1.0,
        "cov_share": 2e-4,
        "cov_seed": 0,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "vespo": {
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "aggregation": "token-mean",
    },
    "mask_pg": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "dual_clip": 3.0,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "rollout_is": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
    "real": {"real_tau": 0.5, "aggregation": "prompt-mean"},
    "fipo": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "dual_clip": "never",
        "fipo_half_life": 32.0,
        "fipo_clip_low": 0.0,
        "fipo_clip_high": 0.2,
        "fipo_safety": 4.0,
        "ratio_clamp": "never",
        "aggregation": "token-mean",
    },
    "oreal": {
        "pg_clip": 0.2,
        "pg_clip_low": 0.2,
        "pg_clip_high": 0.2,
        "dual_clip": 3.0,
        "oreal_positive": 1.0,
        "oreal_sft": 1.0,
        "oreal_negative": 1.0,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean-by-sign",
    },
    "kimi_k2": {
        "kimi_tau": 0.1,
        "tis_low": 0.0,
        "tis_high": 5.0,
        "ratio_clamp": 20.0,
        "aggregation": "token-mean",
    },
}


GROUP = "rlpost.losses"
"""Entry-point group in which a package registers losses."""


def behaviour_role(behaviour: str) -> str:
    """Return the role of the log-probs that a behaviour policy has, or is interpolated from."""
    return "old_log_probs" if behaviour == "old" else "infer_log_probs"


def is_own(name: str) -> bool:
    """Return whether a loss is a user's: none of rlpost has its name."""
    return name not in ABOUT


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the group `rlpost.losses`, by name; none is imported."""
    return {one.name: one for one in entry_points(group=GROUP) if is_own(one.name)}


def word(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def defaults_of(option: str) -> str:
    """Return the defaults of an option by loss; empty if no loss has its own.

    >>> defaults_of("kimi_tau"), defaults_of("prob_mask"), defaults_of("agg_rows")
    ('0.1', 'dppo, ref_kl 0.2; ipo 0.1; dppo_tv 0.15', '')
    """
    losses: dict[str, list[str]] = {}
    for name, values in DEFAULTS.items():
        if option in values:
            losses.setdefault(word(values[option]), []).append(name)
    if len(losses) == 1:
        return next(iter(losses))
    return "; ".join(f"{', '.join(names)} {value}" for value, names in losses.items())


Aggregation = Literal[
    "token-mean",
    "token-mean-by-sign",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "prompt-mean",
    "rollout-mean",
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
    InHelp("FLOAT|twice|never"),
]
AGGREGATIONS = get_args(Aggregation)


class LossOptions(OptionModel):
    """The options of all policy losses; None is the default of the loss.

    `LossOptions.of` raises UsageError if options do not fit together.
    """

    panels: ClassVar = {"loss": "Policy loss"}

    loss: Annotated[str, InHelp("NAME", common=True)] = "ppo"
    """Policy loss (see rlpost losses), or path/to/file.py:function."""
    loss_options: Annotated[dict[str, OptionValue], COMMON] = Field(default_factory=dict)
    """Option of your own loss; repeatable."""
    behaviour: Literal["old", "infer", "loglinear", "linear"] = "old"
    """Policy that the ratio divides by: old, the rollout engine, or an
    interpolation of it and the current one by policy_version."""
    pg_clip: Annotated[Bound | None, COMMON] = None
    """Clip range ε: ratio in 1 ± ε; geo_mean: log ratio in ± ε."""
    pg_clip_low: Annotated[Bound | None, COMMON] = None
    """ε below 1, in place of pg_clip; never: no lower bound."""
    pg_clip_high: Annotated[Bound | None, COMMON] = None
    """ε above 1, in place of pg_clip; never: no upper bound."""
    dual_clip: DualClip | None = None
    """Upper bound on r if A < 0 (mask_pg: any A); twice: 1 + 2·ε."""
    ratio_clamp: Bound | None = None
    """Bound on |log ratio| before exp, nats; never: no bound."""
    ratio_cap: Bound | None = None
    """Upper bound on the log ratio of gspo, nats; never: no bound."""

    cispo_bounds: Literal["offset", "ratio"] | None = None
    """Unit of the clip bounds of cispo: offset from 1, or ratio."""
    cispo_mask: bool | None = None
    """Mask tokens of cispo that ppo would clip."""
    tis_low: NonNegative | None = None
    """Lowest importance weight of tis, topr and kimi_k2."""
    tis_high: Positive | None = None
    """Highest importance weight (tis, topr, kimi_k2, dppo_tv, _kl)."""
    topr_positive: NonNegative | None = None
    """Weight of responses in topr if reward > 0."""
    topr_negative: NonNegative | None = None
    """Weight of the other responses in topr."""
    kimi_tau: NonNegative | None = None
    """Coefficient τ: (log r)²·τ/2 in kimi15, A - τ·log r in kimi_k2."""
    sapo_tau_pos: Positive | None = None
    """Steepness τ of the gate of sapo if A > 0."""
    sapo_tau_neg: Positive | None = None
    """Steepness τ of the gate of sapo otherwise."""
    prob_mask: Unit | None = None
    """Largest change of π that dppo, dppo_tv and ipo do not mask."""
    prob_mask_low: Unit | None = None
    """prob_mask of dppo, dppo_tv for falling probabilities."""
    prob_mask_high: Unit | None = None
    """prob_mask of dppo, dppo_tv for rising probabilities."""
    square_coef: NonNegative | None = None
    """Coefficient κ of the squared log ratio in dppo and ipo."""
    kl_mask: Positive | None = None
    """Largest binary KL, nats, that dppo_kl does not mask."""
    kl_mask_low: Positive | None = None
    """kl_mask of dppo_kl for falling probabilities."""
    kl_mask_high: Positive | None = None
    """kl_mask of dppo_kl for rising probabilities."""
    dro_beta: NonNegative | None = None
    """Coefficient β of the squared log ratio in dro."""
    cov_low: Finite | None = None
    """clip_cov selects tokens of a higher covariance than this."""
    cov_high: Finite | None = None
    """clip_cov selects tokens of a lower covariance than this."""
    cov_share: Share | None = None
    """Share of a batch's tokens that clip_cov, kl_cov select."""
    cov_seed: int | None = None
    """Seed of the choice by clip_cov, and of ties of kl_cov."""
    kl_cov_coef: NonNegative | None = None
    """Coefficient of |log ratio| of selected tokens in kl_cov."""
    real_tau: Positive | None = None
    """Temperature τ of the scores in real."""
    fipo_half_life: Positive | None = None
    """Distance, in tokens, at which fipo halves a log ratio."""
    fipo_clip_low: NonNegative | None = None
    """Influence f of fipo is at least 1 minus this."""
    fipo_clip_high: Bound | None = None
    """Influence f of fipo is at most 1 plus this; never: no bound."""
    fipo_safety: Bound | None = None
    """fipo: f is in [0.8, 1] if A < 0 and the ratio is above this."""
    oreal_positive: NonNegative | None = None
    """Factor a of ppo in oreal if A > 0."""
    oreal_sft: NonNegative | None = None
    """Coefficient b of -log π in oreal, if A > 0."""
    oreal_negative: NonNegative | None = None
    """Factor a' of ppo in oreal otherwise."""
    vespo_k_pos: NonNegative | None = None
    """Power k of the ratio in vespo if A ≥ 0."""
    vespo_lambda_pos: Positive | None = None
    """Decay λ by the ratio in vespo if A ≥ 0."""
    vespo_k_neg: NonNegative | None = None
    """Power k of the ratio in vespo if A < 0."""
    vespo_lambda_neg: Positive | None = None
    """Decay λ by the ratio in vespo if A < 0."""

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
    kl_loss_log_ratio_clamp: Bound = 40.0
    """Bound on |new - ref| before exp, nats; never: no bound."""
    kl_loss_log_ratio_clamps: Literal["all", "k3"] = "all"
    """KL estimators that use the clamped log ratio: all, or k3."""
    kl_loss_clamp: Bound = 10.0
    """Bound on |KL| per token, nats; never: no bound."""
    kl_loss_clamps: Literal["k3", "all"] = "k3"
    """KL estimators that are clamped: k3, or all."""
    kl_loss_aggregation: Aggregation | None = None
    """Aggregation of the KL loss; default: that of the loss."""
    kl_loss_ratio: bool = False
    """Multiply the KL loss by the ratio, for an unbiased gradient."""
    kl_loss_ratio_policy: Literal["behaviour", "old", "infer", "current"] = "behaviour"
    """Policy that this ratio divides by; current: only the gradient."""
    kl_loss_clamp_at: Literal["estimate", "product"] = "estimate"
    """kl_loss_clamp bounds the estimate, or its product with the ratio."""

    def __hash__(self) -> int:
        """Return a hash of all but the table of own options, which has none."""
        return hash(tuple(x for name, x in self.__dict__.items() if name != "loss_options"))

    @field_validator("loss")
    @classmethod
    def _listed(cls, name: str) -> str:
        if is_own(name) and ":" not in name and name not in (others := installed()):
            names = (*ABOUT, *others)
            every = f"the losses are {', '.join(names)}"
            raise OptionValueError(no_such(f"no policy loss {name!r}", name, names, every))
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low = 0.0 if self.tis_low is None else self.tis_low
        high = 1.0 if self.tis_high is None else self.tis_high
        if low > high:
            raise ValueError(f"--tis-low {low} must not exceed --tis-high {high}")
        bounds = [
            DEFAULTS["clip_cov"][name] if asked is None else asked
            for name, asked in (("cov_low", self.cov_low), ("cov_high", self.cov_high))
        ]
        if bounds[0] >= bounds[1]:
            raise ValueError(f"--cov-low {bounds[0]:g} must be below --cov-high {bounds[1]:g}")
        return self
