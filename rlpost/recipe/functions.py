"""Functions of users, and options of functions: keyword-only parameters that are no field."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from rlpost.errors import (
    ErrorPart,
    OptionValueError,
    UsageError,
    closest,
    no_such,
    series,
)
from rlpost.recipe.base import PLAIN, is_plain, text_of, wrong_value
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from importlib.metadata import EntryPoint

    Function = Callable[..., Any]

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_NO_TYPE = "annotate it as bool, int, float, str, Literal or a list of these"


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter of a function that a user sets by its name."""

    name: str
    kind: Any
    """The annotation, else the type of the default; None if neither has values that one types."""
    default: Any
    """`inspect.Parameter.empty` if there is none."""
    text: str = ""
    """What the docstring says of it."""

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

    def parsed(self, value: Any, *, typed: bool = False) -> Any:
        """Return a value of the option's type; text is converted, a list from `a,b`.

        Args:
            value: as typed, or as in a recipe file.
            typed: a text is no number.

        Raises:
            ValueError: it is of another type or out of range, in pydantic's words; or the option
                has no type.
        """
        if self.kind is None:
            raise ValueError(f"its parameter has no type; {_NO_TYPE}")
        text = isinstance(value, str)
        strict = isinstance(value, bool) or (typed and text) or None  # else True is read as 1
        try:
            return self._adapter.validate_python(value, strict=strict)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].replace("Input should", "must", 1)
        if text and not typed:
            words = [word.strip() for word in value.split(",") if word.strip()]
            try:
                return self._adapter.validate_python(words)
            except ValidationError:
                pass
        raise ValueError(problem)

    def plain(self, value: Any) -> Any:
        """Return a value as a recipe file has it: parsed, and a type of values as it is typed."""
        return self._adapter.dump_python(self.parsed(value), mode="json")


def type_text(annotation: Any) -> str:
    """Return a type as a reader writes it: without validators, choices as their values.

    >>> type_text(Annotated[float, "positive"] | None), type_text(Literal["k1", "k2"])
    ('float | None', "'k1' | 'k2'")
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, parts))
    if origin is Literal:
        return " | ".join(map(repr, parts))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, parts))}]"
    names = {Ellipsis: "...", NoneType: "None"}
    return names.get(annotation) or str(getattr(annotation, "metavar", annotation.__name__))


def options_of(functions: Iterable[Function], fields: Collection[str]) -> dict[str, Option]:
    """Return the options of functions by name: keyword-only parameters that are none of `fields`.

    Of a class, all parameters.

    Raises:
        UsageError: an annotation cannot be evaluated, or there is neither a type nor a default.
    """
    options: dict[str, Option] = {}
    for function in functions:
        section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2]
        section = re.split(r"\n(?=\S)", section)[0]
        texts = {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(section)}
        for name, parameter in inspect.signature(function).parameters.items():
            by_name = parameter.kind is parameter.KEYWORD_ONLY or inspect.isclass(function)
            if by_name and name not in fields:
                kind, text = _kind_of(parameter, function), texts.get(name, "")
                if kind is None and parameter.default is parameter.empty:
                    text = f"option {name!r}: has neither a type nor a default"
                    raise UsageError(text, tip=_NO_TYPE)
                options.setdefault(name, Option(name, kind, parameter.default, text))
    return options


def _kind_of(parameter: inspect.Parameter, function: Function) -> Any:
    """Return the type of a parameter: its annotation, or that of its default; None if it has none.

    Raises:
        UsageError: the annotation cannot be evaluated.
    """
    kind = parameter.annotation
    if kind is parameter.empty:
        return _kind_of_default(parameter.default)
    if isinstance(kind, str):  # of `from __future__ import annotations`
        try:
            names = getattr(inspect.unwrap(function), "__globals__", None)
            kind = eval(kind, names or vars(sys.modules[function.__module__]))  # noqa: S307
        except Exception as error:  # noqa: BLE001 - any that an expression may raise
            raise UsageError(
                f"option {parameter.name!r}: its annotation {kind!r} cannot be evaluated "
                f"({error}); {_NO_TYPE}"
            ) from None
    try:
        TypeAdapter(kind)
    except PydanticUserError:
        return None
    return kind


def _kind_of_default(default: Any) -> Any:
    """Return the type of a default; that of a list is one of a list of any length."""
    if isinstance(default, (list, tuple)) and default and is_plain(default):
        kinds = {type(part) for part in default}
        kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else None
        return None if kind is None else list.__class_getitem__(kind)
    return next((kind for kind in PLAIN if isinstance(default, kind)), None)


def owners(name: str, functions: Mapping[str, Any]) -> str:
    """Return which functions have an option, as the end of a sentence; empty: none has it.

    Args:
        name: of the option.
        functions: entries with `options`, by name.
    """
    names = [entry for entry, function in functions.items() if name in function.options]
    return f"{series(names, 'and')} {'have' if names[1:] else 'has'} it" if names else ""


def typed_options(
    owner: str,
    options: Mapping[str, Option],
    values: Mapping[str, Any],
    *,
    field: str = "options",
    origins: Mapping[str, str] | None = None,
    elsewhere: Callable[[str], str] = lambda _: "",
) -> dict[str, Any]:
    """Return values of options, checked and as a recipe file has them.

    Args:
        owner: whose options these are, such as `estimator gar`.
        options: its options.
        values: by name, as typed on the command line or as in a recipe file.
        field: the field that has them.
        origins: the source of `FIELD.NAME` if it is no flag, for errors.
        elsewhere: returns what to do about a name that something else has; empty: nothing has.

    Raises:
        UsageError: there is no such option (with who has it, or the closest names), or a value has
            another type.
    """
    typed, flag = {}, flag_of(field)
    for name, value in values.items():
        origin, text = (origins or {}).get(f"{field}.{name}", flag), f"{name}={text_of(value)}"
        where = f"{flag} {text}" if origin == flag else f"{origin}: {field}.{text}"
        if name not in options:
            text = f"{where}: {owner} has no option {name!r}"
            tip = elsewhere(name)
            names = f"it has {', '.join(options)}" if options else "it has none: leave it out"
            raise UsageError(
                ErrorPart(text, tip=tip) if tip else no_such(text, name, options, names)
            )
        try:
            typed[name] = options[name].plain(value)
        except ValueError as error:
            raise UsageError(wrong_value(where, value, f"{error}, for {owner}")) from None
    return typed


def with_defaults(
    owner: str,
    options: Mapping[str, Option],
    values: Mapping[str, Any],
    *,
    field: str = "options",
    fields: Iterable[str] = (),
) -> dict[str, Any]:
    """Return values of options, and the defaults of the others that a recipe file can have.

    Args:
        owner: whose options these are.
        options: its options.
        values: as of `typed_options`.
        field: the field that has them.
        fields: names that could be meant by an option without a default.

    Raises:
        UsageError: an option without a default is not set, or a default is not of its type.
    """
    for name, option in options.items():
        if option.required and name not in values:
            raise UsageError(
                f"{owner}: its option {name!r} has no default",
                candidates=closest(name, fields),
                tip=f"add {flag_of(field)} {name}=VALUE, of type {option.type_name}",
            )
    defaults = {x.name: x.default for x in options.values() if x.kind and is_plain(x.default)}
    return {**typed_options(owner, options, defaults, field=field), **values}


@dataclass(frozen=True)
class Names:
    """The functions of a kind: rlpost's own by name, those of installed packages, and of files."""

    kind: str
    flag: str
    """The option that names one, for errors."""
    group: str
    """The group of entry points in which packages register theirs."""
    own: tuple[str, ...]

    def installed(self) -> dict[str, EntryPoint]:
        """Return the entry points by name, without rlpost's own names; none is imported."""
        return {x.name: x for x in entry_points(group=self.group) if x.name not in self.own}

    def checked(self, name: str) -> str:
        """Return a name, or `path/to/file.py:function`.

        Raises:
            OptionValueError: there is no function of this name (with the closest names).
        """
        if name not in self.own and ":" not in name and name not in (others := self.installed()):
            names = (*self.own, *others)
            tip = f"there are {', '.join(names)}"
            raise OptionValueError(no_such(f"no {self.kind} {name!r}", name, names, tip))
        return name

    def imported(self, name: str) -> tuple[Any, str]:
        """Return what `path/to/file.py:function` or an entry point names, and where it is from.

        Raises:
            UsageError: there is no such name, file or function, or it cannot be imported.
        """
        try:
            self.checked(name)
        except OptionValueError as error:
            raise UsageError(error.part) from None
        if ":" in name:
            return _from_file(name, self.flag), name.rpartition(":")[0]
        point = self.installed()[name]
        try:
            return point.load(), point.value
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"{self.flag} {name}: the entry point {point.value} cannot be imported: "
                f"{error!r}; correct the package that installs it, or uninstall it"
            ) from error


def _from_file(name: str, flag: str) -> Any:
    """Return what `path/to/file.py:function` names; raises as `Names.imported`."""
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"{flag} {name}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{flag} {name}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, function):
        text = f"{flag} {name}: {path} has no {function!r}"
        raise UsageError(no_such(text, function, vars(module)))
    return getattr(module, function)


def check_parameters(function: Function, where: str, shape: str, needed: str) -> None:
    """Raise UsageError if the parameters of a function cannot be columns and options.

    Args:
        function: what the user named.
        where: the option and the name, for errors.
        shape: an example of a function.
        needed: what a function without columns lacks.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(
            f"{where}: is of type {type(function).__name__}; a Python function is needed, such as "
            f"`{shape}`"
        ) from None
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "is positional-only; leave out the `/` behind it",
        inspect.Parameter.VAR_POSITIONAL: "stands for any number of columns; name each column",
        inspect.Parameter.VAR_KEYWORD: "stands for any number of options; name each option",
    }
    for parameter in parameters:
        if parameter.kind in kinds:
            raise UsageError(
                f"{where}: parameter `{parameter}` {kinds[parameter.kind]}, as in `{shape}`"
            )
    if all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters):
        raise UsageError(f"{where}: has no positional parameter; {needed} is needed: `{shape}`")


def result_of(
    owner: str, function: Function, arguments: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Return what a user's function returns.

    Args:
        owner: whose it is, such as `estimator mine.py:f`.
        function: what is called.
        arguments: its arrays, by name.
        options: its keyword arguments.

    Raises:
        UsageError: it raised an exception; the line is named.
    """
    try:
        return function(**arguments, **options)
    except Exception as error:
        inputs = ", ".join(f"{name} {list(x.shape)}" for name, x in arguments.items())
        raise UsageError(
            f"{owner}{_line_of(error, function)}: {type(error).__name__}: {error}; it was called "
            f"with {inputs}",
            tip="correct the function; --debug prints the traceback",
        ) from error


def _line_of(error: Exception, function: Function) -> str:
    """Return the line of an exception in the function's file, as `, line N`; or nothing."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    trace, line = error.__traceback__, ""
    while trace is not None:
        if code is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
