"""Options of the off-policy correction; they are fields of Recipe."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

Level = Literal["token", "segment", "geometric", "sequence"]
FilterLevel = Literal[Level, "max"]
Measure = Literal["ratio", "diff", "k1", "k2", "k3", "tv", "error"]

LEVEL_SYNONYMS = {"sum": "sequence", "mean": "geometric"}
SHAPE = "LEVEL:MEASURE:LOW:HIGH"
FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Filter(BaseModel):
    """What may stay: tokens, segments or responses with low <= measure <= high.

    Written LEVEL:MEASURE:LOW:HIGH; a bound that is left out is infinite, so
    `geometric:k3::0.01` rejects responses whose mean k3 is above 0.01.
    """

    model_config = FROZEN

    level: FilterLevel
    """What is judged as one: a token, a segment, or a response by sum, mean or max."""
    measure: Measure
    """Which number of it is compared with the bounds."""
    low: float = -math.inf
    """Smallest that stays."""
    high: float = math.inf
    """Largest that stays."""

    @model_validator(mode="before")
    @classmethod
    def _parsed(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        parts = [part.strip() for part in data.split(":")]
        if len(parts) != len(SHAPE.split(":")):
            raise ValueError(f"is_filter {data!r}: write it {SHAPE}; a bound may be left out")
        level, measure, *bounds = parts
        level = LEVEL_SYNONYMS.get(level, level)
        for came, known in ((level, (*get_args(Level), "max")), (measure, get_args(Measure))):
            if came not in known:
                raise ValueError(f"is_filter {data!r}: {came!r} is none of {', '.join(known)}")
        low, high = (_number(text, default) for text, default in zip(bounds, _OPEN, strict=True))
        return {"level": level, "measure": measure, "low": low, "high": high}

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"is_filter {self}: LOW must be under HIGH")
        if (self.low, self.high) == _OPEN:
            raise ValueError(f"is_filter {self}: one of LOW and HIGH is needed")
        return self

    @model_serializer
    def _written(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """As it is written on a command line."""
        low, high = (f"{x!r}" if math.isfinite(x) else "" for x in (self.low, self.high))
        return f"{self.level}:{self.measure}:{low}:{high}"

    @property
    def by_response(self) -> bool:
        """Whole responses are judged."""
        return self.level not in ("token", "segment")


_OPEN = (-math.inf, math.inf)


def _number(text: str, default: float) -> float:
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"is_filter: {text!r} is no number; write it {SHAPE}")
    return value


class CorrectionOptions(BaseModel):
    """Correction for the rollout engine's policy not being the trainer's."""

    model_config = FROZEN

    is_weight: Level | None = None
    """Weigh by old over infer probability: per token, segment (mean), response (mean or sum)."""
    is_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Truncate weights to at most this."""
    is_floor: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Truncate weights to at least this."""
    is_mask: tuple[float, float] | None = None
    """LOW HIGH: the weight is 0 where the ratio is outside; the bounds belong to it."""
    is_normalise: bool = False
    """Divide weights by their mean over the batch."""
    is_filter: tuple[Filter, ...] = ()
    """LEVEL:MEASURE:LOW:HIGH, as sequence:ratio:0.5:2 or max:k3::0.3; reject what is outside."""
    is_filter_where: Literal["any", "negative", "diverging"] = "any"
    """Tokens filters may reject: any, of negative advantage, or that move the policies apart."""

    @property
    def corrects(self) -> bool:
        """Weights or filters are asked for."""
        return self.is_weight is not None or bool(self.is_filter)

    @property
    def rejects_responses(self) -> bool:
        """Filters drop whole responses, whatever their advantages."""
        return self.is_filter_where == "any" and any(one.by_response for one in self.is_filter)

    def correction_contradictions(self) -> list[tuple[bool, str]]:
        """Each pair of options that exclude each other: whether it is there, and why not."""
        cap, floor, mask = self.is_cap, self.is_floor, self.is_mask
        shaping = {"is_cap": cap, "is_floor": floor, "is_mask": mask}
        alone = [name for name, value in shaping.items() if value is not None]
        alone += ["is_normalise"] if self.is_normalise else []
        return [
            (
                self.is_weight is None and bool(alone),
                f"{' and '.join(alone)} shape a weight, so is_weight is needed",
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
