"""Patch of a loaded module with a mutant, also in the modules that imported from it."""

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


def patch_module(module: types.ModuleType, tree: ast.Module) -> None:
    """Execute a mutated module, and copy its code and constants into the loaded one.

    Function objects stay the same and get the mutated code and defaults. So names that other
    modules imported change too.
    """
    new = types.ModuleType(module.__name__)
    new.__dict__.update({"__file__": module.__file__, "__name__": module.__name__})
    loaded = sys.modules[module.__name__]
    sys.modules[module.__name__] = new  # a dataclass looks up its own module
    try:
        exec(compile(tree, str(module.__file__), "exec"), new.__dict__)
    finally:
        sys.modules[module.__name__] = loaded
    for name, value in list(vars(module).items()):
        if name.startswith("__") or name not in vars(new):
            continue
        other = vars(new)[name]
        if isinstance(value, _SCALARS):
            _replace_constant(module, name, value, other)
        elif isinstance(value, dict):
            for key in value:
                if not _copy_code(value[key], other[key]):
                    value[key] = other[key]
        elif getattr(value, "__module__", module.__name__) == module.__name__:
            _copy_code(value, other)
        elif name == "ESTIMATOR":
            _copy_fields(value, other)
    _rebuild_estimators(module)


def _rebuild_estimators(module: types.ModuleType) -> None:
    """Rebuild estimators of other modules whose class is in the patched module."""
    for name, other in list(sys.modules.items()):
        estimator = vars(other).get("ESTIMATOR") if name.startswith("rlpost.") else None
        if other is not module and type(estimator).__module__ == module.__name__:
            source = Path(str(other.__file__)).read_text(encoding="utf-8")
            patch_module(other, ast.parse(source))


def _replace_constant(module: types.ModuleType, name: str, old: Any, new: Any) -> None:
    """Set a constant in its module and in the modules that imported it."""
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("rlpost") and vars(other).get(name) is old:
            setattr(other, name, new)
    setattr(module, name, new)


def _copy_code(old: Any, new: Any) -> bool:
    """Copy the code of a function, or of a class's methods, to the old one; False if neither."""
    if isinstance(old, type):
        for name, member in list(vars(old).items()):
            if name in vars(new):
                for target, source in zip(
                    _functions(member), _functions(vars(new)[name]), strict=True
                ):
                    _copy_code(target, source)
        return True
    pairs = list(zip(_functions(old), _functions(new), strict=True))
    for target, source in pairs:
        target.__code__ = source.__code__
        target.__defaults__, target.__kwdefaults__ = source.__defaults__, source.__kwdefaults__
    return bool(pairs)


def _functions(member: Any) -> Iterator[types.FunctionType]:
    """Yield the function inside a function, a class method, a property or a cached function."""
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


def _copy_fields(old: Any, new: Any) -> None:
    """Copy the plain fields of an estimator; its functions are patched already."""
    for name, value in list(vars(old).items()):
        if isinstance(value, _SCALARS) and name in vars(new):
            object.__setattr__(old, name, vars(new)[name])
