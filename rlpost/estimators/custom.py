"""Users' estimators: a function in a Python file, or an entry point of a package."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlpost.estimators.base import STRUCTURE, Estimator
from rlpost.estimators.own import OwnEstimator
from rlpost.recipe import own_functions

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

FLAG = "--estimator"


def from_file(name: str) -> OwnEstimator:
    """Return the estimator of `path/to/file.py:function`; raises UsageError if it is none."""
    return as_estimator(own_functions.from_file(name, FLAG), name, name.rpartition(":")[0])


def from_entry_point(point: EntryPoint) -> OwnEstimator:
    """Return the estimator of an entry point, which is an Estimator or a function.

    Raises:
        UsageError: it cannot be imported, or is no estimator.
    """
    return as_estimator(own_functions.from_entry_point(point, FLAG), point.name, point.value)


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
    needed = f"one that names a column, or {' or '.join(STRUCTURE)}"
    shape = "def f(rewards, *, option=1.0): return rewards"
    own_functions.check_parameters(thing, f"{FLAG} {name}", shape, needed)
