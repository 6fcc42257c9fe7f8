"""User-defined estimators: a function in a Python file, or an entry point of a package."""

from __future__ import annotations

import importlib.util
import inspect
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlpost.errors import DataError, UsageError
from rlpost.estimators.base import COMPUTED_RESPONSES, COMPUTED_TOKENS, Estimator
from rlpost.recipe.roles import ROLES, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

    from rlpost.estimators.base import Credit


def from_file(name: str) -> Estimator:
    """Return the estimator of `path/to/file.py:function`.

    Raises:
        UsageError: the file or function does not exist, the file cannot be imported, or a
            positional parameter is not a column of rlpost.
    """
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"--estimator {name}: there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"--estimator {name}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, function):
        hint = closest(function, vars(module))
        raise UsageError(f"--estimator {name}: {path} has no {function!r}{hint}")
    return as_estimator(getattr(module, function), name, str(path))


def from_entry_point(point: EntryPoint) -> Estimator:
    """Return the estimator of an entry point, which is an Estimator or a function.

    Raises:
        UsageError: a positional parameter is not a column of rlpost.
    """
    return as_estimator(point.load(), point.name, point.value)


def as_estimator(thing: Estimator | Callable[..., Any], name: str, source: str) -> Estimator:
    """Return an Estimator; that of a function has the first line of its docstring as formula.

    Raises:
        UsageError: a positional parameter is not a column of rlpost.
    """
    if not isinstance(thing, Estimator):
        formula = (inspect.getdoc(thing) or "").partition("\n")[0]
        thing = Estimator(
            name,
            _guarded(thing, name),
            formula=formula,
            source=source,
            returns="own",
            beyond_steps=True,
            check=partial(_check, name),
        )
    named = {name for name, role in ROLES.items() if role.kind != "text"}
    columns = {*named, *COMPUTED_TOKENS, *COMPUTED_RESPONSES}
    for column in thing.needs:
        if column not in columns:
            raise UsageError(
                f"--estimator {name}: there is no column {column!r}{closest(column, columns)}; "
                "positional parameters must be columns, keyword-only parameters options"
            )
    return thing


def _guarded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function with its exceptions as UsageErrors that name it and the line."""

    @wraps(function)
    def run(*columns: Any, **arguments: Any) -> Any:
        try:
            return function(*columns, **arguments)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            line = f", line {trace.tb_lineno}" if trace is not None else ""
            raise UsageError(f"estimator {name}{line}: {type(error).__name__}: {error}") from error

    return run


def _check(name: str, credit: Credit, columns: Mapping[str, torch.Tensor], recipe: object) -> None:
    """Raise an error if advantages or returns are not finite tensors of the columns' length."""
    size = next(iter(columns.values())).shape[0]
    for part in credit:
        if not isinstance(part, torch.Tensor):
            raise UsageError(
                f"estimator {name} returned {type(part).__name__}; it must return a tensor of "
                "advantages, or a tuple of two tensors: advantages and returns"
            )
        if part.shape != (size,):
            raise UsageError(
                f"estimator {name} returned a tensor of shape {tuple(part.shape)}; it must return "
                f"({size},), one number for each of its input"
            )
        # With `--nonfinite mask` the input may be non-finite; those responses are masked later.
        if getattr(recipe, "nonfinite", "error") == "error" and not torch.isfinite(part).all():
            raise DataError(
                f"estimator {name} returned NaN or infinite numbers for finite input; it must "
                "return finite numbers"
            )
