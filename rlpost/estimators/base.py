"""What an estimator is: a pure function of columns, and what the table of them says of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.reward_options import Scope

STRUCTURE = ("offsets",)


class Credit(NamedTuple):
    """What an estimator gives: advantages and returns, of the shape of its first column."""

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class Estimator:
    """One way from rewards to advantages.

    The function's positional parameters are columns and `offsets`, its keyword-only ones knobs
    of the recipe. With `token_rewards` among the columns it works on tokens, ragged by response,
    observations taken out; else on one number per response, ragged by group.
    """

    name: str
    function: Callable[..., Credit]
    formula: str
    source: str
    norm_mean: Scope = "none"
    """The recipe's norm_mean, where the user leaves it open."""
    norm_std: Scope = "none"
    whiten_advantages: bool = False
    undiscounted_is_constant: bool = False
    """With gamma 1 and one terminal reward, every policy token gets that reward."""

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters by name."""
        return inspect.signature(self.function).parameters

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function reads."""
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY and name not in STRUCTURE
        )

    @cached_property
    def knobs(self) -> tuple[str, ...]:
        """The recipe's fields that the function takes."""
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        )

    def __call__(self, columns: Mapping[str, Tensor], offsets: Tensor, knobs: object) -> Credit:
        """Run the function on these columns, with the knobs that an object has as attributes."""
        structure = {"offsets": offsets} if "offsets" in self.parameters else {}
        chosen = {name: getattr(knobs, name) for name in self.knobs}
        return self.function(**columns, **structure, **chosen)

    @property
    def level(self) -> Literal["token", "response"]:
        """Whether it works on tokens or on one number per response."""
        return "token" if "token_rewards" in self.columns else "response"
