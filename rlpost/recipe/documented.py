"""Help of option models: `help(Recipe)` has a line for each field, with its type and default."""

from __future__ import annotations

import inspect
import textwrap
from functools import partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from pydantic import BaseModel, Field

from rlpost.recipe.flags import FLAG, field_of

if TYPE_CHECKING:
    import re

    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

_WIDTH = 76  # of 80; `help` indents by 4
_INDENT = " " * 4
_GLUE = "\u00a0"


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))  # for type checkers
class Documented(ModelMetaclass):
    """The class of option models: their documentation, made from the fields when it is read."""

    @property
    def __doc__(self: Any) -> str:  # type: ignore[override]
        """The class's own docstring, and its fields."""
        own = own_docstring(self)
        return f"{own}\n\n{_fields_text(self)}" if self.model_fields else own

    @property
    def __signature__(self: Any) -> inspect.Signature:
        """The fields as keyword parameters, which editors complete."""
        kind = inspect.Parameter.KEYWORD_ONLY
        fields = self.model_fields.items()
        return _Signature([inspect.Parameter(n, kind, default=_default(one)) for n, one in fields])

    @__signature__.setter
    def __signature__(self: Any, _: Any) -> None:
        """Ignore pydantic's signature, with its types and validators."""

    def __dir__(self) -> list[str]:
        """The public names of rlpost's own classes, without those of pydantic."""
        names = {n for one in self.__mro__ if isinstance(one, Documented) for n in vars(one)}
        return sorted(name for name in names if not name.startswith(("_", "model_")))


def own_docstring(model: type) -> str:
    """Return the docstring of a class as it is written."""
    return inspect.cleandoc(vars(model).get("__doc__") or "")


class _Signature(inspect.Signature):
    """A signature whose text is short, since the docstring lists the parameters."""

    def __str__(self) -> str:
        return "(*, option=value, ...)"

    def format(self, **_: Any) -> str:
        """Return the short text; `help` of Python 3.13 calls this."""
        return str(self)


class _Verbatim:
    """A default value by its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _default(field: Any) -> Any:
    """Return the default of a field; `dict()` if each object has one of its own."""
    if field.default_factory is None:
        return field.default
    return _Verbatim(f"{field.default_factory.__name__}()")


def _fields_text(model: type[BaseModel]) -> str:
    """Return the types, defaults and meanings of the fields, below the heading of their group."""
    groups: dict[str, str] = model.panels  # type: ignore[attr-defined]
    lines = [] if groups else ["Fields:"]
    for name, field in model.model_fields.items():
        if name in groups:
            lines += ["", f"{groups[name]}:"]
        value = f"{_default(field)!r}".replace(" ", _GLUE)
        lines += _wrapped(f"{name}: {type_text(field.annotation)}{_GLUE}={_GLUE}{value}", 1, 3)
        lines += _wrapped(FLAG.sub(partial(_field_in, model), field.description or ""), 2, 2)
    return "\n".join(lines).strip()


def _field_in(model: type[BaseModel], flag: re.Match[str]) -> str:
    """Return the field of a flag in a text, or the flag if it is that of a command."""
    field = field_of(flag[0])
    return field if field in model.model_fields else flag[0]


def _wrapped(text: str, first: int, others: int) -> list[str]:
    """Return a text in lines, with so many levels of indentation."""
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first * _INDENT,
        subsequent_indent=others * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


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
