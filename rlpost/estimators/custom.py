"""Where users' estimators are: a function in a Python file, or an entry point of a package."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError, no_such
from rlpost.estimators.base import STRUCTURE, Estimator
from rlpost.estimators.own import OwnEstimator

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint


def from_file(name: str) -> OwnEstimator:
    """Return the estimator of `path/to/file.py:function`.

    Raises:
        UsageError: the file or function does not exist, the file cannot be imported, or the
            function is no estimator.
    """
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise UsageError(f"--estimator {name}: there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--estimator {name}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, function):
        text = f"--estimator {name}: {path} has no {function!r}"
        raise UsageError(no_such(text, function, vars(module)))
    return as_estimator(getattr(module, function), name, str(path))


def from_entry_point(point: EntryPoint) -> OwnEstimator:
    """Return the estimator of an entry point, which is an Estimator or a function.

    Raises:
        UsageError: it cannot be imported, or is no estimator.
    """
    try:
        thing = point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"--estimator {point.name}: the entry point {point.value} cannot be imported: "
            f"{error!r}; correct the package that installs it, or uninstall it"
        ) from error
    return as_estimator(thing, point.name, point.value)


def as_estimator(thing: Estimator | Callable[..., Any], name: str, source: str) -> OwnEstimator:
    """Return an Estimator; that of a function has the first line of its docstring as formula.

    Raises:
        UsageError: it is no function, or has parameters that cannot be columns or options.
    """
    if not isinstance(thing, Estimator):
        formula = (inspect.getdoc(thing) or "").partition("\n")[0]
        _check_parameters(thing, name)
        return OwnEstimator(
            name, thing, formula=formula, source=source, returns="own", beyond_steps=True
        )
    for function in filter(None, (thing.function, thing.rewards, thing.token_weights)):
        _check_parameters(function, name)
    return OwnEstimator(**vars_of(thing))


def vars_of(estimator: Estimator) -> dict[str, Any]:
    """Return the fields of an estimator."""
    return {one: getattr(estimator, one) for one in Estimator.__dataclass_fields__}


def _check_parameters(thing: Callable[..., Any], name: str) -> None:
    """Raise UsageError if the parameters of a function cannot be columns and options."""
    shape = "def f(rewards, *, option=1.0): return rewards"
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(
            f"--estimator {name}: is of type {type(thing).__name__}; a Python function is needed, "
            f"such as `{shape}`"
        ) from None
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "is positional-only; leave out the `/` behind it",
        inspect.Parameter.VAR_POSITIONAL: "stands for any number of columns; name each column",
        inspect.Parameter.VAR_KEYWORD: "stands for any number of options; name each option",
    }
    for one in parameters:
        if one.kind in kinds:
            raise UsageError(
                f"--estimator {name}: parameter `{one}` {kinds[one.kind]}, as in `{shape}`"
            )
    columns = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    if not columns:
        needed = f"one that names a column is needed, or {' or '.join(STRUCTURE)}"
        raise UsageError(f"--estimator {name}: has no positional parameter; {needed}: `{shape}`")
