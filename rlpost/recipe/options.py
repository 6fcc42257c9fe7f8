"""Groups of options that Recipe inherits: estimator, rewards, off-policy correction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field

from rlpost.recipe.base import OptionModel
from rlpost.recipe.numerics import Count, Finite, NonNegative, Positive, Unit

Level = Literal["token", "segment", "geometric", "sequence"]

FILTER_LEVELS = (*get_args(Level), "max")
MEASURES = ("ratio", "diff", "k1", "k2", "k3", "tv", "error")
LEVEL_SYNONYMS = {"sum": "sequence", "mean": "geometric"}
WRITTEN_AS = "LEVEL:MEASURE:LOW:HIGH"


@dataclass(frozen=True)
class Filter:
    """What may stay: tokens, segments or responses with low <= measure <= high.

    Written LEVEL:MEASURE:LOW:HIGH; a bound that is left out is infinite, so
    `geometric:k3::0.01` rejects responses whose mean k3 is above 0.01. The formulas are those of
    `rlpost.kernels.corrections.divergence`.
    """

    level: str
    """What is judged as one: a token, a segment, or a response by sum, mean or max."""
    measure: str
    """Which number of it is compared with the bounds."""
    low: float = -math.inf
    """Smallest that stays."""
    high: float = math.inf
    """Largest that stays."""

    @classmethod
    def of(cls, text: str) -> Filter:
        """A filter as it is written; raises ValueError."""
        parts = [part.strip() for part in text.split(":")]
        if len(parts) != len(WRITTEN_AS.split(":")):
            raise ValueError(f"is_filter {text!r}: write it {WRITTEN_AS}; a bound may be left out")
        level, measure, low, high = parts
        level = LEVEL_SYNONYMS.get(level, level)
        for came, known in ((level, FILTER_LEVELS), (measure, MEASURES)):
            if came not in known:
                raise ValueError(f"is_filter {text!r}: {came!r} is none of {', '.join(known)}")
        one = cls(level, measure, _bound(text, low, -math.inf), _bound(text, high, math.inf))
        if not one.low < one.high:
            raise ValueError(f"is_filter {text!r}: LOW must be under HIGH")
        if math.isinf(one.low) and math.isinf(one.high):
            raise ValueError(f"is_filter {text!r}: LOW or HIGH is needed")
        return one

    def __str__(self) -> str:
        """As it is written; equal filters are written the same."""
        low, high = (f"{x!r}" if math.isfinite(x) else "" for x in (self.low, self.high))
        return f"{self.level}:{self.measure}:{low}:{high}"

    @property
    def by_response(self) -> bool:
        """Whole responses are judged."""
        return self.level not in ("token", "segment")


def _bound(text: str, word: str, default: float) -> float:
    try:
        value = float(word) if word else default
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"is_filter {text!r}: {word!r} is no number")
    return value


def _as_written(text: str) -> str:
    return str(Filter.of(text))


class CorrectionOptions(OptionModel):
    """Correction for the rollout engine's policy not being the trainer's."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    is_weight: Level | None = None
    """Level of the importance weights, old over infer probability (default: no weights)."""
    is_cap: Positive | None = None
    """Truncate importance weights to at most X."""
    is_floor: NonNegative | None = None
    """Truncate importance weights to at least X."""
    is_mask: tuple[float, float] | None = None
    """Set the importance weight to 0 if the ratio is outside [LOW, HIGH]."""
    is_normalise: bool = False
    """Divide importance weights by their mean over the batch."""
    is_filter: tuple[Annotated[str, AfterValidator(_as_written)], ...] = ()
    """Reject tokens or responses outside the bounds, e.g. sequence:ratio:0.5:2 or max:k3::0.3.
    Levels: token, segment, geometric, sequence, max. Measures: ratio, diff, k1, k2, k3, tv,
    error."""
    is_filter_where: Literal["any", "negative", "diverging"] = "any"
    """Tokens that filters may reject: any, those with a negative advantage, or those whose update
    increases the divergence."""

    @property
    def corrects(self) -> bool:
        """Weights or filters are asked for."""
        return self.is_weight is not None or bool(self.is_filter)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """is_filter, read."""
        return tuple(map(Filter.of, self.is_filter))

    @property
    def rejects_responses(self) -> bool:
        """Filters drop whole responses, whatever their advantages."""
        return self.is_filter_where == "any" and any(one.by_response for one in self.filters)

    def correction_contradictions(self) -> list[tuple[bool, str]]:
        """Each pair of options that exclude each other: whether it is there, and why not."""
        cap, floor, mask = self.is_cap, self.is_floor, self.is_mask
        shaping = {"is_cap": cap, "is_floor": floor, "is_mask": mask}
        alone = [name for name, value in shaping.items() if value is not None]
        alone += ["is_normalise"] if self.is_normalise else []
        return [
            (
                self.is_weight is None and bool(alone),
                f"{' and '.join(alone)} without is_weight: there is no weight to shape",
            ),
            (
                cap is not None and floor is not None and floor > cap,
                f"is_floor ({floor}) must not exceed is_cap ({cap})",
            ),
            (
                mask is not None and not mask[0] < mask[1],
                f"is_mask: LOW must be under HIGH, not {mask}",
            ),
            (
                self.is_filter_where != "any" and not self.is_filter,
                f"is_filter_where {self.is_filter_where} narrows is_filter, which is not there",
            ),
        ]


class EstimatorOptions(OptionModel):
    """Which estimator turns rewards into advantages, and its knobs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    estimator: str = "grpo"
    """Advantage estimator (see `rlpost estimators`)."""
    gamma: Unit = 1.0
    """Discount γ per policy token, 0 to 1."""
    lam: Unit = 0.95
    """λ of gae, 0 to 1."""
    lambda_policy: Unit | None = None
    """λ of the advantages of gae (default: --lam)."""
    lambda_value: Unit | None = None
    """λ of the returns of gae (default: --lam)."""
    length_adaptive_alpha: NonNegative = 0.0
    """α of VAPO: λ of the advantages is 1 - 1/(α·policy tokens); 0: off."""
    step_gamma: Unit = 1.0
    """Discount per turn of a trajectory (gigpo, step_reinforce)."""
    episode_weight: Finite = 1.0
    """Weight of the episode advantage (gigpo)."""
    step_weight: Finite = 1.0
    """Weight of the step advantage (gigpo)."""
    f_norm: Positive = 1.0
    """Divisor of the advantages (gpg)."""
    ema_decay: Unit = 0.9
    """Decay of the moving-average baseline (rae)."""
    otb_is_cap: Positive | None = None
    """Weight by squared old/infer ratios, each at most X (optimal_token_baseline)."""
    episode_domains: tuple[str, ...] = ()
    """Domains to centre by group, the others by batch (hierarchical_grpo)."""
    teachers: dict[str, Finite] = Field(default_factory=dict)
    """Column of a teacher's log-probs and the weight of its KL."""


Scope = Literal["batch", "group", "others", "running", "none"]


class RewardOptions(OptionModel):
    """How rewards are put together, shaped, normalised and clipped."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward_components: tuple[str, ...] | None = None
    """Columns of reward components, in place of the reward column."""
    component_weights: tuple[Finite, ...] | None = None
    """Weight of each reward component (default: 1 each)."""
    reward_scale: tuple[Finite, Finite, Finite, Finite] | None = None
    """Clamp rewards to [LOW, HIGH], then map them to [TO_LOW, TO_HIGH]."""
    truncation_penalty: Finite | None = None
    """Reward of a truncated response: reward · X if X ≥ 0, else X."""
    group_length_penalty: tuple[NonNegative, NonNegative, NonNegative] | None = None
    """Length penalty: weights of output tokens, input tokens and turns."""
    overlong_penalty: tuple[Count, Count, NonNegative] | None = None
    """Linear penalty over the last BUFFER tokens: -FACTOR at MAX_LEN."""
    norm_mean: Scope | None = None
    """Mean to subtract from rewards (default: set by the estimator)."""
    norm_std: Scope | None = None
    """Standard deviation to divide rewards by (default: set by the estimator)."""
    reward_clip: Positive | None = None
    """Clamp rewards to ±X, per response and again per token."""
    reward_clip_low: Finite | None = None
    """Lower bound of the reward clip (default: -X of --reward-clip)."""

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        """Lower and upper bound of the reward clip, where there is one."""
        if self.reward_clip is None:
            return None
        low = -self.reward_clip if self.reward_clip_low is None else self.reward_clip_low
        return low, self.reward_clip

    @property
    def component_weight(self) -> dict[str, float]:
        """The weight of each reward component, by its column."""
        names = self.reward_components or ()
        return dict(zip(names, self.component_weights or (1.0,) * len(names), strict=True))

    def reward_contradictions(self) -> list[tuple[bool, str]]:
        """Each pair of options that exclude each other: whether it is there, and why not."""
        overlong = self.overlong_penalty
        return [
            (
                overlong is not None and overlong[1] > overlong[0],
                "overlong_penalty: BUFFER must not exceed MAX_LEN",
            ),
            (
                len(self.component_weights or ()) not in (0, len(self.reward_components or ())),
                "component_weights: as many are needed as there are reward_components",
            ),
            (
                self.reward_scale is not None and self.reward_scale[0] >= self.reward_scale[1],
                "reward_scale: LOW must be under HIGH",
            ),
            (
                self.reward_clip_low is not None
                and self.reward_clip_low >= (self.reward_clip or -float("inf")),
                "reward_clip_low needs a reward_clip above it",
            ),
        ]
