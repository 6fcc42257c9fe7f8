"""Estimator: a pure function of columns, and what the table of estimators states about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.estimators.calls import UserCall
from rlpost.kernels.arrays import like, namespace
from rlpost.recipe.functions import check_parameters, options_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ON_DEMAND, ROLES, is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rlpost.kernels.arrays import Array
    from rlpost.recipe.functions import Option
    from rlpost.recipe.recipe import Scope

    Function = Callable[..., Any]


FLAG = "--estimator"
SHAPE = "def f(rewards, *, option=1.0): return rewards"
STRUCTURE = ("offsets", "mask")
# Token columns that earlier stages compute; all other token columns are roles.
COMPUTED_TOKENS = ("token_rewards", "distillation", "position_baseline")
# The roles from which columns are computed that no file has.
_ROLES_OF_COMPUTED = {
    "rewards": ("reward",),
    "token_rewards": ("reward",),
    "tokens": (),
    "length": (),
    "components": ("components",),
    "domain_name": (),
    "rollout_order": ("turn", "rollout"),
    "distillation": ("teachers", "old_log_probs"),
    "position_baseline": ("group",),
}
OPTIONAL_ROLES = ("batch", "domain")
"""Roles that an input may lack: it is then one batch, or one domain."""
FIELDS = frozenset({*Recipe.model_fields, *Numerics.model_fields})
"""Keyword-only parameters that are fields of the recipe, or of its numerics."""


class Credit(NamedTuple):
    """Advantages and returns: a number for each token, or for each response."""

    advantages: Array
    returns: Array


@dataclass(frozen=True)
class Estimator:
    """A function from columns to advantages and returns, with its defaults and its source.

    The function's positional parameters are columns, `offsets` and `mask`. A function with a token
    column, or with `mask`, works on tokens, ragged by response; without `mask`, observation tokens
    are left out. Any other function works on numbers per response: sorted by group if `offsets` is
    a parameter, in input order if not. `batch`, `domain`, `group` and the ids of steps are integer
    codes. A column that is neither a role nor of an earlier stage is one of the input by that name.

    Its keyword-only parameters are fields of the recipe or of its numerics, or else options of its
    own, in the recipe's `options`. So are those of the other functions here.
    """

    name: str
    function: Function
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
    rewards: Function | None = None
    """Computes the rewards that are normalised and credited from other columns, [N]."""
    token_weights: Function | None = None
    """Weights [T] of the mean return at a token's position, the column `position_baseline`."""
    token_positions: Function | None = None
    """The position of each token, [T], from its mask and offsets."""
    position_baselines: Function | None = None
    """The baselines of positions, from Σ weight · return, Σ weight and the number of tokens."""
    over_batch: Function | None = None
    """Normalises advantages over the responses of a batch, from these and the batch's moments."""
    of_success: bool = False
    """It is defined for rewards of 0 and 1: it divides by their mean, which is 0 for no success."""
    beyond_steps: bool = False
    """The advantage of a response may depend on responses of other steps."""
    of_user: bool = False
    """Its functions are a user's: they get copies, tensors if their file imports torch at the top
    or an annotation names a Tensor, else arrays of numpy. They return real numbers of any type."""
    roles_by_name: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The roles of the columns that it reads by name; empty until the input is known."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """Its functions that have options."""
        others = (self.token_weights, self.token_positions, self.position_baselines)
        return tuple(filter(None, (self.function, self.rewards, *others, self.over_batch)))

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

    @cached_property
    def named_columns(self) -> tuple[str, ...]:
        """The columns of the input that it reads by their names, not by a role."""
        known = self.known_columns
        columns = dict.fromkeys((*self.columns, *self.reward_columns, *self.weight_columns))
        return tuple(name for name in columns if name not in known)

    @property
    def known_columns(self) -> set[str]:
        """The roles, and the columns of earlier stages, that parameters may name."""
        computed = {*_ROLES_OF_COMPUTED} - ({"domain_name"} if self.of_user else set())
        computed -= {"position_baseline"} if self.token_weights is None else set()
        return {*computed, *(name for name, role in ROLES.items() if role.kind not in ON_DEMAND)}

    def role_of(self, column: str) -> str:
        """Return the role of a column that a function reads."""
        return self.roles_by_name.get(column, column)

    def bound(self, roles: Collection[str]) -> Estimator:
        """Return the estimator for an input, whose roles say which columns have tokens."""
        if not self.of_user:
            return self
        names = {role.partition(":")[2]: role for role in roles if is_read_by_name(role)}
        by_name = {name: names[name] for name in self.named_columns if name in names}
        bound = replace(self, roles_by_name=by_name)
        coded = any(kind_of(role) == "key" for role in by_name.values())
        # Tokens are computed response by response; codes of texts are those of one table.
        beyond = coded or (self.beyond_steps and bound.level == "response")
        return replace(bound, beyond_steps=beyond)

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options that are no field of a recipe, by name.

        Raises:
            UsageError: an annotation cannot be evaluated.
        """
        try:
            return _options(self.functions)
        except UsageError as error:
            raise error.after(f"{FLAG} {self.name}: ") from None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the input must have."""
        computed = {"rewards", "token_rewards"} if self.makes_rewards else set()
        optional = {*OPTIONAL_ROLES, *computed}.union(*map(_optional, self.functions))
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
    def keywords(self) -> Mapping[str, Any]:
        """The keyword-only parameters of its functions, with their defaults."""
        return {name: x for each in self.functions for name, x in _keywords(each).items()}

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields that its function, `rewards` and `token_weights` read, as of `fields_read`."""
        functions = (self.function, self.rewards, self.token_weights)
        return frozenset().union(*map(fields_read, functions))

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
        arguments: dict[str, Any] = {
            name: x for name, x in structure.items() if name in self.parameters
        }
        options = option_values(self.function, recipe)
        if not self.of_user:
            return self.function(**columns, **arguments, **options)  # type: ignore[no-any-return]
        tokens = [name for name in self.columns if self.role_of(name) in self.token_columns]
        tokens += [] if tokens or "mask" not in arguments else ["mask"]
        arguments = {**columns, **arguments}
        sized = [arguments[name] for name in tokens] or [*columns.values()]
        size = len(sized[0]) if sized else int(arguments["offsets"][-1])
        other = (*sized, *arguments.values())[0]
        if not size:  # many functions fail on nothing
            nothing = like(np.zeros(0), other)
            return Credit(nothing, nothing)
        call = UserCall(self.name, self.function, size, other, tokens[0] if tokens else "")
        return Credit(*call.pair(arguments, options))

    def check_finite(self, credit: Credit, counted: Callable[[], Array] | None = None) -> None:
        """Raise DataError if a user's function returned a number that counts and is not finite.

        Args:
            credit: what the function returned.
            counted: returns which numbers count, of the same shape; None: all.
        """
        for part in credit if self.of_user else ():
            bad = ~namespace(part).isfinite(part)
            if bool(bad.any()) and counted is not None:
                bad = bad & counted()
            if number := int(bad.sum()):
                unit = "token" if self.level == "token" else "response"
                raise DataError(
                    f"estimator {self.name} returned NaN or infinite numbers for {number} of "
                    f"{len(part)} {unit}s, from finite input; finite numbers are needed: correct "
                    "it, for example add a small ε to what it divides by"
                )

    def make_rewards(self, columns: Mapping[str, Array], recipe: object) -> Array:
        """Return the rewards that `rewards`, which must be set, computes from these columns."""
        assert self.rewards is not None
        options = option_values(self.rewards, recipe)
        if not self.of_user:
            return self.rewards(**columns, **options)
        column = next(iter(columns.values()))
        return UserCall(self.name, self.rewards, len(column), column).single(columns, options)

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
        read = {name: x for name, x in self.keywords.items() if name in scopes}
        return {**scopes, **read, "whiten_advantages": self.whiten_advantages}

    @property
    def normalises(self) -> bool:
        """Whether its own functions normalise rewards, in place of the normalisation stage."""
        return not {"norm_mean", "norm_std"}.isdisjoint(self.keywords)


def as_estimator(thing: Estimator | Function, name: str, source: str) -> Estimator:
    """Return a user's Estimator; that of a function has its docstring's first line as formula.

    Raises:
        UsageError: it is no function, or has parameters that cannot be columns or options.
    """
    if isinstance(thing, Estimator):
        estimator = replace(thing, of_user=True)
    else:
        formula = (inspect.getdoc(thing) or "").partition("\n")[0]
        estimator = Estimator(
            name, thing, formula, source, returns="own", beyond_steps=True, of_user=True
        )
    needed = f"one that names a column, or {' or '.join(STRUCTURE)}"
    for function in (estimator.function, estimator.rewards, estimator.token_weights):
        if function is not None:
            check_parameters(function, f"{FLAG} {name}", SHAPE, needed)
    return estimator


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
def _keywords(function: Function) -> dict[str, Any]:
    """Return the keyword-only parameters of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@cache
def _options(functions: tuple[Function, ...]) -> dict[str, Option]:
    """Return the options of functions that are no field of a recipe."""
    return options_of(functions, FIELDS)


def fields_read(function: Function | None) -> frozenset[str]:
    """Return the fields that a function reads: NAME, `numerics.NAME` or `options.NAME`."""
    return frozenset(
        name
        if name in Recipe.model_fields
        else f"numerics.{name}"
        if name in Numerics.model_fields
        else f"options.{name}"
        for name in (_keywords(function) if function else ())
    )


def option_values(function: Function, recipe: Any) -> dict[str, Any]:
    """Return the recipe's values of a function's options; the function's default for None."""
    values, options = {}, _options((function,))
    for name, default in _keywords(function).items():
        if name in options:
            value = recipe.options.get(name)
            value = value if value is None else options[name].parsed(value)
        else:
            value = getattr(recipe if name in Recipe.model_fields else recipe.numerics, name)
        values[name] = default if value is None else value
    return values
