"""A user's estimator: a function of any columns of the input, with options of its own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.estimators.base import (
    COMPUTED_RESPONSES,
    COMPUTED_TOKENS,
    FIELDS,
    STRUCTURE,
    Credit,
    Estimator,
    option_values,
)
from rlpost.kernels.arrays import is_tensor, like, namespace, on_host
from rlpost.recipe.functions import check_parameters, line_of, options_of
from rlpost.recipe.roles import ON_DEMAND, ROLES, is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rlpost.kernels.arrays import Array
    from rlpost.recipe.functions import Option

FLAG = "--estimator"
SHAPE = "def f(rewards, *, option=1.0): return rewards"
Values = dict[str, Any]
_TWO = 2  # advantages and returns


def as_estimator(thing: Estimator | Callable[..., Any], name: str, source: str) -> OwnEstimator:
    """Return an Estimator; that of a function has the first line of its docstring as formula.

    Raises:
        UsageError: it is no function, or has parameters that cannot be columns or options.
    """
    if isinstance(thing, Estimator):
        values = {field: getattr(thing, field) for field in Estimator.__dataclass_fields__}
        estimator = OwnEstimator(**values)
    else:
        formula = (inspect.getdoc(thing) or "").partition("\n")[0]
        estimator = OwnEstimator(
            name, thing, formula=formula, source=source, returns="own", beyond_steps=True
        )
    needed = f"one that names a column, or {' or '.join(STRUCTURE)}"
    for function in filter(None, (estimator.function, estimator.rewards, estimator.token_weights)):
        check_parameters(function, f"{FLAG} {name}", SHAPE, needed)
    return estimator


@dataclass(frozen=True)
class OwnEstimator(Estimator):
    """A user's estimator.

    A positional parameter that is neither a role nor a column of an earlier stage is a column of
    the input by that name. What it is depends on the input: `bound` returns the estimator for one.
    A keyword-only parameter that is no field of a recipe is an option in the recipe's `options`.

    The function gets copies, and may change them: tensors if its file imports torch at the top, or
    if an annotation names a Tensor, otherwise arrays of numpy. It returns real numbers of any type,
    on any device, as tensors or arrays of numpy.
    """

    roles_by_name: Mapping[str, str] = field(default_factory=dict)
    """The roles of the columns that it reads by name; empty until the input is known."""

    @cached_property
    def named_columns(self) -> tuple[str, ...]:
        """The parameters that are columns of the input by name."""
        known = self.known_columns
        every = dict.fromkeys((*self.columns, *self.reward_columns, *self.weight_columns))
        return tuple(name for name in every if name not in known)

    @property
    def known_columns(self) -> set[str]:
        """The roles, and the columns of earlier stages, that parameters may name."""
        computed = {*COMPUTED_TOKENS, *COMPUTED_RESPONSES}
        if self.token_weights is None:
            computed -= {"position_baseline"}
        return {*computed, *(name for name, role in ROLES.items() if role.kind not in ON_DEMAND)}

    def role_of(self, column: str) -> str:
        """Return the role of a column that the function reads."""
        return self.roles_by_name.get(column, column)

    def bound(self, roles: Collection[str]) -> OwnEstimator:
        """Return the estimator for an input, whose roles say which columns have tokens."""
        own = {role.partition(":")[2]: role for role in roles if is_read_by_name(role)}
        by_name = {name: own[name] for name in self.named_columns if name in own}
        found = replace(self, roles_by_name=by_name)
        coded = any(kind_of(role) == "key" for role in by_name.values())
        # Tokens are computed response by response; codes of texts are those of one table.
        beyond = coded or (self.beyond_steps and found.level == "response")
        return replace(found, beyond_steps=beyond)

    @cached_property
    def own_options(self) -> dict[str, Option]:
        """The options that no recipe has as a field, by name.

        Raises:
            UsageError: an annotation cannot be evaluated.
        """
        functions = filter(None, (self.function, self.rewards, self.token_weights))
        try:
            return options_of(functions, FIELDS)
        except UsageError as error:
            raise error.after(f"{FLAG} {self.name}: ") from None

    def _credit(self, columns: Mapping[str, Array], structure: Values, options: Values) -> Credit:
        tokens = [columns[name] for name in self.columns if self._has_tokens(name)]
        sized = [*tokens, *([] if tokens or "mask" not in structure else [structure["mask"]])]
        sized = sized or [*columns.values()]
        size = len(sized[0]) if sized else int(structure["offsets"][-1])
        other = (*sized, *structure.values())[0]
        if not size:  # many functions fail on nothing
            nothing = like(np.zeros(0), other)
            return Credit(nothing, nothing)
        arguments = _copies({**columns, **structure}, self.function)
        result = self._run(self.function, arguments, options)
        one = "token" if self.level == "token" else "response"
        parts = result if isinstance(result, tuple) else (result, result)
        if len(parts) != _TWO:
            raise self._wrong(f"a tuple of {len(parts)}", size, one)
        advantages = self._numbers(parts[0], size, other, one)
        if parts[1] is parts[0]:
            return Credit(advantages, advantages)
        return Credit(advantages, self._numbers(parts[1], size, other, one))

    def make_rewards(self, columns: Mapping[str, Array], recipe: object) -> Array:
        """Return the rewards that `rewards`, which must be set, computes from these columns."""
        assert self.rewards is not None
        column = next(iter(columns.values()))
        arguments = _copies(columns, self.rewards)
        result = self._run(self.rewards, arguments, option_values(self.rewards, recipe))
        return self._numbers(result, len(column), column, "response")

    def check_finite(self, credit: Credit, counted: Callable[[], Array] | None = None) -> None:
        """Raise DataError if a number that counts is not finite.

        Args:
            credit: what the function returned.
            counted: returns which numbers count, of the same shape; None: all.
        """
        for part in credit:
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

    def _run(self, function: Callable[..., Any], arguments: Values, options: Values) -> Any:
        """Return what a function returns; its exceptions become UsageErrors that name the line."""
        try:
            return function(**arguments, **options)
        except Exception as error:
            line = line_of(error, function)
            inputs = ", ".join(f"{name} {list(x.shape)}" for name, x in arguments.items())
            raise UsageError(
                f"estimator {self.name}{line}: {type(error).__name__}: {error}; it was called with "
                f"{inputs}: correct the function, --debug prints the traceback"
            ) from error

    def _has_tokens(self, column: str) -> bool:
        return self.role_of(column) in self.token_columns

    def _numbers(self, part: Any, size: int, other: Array, one: str) -> Array:
        """Return a part of a result as float64 [size], in the library of another array.

        Args:
            part: what the function returned.
            size: how many numbers are needed.
            other: has the library and the device of the result.
            one: what each number is for.

        Raises:
            UsageError: it is no array of real numbers, or has another shape.
        """
        try:
            numbers = real_numbers(part, other)
        except TypeError as error:
            raise self._wrong(str(error), size, one) from None
        if tuple(numbers.shape) != (size,):
            raise UsageError(
                f"estimator {self.name} returned an array of shape {tuple(numbers.shape)}; one "
                f"number for each {one} is needed, ({size},){self._advice(one)}"
            )
        return numbers

    def _wrong(self, what: str, size: int, one: str) -> UsageError:
        return UsageError(
            f"estimator {self.name} returned {what}; one real number for each of {size} {one}s is "
            "needed: return an array of numpy or torch, or two in a tuple, advantages and returns"
        )

    def _advice(self, one: str) -> str:
        """Return why the function must return a number for each token, or response, and advice."""
        if one == "response":
            return (
                ", because no parameter has tokens: name one that has, such as token_rewards, for "
                "numbers of tokens"
            )
        names = [*(name for name in self.columns if self._has_tokens(name)), "mask"]
        spreads = "numpy.repeat(x, numpy.diff(offsets))"
        if takes_tensors(self.function):
            spreads = "torch.repeat_interleave(x, offsets.diff())"
        return f", because `{names[0]}` has tokens: {spreads} spreads numbers of responses"


def takes_tensors(function: Callable[..., Any]) -> bool:
    """Return whether a function takes tensors of torch; otherwise it takes arrays of numpy.

    It does if its file imports torch at the top, or if an annotation names a Tensor.
    """
    function = inspect.unwrap(function)
    annotations = inspect.signature(function).parameters.values()
    if any("Tensor" in str(one.annotation) for one in annotations):
        return True
    return any(map(_is_of_torch, getattr(function, "__globals__", {}).values()))


def _is_of_torch(thing: object) -> bool:
    """Return whether a global name of a file is torch, a part of it, or something of it."""
    name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def _copies(columns: Mapping[str, Array], function: Callable[..., Any]) -> Values:
    """Return copies of columns, in the library that a function takes."""
    if not takes_tensors(function):
        return {name: on_host(value).copy() for name, value in columns.items()}
    import torch  # noqa: PLC0415 - which the function's file imports

    copies: Values = {}
    for name, value in columns.items():
        if is_tensor(value):
            copies[name] = namespace(value).with_host(value.clone(), partial(on_host, value))
        else:
            copies[name] = torch.from_numpy(value.copy())
    return copies


_REAL = "biuf"  # numpy's kinds of real numbers


def real_numbers(array: Any, other: Array) -> Array:
    """Return an array of real numbers as float64, without its gradient.

    Args:
        array: a tensor or an array of numpy, of bools, integers or floats.
        other: has the library and the device of the result.

    Raises:
        TypeError: it is none; the text says what it is.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in _REAL:
            raise TypeError(f"a {type(array).__name__} of {array.dtype}")
        return like(np.array(array, np.float64), other)
    if not is_tensor(array):
        raise TypeError("None" if array is None else f"a {type(array).__name__}")
    if array.is_complex():
        raise TypeError(f"a tensor of {array.dtype}")
    import torch  # noqa: PLC0415 - whose tensor it is

    try:
        dense = array if array.layout is torch.strided else array.to_dense()
        device = other.device if is_tensor(other) else "cpu"
        numbers = dense.detach().to(device, torch.float64).contiguous()
        numbers = numbers.clone() if numbers.is_inference() else numbers
        return numbers if is_tensor(other) else numbers.numpy()
    except Exception as error:  # noqa: BLE001 - torch raises several, by kind of tensor
        text = str(error).partition("\n")[0]
        raise TypeError(f"a {type(array).__name__} without plain numbers ({text})") from None
