"""Estimator: a pure function of columns, and what the table of estimators states about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.recipe.flags import flag_of
from rlpost.recipe.functions import typed_options, with_defaults
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from rlpost.kernels.arrays import Array
    from rlpost.recipe.functions import Option
    from rlpost.recipe.recipe import Scope


STRUCTURE = ("offsets", "mask")
# Token columns that earlier stages compute; all other token columns are roles.
COMPUTED_TOKENS = ("token_rewards", "distillation", "position_baseline")
# Response columns that earlier stages compute.
COMPUTED_RESPONSES = ("rewards", "tokens", "length", "components", "cohort", "rollout_order")
# The roles from which columns are computed that no file has.
_ROLES_OF_COMPUTED = {
    "rewards": ("reward",),
    "token_rewards": ("reward",),
    "tokens": (),
    "length": (),
    "cohort": ("group",),
    "rollout_order": ("turn", "rollout"),
    "distillation": ("teachers", "old_log_probs"),
    "position_baseline": ("group",),
}
FIELDS = frozenset({*Recipe.model_fields, *Numerics.model_fields})
"""Keyword-only parameters that are fields of the recipe, or of its numerics."""
OPTIONAL_ROLES = ("batch", "domain")
"""Roles that an input may lack: it is then one batch, or one domain."""


class Credit(NamedTuple):
    """Advantages and returns: a number for each token, or for each response."""

    advantages: Array
    returns: Array


@dataclass(frozen=True)
class Estimator:
    """A function from columns to advantages and returns, with its defaults and its source.

    The function's positional parameters are columns, `offsets` and `mask`; its keyword-only
    parameters are options, which are fields of the recipe or of its numerics. A function with a
    token column, or with `mask`, works on tokens, ragged by response; without `mask`, observation
    tokens are left out. Any other function works on numbers per response: sorted by group if
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
    rewards: Callable[..., Array] | None = None
    """Computes the rewards that are normalised and credited from other columns, [N]."""
    token_weights: Callable[..., Array] | None = None
    """Weights [T] of the mean return at a token's position, the column `position_baseline`."""
    normalise_batch: bool = False
    """Advantages are normalised over the responses of a batch."""
    beyond_steps: bool = False
    """The advantage of a response may depend on responses of other steps."""

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
        """The roles of all columns that its functions read, those that stages compute included."""
        columns = (*self.columns, *self.reward_columns, *self.weight_columns)
        return tuple(dict.fromkeys(map(self.role_of, columns)))

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns of the input that it reads by their names, not by a role."""
        return ()

    @property
    def known_columns(self) -> set[str]:
        """The columns that are roles, or that earlier stages compute."""
        return {*self.columns}

    @property
    def own_options(self) -> Mapping[str, Option]:
        """Its options that are no field of a recipe, by name."""
        return MappingProxyType({})

    def role_of(self, column: str) -> str:
        """Return the role of a column that a function reads."""
        return column

    def bound(self, _: Collection[str]) -> Estimator:
        """Return the estimator for an input with these roles."""
        return self

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the input must have."""
        made = {"rewards", "token_rewards"} if self.makes_rewards else set()
        functions = (self.function, self.rewards, self.token_weights)
        optional = {*OPTIONAL_ROLES, *made}.union(*map(_optional, functions))
        needs = [name for name in self.needs if name not in optional]
        roles = [role for name in needs for role in _ROLES_OF_COMPUTED.get(name, (name,))]
        grouped = self.level == "response" and "offsets" in self.parameters
        if grouped or {self.norm_mean, self.norm_std} & {"group", "others"}:
            roles.append("group")
        return tuple(dict.fromkeys(roles))

    @property
    def makes_rewards(self) -> bool:
        """Whether `rewards` computes its rewards without the rewards of the input."""
        return self.rewards is not None and "rewards" not in self.reward_columns

    @property
    def joins_rollouts(self) -> bool:
        """Whether `rewards` joins the rows of rollouts, and reads the reward of each rollout."""
        return {"rollout", "rewards"} <= {*self.reward_columns}

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The keyword-only parameters of its functions."""
        return tuple(self._option_defaults)

    @cached_property
    def _option_defaults(self) -> dict[str, Any]:
        functions = (self.function, self.rewards, self.token_weights)
        return {name: x for each in functions if each for name, x in _keywords(each).items()}

    @cached_property
    def fields(self) -> frozenset[str]:
        """The options as fields of a recipe: `numerics.NAME`, or `options` for its own."""
        return _fields(self.options)

    @cached_property
    def reward_fields(self) -> frozenset[str]:
        """The fields that `rewards` reads."""
        return _fields(_keywords(self.rewards)) if self.rewards else frozenset()

    def __call__(
        self,
        columns: Mapping[str, Array],
        offsets: Array | None,
        recipe: object,
        *,
        mask: Array | None = None,
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
        return self._credit(columns, arguments, option_values(self.function, recipe))

    def _credit(
        self, columns: Mapping[str, Array], structure: dict[str, Any], options: dict[str, Any]
    ) -> Credit:
        """Return the function's credit."""
        return self.function(**columns, **structure, **options)

    def check_finite(self, credit: Credit, counted: Callable[[], Array] | None = None) -> None:
        """Raise DataError if a number that counts is not finite; rlpost's estimators need no check.

        Args:
            credit: what the function returned.
            counted: returns which numbers count, of the same shape; None: all.
        """

    def make_rewards(self, columns: Mapping[str, Array], recipe: object) -> Array:
        """Return the rewards that `rewards`, which must be set, computes from these columns."""
        assert self.rewards is not None
        return self.rewards(**columns, **option_values(self.rewards, recipe))

    @property
    def level(self) -> Literal["token", "response"]:
        """Whether the function works on tokens or on numbers per response."""
        return "token" if self.token_columns or "mask" in self.parameters else "response"

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The roles of the columns with one number per token."""
        roles = map(self.role_of, self.columns)
        return tuple(role for role in roles if role in COMPUTED_TOKENS or kind_of(role) == "tokens")

    @property
    def defaults(self) -> dict[str, Scope | bool]:
        """Values of the recipe's fields that depend on the estimator.

        Scopes that its own functions read are the defaults of their parameters.
        """
        scopes: dict[str, Scope] = {"norm_mean": self.norm_mean, "norm_std": self.norm_std}
        own = {name: x for name, x in self._option_defaults.items() if name in scopes}
        return {**scopes, **own, "whiten_advantages": self.whiten_advantages}

    def with_typed_options(
        self, recipe: Recipe, origins: Mapping[str, str] | None = None
    ) -> Recipe:
        """Return a recipe whose `options` have the types of the estimator's own options.

        Args:
            recipe: that names the estimator.
            origins: the source of `options.NAME` if it is no flag, for errors.

        Raises:
            UsageError: the estimator has no such option, or a value has another type.
        """
        if not recipe.options:
            return recipe
        options = typed_options(
            f"estimator {self.name}",
            self.own_options,
            recipe.options,
            origins=origins,
            elsewhere=elsewhere,
        )
        return recipe.model_copy(update={"options": options})

    def with_all_options(self, recipe: Recipe) -> Recipe:
        """Return a recipe with all own options of the estimator, typed; defaults where none is set.

        Raises:
            UsageError: as `with_typed_options`; or an option without a default is not set.
        """
        recipe = self.with_typed_options(recipe)
        if not self.own_options:
            return recipe
        options = with_defaults(
            f"estimator {self.name}", self.own_options, recipe.options, fields=FIELDS
        )
        return recipe.model_copy(update={"options": options})

    @property
    def normalises(self) -> bool:
        """Whether its own functions normalise rewards, in place of the normalisation stage."""
        return not {"norm_mean", "norm_std"}.isdisjoint(self.options)


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


def _fields(options: Iterable[str]) -> frozenset[str]:
    """Return options as fields of a recipe: `numerics.NAME`, or `options` for those of its own."""
    return frozenset(
        name if name in Recipe.model_fields else f"numerics.{name}" if name in FIELDS else "options"
        for name in options
    )


def elsewhere(name: str) -> str:
    """Return what to do about an option that is a field of the recipe; empty if it is none."""
    if name not in FIELDS:
        return ""
    flag = flag_of(name) if name in Recipe.model_fields else f"--numerics {name}=VALUE"
    return f"it is a field of the recipe: use {flag}"


def option_values(function: Callable[..., Any], recipe: Any) -> dict[str, Any]:
    """Return the recipe's values of a function's options; the function's default for None."""
    values = {}
    for name, default in _keywords(function).items():
        if name in Recipe.model_fields:
            value = getattr(recipe, name)
        elif name in Numerics.model_fields:
            value = getattr(recipe.numerics, name)
        else:
            value = recipe.options.get(name)
        values[name] = default if value is None else value
    return values
