"""Estimators: one file each, all in the table ESTIMATORS."""

from __future__ import annotations

from rlpost.errors import UsageError
from rlpost.estimators import dr_grpo, gae, grpo, raw, reinforce, reinforce_pp, rloo
from rlpost.estimators.base import Credit, Estimator
from rlpost.schema import closest

ESTIMATORS: dict[str, Estimator] = {
    "gae": gae.ESTIMATOR,
    "reinforce": reinforce.ESTIMATOR,
    "grpo": grpo.ESTIMATOR,
    "dr_grpo": dr_grpo.ESTIMATOR,
    "rloo": rloo.ESTIMATOR,
    "reinforce_pp": reinforce_pp.ESTIMATOR,
    "raw": raw.ESTIMATOR,
}


def estimator_named(name: str) -> Estimator:
    """The estimator of this name; raises UsageError with the nearest names if there is none."""
    if name not in ESTIMATORS:
        hint = closest(name, ESTIMATORS) or f"; there are {', '.join(ESTIMATORS)}"
        raise UsageError(f"no estimator {name!r}{hint}")
    return ESTIMATORS[name]


__all__ = ["ESTIMATORS", "Credit", "Estimator", "estimator_named"]
