"""Options of a user's estimator: keyword-only parameters that are no field of a recipe."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from rlpost.errors import ErrorPart, UsageError, closest, no_such
from rlpost.recipe.base import PLAIN, is_plain
from rlpost.recipe.documented import type_text
from rlpost.recipe.flags import flag_of
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class OwnOption:
    """An option of a user's function: its name, its type and its default."""

    name: str
    kind: Any
    """The annotation, else the type of the default; None if neither is one that has values."""
    default: Any
    """`inspect.Parameter.empty` if there is none."""

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """The type as a reader writes it."""
        return "any" if self.kind is None else type_text(self.kind)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def parsed(self, value: Any) -> Any:
        """Return a value of the option's type; the text of a command line is converted.

        Raises:
            ValueError: it is of another type, or the option has none.
        """
        if self.kind is None:
            raise ValueError(
                "its parameter has no type; annotate it as bool, int, float, str, Literal or a "
                "list of these"
            )
        kinds = _alternatives(self.kind)
        lists = any(get_origin(one) in (list, tuple) for one in kinds)
        if isinstance(value, str) and lists and str not in kinds:
            value = [word.strip() for word in value.split(",") if word.strip()]
        if isinstance(value, bool) and bool not in kinds:
            raise ValueError(f"a value of type {self.type_name} is needed")
        try:
            return self._adapter.validate_python(value)
        except ValidationError:
            raise ValueError(f"a value of type {self.type_name} is needed") from None

    def __str__(self) -> str:
        """Return the option as one types it: with its default, or with its type if it has none."""
        value = _word(self.default) if is_plain(self.default) else f"<{self.type_name}>"
        return f"{flag_of('options')} {self.name}={value}"


def own_option(parameter: inspect.Parameter, function: Callable[..., Any]) -> OwnOption:
    """Return the option of a keyword-only parameter of a function.

    Raises:
        UsageError: its annotation cannot be evaluated.
    """
    kind = parameter.annotation
    if kind is parameter.empty:
        kind = _kind_of(parameter.default)
    elif isinstance(kind, str):
        names = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            kind = eval(kind, names)  # noqa: S307 - `from __future__ import annotations`
        except Exception as error:  # noqa: BLE001 - any that an expression may raise
            raise UsageError(
                f"option {parameter.name!r}: its annotation {kind!r} cannot be evaluated "
                f"({error}); annotate it as bool, int, float, str, Literal or a list of these"
            ) from None
    return OwnOption(parameter.name, kind if _has_values(kind) else None, parameter.default)


def _kind_of(default: Any) -> Any:
    """Return the type of a default; that of a list is one of a list of any length."""
    if isinstance(default, (list, tuple)) and default and is_plain(default):
        kinds = {type(part) for part in default}
        kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else None
        return None if kind is None else list.__class_getitem__(kind)
    return next((kind for kind in PLAIN if isinstance(default, kind)), None)


def _alternatives(kind: Any) -> list[Any]:
    """Return the types of a union, without their constraints."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [inner for part in get_args(kind) for inner in _alternatives(part)]
    return [kind]


def _has_values(kind: Any) -> bool:
    """Return whether values of a type can be typed: plain ones, choices, and lists of them."""
    return all(map(_has_plain_values, _alternatives(kind)))


def _has_plain_values(kind: Any) -> bool:
    if get_origin(kind) in (list, tuple):
        parts = [part for part in get_args(kind) if part is not Ellipsis]
        return bool(parts) and all(part in PLAIN for part in parts)
    return kind in (*PLAIN, NoneType) or get_origin(kind) is Literal


def _word(value: Any) -> str:
    """Return a value as one types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_word, value)) if isinstance(value, (list, tuple)) else str(value)


def is_recipe_field(name: str) -> bool:
    """Return whether a keyword-only parameter is a field of a recipe, or of its numerics."""
    return name in Recipe.model_fields or name in Numerics.model_fields


def typed_options(
    estimator: str,
    own: Mapping[str, OwnOption],
    options: Mapping[str, Any],
    origins: Mapping[str, str],
) -> dict[str, Any]:
    """Return the options of a recipe with the types that an estimator's own options have.

    Args:
        estimator: its name.
        own: its own options.
        options: by name, as typed on the command line or as in a recipe file.
        origins: the source of `options.NAME` if it is no flag, for errors.

    Raises:
        UsageError: the estimator has no such option (with the closest names), or a value has
            another type.
    """
    values = {}
    for name, value in options.items():
        flag = flag_of("options")
        origin = origins.get(f"options.{name}", flag)
        what = f"{'' if origin == flag else f'{origin}: '}{flag} {name}={_word(value)}"
        if name not in own:
            text = f"{what}: estimator {estimator} has no option {name!r} of its own"
            raise UsageError(_no_option(text, name, own))
        try:
            values[name] = own[name].parsed(value)
        except ValueError as error:
            raise UsageError(f"{what}: {error}, for estimator {estimator}") from None
    return values


def _no_option(text: str, name: str, own: Mapping[str, OwnOption]) -> ErrorPart:
    """Return the problem that an estimator has no option, with what to do."""
    if is_recipe_field(name):
        flag = flag_of(name) if name in Recipe.model_fields else f"--numerics {name}=VALUE"
        return ErrorPart(f"{text}: it is a field of the recipe", tip=f"use {flag}")
    if not own:
        needed = "only keyword-only parameters of an --estimator path/to/file.py:function are"
        return ErrorPart(f"{text}: {needed}", tip="leave it out")
    return no_such(text, name, own, f"it has {', '.join(own)}")


def with_defaults(
    estimator: str, own: Mapping[str, OwnOption], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options with the defaults of the others, of those that a recipe file can have.

    Raises:
        UsageError: an option without a default is not set.
    """
    missing = [one for one in own.values() if one.required and one.name not in options]
    if missing:
        name, kind = missing[0].name, missing[0].type_name
        raise UsageError(
            f"--estimator {estimator}: its option {name!r} has no default",
            candidates=closest(name, [*Recipe.model_fields, *Numerics.model_fields]),
            tip=f"add {flag_of('options')} {name}=VALUE, of type {kind}",
        )
    defaults = {one.name: one.default for one in own.values() if is_plain(one.default)}
    return {**defaults, **options}
