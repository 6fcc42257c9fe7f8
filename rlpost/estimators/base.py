"""What an estimator is: a pure function of columns, and what the table of them says of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.recipe.options import Scope


STRUCTURE = ("offsets", "mask")
# Made by stages before the estimator; the other columns of tokens are roles.
MADE_TOKENS = ("token_rewards", "distillation", "position_baseline")
# The roles behind columns that no file holds.
_FROM = {
    "rewards": ("reward",),
    "token_rewards": ("reward",),
    "tokens": (),
    "length": (),
    "cohort": ("group", "domain"),
    "distillation": ("teachers",),
    "position_baseline": ("group",),
}


class Credit(NamedTuple):
    """What an estimator gives: advantages and returns, of the shape of its first column."""

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class Estimator:
    """One way from rewards to advantages.

    The function's positional parameters are columns, `offsets` and `mask`, its keyword-only ones
    knobs: fields of the recipe or its numerics. With a column of tokens among them it works on
    tokens, ragged by response; observations are taken out, unless it asks for the mask. Else it
    works on numbers per response: sorted by group where it asks for offsets, in the order of the
    input where it does not. `batch`, `domain`, `group` and the ids of steps come as codes.
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
    returns: Literal["advantages", "own", "whitened"] = "advantages"
    """Returns equal the advantages as the function gives them, as whitened, or neither."""
    rewards: Callable[..., Tensor] | None = None
    """Makes the rewards that are normalised and credited from other columns, [N]."""
    token_weights: Callable[..., Tensor] | None = None
    """Weighs tokens, [T], for the mean return at their position that is `position_baseline`."""
    normalise_batch: bool = False
    """Its advantages are normalised over the responses of a batch."""
    beyond_steps: bool = False
    """What it gives a response may depend on responses of other steps."""

    check: Callable[[Credit, Mapping[str, Tensor], object], None] | None = None
    """Raises where what the function gave is no credit; for functions that rlpost has not seen."""

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters by name."""
        return inspect.signature(self.function).parameters

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function reads."""
        return _positional(self.function)

    @cached_property
    def reward_columns(self) -> tuple[str, ...]:
        """The columns that its rewards are made of."""
        return _positional(self.rewards) if self.rewards else ()

    @cached_property
    def weight_columns(self) -> tuple[str, ...]:
        """The columns that its token weights are made of."""
        return _positional(self.token_weights) if self.token_weights else ()

    @property
    def needs(self) -> tuple[str, ...]:
        """All columns that its functions read; those that no file holds are made by stages."""
        return tuple(dict.fromkeys((*self.columns, *self.reward_columns, *self.weight_columns)))

    @property
    def roles(self) -> tuple[str, ...]:
        """What a file must have for it, in the words of roles."""
        needs = [name for name in self.needs if name not in _optional(self.token_weights)]
        found = [role for name in needs for role in _FROM.get(name, (name,))]
        grouped = self.level == "response" and "offsets" in self.parameters
        if grouped or {self.norm_mean, self.norm_std} & {"group", "others"}:
            found.append("group")
        return tuple(dict.fromkeys(found))

    @cached_property
    def knobs(self) -> tuple[str, ...]:
        """The fields of the recipe, or of its numerics, that its functions take."""
        functions = (self.function, self.rewards, self.token_weights)
        return tuple(dict.fromkeys(name for each in functions if each for name in _keywords(each)))

    def __call__(
        self,
        columns: Mapping[str, Tensor],
        offsets: Tensor | None,
        knobs: object,
        *,
        mask: Tensor | None = None,
    ) -> Credit:
        """Run the function on these columns, with the knobs that a recipe has as fields.

        Without a mask every token counts as the policy's.
        """
        structure = {"offsets": offsets, "mask": mask}
        given = {name: value for name, value in structure.items() if name in self.parameters}
        found = self.function(**columns, **given, **_chosen(self.function, knobs))
        credit = Credit(*found) if isinstance(found, tuple) else Credit(found, found)
        if self.check is not None:
            self.check(credit, columns, knobs)
        return credit

    def make_rewards(self, columns: Mapping[str, Tensor], knobs: object) -> Tensor:
        """Run `rewards`, which must be there, likewise."""
        assert self.rewards is not None
        return self.rewards(**columns, **_chosen(self.rewards, knobs))

    @property
    def level(self) -> Literal["token", "response"]:
        """Whether it works on tokens or on numbers per response."""
        return "token" if self.token_columns else "response"

    @property
    def token_columns(self) -> tuple[str, ...]:
        """Those of its columns that have a number per token."""
        return tuple(name for name in self.columns if name in MADE_TOKENS or _is_tokens(name))

    @property
    def defaults(self) -> dict[str, Scope | bool]:
        """What recipes that leave these fields open come to."""
        scopes = {"norm_mean": self.norm_mean, "norm_std": self.norm_std}
        return {**scopes, "whiten_advantages": self.whiten_advantages}

    @property
    def normalises(self) -> bool:
        """The norm scopes are knobs of its own functions, so no stage normalises for it."""
        return not {"norm_mean", "norm_std"}.isdisjoint(self.knobs)


def _is_tokens(name: str) -> bool:
    return name in ROLES and ROLES[name].kind == "tokens"


@cache
def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.KEYWORD_ONLY and parameter.name not in STRUCTURE
    )


@cache
def _optional(function: Callable[..., Any] | None) -> set[str]:
    """The columns that a function can do without."""
    parameters = inspect.signature(function).parameters if function else {}
    return {name for name, one in parameters.items() if one.default is None}


def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """The knobs of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def _chosen(function: Callable[..., Any], knobs: Any) -> dict[str, Any]:
    """The knobs' values; one that is None leaves the function its own default."""
    found = {}
    for name, default in _keywords(function).items():
        if not (hasattr(knobs, name) or hasattr(knobs.numerics, name)):
            found[name] = default
            continue
        value = getattr(knobs if hasattr(knobs, name) else knobs.numerics, name)
        found[name] = default if value is None else value
    return found
