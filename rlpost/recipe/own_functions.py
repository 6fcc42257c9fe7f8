"""Users' functions: in a Python file, or an entry point of an installed package."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError, no_such

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint


def from_file(name: str, flag: str) -> Any:
    """Return what `path/to/file.py:function` names.

    Args:
        name: the path, a colon and the name.
        flag: the option that names it, for errors.

    Raises:
        UsageError: the file or function does not exist, or the file cannot be imported.
    """
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"{flag} {name}: there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{flag} {name}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, function):
        text = f"{flag} {name}: {path} has no {function!r}"
        raise UsageError(no_such(text, function, vars(module)))
    return getattr(module, function)


def from_entry_point(point: EntryPoint, flag: str) -> Any:
    """Return what an entry point names; raises UsageError if it cannot be imported."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{flag} {point.name}: the entry point {point.value} cannot be imported: "
            f"{error!r}; correct the package that installs it, or uninstall it"
        ) from error


def check_parameters(thing: Callable[..., Any], where: str, shape: str, needed: str) -> None:
    """Raise UsageError if the parameters of a function cannot be columns and options.

    Args:
        thing: what the user named.
        where: the option and the name, for errors.
        shape: an example of a function.
        needed: what a function without columns lacks.
    """
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(
            f"{where}: is of type {type(thing).__name__}; a Python function is needed, such as "
            f"`{shape}`"
        ) from None
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "is positional-only; leave out the `/` behind it",
        inspect.Parameter.VAR_POSITIONAL: "stands for any number of columns; name each column",
        inspect.Parameter.VAR_KEYWORD: "stands for any number of options; name each option",
    }
    for one in parameters:
        if one.kind in kinds:
            raise UsageError(f"{where}: parameter `{one}` {kinds[one.kind]}, as in `{shape}`")
    if all(one.kind is one.KEYWORD_ONLY for one in parameters):
        raise UsageError(f"{where}: has no positional parameter; {needed} is needed: `{shape}`")


def line_of(error: Exception, function: Callable[..., Any]) -> str:
    """Return the line of an exception in the function's file, as `, line N`; or nothing."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    trace, line = error.__traceback__, ""
    while trace is not None:
        if code is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
