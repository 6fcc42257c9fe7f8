"""Recipe: the one home of every option that changes a number in the output."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from rlpost.errors import ReadWriteError, UsageError
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Count, Finite, NonNegative, Numerics, Positive
from rlpost.recipe.options import CorrectionOptions, EstimatorOptions, RewardOptions
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


KlEstimator = Literal["k1", "abs", "k2", "k3", "k4"]

KL_SYNONYMS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
WRITTEN = (
    "advantages",
    "returns",
    "response_level_rewards",
    "sample_mask",
    "sample_weight",
    "is_weight",
)
GROUP_COLUMNS = ("group_mean", "group_std", "group_size", "group_pass_rate")
EXTRA = (
    "raw_advantages",
    "token_level_rewards",
    "kl",
    "final_response_mask",
    *GROUP_COLUMNS,
)


class Recipe(CorrectionOptions, RewardOptions, EstimatorOptions):
    """Every option of the pipeline, validated; the defaults are the reference pipeline's.

    A field left at None takes the estimator's own default. Raises UsageError, with a line for each
    wrong value and name, or naming the options that do not fit together.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
    )

    max_len_mask: bool = False
    """Drop responses of exactly --max-response-length policy tokens."""
    max_response_length: Count | None = None
    """Generation limit, in tokens."""
    difficulty_mask: bool = False
    """Drop prompt groups that are too easy or too hard."""
    difficulty_low: Finite = 0.1
    """Too hard: mean raw reward of the group at or below X."""
    difficulty_high: Finite = 0.95
    """Too easy: mean raw reward of the group at or above X."""
    error_max_len_clip: Count | None = None
    """Keep reward 1, and reward 0 below N policy tokens; drop others."""
    drop_zero_variance: bool = False
    """Drop groups of two or more equal rewards (dynamic sampling)."""
    drop_truncated: bool = False
    """Drop responses that stopped at the length limit."""
    mask_before_norm: bool = False
    """Leave dropped responses out of reward statistics."""

    kl_coef: NonNegative = 0.0
    """KL coefficient β: subtract β·KL from token rewards; 0: measure only."""
    kl_estimator: KlEstimator = "k1"
    """KL estimator per token, of old against reference log-probs."""
    kl_target: Positive | None = None
    """Adapt β after each batch towards this mean KL per token, in nats."""
    kl_horizon: Positive = 10000.0
    """Responses over which β adapts."""
    whiten_rewards: bool = False
    """Whiten token rewards over the policy tokens of a batch."""
    whiten_advantages: bool | None = None
    """Whiten advantages over the policy tokens of a batch (default: set by the estimator)."""
    advantage_clip: Positive | None = None
    """Clamp advantages to ±X."""
    difficulty_weight: bool = False
    """Weight responses by 0.5 + 1.5·difficulty."""
    length_weight: bool = False
    """Weight responses by 1.5 - length, min-max scaled per batch."""

    pass_threshold: Finite = 1.0
    """Raw reward at which a response passes (group_pass_rate)."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Column to read for a role (default: found by its name)."""
    rollout_id: str | None = None
    """Column of rollout ids: a rollout counts once in group statistics."""
    nonfinite: Literal["error", "mask"] = "error"
    """On NaN, infinite or null numbers: stop, or mask the response."""
    emit: tuple[str, ...] | None = None
    """Columns to write, in place of the default ones."""
    emit_only: bool = False
    """Write no input columns except the keys."""
    replace: bool = False
    """Replace input columns that have the name of an output column."""
    numerics: Numerics = Field(default_factory=Numerics)
    """Numerical detail in which frameworks differ (see `rlpost help presets`)."""

    @model_validator(mode="before")
    @classmethod
    def _synonyms(cls, data: Any) -> Any:
        kl = data.get("kl_estimator") if isinstance(data, dict) else None
        return {**data, "kl_estimator": KL_SYNONYMS.get(kl, kl)} if isinstance(kl, str) else data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for wrong, text in (
            *self._contradictions(),
            *self.reward_contradictions(),
            *self.correction_contradictions(),
        ):
            if wrong:
                raise ValueError(text)
        known = {*WRITTEN, *EXTRA}
        for name in self.emit or ():
            if (self.emit or ()).count(name) > 1:
                raise ValueError(f"emit: {name!r} is named twice")
            if name not in known:
                hint = closest(name, known) or f"; there are {', '.join(sorted(known))}"
                raise ValueError(f"emit: no column {name!r} to write{hint}")
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        """Each pair of options that exclude each other: whether it is there, and why not."""
        low, high = self.difficulty_low, self.difficulty_high
        return [
            (
                self.max_len_mask and self.max_response_length is None,
                "max_len_mask needs max_response_length: nothing else says what the limit was",
            ),
            (
                low >= high,
                f"difficulty_low ({low}) must be under difficulty_high ({high})",
            ),
            (
                self.kl_target is not None and self.kl_coef == 0,
                "kl_target needs kl_coef above 0: it adapts by factors, so 0 would stay 0",
            ),
            (
                self.emit_only and self.replace,
                "emit_only and replace exclude each other: no input column is kept to replace",
            ),
        ]

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        where: str = "recipe",
        origins: Mapping[str, str] | None = None,
    ) -> Recipe:
        """A Recipe of these values.

        Args:
            values: by field.
            where: what errors call the place that values come from.
            origins: the places of single fields, where they differ.

        Raises:
            UsageError: a name is unknown (with the nearest ones), a value is out of range, or
                two options exclude each other.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UsageError("\n".join(cls.problems(error, where, origins))) from None

    @classmethod
    def hint(cls, name: Any) -> str:
        """What an unknown name may have meant: it may be one of the policy loss."""
        if name in LossOptions.model_fields:
            return ": it is one of the policy loss, in a table of its own: [loss]"
        return super().hint(name)

    @classmethod
    def from_toml(cls, path: Path) -> Recipe:
        """A Recipe of a TOML file; raises UsageError, or ReadWriteError if it can't be read."""
        return cls.of(without_loss(load_toml(path)), str(path))


def without_loss(table: dict[str, Any]) -> dict[str, Any]:
    """A file's table less that of the policy loss, which is no part of the recipe."""
    return {key: value for key, value in table.items() if key != "loss"}


def load_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file; dashes in option names are as good as underscores."""
    try:
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
