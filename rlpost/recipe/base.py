"""OptionModel, the base of all models of options, and the types of their values."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

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
from pydantic_core import PydanticCustomError, core_schema

from rlpost.errors import ErrorPart, OptionValueError, UsageError, closest, no_such, series
from rlpost.recipe.accepted import AlsoAccepts, accepted, choices_of, field_kind
from rlpost.recipe.documented import Documented, own_docstring
from rlpost.recipe.flags import FLAG, field_of, flag_of, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


@dataclass(frozen=True)
class InHelp:
    """In the metadata of a field or its type: how the command line shows the option."""

    metavar: str = ""
    """The value in help; empty: that of the type."""
    common: bool = False
    """The short help lists it."""
    repeated: bool = False
    """The option has one value of a list; it may be repeated."""


COMMON = InHelp(common=True)

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
    InHelp("FLOAT|never"),
]

T = TypeVar("T")
if TYPE_CHECKING:
    Parsed: TypeAlias = Any | T  # what one writes is parsed: `Recipe(reward_clip=5)`
else:
    Parsed = Annotated[T, "parsed"]


def number_text(value: float) -> str:
    """Return the shortest text of a number.

    >>> number_text(0.5), number_text(10.0), number_text(0.1 + 0.2)
    ('0.5', '10', '0.30000000000000004')
    """
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


class Written:
    """A value of several parts that one writes as a number or a text, such as `0.1:0.95`."""

    metavar: ClassVar[str]
    """The value as help shows it."""
    needed: ClassVar[str]
    """What is accepted, for errors."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the value of a text, a number or a tuple of parts; raises ValueError."""
        raise NotImplementedError

    @property
    def plain(self) -> float | str:
        """The number, else the text, that JSON and TOML have."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the value as one types it."""
        return self.plain if isinstance(self.plain, str) else number_text(self.plain)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        """Return the schema: validation by `of`, JSON as `plain`."""

        def parsed(value: Any) -> Any:
            try:
                return cls.of(value)
            except (TypeError, ValueError):
                raise PydanticCustomError(
                    "written", "must be {needed}", {"needed": cls.needed}
                ) from None

        number, text = core_schema.float_schema(), core_schema.str_schema()
        parts = core_schema.list_schema()
        return core_schema.no_info_plain_validator_function(
            parsed,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.plain, when_used="json"
            ),
            json_schema_input_schema=core_schema.union_schema([number, text, parts]),
        )


def _split(value: Any, parts: int) -> list[Any]:
    """Return the parts of a text with colons, or of a tuple; a number is one part."""
    words = value.split(":") if isinstance(value, str) else value
    words = list(words) if isinstance(words, list | tuple) else [words]
    if len(words) > parts:
        raise ValueError
    return [word.strip() if isinstance(word, str) else word for word in words]


def _number(value: Any, empty: float = math.nan) -> float:
    """Return a number; `empty` if it is left out. NaN raises ValueError."""
    number = empty if value in (None, "") else float(value)
    if math.isnan(number):
        raise ValueError
    return number


class Bounds(NamedTuple):
    """A lower and an upper bound."""

    low: float
    high: float


def _side(value: float) -> str:
    return number_text(value) if math.isfinite(value) else ""


class Range(Written, Bounds):
    """Bounds, one of which may be left out: `0.1:0.95`, `:0.95`."""

    metavar = "LOW:HIGH"
    needed = "LOW:HIGH, with LOW under HIGH; one of both may be left out"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the bounds of LOW:HIGH; one that is left out is infinite."""
        low, high = _split(value, 2)
        bounds = cls(_number(low, -math.inf), _number(high, math.inf))
        if not bounds.low < bounds.high or bounds == (-math.inf, math.inf):
            raise ValueError
        return bounds

    @property
    def plain(self) -> float | str:
        """LOW:HIGH."""
        return f"{_side(self.low)}:{_side(self.high)}"


class Symmetric(Range):
    """Bounds around 0, or any: `5` is `-5:5`."""

    metavar = "C|LOW:HIGH"
    needed = "C above 0, for -C:C, or LOW:HIGH, with LOW under HIGH; one of both may be left out"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the bounds of C, or of LOW:HIGH."""
        parts = _split(value, 2)
        if len(parts) == 1:
            high = _number(parts[0])
            parts = [-high, high]
        return super().of(parts)

    @property
    def plain(self) -> float | str:
        """C, else LOW:HIGH."""
        return self.high if self.low == -self.high else super().plain


class Offsets(Range):
    """Distances below and above: `0.2` on both sides, `0.2:0.28`, `:4` above alone, or `never`."""

    metavar = "C|LOW:HIGH|never"
    needed = "C, or LOW:HIGH, each above 0, one of which may be left out; or never"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the offsets of C, for both sides, or of LOW:HIGH; one left out is infinite."""
        parts = [math.inf] if value == "never" else _split(value, 2)
        low, high = parts if len(parts) == 2 else (_number(parts[0]),) * 2  # noqa: PLR2004
        offsets = cls(_number(low, math.inf), _number(high, math.inf))
        if not min(offsets) > 0:
            raise ValueError
        return offsets

    @property
    def plain(self) -> float | str:
        """C, else LOW:HIGH."""
        if self.low != self.high:
            return super().plain
        return self.low if math.isfinite(self.low) else "never"


class _Limit(NamedTuple):
    which: str
    bound: float


class Clamp(Written, _Limit):
    """A bound on absolute values, and what it bounds: `10`, `k3:10` or `never`.

    A subclass has the `choices` of a field.
    """

    choices: ClassVar[tuple[str, ...]]
    """What the bound may be of; a bound alone is one of the first."""

    def __init_subclass__(cls) -> None:
        """Derive the texts from the choices."""
        cls.metavar = f"BOUND|never|{'|'.join(f'{name}:BOUND' for name in cls.choices[1:])}"
        others = series([f"{name}:BOUND" for name in cls.choices[1:]])
        cls.needed = f"a BOUND above 0, {others}, or never"

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the clamp of a bound, of `never`, or of a text with what is bounded."""
        parts = _split(value, 2)
        which, bound = parts if len(parts) > 1 else (cls.choices[0], *parts)
        limit = math.inf if bound == "never" else _number(bound)
        if which not in cls.choices or not limit > 0:
            raise ValueError
        return cls(which if math.isfinite(limit) else cls.choices[0], limit)

    @property
    def plain(self) -> float | str:
        """The bound, else WHICH:BOUND."""
        if math.isinf(self.bound):
            return "never"
        usual = self.which == self.choices[0]
        return self.bound if usual else f"{self.which}:{number_text(self.bound)}"


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


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


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
    >>> as_typed(Range(0.1, 0.95)), as_typed(Symmetric(-5, 5)), as_typed(Offsets(math.inf, 4))
    ('0.1:0.95', '5', ':4')
    """
    if isinstance(value, Written):
        return str(value)
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
    panels: ClassVar[dict[str, str]] = {}
    """The heading of a group of options, by its first field."""

    @field_validator("*", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Any:
        """Return a text for a list as its parts; reject a bool that pydantic reads as a number."""
        name = str(info.field_name)
        kind = cls.model_fields[name].annotation
        if isinstance(value, str) and _is_list(kind):
            return [word.strip() for word in value.split(",") if word.strip()]
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
