"""OptionModel, the base of all models of options, and the types of their values."""

from __future__ import annotations

import inspect
import math
import re
import shlex
import textwrap
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
from rlpost.recipe.flags import FLAG, field_of, flag_of, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic.fields import FieldInfo
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
Count = Annotated[int, Field(gt=0, lt=1 << 63)]
Natural = Annotated[int, Field(ge=0, lt=1 << 63)]


def _ddof(value: Any) -> Any:
    return int(value) if value in ("0", "1") else value


# A command line has the digits as text.
Ddof = Annotated[Literal[0, 1], BeforeValidator(_ddof)]


def or_never(value: Any) -> Any:
    """Return a bound; `never` is an infinite one."""
    return math.inf if value == "never" else value


def never_text(value: float | str) -> float | str:
    """Return a bound as JSON has it: `never` for infinity."""
    return "never" if value == math.inf else value


# A positive bound; JSON has no infinity, so `never` is the name of no bound.
Bound = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(
        or_never, json_schema_input_type=Annotated[float, Field(gt=0)] | Literal["never"]
    ),
    PlainSerializer(never_text, return_type=float | str, when_used="json"),
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
        """The number, else the text, that dumps of a model have, and so JSON and TOML."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the value as one types it."""
        return self.plain if isinstance(self.plain, str) else number_text(self.plain)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        """Return the schema: validation by `of`; dumps have `plain`."""

        def parsed(value: Any) -> Any:
            try:
                return cls.of(value)
            except (TypeError, ValueError) as error:
                if str(error).startswith("--"):  # it says more
                    raise
                raise PydanticCustomError(
                    "written", "must be {needed}", {"needed": cls.needed}
                ) from None

        number, text = core_schema.float_schema(), core_schema.str_schema()
        parts = core_schema.list_schema()
        return core_schema.no_info_plain_validator_function(
            parsed,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.plain
            ),
            json_schema_input_schema=core_schema.union_schema([number, text, parts]),
        )


def split_value(value: Any, parts: int) -> list[Any]:
    """Return the parts of a text with colons, or of a tuple; another value is one part."""
    words = value.split(":") if isinstance(value, str) else value
    words = list(words) if isinstance(words, list | tuple) else [words]
    if not 1 <= len(words) <= parts:
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
    empty: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The bounds that may be left out, but not both."""

    @classmethod
    def alone(cls, value: Any) -> tuple[Any, Any]:
        """Return LOW and HIGH of a value without a colon; raises ValueError."""
        raise ValueError(value)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the bounds of LOW:HIGH, or of a value without a colon."""
        parts = split_value(value, 2)
        low, high = parts if len(parts) > 1 else cls.alone(parts[0])
        bounds = cls(_number(low, cls.empty[0]), _number(high, cls.empty[1]))
        if not bounds.valid:
            raise ValueError
        return bounds

    @property
    def valid(self) -> bool:
        """Whether LOW is under HIGH, and one of both is given."""
        return self.empty[0] <= self.low < self.high and self != self.empty

    @property
    def plain(self) -> float | str:
        """LOW:HIGH."""
        return f"{_side(self.low)}:{_side(self.high)}"


class Symmetric(Range):
    """Bounds around 0, or any: `5` is `-5:5`."""

    metavar = "C|LOW:HIGH"
    needed = "C above 0, for -C:C, or LOW:HIGH, with LOW under HIGH; one of both may be left out"

    @classmethod
    def alone(cls, value: Any) -> tuple[Any, Any]:
        """Return -C and C."""
        return -_number(value), value

    @property
    def plain(self) -> float | str:
        """C, else LOW:HIGH."""
        return self.high if self.low == -self.high else super().plain


class Offsets(Range):
    """Distances below and above: `0.2` on both sides, `0.2:0.28`, `:4` above alone, or `never`."""

    metavar = "C|LOW:HIGH|never"
    needed = "C, or LOW:HIGH, each above 0, one of which may be left out; or never"
    empty = (math.inf, math.inf)

    @classmethod
    def alone(cls, value: Any) -> tuple[Any, Any]:
        """Return C on both sides."""
        both = math.inf if value == "never" else _number(value)
        return both, both

    @property
    def valid(self) -> bool:
        """Whether both are above 0."""
        return min(self) > 0

    @property
    def plain(self) -> float | str:
        """C, else LOW:HIGH."""
        if self.low != self.high:
            return super().plain
        return self.low if math.isfinite(self.low) else "never"


class _Target(NamedTuple):
    value: float
    horizon: float


class KlTarget(Written, _Target):
    """The KL to which a coefficient adapts, and the responses over which it does."""

    metavar = "VALUE[:HORIZON]"
    needed = "VALUE or VALUE:HORIZON, each above 0"
    usual = 10_000.0
    """The horizon of a value alone."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the target of a value, alone or with a horizon."""
        target, horizon = (*split_value(value, 2), None)[:2]
        both = cls(_number(target), _number(horizon, cls.usual))
        if not (min(both) > 0 and math.isfinite(max(both))):
            raise ValueError
        return both

    @property
    def plain(self) -> float | str:
        """VALUE, else VALUE:HORIZON."""
        both = ":".join(map(number_text, self))
        return self.value if self.horizon == self.usual else both


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
        parts = split_value(value, 2)
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
    BeforeValidator(
        _kl_name,
        json_schema_input_type=Literal["k1", "abs", "k2", "k3", "k4", "kl", "mse", "low_var_kl"],
    ),
]


def _has_bool(value: Any) -> bool:
    if isinstance(value, Written):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return isinstance(value, bool) or (
        isinstance(value, dict | list | tuple) and any(isinstance(part, bool) for part in parts)
    )


def _takes(annotation: Any, *kinds: Any) -> bool:
    """Return whether a type is, or has as a part, one of these."""
    if annotation in kinds or get_origin(annotation) in kinds:
        return True
    return any(_takes(part, *kinds) for part in get_args(annotation))


def choices_in(annotation: Any) -> tuple[Any, ...]:
    """Return the words that a type takes, beside other values.

    >>> choices_in(Literal["k1", "k2"]), choices_in(float | Literal["auto"] | None), choices_in(int)
    (('k1', 'k2'), ('auto',), ())
    """
    parts = (annotation, *get_args(annotation))
    return tuple(x for part in parts if get_origin(part) is Literal for x in get_args(part))


def as_typed(value: Any) -> str:
    """Return a value as one types it after a flag.

    >>> as_typed(-1.0), as_typed((1, 2.5)), as_typed("abc"), as_typed("a b"), as_typed(True)
    ('-1', '1 2.5', 'abc', "'a b'", 'true')
    >>> as_typed(Range(0.1, 0.95)), as_typed(Symmetric(-5, 5)), as_typed(Offsets(math.inf, 4))
    ('0.1:0.95', '5', ':4')
    """
    if isinstance(value, list | tuple) and not isinstance(value, Written):
        return " ".join(map(as_typed, value))
    return shlex.quote(text_of(value))


def text_of(value: Any) -> str:
    """Return a value as a text that its type parses."""
    if isinstance(value, list | tuple) and not isinstance(value, Written):
        return ",".join(map(text_of, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def wrong_value(place: str, value: Any, needed: str) -> ErrorPart:
    """Return the problem that an option does not accept a value.

    Args:
        place: the option with its value.
        value: the value, of which the closest word is a candidate.
        needed: pydantic's message, such as `Input should be 'zero' or 'raw'`.
    """
    text = needed.removeprefix("Value error, ").replace("Input should", "must", 1).rstrip(".")
    choices = re.findall("'([^']+)'", re.split("must be|one of", text)[-1])
    return ErrorPart(f"{place}: {text[:1].lower()}{text[1:]}", closest(str(value), choices))


def _default(field: FieldInfo) -> str:
    return f"{field.default_factory.__name__}()" if field.default_factory else repr(field.default)


class OptionModel(BaseModel):
    """A pydantic model that raises UsageError, with a line for each wrong value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings"
    )
    panels: ClassVar[dict[str, str]] = {}
    """The heading of a group of options, by its first field."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give `help` a line for each field, and a signature without types."""
        text = inspect.cleandoc(vars(cls).get("__doc__") or "")
        fields = [
            textwrap.fill(
                f"{name} = {_default(field)}: {' '.join((field.description or '').split())}",
                width=76,  # `help` indents by 4
                initial_indent="    ",
                subsequent_indent="        ",
                break_on_hyphens=False,
            )
            for name, field in cls.model_fields.items()
        ]
        cls.__doc__ = "\n".join([text, "", "Fields:", *fields])
        parameters = inspect.signature(cls).parameters.values()
        plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        cls.__signature__ = inspect.Signature(plain)

    @field_validator("*", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Any:
        """Return a text for a list as its parts; reject a bool that pydantic reads as a number."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, str) and _takes(kind, tuple):
            words = [word.strip() for word in value.split(",") if word.strip()]
            if not words:
                raise PydanticCustomError("empty", "a list needs a value")
            return words
        nested = hasattr(kind, "model_fields")  # it checks its own fields
        if not nested and _has_bool(value) and not _takes(kind, bool, Any):
            raise PydanticCustomError("bool", "a bool is not accepted")
        return value

    if not TYPE_CHECKING:  # type checkers then see the fields as parameters

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise UsageError(*self._problems(error, values, type(self).__name__, {})) from None

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
            raise UsageError(*cls._problems(error, values, where, origins or {})) from None

    @classmethod
    def _problems(
        cls,
        error: ValidationError,
        values: Mapping[str, Any],
        where: str,
        origins: Mapping[str, str],
    ) -> list[ErrorPart]:
        """Return a problem for each wrong value: its source, the value, what is needed.

        Args:
            error: of this model.
            values: as they came, by field.
            where: the source of the values; empty on the command line.
            origins: the sources of single fields, or of TABLE.NAME, if they differ.
        """
        problems: dict[str, ErrorPart] = {}
        for item in error.errors():
            place, part = cls._problem(item, values, where, origins)
            former = problems.get(place)
            if former is not None and part.text not in former.text:  # of a union's other type
                needed = part.text.removeprefix(place).removeprefix(": must be")
                names = former.candidates + part.candidates
                part = replace(former, text=f"{former.text}, or{needed}", candidates=names)
            elif former is not None:
                continue
            problems[place] = part
        return [*problems.values()]

    @classmethod
    def _problem(
        cls, item: Any, values: Mapping[str, Any], where: str, origins: Mapping[str, str]
    ) -> tuple[str, ErrorPart]:
        """Return the place of an item of a ValidationError, and its problem, which begins so."""
        if item["type"] == "value_error":
            wrong = item["ctx"]["error"]
            part = wrong.part if isinstance(wrong, OptionValueError) else ErrorPart(str(wrong))
            text = _with_source(part.text, item["loc"], where, origins)
            return text, replace(part, text=text)
        field, *keys = map(str, item["loc"])
        name, value, flag = field, values.get(field), flag_of(field)
        if keys and isinstance(value, dict):
            name, value = f"{field}.{keys[0]}", value.get(keys[0])
        source = origins.get(name, origins.get(field, where))
        if item["type"] == "extra_forbidden":
            option = f"{flag} {keys[0]}" if keys else flag
            typed = source in (flag, variable_of(field))
            text = f"{option}: no such field" if typed else f"{source}: no option {name!r}"
            model: Any = cls.model_fields[field].annotation if keys else cls
            return text, model.no_option(text.removeprefix(": "), item["loc"][-1])
        if source in (flag, variable_of(field)):
            key = name.removeprefix(field).removeprefix(".")
            place = f"{flag} {key}{'=' * bool(key)}{as_typed(value)}"
        else:
            place = f"{source}{': ' * bool(source)}{name} is {value!r}"
        needed = "a value is missing" if item["type"] == "missing" else item["msg"]  # of a tuple
        return place, wrong_value(place, value, needed)

    @classmethod
    def words_of(cls, name: str, value: Any) -> list[str]:
        """Return the words that set a field, or `numerics.NAME`, on a command line; None has none.

        A table has its option for each name, a flag `--no-` if it is off.
        """
        field, _, key = name.partition(".")
        flag, text = flag_of(field), "never" if value == math.inf else text_of(value)
        if value is None:
            return []
        if isinstance(value, dict):
            return [word for part in value for word in cls.words_of(f"{name}.{part}", value[part])]
        words = [flag, f"{key}={text}" if key else text]
        if not key and isinstance(value, bool):
            words = [flag if value else f"--no-{flag[2:]}"]
        elif not key and isinstance(value, list | tuple) and not isinstance(value, Written):
            info = cls.model_fields[field]
            if any(isinstance(kind, InHelp) and kind.repeated for kind in info.metadata):
                words = [word for part in value for word in (flag, text_of(part))]
            elif not any(Ellipsis in get_args(kind) for kind in get_args(info.annotation)):
                words = [flag, *map(text_of, value)]
        return words

    @classmethod
    def no_option(cls, text: str, name: Any) -> ErrorPart:
        """Return the problem of an unknown name: a sentence, and the closest fields."""
        return no_such(text, str(name), cls.model_fields)


def _with_source(text: str, loc: Sequence[Any], where: str, origins: Mapping[str, str]) -> str:
    """Return the text of a validator with the source of the value before it.

    The text of an error about several options begins with the flag of one; the source is then that
    of the first option that is set. None is named if the command line has the value.
    """
    flags = [flag_of(str(loc[0]))] if loc else FLAG.findall(text) or [""]
    flag = flags[0]
    field = next((name for name in map(field_of, flags) if name in origins), field_of(flag))
    if loc:
        source = origins.get(".".join(map(str, loc[:2])), origins.get(field, where))
    else:
        source = where or origins.get(field, flag)
    if source == flag_of(field) or (source, flag) == (variable_of(field), flag_of(field)):
        return text if text.startswith(flag) else f"{flag}: {text}"
    return f"{source}: {text}" if source else text
