"""Estimator: a pure function of columns, and what the table of estimators states about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.recipe.numerics import Numerics
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.recipe.recipe import Scope


STRUCTURE = ("offsets", "mask")
# Token columns that earlier stages compute; all other token columns are roles.
COMPUTED_TOKENS = ("token_rewards", "distillation", "position_baseline")
# Response columns that earlier stages compute.
COMPUTED_RESPONSES = ("rewards", "tokens", "length", "components", "cohort")
# The roles from which columns are computed that no file has.
_ROLES_OF_COMPUTED = {
    "rewards": ("reward",),
    "token_rewards": ("reward",),
    "tokens": (),
    "length": (),
    "cohort": ("group", "domain"),
    "distillation": ("teachers",),
    "position_baseline": ("group",),
}


class Credit(NamedTuple):
    """Advantages and returns, each of the shape of the estimator's first column."""

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class Estimator:
    """A function from columns to advantages and returns, with its defaults and its source.

    The function's positional parameters are columns, `offsets` and `mask`; its keyword-only
    parameters are options, which are fields of the recipe or of its numerics. A function with a
    token column works on tokens, ragged by response, without the observation tokens, unless `mask`
    is among its parameters. Any other function works on numbers per response: sorted by group if
    `offsets` is a parameter, in input order if not. `batch`, `domain`, `group` and the ids of steps
    are integer codes.
    """

    name: str
    function: Callable[..., Credit]
    formula: str
    source: str
    norm_mean: Scope = "none"
    """Value of the recipe's norm_mean if the user sets none."""
    norm_std: Scope = "none"
    """Value of the recipe's norm_std if the user sets none."""
    whiten_advantages: bool = False
    """Value of the recipe's whiten_advantages if the user sets none."""
    undiscounted_is_constant: bool = False
    """With γ = 1 and one terminal reward, every policy token gets that reward."""
    outcome: bool = False
    """The numerics' `outcome` applies: the normalised reward can be the advantage itself."""
    returns: Literal["advantages", "own", "whitened"] = "advantages"
    """Returns equal the advantages as computed (advantages) or as whitened (whitened), or the
    function computes them (own)."""
    rewards: Callable[..., Tensor] | None = None
    """Computes the rewards that are normalised and credited from other columns, [N]."""
    token_weights: Callable[..., Tensor] | None = None
    """Weights [T] of the mean return at a token's position, the column `position_baseline`."""
    normalise_batch: bool = False
    """Advantages are normalised over the responses of a batch."""
    beyond_steps: bool = False
    """The advantage of a response may depend on responses of other steps."""

    check: Callable[[Credit, Mapping[str, Tensor], object], None] | None = None
    """Raises an error if a result of the function is not valid; for user-defined functions."""

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
        """The columns from which `rewards` are computed."""
        return _positional(self.rewards) if self.rewards else ()

    @cached_property
    def weight_columns(self) -> tuple[str, ...]:
        """The columns from which `token_weights` are computed."""
        return _positional(self.token_weights) if self.token_weights else ()

    @property
    def needs(self) -> tuple[str, ...]:
        """All columns that its functions read, those that stages compute included."""
        return tuple(dict.fromkeys((*self.columns, *self.reward_columns, *self.weight_columns)))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the input must have."""
        needs = [name for name in self.needs if name not in _optional(self.token_weights)]
        roles = [role for name in needs for role in _ROLES_OF_COMPUTED.get(name, (name,))]
        grouped = self.level == "response" and "offsets" in self.parameters
        if grouped or {self.norm_mean, self.norm_std} & {"group", "others"}:
            roles.append("group")
        return tuple(dict.fromkeys(roles))

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The fields of the recipe, or of its numerics, that its functions read."""
        functions = (self.function, self.rewards, self.token_weights)
        return tuple(dict.fromkeys(name for each in functions if each for name in _keywords(each)))

    @cached_property
    def fields(self) -> frozenset[str]:
        """The options as fields of a recipe; those of its numerics are `numerics.NAME`."""
        numerics = Numerics.model_fields
        return frozenset(f"numerics.{name}" if name in numerics else name for name in self.options)

    def __call__(
        self,
        columns: Mapping[str, Tensor],
        offsets: Tensor | None,
        recipe: object,
        *,
        mask: Tensor | None = None,
    ) -> Credit:
        """Return the function's credit for these columns, with the options of a recipe.

        Args:
            columns: those in `columns`.
            offsets: of the responses or groups, if it has the parameter.
            recipe: anything with the options as attributes, and `numerics`.
            mask: true on policy tokens, if it has the parameter; None: all tokens.
        """
        structure = {"offsets": offsets, "mask": mask}
        arguments = {name: value for name, value in structure.items() if name in self.parameters}
        result = self.function(**columns, **arguments, **_option_values(self.function, recipe))
        credit = Credit(*result) if isinstance(result, tuple) else Credit(result, result)
        if self.check is not None:
            self.check(credit, columns, recipe)
        return credit

    def make_rewards(self, columns: Mapping[str, Tensor], recipe: object) -> Tensor:
        """Return the rewards that `rewards`, which must be set, computes from these columns."""
        assert self.rewards is not None
        return self.rewards(**columns, **_option_values(self.rewards, recipe))

    @property
    def level(self) -> Literal["token", "response"]:
        """Whether the function works on tokens or on numbers per response."""
        return "token" if self.token_columns else "response"

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The columns with one number per token."""
        return tuple(name for name in self.columns if name in COMPUTED_TOKENS or _is_tokens(name))

    @property
    def defaults(self) -> dict[str, Scope | bool]:
        """Values of the recipe's fields that depend on the estimator."""
        scopes = {"norm_mean": self.norm_mean, "norm_std": self.norm_std}
        return {**scopes, "whiten_advantages": self.whiten_advantages}

    @property
    def normalises(self) -> bool:
        """Whether its own functions normalise rewards, in place of the normalisation stage."""
        return not {"norm_mean", "norm_std"}.isdisjoint(self.options)


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
    """Return the columns whose parameter has the default None."""
    parameters = inspect.signature(function).parameters if function else {}
    return {name for name, parameter in parameters.items() if parameter.default is None}


@cache
def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _option_values(function: Callable[..., Any], recipe: Any) -> dict[str, Any]:
    """Return the recipe's values of a function's options; the function's default for None."""
    values = {}
    for name, default in _keywords(function).items():
        owner = recipe if hasattr(recipe, name) else recipe.numerics
        value = getattr(owner, name, None)
        values[name] = default if value is None else value
    return values
