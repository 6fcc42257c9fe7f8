"""OptionModel, the base of all models of options, and the types of their values."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from rlpost.errors import ErrorPart, OptionValueError, UsageError, closest, no_such
from rlpost.recipe.accepted import AlsoAccepts, accepted, choices_of, field_kind
from rlpost.recipe.documented import Documented, own_docstring
from rlpost.recipe.flags import FLAG, field_of, flag_of, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Unit = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0)]


def _ddof(value: Any) -> Any:
    return int(value) if value in ("0", "1") else value


# A command line has the digits as text.
Ddof = Annotated[Literal[0, 1], BeforeValidator(_ddof)]


def _bound(value: Any) -> Any:
    return math.inf if value == "never" else value


def _bound_text(value: float) -> float | str:
    return "never" if math.isinf(value) else value


# A positive bound; JSON has no infinity, so `never` is the name of no bound.
Bound = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(
        _bound, json_schema_input_type=Annotated[float, Field(gt=0)] | Literal["never"]
    ),
    PlainSerializer(_bound_text, return_type=float | str, when_used="json"),
    AlsoAccepts("never"),
]

PLAIN = (bool, int, float, str)
"""The types of values that a recipe file has, besides lists and tables of them."""


def is_plain(value: Any) -> bool:
    """Return whether a recipe file can have a value: a bool, number, text, or a list of them."""
    if isinstance(value, list | tuple):
        return all(isinstance(part, PLAIN) for part in value)
    return isinstance(value, PLAIN)


def _plain(value: Any) -> Any:
    if not is_plain(value):
        raise ValueError(f"{value!r} came; a bool, a number, a text, or a list of them is needed")
    return value


# A value whose type another place declares: an estimator of the user's.
OptionValue = Annotated[Any, BeforeValidator(_plain)]

KL_SYNONYMS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def _kl_name(value: Any) -> Any:
    return KL_SYNONYMS.get(value, value) if isinstance(value, str) else value


KlEstimator = Annotated[
    Literal["k1", "abs", "k2", "k3", "k4"],
    BeforeValidator(_kl_name, json_schema_input_type=Literal["k1", "abs", "k2", "k3", "k4"]),
]


def _has_bool(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    return isinstance(value, bool) or (
        isinstance(value, dict | list | tuple) and any(isinstance(part, bool) for part in parts)
    )


def _takes_bool(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_bool, get_args(annotation)))


def _option_of(
    loc: tuple[int | str, ...], text: str, where: str, origins: Mapping[str, str]
) -> tuple[str, str]:
    """Return the flag of the option that an error is about, and the source of its value.

    An error about several options has no location; its text begins with the flag of one. The source
    is then that of the first option that is set. It is the flag if that, or its variable, set it.
    """
    if loc:
        field = str(loc[0])
        flag = flag_of(field)
        source = origins.get(".".join(map(str, loc[:2])), origins.get(field, where))
    else:
        flags = FLAG.findall(text) or [""]
        flag = flags[0]
        field = next((name for name in map(field_of, flags) if name in origins), field_of(flag))
        source = where or origins.get(field, flag)
    typed = source == flag_of(field) or (source == variable_of(field) and flag == flag_of(field))
    return flag, flag if typed else source


def _tuple_length(annotation: Any) -> int | None:
    """Return the number of values of a field that is a tuple; None if any number is possible."""
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return None if Ellipsis in parts else len(parts)
    lengths = map(_tuple_length, parts)
    return next((length for length in lengths if length is not None), None)


def as_typed(value: Any) -> str:
    """Return a value as one types it after a flag.

    >>> as_typed(-1.0), as_typed((1, 2.5)), as_typed("abc"), as_typed("a b"), as_typed(True)
    ('-1', '1 2.5', 'abc', "'a b'", 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(as_typed, value))
    return shlex.quote(str(value))


def wrong_value(text: str, value: Any, kind: Any) -> ErrorPart:
    """Return the problem that an option does not accept a value.

    Args:
        text: the option with its value.
        value: the value, of which the closest word is a candidate.
        kind: the type of the option.
    """
    needed = accepted(kind)
    sentence = f"{text}: must be {needed}" if needed else f"{text}: this value is not accepted"
    return ErrorPart(sentence, closest(str(value), choices_of(kind)))


class OptionModel(BaseModel, metaclass=Documented):
    """A pydantic model that raises UsageError, with a line for each wrong value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject a bool for an option that is none: pydantic reads it as 0 or 1."""
        name = str(info.field_name)
        kind = cls.model_fields[name].annotation
        nested = isinstance(kind, type) and issubclass(kind, OptionModel)  # checks its own fields
        if not nested and _has_bool(value) and not _takes_bool(kind):
            raise ValueError(f"{flag_of(name)} is {value!r}: a bool is not accepted")
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return pydantic's schema, whose description is the docstring without the fields."""
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema)["description"] = own_docstring(cls)
        return schema

    if not TYPE_CHECKING:  # type checkers then see the fields as parameters

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise UsageError(*self._problems(error, type(self).__name__)) from None

        # With this attribute pydantic's model_validate does not call __init__, and so raises
        # ValidationError, which `of` needs.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        where: str = "recipe",
        origins: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a model of these values.

        Args:
            values: by field.
            where: the source of the values, for errors; empty on the command line.
            origins: the sources of single fields, or of TABLE.NAME, if they differ.

        Raises:
            UsageError: a name is unknown (with the closest ones), a value is out of range, or two
                options exclude each other.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UsageError(*cls._problems(error, where, origins)) from None

    @classmethod
    def _problems(
        cls, error: ValidationError, where: str, origins: Mapping[str, str] | None = None
    ) -> list[ErrorPart]:
        """Return the problems: the source, the value, what is needed.

        Args:
            error: of this model.
            where: the source of the values; empty on the command line.
            origins: the sources of single fields, or of TABLE.NAME, if they differ.
        """
        problems = [
            cls._problem(item, *_option_of(item["loc"], item["msg"], where, origins or {}))
            for item in error.errors()
        ]
        return list(dict.fromkeys(problems))

    @classmethod
    def _problem(cls, item: Any, flag: str, source: str) -> ErrorPart:
        """Return the problem of an item of a ValidationError, with its flag and its source."""
        loc, value = item["loc"], item["input"]
        typed = source == flag
        prefix = "" if typed or not source else f"{source}: "
        if item["type"] == "extra_forbidden":
            text = (
                f"{flag} {loc[-1]}: no such field" if typed else f"no option {cls._called(loc)!r}"
            )
            return cls._owner(*loc[:-1]).no_option(f"{prefix}{text}", loc[-1])
        if item["type"] == "value_error":
            wrong = item["ctx"]["error"]
            problem = wrong.part if isinstance(wrong, OptionValueError) else ErrorPart(str(wrong))
            named = problem.text.startswith(flag) or not typed
            return replace(problem, text=f"{prefix if named else f'{flag}: '}{problem.text}")
        if item["type"] == "missing":  # an item of a list, which is the value
            loc = loc[:1]
        if typed:
            name = f"{flag} {loc[1]}=" if loc[1:] and isinstance(loc[1], str) else f"{flag} "
            text = f"{name}{as_typed(value)}"
        else:
            text = f"{prefix}{cls._called(loc)} is {value!r}"
        if item["type"] == "finite_number":
            return ErrorPart(f"{text}: must be a finite number")
        kind = field_kind(cls.model_fields, loc)
        return wrong_value(text, value, kind)

    @classmethod
    def _called(cls, loc: tuple[int | str, ...]) -> str:
        """Return the name, for errors, of a location in the model."""
        return ".".join(str(part) for part in loc)

    @classmethod
    def no_option(cls, text: str, name: Any) -> ErrorPart:
        """Return the problem of an unknown name: a sentence, and the closest fields."""
        return no_such(text, str(name), cls.model_fields)

    @classmethod
    def _owner(cls, *path: Any) -> type[OptionModel]:
        """Return the model in which a name is unknown: this one, or that of one of its fields."""
        kind = cls.model_fields[path[0]].annotation if path else cls
        return kind if isinstance(kind, type) and issubclass(kind, OptionModel) else cls
