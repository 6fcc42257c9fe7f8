"""Estimators of users' own: a function in a file, or an entry point of an installed package."""

from __future__ import annotations

import importlib.util
import inspect
from functools import partial, wraps
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlpost.errors import DataError, UsageError
from rlpost.estimators.base import MADE_TOKENS, Estimator
from rlpost.recipe.roles import ROLES, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.estimators.base import Credit


GROUP = "rlpost.estimators"
MADE_ROWS = ("rewards", "tokens", "length", "components", "cohort")


def from_file(name: str) -> Estimator:
    """The estimator `path/to/file.py:function`.

    Raises:
        UsageError: there is no such file or function, it cannot be imported, or it asks for
            columns that rlpost does not know.
    """
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"estimator {name}: there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"estimator {name}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, function):
        hint = closest(function, vars(module))
        raise UsageError(f"estimator {name}: {path} has no {function!r}{hint}")
    return made_of(getattr(module, function), name, str(path))


def installed() -> dict[str, EntryPoint]:
    """Entry points of the group `rlpost.estimators`, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def from_entry_point(point: EntryPoint) -> Estimator:
    """The estimator of an entry point: an Estimator, or a function; raises as `from_file`."""
    return made_of(point.load(), point.name, point.value)


def made_of(thing: Estimator | Callable[..., Any], name: str, source: str) -> Estimator:
    """An Estimator of a function, whose docstring begins with what it computes.

    Raises:
        UsageError: a positional parameter is no column that rlpost knows.
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
    known = {*ROLES, *MADE_TOKENS, *MADE_ROWS}
    for column in thing.needs:
        if column not in known:
            raise UsageError(
                f"estimator {name}: no column {column!r} to read{closest(column, known)}; "
                "positional parameters are columns, keyword-only ones options of the recipe"
            )
    return thing


def _guarded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function with its failures as errors that name it and the line."""

    @wraps(function)
    def run(*args: Any, **knobs: Any) -> Any:
        try:
            return function(*args, **knobs)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            line = f", line {trace.tb_lineno}" if trace is not None else ""
            raise UsageError(f"estimator {name}{line}: {type(error).__name__}: {error}") from error

    return run


def _check(name: str, credit: Credit, columns: Mapping[str, torch.Tensor], knobs: object) -> None:
    """Advantages and returns must be finite tensors, one number for each of the columns'."""
    size = next(iter(columns.values())).shape[0]
    for part in credit:
        if not isinstance(part, torch.Tensor):
            raise UsageError(
                f"estimator {name}: it returned {type(part).__name__}; a torch tensor is needed, "
                "or two of them: advantages and returns"
            )
        if part.shape != (size,):
            raise UsageError(
                f"estimator {name}: it returned {tuple(part.shape)} numbers for {size}; one is "
                "needed for each that came in"
            )
        # With `--nonfinite mask` bad numbers come in, and what they lead to is left out later.
        if getattr(knobs, "nonfinite", "error") == "error" and not torch.isfinite(part).all():
            raise DataError(
                f"estimator {name}: it returned NaN or infinite numbers from finite ones"
            )
