"""Options of rewards, from the file to the estimator; they are fields of Recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from rlpost.numerics import Count, Finite, NonNegative, Positive
from rlpost.option_model import OptionModel

Scope = Literal["batch", "group", "others", "running", "none"]


class RewardOptions(OptionModel):
    """How rewards are put together, shaped, normalised and clipped."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward_components: tuple[str, ...] | None = None
    """Columns that make up the reward, in place of one."""
    component_weights: tuple[Finite, ...] | None = None
    """A weight for each reward component; 1 where none is given."""
    reward_scale: tuple[Finite, Finite, Finite, Finite] | None = None
    """LOW HIGH TO_LOW TO_HIGH: clamp rewards to an interval, map it onto another."""
    truncation_penalty: Finite | None = None
    """Truncated responses: from 0 up a factor of their reward, below 0 their reward."""
    group_length_penalty: tuple[NonNegative, NonNegative, NonNegative] | None = None
    """OUTPUT INPUT TURNS: take these weights of each length, as a share of the group's largest,
    times the group's mean reward."""
    overlong_penalty: tuple[Count, Count, NonNegative] | None = None
    """MAX_LEN BUFFER FACTOR: soft penalty that grows over the last BUFFER tokens."""
    norm_mean: Scope | None = None
    """Which mean is subtracted from rewards."""
    norm_std: Scope | None = None
    """Which standard deviation divides rewards."""
    reward_clip: Positive | None = None
    """Clamp rewards to ±C, per response and again per token."""
    reward_clip_low: Finite | None = None
    """The lower bound of the reward clip, where it is not -C."""

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
