"""Putting a mutant in the place of a loaded module, whoever has imported from it."""

from __future__ import annotations

import ast
import sys
import types
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCALARS = (bool, int, float, str, tuple, frozenset)


def graft(module: types.ModuleType, tree: ast.Module) -> None:
    """Run a changed module, and give its code and constants to the loaded one.

    Functions keep their identity and take the other's code and defaults, so that names that were
    imported from the module are changed, too.
    """
    new = types.ModuleType(module.__name__)
    new.__dict__.update({"__file__": module.__file__, "__name__": module.__name__})
    loaded = sys.modules[module.__name__]
    sys.modules[module.__name__] = new  # dataclasses look themselves up
    try:
        exec(compile(tree, str(module.__file__), "exec"), new.__dict__)
    finally:
        sys.modules[module.__name__] = loaded
    for name, value in list(vars(module).items()):
        if name.startswith("__") or name not in vars(new):
            continue
        other = vars(new)[name]
        if isinstance(value, _SCALARS):
            _replace(module, name, value, other)
        elif isinstance(value, dict):
            for key in value:
                if not _exchange(value[key], other[key]):
                    value[key] = other[key]
        elif getattr(value, "__module__", module.__name__) == module.__name__:
            _exchange(value, other)
        elif name == "ESTIMATOR":
            _exchange_fields(value, other)
    _remake(module)


def _remake(module: types.ModuleType) -> None:
    """Estimators of other modules that were made with the defaults of the old class."""
    for name, other in list(sys.modules.items()):
        made = vars(other).get("ESTIMATOR") if name.startswith("rlpost.") else None
        if other is not module and type(made).__module__ == module.__name__:
            source = Path(str(other.__file__)).read_text(encoding="utf-8")
            graft(other, ast.parse(source))


def _replace(module: types.ModuleType, name: str, old: Any, new: Any) -> None:
    """Set a constant in the module and in those that imported it."""
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("rlpost") and vars(other).get(name) is old:
            setattr(other, name, new)
    setattr(module, name, new)


def _exchange(old: Any, new: Any) -> bool:
    """Give the new function's code, or the new class's methods', to the old one."""
    if isinstance(old, type):
        for name, member in list(vars(old).items()):
            if name in vars(new):
                for one, other in zip(_codes(member), _codes(vars(new)[name]), strict=True):
                    _exchange(one, other)
        return True
    pairs = list(zip(_codes(old), _codes(new), strict=True))
    for one, other in pairs:
        one.__code__ = other.__code__
        one.__defaults__, one.__kwdefaults__ = other.__defaults__, other.__kwdefaults__
    return bool(pairs)


def _codes(member: Any) -> Iterator[types.FunctionType]:
    """The functions behind a function, a method, a property or a cache."""
    if isinstance(member, types.FunctionType):
        yield member
    elif isinstance(member, classmethod | staticmethod):
        yield member.__func__
    elif isinstance(member, property) and member.fget:
        yield member.fget
    elif isinstance(member, cached_property):
        yield member.func
    elif hasattr(member, "cache_clear"):
        member.cache_clear()
        yield member.__wrapped__


def _exchange_fields(old: Any, new: Any) -> None:
    """Plain fields of a table's entry; its functions have been dealt with."""
    for name, value in list(vars(old).items()):
        if isinstance(value, _SCALARS) and name in vars(new):
            object.__setattr__(old, name, vars(new)[name])
