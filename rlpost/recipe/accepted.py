"""What an option accepts, in words, by its type: `a number from 0 to 1`."""

from __future__ import annotations

import types
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from rlpost.errors import series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class AlsoAccepts:
    """In the metadata of a type: a word that it accepts, too."""

    word: str


_NOUNS: dict[Any, str] = {
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a text",
    dict: "a table",
    list: "a list",
    tuple: "a list",
}


def accepted(kind: Any) -> str:
    """Return what a type accepts; empty if that is anything.

    Args:
        kind: a type with constraints, a union, a Literal, an enumeration, a list or a tuple.

    >>> from annotated_types import Ge, Gt, Le
    >>> accepted(Annotated[float, Ge(0), Le(1)]), accepted(Annotated[int, Gt(0)] | None)
    ('a number from 0 to 1', 'an integer above 0')
    >>> accepted(Literal["k1", "abs", "k2"]), accepted(tuple[float, float])
    ('k1, abs or k2', '2 numbers')
    """
    if needed := getattr(kind, "needed", ""):
        return str(needed)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(parts[0], parts[1:])
    if origin in (Union, types.UnionType):
        every = [accepted(part) for part in parts if part is not type(None)]
        return series(list(dict.fromkeys(filter(None, every))))
    if choices := choices_of(kind):
        return series(choices)
    if origin is tuple and Ellipsis not in parts:
        is_number = [accepted(part).startswith(("a number", "an integer")) for part in parts]
        return f"{len(parts)} numbers" if all(is_number) else f"a list of {len(parts)}"
    return _NOUNS.get(origin or kind, "a table" if hasattr(kind, "model_fields") else "")


def choices_of(kind: Any) -> list[str]:
    """Return the words that a type accepts, if these are all that it accepts."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) in (Union, types.UnionType) and len(parts) == 1:
        return choices_of(parts[0])
    return choices_of(parts[0]) if get_origin(kind) is Annotated else []


def field_kind(fields: Mapping[str, Any], path: Iterable[str | int]) -> Any:
    """Return the type of a field of a model, or of a value in it; Any if the path has no type.

    Args:
        fields: `model_fields` of the model.
        path: the field's name, then names in tables and numbers in lists.
    """
    name, *rest = path
    if name not in fields:
        return Any
    info = fields[str(name)]
    kind = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return _inner(kind, rest)


def _inner(kind: Any, path: Sequence[str | int]) -> Any:
    """Return the type of a value in a table or list."""
    if not path:
        return kind
    if hasattr(kind, "model_fields"):
        return field_kind(kind.model_fields, path)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _inner(parts[0], path)
    if origin in (Union, types.UnionType):
        inner = [part for part in parts if part is not type(None)]
        return _inner(inner[0], path) if len(inner) == 1 else kind
    if origin in (tuple, list) and isinstance(path[0], int):
        own = parts[0] if Ellipsis in parts or path[0] >= len(parts) else parts[path[0]]
        return _inner(own, path[1:])
    return _inner(parts[1], path[1:]) if origin is dict else kind


def _bounded(kind: Any, constraints: Iterable[Any]) -> str:
    """Return what a type with constraints accepts."""
    every = [part for one in constraints for part in (one, *getattr(one, "metadata", ()))]
    limits = {
        name: value
        for one in every
        for name in ("gt", "ge", "lt", "le")
        if (value := getattr(one, name, None)) is not None
    }
    noun = accepted(kind)
    number = f"{noun}{between(**limits)}" if kind in (int, float) else noun
    return series([number, *(one.word for one in every if isinstance(one, AlsoAccepts))])


def between(
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
) -> str:
    """Return the range of a number, with a blank before it; empty if it has no bound.

    >>> between(ge=0, le=1), between(gt=0), between(gt=0, le=1), between(ge=1), between(lt=0)
    (' from 0 to 1', ' above 0', ' above 0 and at most 1', ' of at least 1', ' below 0')
    """
    if ge is not None and le is not None:
        return f" from {ge:g} to {le:g}"
    low = f" above {gt:g}" if gt is not None else f" of at least {ge:g}" if ge is not None else ""
    high = f" below {lt:g}" if lt is not None else f" at most {le:g}" if le is not None else ""
    return f"{low} and{high}" if low and high else low or high
