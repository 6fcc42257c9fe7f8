"""Recipe: every option that changes a number in the output."""

from __future__ import annotations

import math
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from rlpost.errors import ErrorPart, OptionValueError, ReadWriteError, UsageError, no_such, series
from rlpost.recipe.base import (
    COMMON,
    Count,
    Finite,
    InHelp,
    KlEstimator,
    KlTarget,
    NonNegative,
    OptionModel,
    OptionValue,
    Parsed,
    Positive,
    Range,
    Share,
    Symmetric,
    Unit,
    Written,
    split_value,
)
from rlpost.recipe.estimators import KNOWN
from rlpost.recipe.flags import OF_RUNS, flag_of, variable_of
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics

if TYPE_CHECKING:
    from pathlib import Path


Conflicts = list[tuple[bool, str]]
"""Rules that options must follow together: whether a recipe breaks the rule, and the error."""

WRITTEN = (
    "advantages",
    "returns",
    "response_level_rewards",
    "sample_mask",
    "sample_weight",
    "is_weight",
    "final_response_mask",
)
"""Columns that are written by default, if the recipe computes them."""
GROUP_COLUMNS = ("group_mean", "group_std", "group_size", "group_pass_rate")
EXTRA = (
    "raw_advantages",
    "token_level_rewards",
    "kl",
    "engine_log_ratio",
    "response_advantage",
    *GROUP_COLUMNS,
)
"""Columns that are written only if `emit` names them."""
LOSS_COLUMNS = ("pg_loss", "clip_state")
"""Columns that `rlpost loss` writes."""
GRADIENT = "loss_gradient"
"""A column that it writes with --gradient alone."""
ROW_COLUMNS = frozenset(
    {
        "response_advantage",
        "response_level_rewards",
        "sample_mask",
        "sample_weight",
        *GROUP_COLUMNS,
    }
)
"""Columns with one value per response; the others are lists of tokens."""

MASKS = (
    "drop_longer",
    "drop_long_errors",
    "drop_truncated",
    "drop_difficulty",
    "drop_equal_rewards",
    "drop_single",
)
"""Fields that turn a sample mask on, in the order of the summary."""

TABLES = ("columns", "options", "teachers", "numerics")
"""Fields that are tables of a recipe file, and NAME=VALUE on the command line."""


class EstimatorOptions(OptionModel):
    """The estimator and its options."""

    estimator: Annotated[str, AfterValidator(KNOWN.checked), InHelp("NAME", common=True)] = "grpo"
    """Advantage estimator (see `rlpost list estimators`)."""
    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Option of the estimator, e.g. step_gamma=0.9 (see `rlpost list estimators NAME`)."""
    estimator_name: str | None = None
    """Name of the estimator in its framework, for messages; set by presets."""
    gamma: Unit = 1.0
    """Discount γ per policy token, 0 to 1."""
    lam: Unit = 0.95
    """λ of gae, 0 to 1."""
    bootstrap: Literal["column", "last"] | None = None
    """Value behind the end of truncated responses: that of the role next_value (column), or the
    last of the row's values (default: 0)."""
    scan: Literal["row", "rollout"] = "row"
    """Returns and gae within a row, or over the rows of a rollout by turn, with turn_reward."""
    teachers: Annotated[dict[str, Finite], InHelp("COLUMN=WEIGHT")] = Field(default_factory=dict)
    """Column of a teacher's log-probs and the weight of its KL."""
    numerics: Numerics = Field(default_factory=Numerics)
    """Numerical detail in which frameworks differ (see `rlpost help numerics`)."""


Scope = Literal["batch", "group", "others", "running", "none"]
RolloutReward = Literal["equal", "last", "sum", "mean"]
Failures = Literal["drop", "mask", "keep", "zero"]
Attempts = Literal["all", "newest"]


class RewardOptions(OptionModel):
    """Reward components, shaping, normalisation and clipping."""

    reward_components: tuple[str, ...] | None = None
    """Columns of reward components, in place of the reward column."""
    component_weights: tuple[Finite, ...] | None = None
    """Weight of each reward component (default: 1 each)."""
    reward_scale: Annotated[
        tuple[Finite, Finite, Finite, Finite] | None, InHelp("LOW HIGH TO_LOW TO_HIGH")
    ] = None
    """Clamp rewards to [LOW, HIGH], then map them to [TO_LOW, TO_HIGH]."""
    truncation_penalty: Finite | None = None
    """Truncated responses: multiply the reward by this, or, if negative, replace it."""
    group_length_penalty: Annotated[
        tuple[NonNegative, NonNegative, NonNegative] | None, InHelp("OUTPUT INPUT TURNS")
    ] = None
    """Length penalty: weights of output tokens, input tokens and turns."""
    overlong_penalty: Annotated[
        tuple[Count, Count, NonNegative] | None, InHelp("MAX_LEN BUFFER FACTOR")
    ] = None
    """Linear penalty over the last BUFFER tokens: -FACTOR at MAX_LEN."""
    norm_mean: Scope | None = None
    """Mean to subtract from rewards (default: set by the estimator)."""
    norm_std: Scope | None = None
    """Standard deviation to divide rewards by (default: set by the estimator)."""
    reward_clip: Annotated[Parsed[Symmetric] | None, COMMON] = None
    """Clamp rewards to [-C, C] or [LOW, HIGH], per response and again per token."""
    whiten_rewards: bool = False
    """Whiten token rewards over the policy tokens of a batch."""

    @property
    def component_weight(self) -> dict[str, float]:
        """The weight of each reward component, by its column."""
        names = self.reward_components or ()
        return dict(zip(names, self.component_weights or (1.0,) * len(names), strict=True))

    def _reward_conflicts(self) -> Conflicts:
        overlong = self.overlong_penalty
        return [
            (
                overlong is not None and overlong[1] > overlong[0],
                "--overlong-penalty: BUFFER must not exceed MAX_LEN",
            ),
            (
                len(self.component_weights or ()) not in (0, len(self.reward_components or ())),
                "--component-weights: as many are needed as there are --reward-components",
            ),
            (
                self.reward_scale is not None and self.reward_scale[0] >= self.reward_scale[1],
                "--reward-scale: LOW must be under HIGH",
            ),
        ]


Level = Literal["token", "segment", "geometric", "sequence"]

FILTER_LEVELS = (*get_args(Level), "max")
UNCLAMPED = ("diff", "prob_gap", "bkl", "age")
"""Measures of both probabilities and of versions, which numerics.is_filter_clamp leaves alone."""
MEASURES = ("ratio", "k1", "k2", "k3", "tv", "error", *UNCLAMPED)
PROXIMAL = ("loglinear", "linear")
"""Ways to interpolate the policy before the current one between the engine's and the current."""
LEVEL_SYNONYMS = {"sum": "sequence", "mean": "geometric"}
FILTER_SYNTAX = "LEVEL:MEASURE:LOW:HIGH[:WHERE]"
WHERE = ("any", "negative", "diverging")
"""Tokens that a filter may reject."""


class _FilterParts(NamedTuple):
    level: str
    measure: str
    low: float = -math.inf
    high: float = math.inf
    where: str = "any"


class Filter(Written, _FilterParts):
    """An off-policy filter: keeps tokens, segments or responses with low <= measure <= high.

    Written LEVEL:MEASURE:LOW:HIGH; an empty bound is infinite, so `geometric:k3::0.01` rejects
    responses whose mean k3 is above 0.01. With `:negative` only tokens with a
    negative advantage are rejected, with `:diverging` only those whose update increases the
    divergence. The formulas are those of `rlpost.kernels.corrections.divergence`.
    """

    metavar = FILTER_SYNTAX
    needed = f"{FILTER_SYNTAX}; a bound may be left out"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Parse a value of --is-filter; raises ValueError."""
        if isinstance(value, cls):
            return value
        parts, named = split_value(value, 5), f"--is-filter {value!r}"
        if len(parts) not in (4, 5):
            raise ValueError(f"{named}: write it {FILTER_SYNTAX}; a bound may be left out")
        level, measure, low, high, where = (*parts, "any")[:5]
        level = LEVEL_SYNONYMS.get(level, level)
        for name, names in ((level, FILTER_LEVELS), (measure, MEASURES), (where, WHERE)):
            if name not in names:
                raise ValueError(f"{named}: {name!r} is none of {', '.join(names)}")
        bounds = _bound(named, low, -math.inf), _bound(named, high, math.inf)
        parsed = cls(level, measure, *bounds, where)
        if not parsed.low < parsed.high:
            raise ValueError(f"{named}: LOW must be under HIGH")
        if math.isinf(parsed.low) and math.isinf(parsed.high):
            raise ValueError(f"{named}: LOW or HIGH is needed")
        return parsed

    @property
    def plain(self) -> float | str:
        """The text; equal filters have equal text."""
        low, high = (f"{x!r}" if math.isfinite(x) else "" for x in (self.low, self.high))
        where = "" if self.where == "any" else f":{self.where}"
        return f"{self.level}:{self.measure}:{low}:{high}{where}"

    @property
    def by_response(self) -> bool:
        """Whether the filter keeps or rejects whole responses."""
        return self.level not in ("token", "segment")

    @property
    def drops_responses(self) -> bool:
        """Whether the filter keeps or rejects whole responses, whatever their advantages."""
        return self.by_response and self.where == "any"


def _bound(named: str, word: str, default: float) -> float:
    try:
        value = float(word) if word else default
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{named}: {word!r} is no number")
    return value


class _WeightParts(NamedTuple):
    level: str
    normalised: bool = False


class WeightLevel(Written, _WeightParts):
    """The level of importance weights, and whether they are divided by their mean."""

    metavar = f"{'|'.join(get_args(Level))}[:normalised]"
    needed = f"{series([repr(name) for name in get_args(Level)])}, alone or with :normalised"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the level of LEVEL or LEVEL:normalised."""
        if isinstance(value, cls):
            return value
        level, *others = split_value(value, 2)
        if level not in get_args(Level) or others not in ([], ["normalised"]):
            raise ValueError
        return cls(level, bool(others))

    @property
    def plain(self) -> float | str:
        """LEVEL, with :normalised if weights are."""
        return self.level + ":normalised" * self.normalised


class WeightBounds(Range):
    """The largest importance weight, and the smallest one: `2`, `0.5:2`, `0.5:`."""

    metavar = "CAP|FLOOR:CAP"
    needed = "CAP above 0, or FLOOR:CAP, with FLOOR under CAP; one of both may be left out"
    empty = (0.0, math.inf)

    @classmethod
    def alone(cls, value: Any) -> tuple[Any, Any]:
        """Return no floor, and CAP."""
        return None, value

    @property
    def plain(self) -> float | str:
        """CAP, else FLOOR:CAP."""
        return super().plain if self.low else self.high


class CorrectionOptions(OptionModel):
    """Off-policy correction between the rollout engine and the trainer."""

    is_weight: Parsed[WeightLevel] | None = None
    """Level of the importance weights, old over infer probability; with :normalised they are
    divided by their mean over the batch (default: no weights)."""
    is_cap: Parsed[WeightBounds] | None = None
    """Largest importance weight, or smallest and largest: others are truncated to these."""
    is_mask: Parsed[Range] | None = None
    """Set the importance weight to 0 if the ratio is outside [LOW, HIGH]."""
    is_filter: Annotated[tuple[Parsed[Filter], ...], InHelp(FILTER_SYNTAX, repeated=True)] = ()
    """Reject tokens or responses outside the bounds, e.g. sequence:ratio:0.5:2 or max:k3::0.3.
    Levels: token, segment, geometric, sequence, max. Measures: ratio, k1, k2, k3, tv, error,
    diff, prob_gap, bkl, age. WHERE: tokens that may be rejected: any, those with a negative
    advantage, or those whose update increases the divergence (diverging)."""
    is_policy: Literal["old", "current", "loglinear", "linear"] = "old"
    """Policy that weights and filters compare with the engine: old, current (log_probs), or the
    one before the current, interpolated by policy_version."""

    @property
    def corrected_role(self) -> str:
        """The role of the log-probs that weights and filters compare with the engine's."""
        return "old_log_probs" if self.is_policy == "old" else "log_probs"

    @property
    def compares_engine(self) -> bool:
        """Whether weights or filters compare log-probs with those of the engine."""
        compared = (rule.measure != "age" or rule.where == "diverging" for rule in self.is_filter)
        return self.is_weight is not None or any(compared)

    @property
    def reads_ages(self) -> bool:
        """Whether weights or filters read the age of tokens, in versions."""
        by_age = any(rule.measure == "age" for rule in self.is_filter)
        return by_age or (self.compares_engine and self.is_policy in PROXIMAL)

    @property
    def corrects(self) -> bool:
        """Whether there are importance weights or filters."""
        return self.is_weight is not None or bool(self.is_filter)

    @property
    def rejects_responses(self) -> bool:
        """Whether a filter drops whole responses, whatever their advantages."""
        return any(rule.drops_responses for rule in self.is_filter)

    @property
    def rejects_tokens(self) -> bool:
        """Whether a filter rejects single tokens of a response."""
        return not all(rule.drops_responses for rule in self.is_filter)

    def _correction_conflicts(self) -> Conflicts:
        options = {"is_cap": self.is_cap, "is_mask": self.is_mask}
        names = [flag_of(name) for name, value in options.items() if value is not None]
        return [
            (
                self.is_weight is None and bool(names),
                f"{' and '.join(names)} without --is-weight: there is no weight to shape",
            ),
            (
                self.is_policy != "old" and not self.compares_engine,
                f"--is-policy {self.is_policy} needs --is-weight or an --is-filter of log-probs",
            ),
        ]


class Recipe(CorrectionOptions, RewardOptions, EstimatorOptions):
    """All options of the pipeline, validated.

    A field that is None has the estimator's own default.

    Raises:
        UsageError: a value or a name is wrong (one line each), or options exclude each other.
    """

    panels: ClassVar = {
        "estimator": "Estimator and preset",
        "reward_components": "Rewards",
        "is_weight": "Off-policy correction",
        "drop_longer": "Response masks",
        "kl_coef": "KL",
        "whiten_advantages": "Advantages",
        "columns": "Input and output",
    }

    drop_longer: Annotated[Count | None, InHelp("N")] = None
    """Drop responses of N policy tokens or more: N is the limit of generation."""
    drop_difficulty: Parsed[Range] | None = None
    """Drop prompt groups that are too hard or too easy: mean raw reward of LOW or less, or of HIGH
    or more, as 0.1:0.95."""
    drop_long_errors: Annotated[Count | None, InHelp("N")] = None
    """Keep only responses with reward 1, and those with reward 0 and fewer than N policy tokens."""
    drop_equal_rewards: Annotated[bool, COMMON] = False
    """Drop groups of two or more equal rewards (dynamic sampling)."""
    drop_single: bool = False
    """Drop prompt groups of one response."""
    drop_truncated: Annotated[bool, COMMON] = False
    """Drop responses that stopped at the length limit."""
    mask_before_norm: bool = False
    """Leave dropped responses out of reward statistics."""
    failures: Failures = "drop"
    """Failed responses: out of statistics and training (drop), out of training alone (mask), as any
    other (keep), or reward 0."""
    attempts: Attempts = "newest"
    """Rows of a step that several attempts of a run wrote, or of a rollout that was tried several
    times: those of the newest, or all."""

    kl_coef: Annotated[NonNegative, COMMON] = 0.0
    """KL coefficient β: subtract β·KL from token rewards."""
    kl_estimator: Annotated[KlEstimator | None, COMMON] = None
    """Measure KL by this estimator per token, policy (old) against reference (default: k1 with
    --kl-coef or --emit kl, else KL is not measured)."""
    kl_target: Parsed[KlTarget] | None = None
    """Adapt β towards this mean of responses' KL per token, in nats, over HORIZON responses, 10000
    unless set."""
    whiten_advantages: Annotated[bool | None, COMMON] = None
    """Whiten advantages over the policy tokens of a batch (default: set by the estimator)."""
    advantage_clip: Annotated[Positive | None, COMMON] = None
    """Bound C: clamp advantages to ±C."""
    top_entropy_quantile: Share | None = None
    """Share of a batch's policy tokens, those of the highest entropy, that keep their advantage;
    that of the others is 0 (default: all)."""
    difficulty_weight: bool = False
    """Weight responses by 0.5 + 1.5·difficulty."""
    length_weight: bool = False
    """Weight responses by 1.5 - length, min-max scaled per batch."""
    age_decay: Share | None = None
    """Weight responses by γ^age, γ over 0 and at most 1; age in policy versions, the mean over
    policy tokens (default: no weight)."""

    columns: Annotated[dict[str, str], InHelp("ROLE=COLUMN", common=True)] = Field(
        default_factory=dict
    )
    """Column to read for a role (default: found by its name)."""
    unit: Literal["row", "rollout"] | None = None
    """Count rows or rollouts in statistics of responses (default: rollouts if they have ids)."""
    rollout_reward: RolloutReward = "equal"
    """Reward of a rollout from its rows; equal: they must agree."""
    nonfinite: Literal["error", "mask"] = "error"
    """On NaN, infinite or null numbers: stop, or mask the response."""
    emit: tuple[str, ...] | None = None
    """Columns to write, in place of the default ones."""
    emit_only: bool = False
    """Write no input columns except the keys."""
    replace: bool = False
    """Replace input columns that have the name of an output column."""
    pass_threshold: Finite = 1.0
    """Raw reward at which a response passes (group_pass_rate)."""

    @property
    def kl_kind(self) -> KlEstimator:
        """The estimator of KL."""
        return self.kl_estimator or "k1"

    @property
    def asks_kl(self) -> bool:
        """Whether KL from the reference is measured, if the input has its log-probs."""
        return self.kl_coef > 0 or self.kl_estimator is not None or "kl" in (self.emit or ())

    @property
    def has_masks(self) -> bool:
        """Whether a sample mask may drop responses for their rewards, lengths or groups."""
        return any(getattr(self, name) not in (None, False) for name in MASKS)

    @property
    def weighs_responses(self) -> bool:
        """Whether responses get a weight."""
        return self.difficulty_weight or self.length_weight or self.age_decay is not None

    @property
    def reads_versions(self) -> bool:
        """Whether anything reads policy versions."""
        return self.reads_ages or self.age_decay is not None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for broken, error in (
            *self._conflicts(),
            *self._reward_conflicts(),
            *self._correction_conflicts(),
        ):
            if broken:
                raise ValueError(error)
        if self.emit == ():
            raise ValueError("--emit: names no column to write")
        columns = {*WRITTEN, *EXTRA}
        for name in self.emit or ():
            if (self.emit or ()).count(name) > 1:
                raise ValueError(f"--emit: {name!r} is named twice")
            if name not in columns:
                choices = f"there are {', '.join(sorted(columns))}"
                text = f"--emit: no column {name!r} to write"
                raise OptionValueError(no_such(text, name, columns, choices))
        return self

    def _conflicts(self) -> Conflicts:
        return [
            (
                self.bootstrap is not None and self.drop_truncated,
                "--bootstrap and --drop-truncated exclude each other: dropped ones have no returns",
            ),
            (
                self.kl_target is not None and self.kl_coef == 0,
                "--kl-target needs --kl-coef above 0: it adapts by factors, so 0 would stay 0",
            ),
            (
                self.emit_only and self.replace,
                "--emit-only and --replace exclude each other: no input column is kept to replace",
            ),
        ]

    @classmethod
    def no_option(cls, text: str, name: Any) -> ErrorPart:
        """Return what an unknown name means: another option, or a close name."""
        if name in LossOptions.model_fields:
            tip = "write it in the table [loss]"
            return ErrorPart(f"{text}: it is an option of the policy loss", tip=tip)
        if name in OF_RUNS:
            ways = f"use {flag_of(name)} or {variable_of(name)} (Python: rlpost.Options)"
            return ErrorPart(f"{text}: it is no part of a recipe", tip=ways)
        table = "an option of a single estimator is in the table [options]"
        return no_such(text, str(name), cls.model_fields, table)

    @classmethod
    def from_toml(cls, path: Path) -> Recipe:
        """Return the recipe of a TOML file; raises UsageError, or ReadWriteError on reading."""
        return cls.of(without_loss(load_toml(path)), str(path))


def without_loss(table: dict[str, Any]) -> dict[str, Any]:
    """Return a file's table without that of the policy loss, which is not part of the recipe."""
    return {key: value for key, value in table.items() if key != "loss"}


def load_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file, with underscores for the dashes of option names."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ReadWriteError(f"{path}: cannot read the recipe: not a regular file")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot read the recipe: {error.strerror}") from None
    except ValueError as error:  # syntax, encoding, integers of thousands of digits
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: not valid TOML: nested too deeply to read") from None
    table.pop("$schema", None)  # for editors
    table = {key.replace("-", "_"): value for key, value in table.items()}
    for name in ("numerics", "loss"):
        if isinstance(table.get(name), dict):
            table[name] = {key.replace("-", "_"): value for key, value in table[name].items()}
    return table
