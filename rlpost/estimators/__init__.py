"""The estimators by family, all in the table ESTIMATORS."""

from __future__ import annotations

from rlpost.errors import OptionValueError, UsageError
from rlpost.estimators import groups, own, returns, turns
from rlpost.estimators.base import Credit, Estimator
from rlpost.recipe.estimators import NAMES, check_name, installed
from rlpost.recipe.functions import from_entry_point, from_file

_ENTRIES = {entry.name: entry for family in (returns, groups, turns) for entry in family.ESTIMATORS}
ESTIMATORS: dict[str, Estimator] = {name: _ENTRIES[name] for name in NAMES}


def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name, of `path/to/file.py:function` or of an entry point.

    Raises:
        UsageError: there is no such estimator (with the closest names), or it is not valid.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if ":" in name:
        return own.as_estimator(from_file(name, own.FLAG), name, name.rpartition(":")[0])
    try:
        point = installed()[check_name(name)]
    except OptionValueError as error:
        raise UsageError(error.part) from None
    return own.as_estimator(from_entry_point(point, own.FLAG), name, point.value)


__all__ = ["ESTIMATORS", "Credit", "Estimator", "estimator_named"]
